"""Prepared models: fetched from the trial while its report is held back.

The trial may run foreign code: its description and the sizes of its files are validated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from pool_manager.core import events
from pool_manager.core.state import Replica
from pool_manager.ports import Binding, Bundles
from pool_manager.replicas.messages import is_number, text
from pool_manager.replicas.relay import Emit
from registry.errors import FnError
from registry.model import LOCAL_HOST, BundleFile, Prepared, SessionTimes
from registry.tasks import Tasks
from runtime_image.contract.control import DATA_SOCKET
from runtime_image.contract.link import Kind
from runtime_image.contract.model import (
    DESCRIPTION_MAX,
    FOLDER,
    GRAPH_FILE,
    PART_MAX,
    PREPARES,
    WEIGHTS_FILE,
    ModelSpec,
    Part,
    Preparation,
    SessionPlan,
    files_max,
    patience_s,
)
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack

TEXT_MAX: Final = 1000
KEY_MAX: Final = 200
SIZES_MAX: Final = 16
"""Max batch sizes with which one kind of session is measured."""
PREPARED_MODEL: Final = f"{FOLDER}/{GRAPH_FILE}"


log = structlog.get_logger()

PREPARED = "prepared"
WHY_NOT = "why_not_prepared"
"""Keys added to a report: a `Prepared` or None, and the reason for None."""
EXIT_S: Final = 3.0
"""Longest expected time between the end of a trial's connection and the event of its end."""


async def fetch(path: Path, bundles: Bundles, binding: Binding) -> Prepared | str:
    """Fetch the prepared model of the trial that listens at `path`, and store its files in
    `bundles`. Return the model, or the reason why there is none.

    The trial answers when it has finished; there is no time limit here. Raises LinkError on a
    malformed answer, OSError if the trial is gone, FnError if the files cannot be stored.
    """
    assert isinstance(binding.spec, ModelSpec), "only models are prepared"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        await asyncio.get_running_loop().sock_connect(sock, str(path))
        asking = _Asking(sock)
        description = b""
        async with contextlib.aclosing(asking.parts(Part.DESCRIPTION, None)) as parts:
            async for part in parts:
                description = bytes(part)
        prepared = described(description, binding.spec.model, binding.bundle.size)
        if isinstance(prepared, str):
            return prepared
        files = [await _keep(asking, bundles, file) for file in prepared.files]
    return replace(prepared, files=tuple(files))


async def _keep(asking: _Asking, bundles: Bundles, file: BundleFile) -> BundleFile:
    part = Part.GRAPH if file.path == PREPARED_MODEL else Part.WEIGHTS
    async with contextlib.aclosing(asking.parts(part, file.size)) as parts:
        return replace(file, sha256=await bundles.keep(file.size, parts))


class _Asking:
    """Sequential requests for parts of a prepared model over one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader(PART_MAX)
        self._frames: deque[Frame] = deque()

    async def parts(self, part: Part, size: int | None) -> AsyncGenerator[bytes | bytearray, None]:
        """Send FETCH and yield the answer: `size` bytes in parts of PART_MAX (the last one may be
        smaller), or one part of any size if `size` is None. Raises LinkError on other answers."""
        question = b"".join(pack(Kind.FETCH, part + 1, aux=part))
        await asyncio.get_running_loop().sock_sendall(self._sock, question)
        if size is None:
            yield await self._body(part, Kind.PART)
        left = size or 0
        while left:
            body = await self._body(part, Kind.PART)
            if len(body) != min(PART_MAX, left):
                raise LinkError(f"expected a part of {min(PART_MAX, left)} bytes, got {len(body)}")
            left -= len(body)
            yield body
        if await self._body(part, Kind.END):
            raise LinkError("END has a body")

    async def _body(self, part: Part, kind: Kind) -> bytes | bytearray:
        while not self._frames:
            buffer = self._reader.buffer()
            count = await asyncio.get_running_loop().sock_recv_into(self._sock, buffer)
            if not count:
                raise ConnectionResetError("the trial closed the connection")
            self._frames.extend(self._reader.received(count))
        frame = self._frames.popleft()
        if frame.kind is not kind or frame.id != part + 1:
            raise LinkError(f"expected {kind.name} {part + 1}, got {frame.kind.name} {frame.id}")
        return frame.body


def described(data: bytes, model: str, bundle_bytes: int) -> Prepared | str:
    """Parse the description of a prepared model; return the model (files still without hashes), or
    the reason why nothing was prepared. `model` is the path of the original model. Raises LinkError
    on a malformed description.

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
                _plan(fast, (PREPARED_MODEL, model)) if fast else None,
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
    cpu_ms = {int(rows): _number(ms) for rows, ms in sizes.items()}
    return SessionTimes(_number(data["load_ms"]), _number(data["first_ms"]), cpu_ms)


def _number(value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"expected a number of milliseconds, got {str(value)[:80]!r}")
    return float(value)


class PreparedFetcher:
    """Event stage that holds back the reports of trials that prepare their model.

    A report is emitted once the prepared files are stored, storing has failed, or the time limit
    has passed. If the trial ends earlier, its report is emitted before its end, so its measurements
    count in any case.
    """

    def __init__(
        self,
        emit: Emit,
        bundles: Bundles,
        tasks: Tasks,
        run_dir: Path,
        find: Callable[[str], Replica | None],
        bindings: Mapping[str, Binding],
    ) -> None:
        """`run_dir` contains the folders of the replicas' sockets; `find` returns a replica by id;
        `bindings` are by pool key."""
        self._emit = emit
        self._bundles = bundles
        self._tasks = tasks
        self._run_dir = run_dir
        self._find = find
        self._bindings = bindings
        self.limit_s = patience_s
        """Returns the time limit in seconds from the bytes of the bundle."""
        self.exit_s = EXIT_S
        self._held: dict[str, tuple[events.Loaded, asyncio.Task[None]]] = {}

    def emit(self, event: events.Event) -> None:
        """Emit `event`; the report of a trial that prepares its model is emitted later."""
        if isinstance(event, events.Loaded) and event.report.get(PREPARES) is True:
            binding = self._preparing(event.id)
            if binding is not None:
                work = self._fetch(event.id, binding)
                self._held[event.id] = event, self._tasks.spawn(f"fetch from {event.id}", work)
                return
        elif isinstance(event, events.Lost | events.Released) and event.id in self._held:
            self._held[event.id][1].cancel()
            reason = event.reason if isinstance(event, events.Lost) else "it was stopped"
            self._emit_report(event.id, f"its trial ended while it was prepared: {reason}")
        self._emit(event)

    def _preparing(self, id: str) -> Binding | None:
        """Return the binding of a trial that was asked to prepare its model, else None. No other
        replica may make the server store files."""
        replica = self._find(id)
        if replica is None or replica.role != "trial":
            return None
        binding = self._bindings.get(replica.pool)
        spec = binding.spec if binding is not None else None
        return binding if isinstance(spec, ModelSpec) and spec.prepare else None

    def _emit_report(self, id: str, prepared: Prepared | str) -> None:
        """Emit a held report, unless the end of the replica or of the fetch has already done so."""
        if id not in self._held:
            return
        loaded, _ = self._held.pop(id)
        why_not = prepared if isinstance(prepared, str) else ""
        if why_not:
            log.info("a model is not prepared", replica=id, reason=why_not)
        found = None if why_not else prepared
        self._emit(replace(loaded, report={**loaded.report, PREPARED: found, WHY_NOT: why_not}))

    async def _fetch(self, id: str, binding: Binding) -> None:
        replica = self._find(id)
        if replica is not None and replica.host != LOCAL_HOST:
            # Its socket is the host's, behind the gateways' connections.
            why_not = f"{replica.host} is another host; models are prepared on this machine alone"
            self._emit_report(id, why_not)
            return
        limit_s = self.limit_s(binding.bundle.size)
        path = self._run_dir / id / DATA_SOCKET
        prepared: Prepared | str
        try:
            async with asyncio.timeout(limit_s):
                prepared = await fetch(path, self._bundles, binding)
        except TimeoutError:
            prepared = f"the trial did not prepare it within {limit_s:.0f} s"
        except ConnectionError as error:
            # The trial has most likely died; its Lost event will cancel this task.
            await asyncio.sleep(self.exit_s)
            prepared = f"its files could not be fetched: {error}"
        except (FnError, LinkError, OSError) as error:
            prepared = f"its files could not be fetched: {error}"
        except Exception as error:
            # For any error: without a report the deploy would wait until its time limit.
            log.exception("what a trial prepared could not be fetched", replica=id)
            prepared = f"its files could not be fetched: {error!r}"
        self._emit_report(id, prepared)
