"""Data plane of a fake replica, and the script that fake replicas follow."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, get_args

from runtime_image.contract.contention import ContentionState
from runtime_image.contract.errors import FUNCTION_FAILED, RequestError
from runtime_image.contract.link import VERSION, Flag, Kind, NotStarted
from runtime_image.contract.signature import Signature
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.meta import AnswerMeta, pack_answer
from runtime_image.link.run_counts import RunCount, pack_runs
from runtime_image.link.stream import FrameStream

Phase = Literal["start", "load", "run", "build"]
Sleep = Callable[[float], Awaitable[object]]
"""Waits for a number of seconds; tests pass one that they release manually."""

ANY_JSON: Final = Signature("json", (), ())


LINKS_MAX: Final = 64
FLUSH_TURNS: Final = 3
"""Loop iterations after which a transport has passed its data to the kernel; uvloop needs more than
asyncio, which writes at once."""
Pieces = list[bytes | bytearray | memoryview]


@dataclass(frozen=True, slots=True)
class Script:
    """Behaviour of all fake replicas. Delays in seconds.

    `crash_at` is a phase: the next `crash_count` replicas that reach it crash, later ones do not.
    `hang_at` is a phase in which every replica hangs, while it still answers PING. `refuse_load`
    and `fail_run` are reasons with which the load, or every request, fails; "" for none.
    `refuse_build` is the reason why a build has no result, `refuse_compiled` the one why compiled
    models are not used. `signature` is what a trial reports, `batch` the number of requests that
    run together, `contention` that of a trial's measurement. Raises ValueError if a field is out
    of range.
    """

    start_s: float = 0.0
    load_s: float = 0.0
    run_s: float = 0.0
    crash_at: Phase | None = None
    crash_count: int = 1
    hang_at: Phase | None = None
    refuse_load: str = ""
    fail_run: str = ""
    build_s: float = 0.0
    refuse_build: str = ""
    refuse_compiled: str = ""
    signature: Signature = ANY_JSON
    batch: int = 1
    contention: ContentionState = "unknown"
    memory_mib: float = 16.0
    """Memory that each replica reports."""

    def __post_init__(self) -> None:
        for name in ("crash_at", "hang_at"):
            phase = getattr(self, name)
            if phase is not None and phase not in get_args(Phase):
                expected = ", ".join(get_args(Phase))
                raise ValueError(f"{name}: expected None or one of {expected}, got {phase!r}")
        for name in ("start_s", "load_s", "run_s", "build_s", "batch", "memory_mib"):
            least = 1 if name == "batch" else 0
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if self.crash_count < 0:
            raise ValueError(f"crash_count: expected at least 0, got {self.crash_count}")


@dataclass(slots=True, eq=False)
class _Request:
    link: int
    id: int
    length: int
    alone: bool
    cancelled: bool = False


class FakeService:
    """Service that accepts at most `limit` requests over all links and answers them in batches.

    The answer is `{"outputs": {"body_bytes": N}, "revision": ...}`. `run` is awaited once for
    every batch. `first_run(us)` is called with the first answer. `drained` is set when a drain was
    requested and no request is unanswered.
    """

    def __init__(
        self,
        listener: socket.socket,
        script: Script,
        revision: str,
        *,
        run: Callable[[], Awaitable[None]],
        first_run: Callable[[int], None],
    ) -> None:
        self.limit = max(2, 2 * script.batch)
        self.drained = asyncio.Event()
        self._listener = listener
        self._script = script
        self._revision = revision
        self._run = run
        self._first_run: Callable[[int], None] | None = first_run
        self._loop = asyncio.get_running_loop()
        self._links: dict[int, FrameStream] = {}
        self._numbers = itertools.count(1)
        self._last_accepted: dict[int, int] = {}
        self._turned_away: dict[int, None] = {}
        self._owed: dict[tuple[int, int], _Request] = {}
        self._waiting: deque[_Request] = deque()
        self._came = asyncio.Event()
        self._draining = False
        self._last_end_s = self._loop.time()
        self._ran_s = 0.0
        self._began_s: float | None = None
        self._runs: dict[int, RunCount] = {}

    @property
    def busy_s(self) -> float:
        """Total seconds in which a batch has run, including the present one."""
        going_on_s = 0.0 if self._began_s is None else self._loop.time() - self._began_s
        return self._ran_s + going_on_s

    @property
    def idle_s(self) -> float:
        """Seconds since the last request was answered; 0 while one is unanswered."""
        return 0.0 if self._owed else self._loop.time() - self._last_end_s

    async def accept(self) -> None:
        """Accept links from gateways, for ever."""
        came = asyncio.Event()
        # Not `sock_accept`, which may lose the accepted socket when it is cancelled.
        self._loop.add_reader(self._listener, came.set)
        try:
            while True:
                await came.wait()
                came.clear()
                with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                    await self._open(self._listener.accept()[0])
        finally:
            self._loop.remove_reader(self._listener)

    async def _open(self, sock: socket.socket) -> None:
        if len(self._links) >= LINKS_MAX:
            sock.close()
            return
        link = next(self._numbers)
        stream = FrameStream(
            partial(self._handle, link), partial(self._lost, link), f"fake data {link}"
        )
        # Registered before its first frame can arrive.
        self._links[link] = stream
        await self._loop.create_unix_connection(partial(_given, stream), sock=sock)

    async def work(self) -> None:
        """Answer accepted requests, for ever; requests that arrive during a run form the next
        batch."""
        while True:
            await self._came.wait()
            batch = self._take()
            self._send_started(batch)
            self._began_s = self._loop.time()
            await self._run()
            self._ran_s, self._began_s = self.busy_s, None
            if not self._script.fail_run:
                self._count(len(batch))
            for request in batch:
                self._answer(request)

    def report(self) -> bytes:
        """Return the runs so far, for PONG; each request of a batch counts as one row."""
        return pack_runs(sorted(self._runs.values()))

    def _count(self, rows: int) -> None:
        ns = round(self._script.run_s * 1e9)
        _, runs, _, infer_ns, _ = self._runs.get(rows, RunCount(rows, 0, 0, 0, 0))
        self._runs[rows] = RunCount(rows, runs + 1, 0, infer_ns + ns, 0)

    def drain(self, *, hand_back: bool) -> None:
        """Accept no new requests; with `hand_back`, return waiting requests to the gateways."""
        if not self._draining:
            self._draining = True
            for link, stream in self._links.items():
                stream.send(pack(Kind.GOAWAY, aux=self._last_accepted.get(link, 0)))
        while hand_back and self._waiting:
            request = self._waiting.popleft()
            refused = pack(Kind.NOT_STARTED, request.id, aux=NotStarted.DRAINING)
            self._finish(request, refused)
        self._update_events()

    async def close(self) -> None:
        """Write pending answers, then end every link."""
        for stream in self._links.values():
            stream.flush()
        for _ in range(FLUSH_TURNS):
            await asyncio.sleep(0)
        for stream in list(self._links.values()):
            stream.abort("the fake replica ended")

    def _update_events(self) -> None:
        """Set both events from the unanswered requests; called after every change."""
        if self._waiting:
            self._came.set()
        else:
            self._came.clear()
        if self._draining and not self._owed:
            self.drained.set()

    def _take(self) -> list[_Request]:
        taken: list[_Request] = []
        while self._waiting and len(taken) < self._script.batch:
            if self._waiting[0].alone and taken:
                break
            taken.append(self._waiting.popleft())
            if taken[0].alone:
                break
        self._update_events()
        return taken

    def _send_started(self, batch: list[_Request]) -> None:
        """Send STARTED in one frame per link, before the run, so that a crash cannot lose it."""
        ids: dict[int, list[int]] = {}
        for request in batch:
            ids.setdefault(request.link, []).append(request.id)
        for link, started in ids.items():
            body = struct.pack(f"<{len(started)}I", *started)
            self._send(link, pack(Kind.STARTED, body=body))

    def _answer(self, request: _Request) -> None:
        if request.cancelled:
            self._finish(request, pack(Kind.CANCELLED, request.id))
        elif self._script.fail_run:
            error = RequestError(FUNCTION_FAILED, self._script.fail_run)
            self._finish(
                request, pack(Kind.FAILED, request.id, json.dumps(error.to_json()).encode())
            )
        else:
            self._finish(request, self._response(request))

    def _response(self, request: _Request) -> Pieces:
        us = round(self._script.run_s * 1e6)
        flags = 0
        if self._first_run is not None:
            flags = Flag.FIRST
            self._first_run(us)
            self._first_run = None
        meta = pack_answer(AnswerMeta("application/json", 0, 0, us, 0, 1))
        answer = {"outputs": {"body_bytes": request.length}, "revision": self._revision}
        return pack(Kind.RESPONSE, request.id, json.dumps(answer).encode(), meta=meta, flags=flags)

    def _finish(self, request: _Request, frame: Pieces) -> None:
        self._send(request.link, frame)
        self._owed.pop((request.link, request.id), None)
        self._last_end_s = self._loop.time()
        # If no request is left, no later end would notify the remaining links.
        room = self.limit - len(self._owed) if self._owed else len(self._turned_away)
        for link in list(self._turned_away)[:room]:
            del self._turned_away[link]
            self._send(link, pack(Kind.WINDOW))
        self._update_events()

    def _send(self, link: int, frame: Pieces) -> None:
        stream = self._links.get(link)
        if stream is not None:
            stream.send(frame)

    def _handle(self, link: int, frame: Frame) -> None:
        match frame.kind:
            case Kind.HELLO:
                self._hello(link, frame)
            case Kind.REQUEST:
                self._request(link, frame)
            case Kind.CANCEL:
                self._cancel(link, frame.id)
            case _:
                raise LinkError(f"unexpected {frame.kind.name} on a data link")

    def _hello(self, link: int, frame: Frame) -> None:
        if frame.aux != VERSION:
            raise LinkError(f"link version {frame.aux} is not {VERSION}")
        body = json.dumps({"revision": self._revision, "limit": self.limit}).encode()
        self._send(link, pack(Kind.HELLO, body=body, aux=VERSION))
        if self._draining:
            self._send(link, pack(Kind.GOAWAY))

    def _request(self, link: int, frame: Frame) -> None:
        if (link, frame.id) in self._owed:
            raise LinkError(f"request id {frame.id} is in use")
        reason = self._refusal(link)
        if reason is not None:
            self._send(link, pack(Kind.NOT_STARTED, frame.id, aux=reason))
            return
        request = _Request(link, frame.id, len(frame.body), bool(frame.flags & Flag.ALONE))
        self._owed[link, frame.id] = request
        self._last_accepted[link] = frame.id
        self._waiting.append(request)
        self._update_events()

    def _refusal(self, link: int) -> NotStarted | None:
        if self._draining:
            return NotStarted.DRAINING
        if len(self._owed) >= self.limit:
            self._turned_away[link] = None
            return NotStarted.FULL
        return None

    def _cancel(self, link: int, id: int) -> None:
        request = self._owed.get((link, id))
        if request is None:
            return
        request.cancelled = True
        with contextlib.suppress(ValueError):  # it runs already; it is answered after the run
            self._waiting.remove(request)
            self._answer(request)

    def _lost(self, link: int, _reason: str) -> None:
        """A link has ended: cancel its requests."""
        self._links.pop(link, None)
        self._last_accepted.pop(link, None)
        self._turned_away.pop(link, None)
        for request in [r for r in self._owed.values() if r.link == link]:
            self._cancel(link, request.id)


def _given(stream: FrameStream) -> FrameStream:
    return stream
