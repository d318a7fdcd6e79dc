"""Compiled models: fetched from a build while its report is held back.

The build may run foreign code. The order of its ranges and limits is this server's; of its
description, names, sizes and hashes are checked strictly, figures and texts have limits.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final, NamedTuple, cast, get_args

import structlog

from pool_manager.builds import BUILT, PARITY, WHY_NOT, Fetched
from pool_manager.core import events
from pool_manager.core.state import BUILD_S, Replica
from pool_manager.ports import Binding, Bundles
from pool_manager.replicas.file_transfer import (
    EXIT_S,
    NotFetched,
    OpenReader,
    PartReader,
    fetched_or_why_not,
)
from pool_manager.replicas.messages import count, number, text
from pool_manager.replicas.relay import Emit
from registry.model.bundles import BundleFile
from registry.tasks import Tasks
from runtime_image.contract.compiled import (
    COMPILED_PART,
    FILES_MAX,
    FOLDER,
    TIMING_CACHE,
    BuildDescribed,
    BuildOrder,
    CompiledFile,
    CompiledModel,
    Form,
    OutputParity,
    compiled_from_json,
)
from runtime_image.contract.model import (
    DESCRIPTION_MAX,
    PREPARES,
    ModelSpec,
    files_max,
    patience_s,
)
from runtime_image.link.frames import LinkError

log = structlog.get_logger()

TEXT_MAX: Final = 1000
KEY_MAX: Final = 500
OUTPUTS_MAX: Final = 64
"""Max outputs of which the agreement is kept."""
SIZES_MAX: Final = 16
"""Max batch sizes with which a session is measured."""
DIFFERENCE_MAX: Final = 1e30
"""Bound of a difference; replicas state it where outputs cannot be compared."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""File names that a compiler may choose: a provider looks for its cache by them."""
SHA256: Final = re.compile(r"[0-9a-f]{64}")
_FIGURES: Final = ("build_s", "load_ms", "memory_mib")
_TIMES: Final = ("ordinary_ms", "compiled_ms")
_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError)
"""What parsing raises; ArithmeticError for JSON's Infinity as a whole number."""


STAGE: Final = "build"
"""Stage of a build whose files are not those that it described."""


class Refusal(NamedTuple):
    """Why a build has no compiled model, and the agreement of its outputs if that was measured."""

    reason: str
    parity: list[OutputParity]


async def fetch(reader: PartReader, bundles: Bundles, binding: Binding) -> Fetched | Refusal:
    """Fetch the compiled model of a build and store its files, or return why there is none.

    Raises LinkError on a malformed answer, also if a file is not the described one, OSError if the
    build is gone, FnError if the files cannot be stored.
    """
    order = binding.spec.build if isinstance(binding.spec, ModelSpec) else None
    if order is None:
        raise LinkError("expected a build that was ordered")
    said = described(await reader.description(), order, binding.bundle.size)
    if isinstance(said, Refusal):
        return said
    description, compiled = said
    files = []
    for index, one in enumerate(compiled.files):
        announced = BundleFile(f"{FOLDER}/{one.name}", one.size, "")
        file = await reader.keep(COMPILED_PART + index, announced, bundles)
        if file.sha256 != one.sha256:
            raise LinkError(f"{one.name}: expected sha256 {one.sha256}, got {file.sha256}")
        files.append(file)
    return Fetched(description, compiled, tuple(files))


def described(
    data: bytes, order: BuildOrder, bundle_bytes: int
) -> tuple[BuildDescribed, CompiledModel] | Refusal:
    """Parse the description of a build; return it with known keys only, and the compiled model, or
    why there is none. Raises LinkError on a malformed description, and on a model that was not
    compiled as `order` says."""
    if len(data) > DESCRIPTION_MAX:
        raise LinkError(f"expected at most {DESCRIPTION_MAX} bytes of description, got {len(data)}")
    try:
        said = json.loads(data)
        parity = [_parity(one) for one in said.get("parity", [])]
        if said["why_not"] != "":
            return Refusal(text(said["why_not"], TEXT_MAX), parity[:OUTPUTS_MAX])
        _check_agreement(parity, order)
        compiled = compiled_from_json(said["compiled"])
        _check(compiled, order, files_max(bundle_bytes))
        found = BuildDescribed(why_not="", compiled=asdict(compiled), parity=parity[:OUTPUTS_MAX])
        found["timing_key"] = _key(said.get("timing_key", ""))
        found["samples"] = count(said.get("samples", 0))
        figures: dict[str, Any] = {name: number(said[name]) for name in _FIGURES if name in said}
        figures |= {name: _times(said[name]) for name in _TIMES if name in said}
        found.update(cast("BuildDescribed", figures))
    except (*_MALFORMED, RecursionError) as error:
        raise LinkError(f"malformed description of a build: {error!r}"[:300]) from error
    return found, compiled


def _check(compiled: CompiledModel, order: BuildOrder, bytes_max: int) -> None:
    """Raise ValueError unless a model is compiled as ordered, and its files may be stored."""
    _key(compiled.key)
    as_ordered = order.compiler, order.ranges, order.keeps_ordinary
    if (compiled.compiler, compiled.ranges, compiled.keeps_ordinary) != as_ordered:
        raise ValueError("compiled: expected compiler, ranges and keeps_ordinary of the order")
    if not compiled.key or compiled.form not in get_args(Form):
        raise ValueError(f"compiled: expected a key and a form, got {str(compiled.form)[:80]!r}")
    if not 1 <= len(compiled.files) <= FILES_MAX:
        raise ValueError(f"files: expected 1 to {FILES_MAX}, got {len(compiled.files)}")
    _check_files(compiled.files, bytes_max)


def _check_files(files: tuple[CompiledFile, ...], bytes_max: int) -> None:
    for file in files:
        if not (isinstance(file.name, str) and NAME.fullmatch(file.name)):
            raise ValueError(f"files: expected a plain name, got {str(file.name)[:80]!r}")
        if type(file.size) is not int or file.size <= 0:
            raise ValueError(f"{file.name}: expected a size, got {str(file.size)[:80]!r}")
        if not (isinstance(file.sha256, str) and SHA256.fullmatch(file.sha256)):
            raise ValueError(f"{file.name}: expected a sha256, got {str(file.sha256)[:80]!r}")
    if len({file.name.casefold() for file in files}) < len(files):
        raise ValueError("files: expected different names")
    if files[0].name == TIMING_CACHE:
        raise ValueError("files: expected a model first, got a timing cache")
    if (total := sum(file.size for file in files)) > bytes_max:
        raise ValueError(f"files: expected at most {bytes_max} bytes in all, got {total}")


def _check_agreement(parity: list[OutputParity], order: BuildOrder) -> None:
    """Raise ValueError unless outputs were compared, and all agree within the order's tolerance:
    the replica's own verdict is not relied on."""
    if not parity:
        raise ValueError("parity: expected the agreement of the outputs, got none")
    worst = max(parity, key=lambda one: one["relative_difference"])
    if worst["relative_difference"] > order.tolerance:
        raise ValueError(
            f"parity: expected a relative difference of at most {order.tolerance}, got"
            f" {worst['relative_difference']} of {worst['output']}"
        )


def _parity(data: dict[str, Any]) -> OutputParity:
    return OutputParity(
        output=text(data["output"], TEXT_MAX),
        largest_difference=_difference(data["largest_difference"]),
        relative_difference=_difference(data["relative_difference"]),
        cosine=_cosine(data["cosine"]),
    )


def _difference(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"parity: expected a difference, got {str(value)[:80]!r}")
    return float(min(value, DIFFERENCE_MAX))


def _cosine(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1.001:
        raise ValueError(f"parity: expected a cosine, got {str(value)[:80]!r}")
    return float(max(-1.0, min(1.0, value)))


def _key(value: Any) -> str:
    if not isinstance(value, str) or len(value) > KEY_MAX or not (value.isprintable()):
        raise ValueError(f"key: expected at most {KEY_MAX} characters, got {str(value)[:80]!r}")
    return value


def _times(data: dict[str, Any]) -> dict[str, float]:
    return {str(count(int(rows))): number(ms) for rows, ms in list(data.items())[:SIZES_MAX]}


class BuildFetcher:
    """Event stage that holds back the reports of builds until their files are stored.

    A report is then emitted with what was fetched, or with the reason why there is no compiled
    model. If the build ends earlier, its report is dropped: its end is the result.
    """

    def __init__(
        self,
        emit: Emit,
        bundles: Bundles,
        tasks: Tasks,
        find: Callable[[str], Replica | None],
        bindings: Mapping[str, Binding],
        open_reader: OpenReader,
    ) -> None:
        """`find` returns a replica by id; `bindings` are by pool key."""
        self._emit = emit
        self._bundles = bundles
        self._tasks = tasks
        self._find = find
        self._bindings = bindings
        self._open_reader = open_reader
        self.limit_s: Callable[[int], float] = lambda size: BUILD_S + patience_s(size)
        """Returns the time limit in seconds from the bytes of the bundle."""
        self.exit_s = EXIT_S
        self._fetches: dict[str, asyncio.Task[None]] = {}

    def emit(self, event: events.Event) -> None:
        """Emit `event`; the report of a build is emitted later."""
        if isinstance(event, events.Loaded) and (binding := self._ordered(event.id)):
            work = self._fetch(event, binding)
            self._fetches[event.id] = self._tasks.spawn(f"fetch from {event.id}", work)
            return
        if isinstance(event, events.Lost | events.Released):
            fetch = self._fetches.pop(event.id, None)
            if fetch is not None:
                fetch.cancel()
        self._emit(event)

    def _ordered(self, id: str) -> Binding | None:
        """Return the binding of a build, None for any other replica, which may not make the server
        store files."""
        replica = self._find(id)
        if replica is None or replica.role != "build":
            return None
        return self._bindings.get(replica.pool)

    async def _fetch(self, event: events.Loaded, binding: Binding) -> None:
        work = partial(self._fetched, event, binding)
        limit_s = self.limit_s(binding.bundle.size)
        fetched = await fetched_or_why_not(event.id, work, limit_s, self.exit_s)
        if self._fetches.pop(event.id, None) is None:
            return
        match fetched:
            case NotFetched():
                is_fault = not fetched.is_accident
                stage = STAGE if is_fault else ""
                self._emit(events.Lost(event.id, fetched.reason, (), stage, is_fault))
            case Refusal():
                log.info("a model is not compiled", replica=event.id, reason=fetched.reason)
                report = {BUILT: None, WHY_NOT: fetched.reason, PARITY: fetched.parity}
                self._emit(replace(event, report=report))
            case Fetched():
                self._emit(replace(event, report={BUILT: fetched}))

    async def _fetched(self, event: events.Loaded, binding: Binding) -> Fetched | Refusal:
        if event.report.get(PREPARES) is not True:
            raise LinkError("it reported no build")
        async with self._open_reader(event.id) as reader:
            return await fetch(reader, self._bundles, binding)
