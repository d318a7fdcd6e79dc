"""A replica's control link, and the validation of everything received on it.

Replicas may run foreign code: frames are parsed strictly, and only expected frames are accepted.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import Sequence
from typing import Any, Final, Protocol

import structlog

from pool_manager.core import events
from registry.files import is_exhausted
from registry.tasks import Tasks
from runtime_image.contract.control import PHASES, BindRequest
from runtime_image.contract.link import CONTROL_MAX, REFUTATION_MAX, Kind
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.handshake import pack_bind
from runtime_image.link.reception import read_hello, welcome
from runtime_image.link.run_counts import RunCount, unpack_runs
from runtime_image.link.stream import FrameStream

log = structlog.get_logger()

HELLO_S = 5.0
PINGS_MISSED_MAX = 3
ASKED_MAX: Final = 8
"""Max unanswered PINGs beyond which none is sent ahead of its time."""
EXHAUSTED_S = 0.5
"""Seconds between two tries to accept a connection when file descriptors are exhausted."""


LIMIT_MAX: Final = 65536
"""Largest accepted number of concurrent requests of a replica."""
NUMBER_MAX: Final = 1e9
"""Upper bound of plausible numbers (milliseconds, MiB) from a replica."""
REASON_MAX: Final = 4000
STAGE_MAX: Final = 20
WORDS: Final = "fngate replica: "
"""Prefix of the log line with which a replica exits on its own."""
_REPORTED: Final = ("load_ms", "memory_mib")


class LinkReceiver(Protocol):
    """Receiver of what arrives on a control link."""

    def on_event(self, event: events.Event) -> None:
        """Handle an event reported by the replica."""

    def on_pong(self, id: str, busy_ms: int, runs: Sequence[RunCount]) -> None:
        """Handle a PONG; `busy_ms` is the model's total run time in milliseconds, modulo 2**32,
        `runs` are those since the last PONG."""

    def on_link_lost(self, id: str, reason: str) -> None:
        """Handle the end of the link, or PINGS_MISSED_MAX unanswered PINGs."""


class Control:
    """Control link of one replica: accepts one HELLO with the right token, then turns frames into
    events. `is_server`: the replica is a sidecar."""

    def __init__(
        self,
        id: str,
        token: str,
        listener: socket.socket,
        data_listener: socket.socket | None,
        receiver: LinkReceiver,
        *,
        is_server: bool = False,
    ) -> None:
        self.id = id
        self._is_server = is_server
        self._token = token
        self._listener = listener
        self._data_listener = data_listener
        self._receiver = receiver
        self._emit = receiver.on_event
        self._stream: FrameStream | None = None
        self._missed = 0
        self._pings = 0
        self._asked = 0
        self._runs: dict[int, RunCount] = {}
        self._is_base_due = False
        self._drains = 0
        self._has_loaded = False
        self._has_run = False
        self._is_refuted = False
        self._closed = False

    def open(self, tasks: Tasks, ping_s: float) -> None:
        """Wait for the replica's HELLO in the background, then send PINGs every `ping_s`."""
        self._task = tasks.spawn(f"control {self.id}", self._run(ping_s))

    async def _run(self, ping_s: float) -> None:
        loop = asyncio.get_running_loop()
        while self._stream is None:
            sock = await self._accept(loop)
            try:
                await self._greet(sock)
            except (LinkError, OSError) as error:
                sock.close()
                log.warning("a greeting was refused", replica=self.id, reason=str(error))
            except asyncio.CancelledError:
                sock.close()
                raise
        while not self._closed:
            await asyncio.sleep(ping_s)
            self._ping()

    async def _accept(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        """Accept a connection. `loop.sock_accept` is not used, because it may lose the accepted
        socket when it is cancelled."""
        is_warned = False
        while True:
            await self._came(loop)
            try:
                return self._listener.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                if not is_exhausted(error):
                    raise
                if not is_warned:
                    log.warning("a greeting has to wait", replica=self.id, reason=str(error))
                is_warned = True
                # No reader during the sleep: the pending connection would wake the loop in every
                # iteration.
                await asyncio.sleep(EXHAUSTED_S)

    async def _came(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a connection."""
        came = asyncio.Event()
        loop.add_reader(self._listener, came.set)
        try:
            await came.wait()
        finally:
            loop.remove_reader(self._listener)

    async def _greet(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        hello = await read_hello(sock, HELLO_S)
        if not hmac.compare_digest(hello["token"].encode("utf-8", "replace"), self._token.encode()):
            raise LinkError("wrong token")
        loaded = parse_loaded(self.id, dict(hello["loaded"])) if "loaded" in hello else None
        welcome(sock, None if loaded else self._data_listener)
        _, self._stream = await asyncio.get_running_loop().create_unix_connection(
            lambda: FrameStream(self._on_frame, self._lost, f"control {self.id}", CONTROL_MAX),
            sock=sock,
        )
        # The token has been used: no other process may connect as this replica.
        self._close_listeners()
        phases = parse_numbers(hello["phases"])
        self._emit(events.Greeted(self.id, phases, loaded is not None))
        if loaded is not None:
            # It served under an earlier server, whose runs are not counted: ask how many it made
            # before any gateway can connect.
            self._is_base_due = True
            self._ask()
            self._tell_loaded(loaded)

    @property
    def is_greeted(self) -> bool:
        """Whether the replica has sent HELLO, so that frames can be sent to it."""
        return self._stream is not None

    @property
    def is_answering(self) -> bool:
        """Whether all PINGs but the last were answered; the last answer may be on its way."""
        return self._missed <= 1

    def bind(self, request: BindRequest) -> None:
        """Send the model to load, and the role."""
        self._send(pack_bind(request))

    def stop_batching(self) -> None:
        """Stop the replica from batching requests."""
        self._send(pack(Kind.BATCHING_OFF))

    def drain(self, if_idle_s: float | None) -> None:
        """Ask the replica to drain; with `if_idle_s` it may refuse."""
        # A PING first, for a last PONG with the run time: the replica may exit before the next one.
        self._ask()
        self._drains += 1
        self._send(pack(Kind.DRAIN, aux=max(0, round((if_idle_s or 0.0) * 1e3))))

    def quiesce(self) -> None:
        """Ask a sidecar to finish its exchanges and exit, unless `resume` revokes it."""
        self._ask()
        self._send(pack(Kind.QUIESCE))

    def resume(self) -> None:
        """Revoke `quiesce`; the sidecar answers NOT_IDLE."""
        self._drains += 1
        self._send(pack(Kind.RESUME))

    def close(self) -> None:
        """Close the link without calling the receiver."""
        self._closed = True
        self._task.cancel()
        # Close the listeners only after the task has ended: their descriptor numbers may be reused
        # at once, and the task would then remove the readers of other sockets from the loop.
        self._task.add_done_callback(lambda _task: self._close_listeners())
        if self._stream is not None:
            self._stream.abort("closed")

    def _close_listeners(self) -> None:
        self._listener.close()
        if self._data_listener is not None:
            self._data_listener.close()
            self._data_listener = None

    def _send(self, frame: list[bytes | bytearray | memoryview]) -> None:
        if self._stream is not None:
            self._stream.send(frame)

    def _ping(self) -> None:
        if self._missed >= PINGS_MISSED_MAX:
            self._lost(f"did not answer {self._missed} PINGs")
            return
        self._missed += 1
        self._ask()

    def _ask(self) -> None:
        if self._stream is not None:
            self._pings += 1
            self._asked += 1
            self._stream.send(pack(Kind.PING))

    def ask(self) -> int:
        """Send a PING now, unless ASKED_MAX are unanswered; return the number of the last one."""
        if self._pings < ASKED_MAX:
            self._ask()
        return self._asked

    def has_answered(self, number: int) -> bool:
        """Whether the PING with this number is answered, or will never be."""
        return self._closed or self._asked - self._pings >= number

    def _lost(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._receiver.on_link_lost(self.id, reason)

    def _on_frame(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.PONG:
                self._expect(self._pings > 0, frame)
                self._pings -= 1
                self._missed = 0
                self._receiver.on_pong(self.id, frame.aux, self._new_runs(frame))
            case Kind.LOADED:
                self._tell_loaded(parse_loaded(self.id, parse_frame(frame)))
            case Kind.LOAD_FAILED:
                self._expect(not self._has_loaded, frame)
                self._has_loaded = True
                self._emit(parse_load_failed(self.id, parse_frame(frame)))
            case Kind.BATCHING_OFF:
                is_due = self._has_loaded and not self._is_refuted and not self._is_server
                self._expect(is_due, frame)
                self._is_refuted = True
                self._emit(parse_batching_off(self.id, parse_frame(frame)))
            case Kind.NOT_IDLE:
                self._expect(self._drains > 0, frame)
                self._drains -= 1
                self._emit(events.NotIdle(self.id, frame.aux / 1e3))
            case Kind.FIRST_RUN:
                self._expect(not self._has_run, frame)
                self._has_run = True
                self._emit(events.FirstRun(self.id, frame.aux / 1e3))
            case _:
                raise LinkError(f"unexpected {frame.kind.name} on a control link")

    def _new_runs(self, frame: Frame) -> list[RunCount]:
        """Return the runs since the last PONG. Raises LinkError if they are not due, or fewer than
        before."""
        if not frame.body and not self._is_base_due:
            return []
        self._expect(not frame.body or (self._has_loaded and not self._is_server), frame)
        before, now = self._runs, {one.rows: one for one in unpack_runs(frame.body)}
        if not before.keys() <= now.keys():
            raise LinkError("malformed PONG: a batch size is missing")
        self._runs = now
        if self._is_base_due:
            self._is_base_due = False
            return []
        more = [_difference(one, before.get(rows)) for rows, one in now.items()]
        return [one for one in more if one.runs]

    def _tell_loaded(self, loaded: events.Loaded) -> None:
        if self._has_loaded:
            raise LinkError("unexpected LOADED")
        if self._is_server and not (loaded.limit or loaded.report):
            raise LinkError("malformed LOADED: limit 0 of a server")
        self._has_loaded = True
        self._emit(loaded)

    @staticmethod
    def _expect(is_due: bool, frame: Frame) -> None:
        """Raise LinkError if a frame is not due: every frame costs work, some of it disk I/O."""
        if not is_due:
            raise LinkError(f"unexpected {frame.kind.name}")


def _difference(now: RunCount, before: RunCount | None) -> RunCount:
    if before is None:
        return now
    more = [a - b for a, b in zip(now[1:], before[1:], strict=True)]
    if min(more) < 0:
        raise LinkError(f"malformed PONG: numbers of {now.rows} rows fell")
    return RunCount(now.rows, *more)


def parse_loaded(id: str, data: dict[str, Any]) -> events.Loaded:
    """Parse the body of LOADED, or the same object in HELLO. Raises LinkError."""
    limit, memory = data.get("limit"), data.get("memory_mib")
    if not isinstance(limit, int) or not 0 <= limit <= LIMIT_MAX:
        raise LinkError(f"malformed LOADED: limit {limit!r}")
    if not isinstance(memory, int | float) or not is_number(memory):
        raise LinkError(f"malformed LOADED: memory_mib {memory!r}")
    return events.Loaded(
        id,
        limit,
        bool(data.get("marks_started", True)),
        float(memory),
        parse_numbers(data.get("phases", {})),
        _report(data.get("report")),
        text(data.get("batching_off", ""), REFUTATION_MAX),
    )


def parse_batching_off(id: str, data: dict[str, Any]) -> events.BatchingRefuted:
    """Parse the body of BATCHING_OFF."""
    reason = text(data.get("reason", ""), REFUTATION_MAX) or "no reason given"
    return events.BatchingRefuted(id, reason)


def parse_load_failed(id: str, data: dict[str, Any]) -> events.Lost:
    """Parse the body of LOAD_FAILED."""
    reason, stage = text(data.get("reason", ""), REASON_MAX), text(data.get("stage", ""), STAGE_MAX)
    return events.Lost(id, reason, stage=stage)


def last_words(lines: Sequence[str]) -> str:
    """Return the reason in a replica's last log line if it exited on its own, else ""."""
    said = lines[-1] if lines else ""
    return text(said.removeprefix(WORDS), REASON_MAX) if said.startswith(WORDS) else ""


def parse_numbers(data: Any) -> dict[str, float]:
    """Return phases in milliseconds by known names; drops unknown names and invalid values."""
    if not isinstance(data, dict):
        return {}
    return {name: round(float(data[name]), 3) for name in PHASES if is_number(data.get(name))}


def text(value: Any, length_max: int) -> str:
    """Return `value` as valid text of limited length: JSON may contain lone surrogates."""
    return str(value)[:length_max].encode("utf-8", "replace").decode()


def parse_frame(frame: Frame) -> dict[str, Any]:
    """Return a frame's JSON object. Raises LinkError."""
    try:
        data = json.loads(frame.body)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"malformed {frame.kind.name}: {error}") from error
    if not isinstance(data, dict):
        raise LinkError(f"malformed {frame.kind.name}: not an object")
    return data


def _report(data: Any) -> dict[str, Any]:
    """Return a trial's report. Its numbers are validated here, because they affect decisions about
    other replicas; the deploy validates the rest. Raises LinkError."""
    if not isinstance(data, dict):
        return {}
    for name in _REPORTED:
        if name in data and not is_number(data[name]):
            raise LinkError(f"malformed LOADED: report {name} {data[name]!r}")
    latencies = data.get("latency_ms", {})
    if not isinstance(latencies, dict) or not all(map(is_number, latencies.values())):
        raise LinkError("malformed LOADED: report latency_ms")
    if not _is_text(data):
        raise LinkError("malformed LOADED: report contains invalid text")
    return data


def is_number(value: Any) -> bool:
    """Whether `value` is a number from 0 to NUMBER_MAX. NaN is rejected, since it compares false
    with every bound."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= NUMBER_MAX


def _is_text(data: dict[str, Any]) -> bool:
    """Whether a report can be stored: no lone surrogates, no excessive nesting."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
