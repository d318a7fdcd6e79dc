"""Files that a trial makes: fetched from it while its report is held back.

These are the prepared files, and the chosen candidate of other precision. Without the former a
model starts more slowly; without the latter the report describes a model that does not exist.

The trial may run foreign code: its description and the sizes of its files are validated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from pool_manager.core import events
from pool_manager.core.state import Replica
from pool_manager.ports import Binding, Bundles
from pool_manager.replicas.file_transfer import (
    EXIT_S,
    NotFetched,
    OpenReader,
    PartReader,
    fetched_or_why_not,
)
from pool_manager.replicas.messages import number, text
from pool_manager.replicas.precision_reports import REPORTED, optimised
from pool_manager.replicas.relay import Emit
from registry.model.bundles import BundleFile
from registry.model.profiles import Optimised, Prepared, SessionTimes
from registry.tasks import Tasks
from runtime_image.contract.model import (
    DESCRIPTION_MAX,
    FOLDER,
    GRAPH_FILE,
    PREPARES,
    WEIGHTS_FILE,
    ModelSpec,
    Part,
    Preparation,
    SessionPlan,
    files_max,
    patience_s,
)
from runtime_image.link.frames import LinkError

TEXT_MAX: Final = 1000
KEY_MAX: Final = 200
SIZES_MAX: Final = 16
"""Max batch sizes with which one kind of session is measured."""
PREPARED_MODEL: Final = f"{FOLDER}/{GRAPH_FILE}"


log = structlog.get_logger()

PREPARED = "prepared"
WHY_NOT = "why_not_prepared"
"""Keys added to a report: a `Prepared` or None, and the reason for None."""
OPTIMISED = "optimised"
"""Key added to a report: an `Optimised`, if candidates of other precision were wanted."""
STAGE: Final = "optimise"
"""Stage of a trial that failed because its chosen candidate could not be fetched."""


class TrialFiles:
    """The files of one trial, which answers when it has made them; there is no time limit here.
    Methods raise LinkError on a malformed answer, OSError if the trial is gone, FnError if the
    files cannot be stored."""

    def __init__(self, reader: PartReader, bundles: Bundles, binding: Binding) -> None:
        self._reader = reader
        self._bundles = bundles
        self._binding = binding

    async def candidate(self, optimised: Optimised) -> Optimised:
        """Fetch the chosen candidate; the original is no file of the trial."""
        if optimised.file is None:
            return optimised
        file = await self._reader.keep(Part.OPTIMISED, optimised.file, self._bundles)
        return replace(optimised, file=file)

    async def prepared(self, served: str) -> Prepared | str:
        """Fetch the prepared model; return it, or the reason why there is none. `served` is the
        path of the model that was prepared."""
        assert isinstance(self._binding.spec, ModelSpec), "only models are prepared"
        model, bundle_bytes = self._binding.spec.model, self._binding.bundle.size
        prepared = described(await self._reader.description(), model, bundle_bytes, served)
        if isinstance(prepared, str):
            return prepared
        files = []
        for file in prepared.files:
            part = Part.GRAPH if file.path == PREPARED_MODEL else Part.WEIGHTS
            files.append(await self._reader.keep(part, file, self._bundles))
        return replace(prepared, files=tuple(files))


def described(data: bytes, model: str, bundle_bytes: int, served: str = "") -> Prepared | str:
    """Parse the description of a prepared model; return the model (files still without hashes), or
    the reason why nothing was prepared. `model` is the path of the bundle's model, `served` that of
    the file that was prepared, "" for the same. Raises LinkError on a malformed description.

    Only numbers, flags and the key are taken from it; file names are chosen by this server.
    """
    if len(data) > DESCRIPTION_MAX:
        raise LinkError(f"expected at most {DESCRIPTION_MAX} bytes of description, got {len(data)}")
    try:
        said = json.loads(data)
        if said["why_not"] != "":
            return text(said["why_not"], TEXT_MAX)
        preparation = said["preparation"]
        fast = preparation["fast"]
        return Prepared(
            model=model,
            preparation=Preparation(
                text(preparation["key"], KEY_MAX),
                _plan(preparation["quick"], (PREPARED_MODEL,)),
                _plan(fast, (PREPARED_MODEL, served or model)) if fast else None,
            ),
            files=_files(said["sizes"], files_max(bundle_bytes)),
            original=_times(said["original"]),
            quick=_times(said["quick"]),
            fast=_times(said["fast"]) if fast else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LinkError(f"malformed description of a prepared model: {error!r}"[:300]) from error


def _plan(data: dict[str, Any], files: tuple[str, ...]) -> SessionPlan:
    if data["file"] not in files:
        raise ValueError(f"file: expected one of {files}, got {str(data['file'])[:80]!r}")
    return SessionPlan(
        files[files.index(data["file"])], bool(data["optimise"]), bool(data["prepack"])
    )


def _files(sizes: list[Any], bytes_max: int) -> tuple[BundleFile, ...]:
    graph, weights = sizes
    if not (type(graph) is int and type(weights) is int and graph > 0 and weights >= 0):
        raise ValueError(f"sizes: expected two numbers of bytes, got {str(sizes)[:80]}")
    if graph + weights > bytes_max:
        raise ValueError(f"sizes: expected at most {bytes_max} bytes, got {graph + weights}")
    named = ((PREPARED_MODEL, graph), (f"{FOLDER}/{WEIGHTS_FILE}", weights))
    return tuple(BundleFile(path, size, "") for path, size in named if size)


def _times(data: dict[str, Any]) -> SessionTimes:
    sizes = dict(sorted(data["cpu_ms"].items())[:SIZES_MAX])
    cpu_ms = {int(rows): number(ms) for rows, ms in sizes.items()}
    return SessionTimes(number(data["load_ms"]), number(data["first_ms"]), cpu_ms)


@dataclass(slots=True)
class _Held:
    """A report that is held back. `optimised` is set if candidates were wanted; `is_stored` becomes
    True once its file is stored, `prepares` says whether the trial prepares its model."""

    loaded: events.Loaded
    binding: Binding
    prepares: bool
    optimised: Optimised | None
    is_stored: bool
    work: asyncio.Task[None] | None = None

    @property
    def served(self) -> str:
        """Path of the model that the trial measured and prepares."""
        file = self.optimised.file if self.optimised else None
        assert isinstance(self.binding.spec, ModelSpec)
        return file.path if file else self.binding.spec.model


class _Fetched(NamedTuple):
    """The prepared model, or the reason why there is none; None if none was wanted."""

    prepared: Prepared | str | None


class PreparedFetcher:
    """Event stage that holds back the reports of trials that have files to send.

    A report is emitted once the files are stored, storing has failed, or the time limit has passed.
    If the trial ends earlier, its report is emitted before its end, so its measurements count in
    any case. But a trial whose chosen candidate is not stored fails: its measurements are those of
    that candidate.
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
        self.limit_s = patience_s
        """Returns the time limit in seconds from the bytes of the bundle."""
        self.exit_s = EXIT_S
        self._held: dict[str, _Held] = {}

    def emit(self, event: events.Event) -> None:
        """Emit `event`; the report of a trial that has files to send is emitted later."""
        if isinstance(event, events.Loaded) and (spec := self._trial_of(event.id)):
            self._on_report(event, *spec)
            return
        if isinstance(event, events.Lost | events.Released) and event.id in self._held:
            held = self._held[event.id]
            if held.work is not None:
                held.work.cancel()
            if held.is_stored:
                reason = event.reason if isinstance(event, events.Lost) else "it was stopped"
                self._emit_report(event.id, f"its trial ended while it was prepared: {reason}")
            else:
                del self._held[event.id]
        self._emit(event)

    def _trial_of(self, id: str) -> tuple[ModelSpec, Binding] | None:
        """Return the binding of a trial, None for any other replica, which may not make the server
        store files."""
        replica = self._find(id)
        if replica is None or replica.role != "trial":
            return None
        binding = self._bindings.get(replica.pool)
        if binding is None or not isinstance(binding.spec, ModelSpec):
            return None
        return binding.spec, binding

    def _on_report(self, event: events.Loaded, spec: ModelSpec, binding: Binding) -> None:
        """Hold a report back if there are files to fetch, else emit it."""
        found: Optimised | None = None
        if spec.optimise is not None and spec.optimise.precision != "fp32":
            try:
                said = event.report.get(REPORTED)
                found = optimised(said, spec.optimise, spec.model, binding.bundle.size)
            except LinkError as error:
                self._emit(events.Lost(event.id, str(error), stage=STAGE))
                return
        prepares = spec.prepare and event.report.get(PREPARES) is True
        is_stored = found is None or found.file is None
        held = self._held[event.id] = _Held(event, binding, prepares, found, is_stored)
        if is_stored and not prepares:
            self._emit_report(event.id, None)
        else:
            held.work = self._tasks.spawn(f"fetch from {event.id}", self._fetch(event.id, held))

    def _emit_report(self, id: str, prepared: Prepared | str | None) -> None:
        """Emit a held report, unless the end of the replica or of the fetch has already done so.
        `prepared` is None if nothing was to be prepared."""
        if id not in self._held:
            return
        held = self._held.pop(id)
        why_not = prepared if isinstance(prepared, str) else ""
        if why_not:
            # The deploy's answer has it.
            log.debug("a model is not prepared", replica=id, reason=why_not)
        report = dict(held.loaded.report)
        if held.prepares:
            report |= {PREPARED: None if why_not else prepared, WHY_NOT: why_not}
        if held.optimised is not None:
            report[OPTIMISED] = held.optimised
        self._emit(replace(held.loaded, report=report) if report else held.loaded)

    def _give_up(self, id: str, reason: str) -> None:
        """Emit the report without prepared files, or the trial's failure if the chosen candidate is
        missing."""
        held = self._held.get(id)
        if held is None or held.is_stored:
            self._emit_report(id, reason)
            return
        del self._held[id]
        assert held.optimised is not None
        chosen = held.optimised.table["chosen"]
        self._emit(events.Lost(id, f"its {chosen} model is missing: {reason}", stage=STAGE))

    async def _fetch(self, id: str, held: _Held) -> None:
        limit_s = self.limit_s(held.binding.bundle.size)
        work = partial(self._fetched, id, held)
        fetched = await fetched_or_why_not(id, work, limit_s, self.exit_s)
        if isinstance(fetched, NotFetched):
            self._give_up(id, fetched.reason)
        else:
            self._emit_report(id, fetched.prepared)

    async def _fetched(self, id: str, held: _Held) -> _Fetched:
        """Fetch and store all files of a trial: the candidate first, as a preparation may kill the
        trial."""
        async with self._open_reader(id) as reader:
            files = TrialFiles(reader, self._bundles, held.binding)
            if held.optimised is not None:
                held.optimised = await files.candidate(held.optimised)
                held.is_stored = True
            return _Fetched(await files.prepared(held.served) if held.prepares else None)
