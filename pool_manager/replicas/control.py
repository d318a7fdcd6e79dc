"""A replica's control link: accepts its connections and turns frames into events.

Replicas may run foreign code: frames are parsed strictly, and only expected frames are accepted.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol

import structlog

from pool_manager.core import events
from pool_manager.ports import ControlConnections
from pool_manager.replicas.messages import (
    parse_batching_off,
    parse_frame,
    parse_gpus,
    parse_health,
    parse_life,
    parse_load_failed,
    parse_loaded,
    parse_numbers,
    parse_probed,
    parse_sampled,
    parse_upgraded,
    text,
)
from registry.tasks import Tasks
from runtime_image.contract.agent import HostReport, from_json
from runtime_image.contract.compiled import CompiledModel, UpgradeRequest, UpgradeResult
from runtime_image.contract.control import PROBED_S, BindRequest, Hello
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.health import LEARNT_SECONDS, Learnt
from runtime_image.contract.link import CONTROL_MAX, Flag, Kind
from runtime_image.contract.parks import IDLE_LEAST, limit_ms
from runtime_image.contract.samples import Sampled
from runtime_image.link.frames import Frame, LinkError, Piece, pack
from runtime_image.link.handshake import pack_bind
from runtime_image.link.reception import read_hello, welcome
from runtime_image.link.run_counts import RunCount, unpack_runs
from runtime_image.link.stream import FrameStream, adopt

log = structlog.get_logger()

HELLO_S = 5.0
PINGS_MISSED_MAX = 3
REDIAL_PING_S: Final = 5.0
"""Max seconds between two PINGs to a replica that may dial again, which takes three missed ones as
a lost link."""
ASKED_MAX: Final = 8
"""Max unanswered PINGs beyond which none is sent ahead of its time."""
RELINK_S = 20.0
"""Seconds in which a replica dials again, if it may, after its link broke. Only the time counts in
which its host can be reached."""
RELINK_STEP_S = 0.5
DIALS_AT_ONCE: Final = 20
"""Connections of a replica that are accepted without a pause: as many may arrive when a host can be
reached again."""
DIAL_S = 0.5
"""Seconds between two connections of a replica beyond that."""
UPGRADES_MAX: Final = 4
"""Max unanswered UPGRADEs; a replica that answers none gets no more."""
HEALTHS_MAX: Final = 1000
"""Max readings of a server between two PONGs."""
NUMBER_MASK: Final = 0xFFFF_FFFF


class LinkReceiver(Protocol):
    """Receiver of what arrives on a control link."""

    def on_event(self, event: events.Event) -> None:
        """Handle an event reported by the replica."""

    def on_pong(self, id: str, busy_ms: int, runs: Sequence[RunCount]) -> None:
        """Handle a PONG; `busy_ms` is the model's total run time in milliseconds, modulo 2**32,
        `runs` are those since the last PONG."""

    def on_link_lost(self, id: str, reason: str, *, is_its_fault: bool) -> None:
        """Handle the end of the link: a lost connection or PINGS_MISSED_MAX unanswered PINGs; for
        a replica that may dial again, that it did not. `is_its_fault`: its host could be reached
        all the time."""


@dataclass(slots=True)
class _LinkState:
    """State of one replica's protocol, by its messages so far. `has_tried`: LOADED or LOAD_FAILED
    has arrived."""

    has_greeted: bool = False
    has_tried: bool = False
    is_loaded: bool = False
    has_run: bool = False
    is_refuted: bool = False


@dataclass(slots=True)
class _Sent:
    """Commands of one connection that an answer may follow, less the answers."""

    drains: int = 0
    """Those that NOT_IDLE answers."""
    lives: int = 0
    """Those that LIFE answers."""


class Control:
    """Control link of one replica: accepts HELLO with the right token, then turns frames into
    events.

    The link ends with its connection, unless the replica may dial again
    (`ControlConnections.redials`): then the connection with the newest number counts. `Greeted`
    follows each one, and its receiver sends the commands again that may have been lost.
    """

    def __init__(  # noqa: PLR0913 - the identity of a replica, and who receives what
        self,
        id: str,
        token: str,
        connections: ControlConnections,
        data_listener: socket.socket | None,
        receiver: LinkReceiver,
        *,
        bound: str | None = None,
        is_server: bool = False,
        on_report: Callable[[HostReport], None] | None = None,
    ) -> None:
        """`data_listener` is passed to a replica that has none. `bound` is the key
        of the pool that the replica may serve, "" for none yet, None for any. `is_server`: the
        replica is a sidecar. `on_report`: it is a host's agent."""
        self.id = id
        self._is_server = is_server
        self._token = token
        self._connections = connections
        self._data_listener = data_listener
        self._receiver = receiver
        self._emit = receiver.on_event
        self._on_report = on_report
        self._bound = bound
        self._background: list[asyncio.Task[None]] = []
        self._relinking: asyncio.Task[None] | None = None
        self._ping_s = 0.0
        self._stream: FrameStream | None = None
        self._dial = 0
        self._refusals = 0
        self._healths = 0
        """Readings since the last PONG."""
        self._probed_s = 0.0
        self._missed = 0
        self._pings = 0
        self._pongs = 0
        self._asked = 0
        self._runs: dict[int, RunCount] = {}
        self._is_base_due = False
        self._sent = _Sent()
        self._upgrades: deque[asyncio.Future[UpgradeResult]] = deque()
        self._sample: asyncio.Future[Sampled] | None = None
        self._state = _LinkState()
        self._closed = False

    def open(self, tasks: Tasks, ping_s: float) -> None:
        """Accept the replica's connections in the background, and send PINGs every `ping_s`."""
        self._tasks = tasks
        self._ping_s = min(ping_s, REDIAL_PING_S) if self._connections.redials else ping_s
        self._accepting = tasks.spawn(f"control {self.id}", self._accept())

    # Connections

    async def _accept(self) -> None:
        """Accept connections: until the first HELLO, or always if the replica may dial again."""
        loop = asyncio.get_running_loop()
        redials = self._connections.redials
        credit, last_s = float(DIALS_AT_ONCE), loop.time()
        while redials or not self._state.has_greeted:
            sock, hello = await self._connections.accept()
            await self._receive(sock, hello)
            now = loop.time()
            credit = min(DIALS_AT_ONCE, credit + (now - last_s) / DIAL_S) - 1
            last_s = now
            if redials and credit < 0:
                await asyncio.sleep(DIAL_S)
        # The token has been used: no other process may connect as this replica.
        self._close_listeners()

    async def _receive(self, sock: socket.socket, hello: Hello | None) -> None:
        try:
            await self._greet(sock, hello or await read_hello(sock, HELLO_S))
        except (LinkError, OSError) as error:
            sock.close()
            self._refusals += 1
            if self._refusals & (self._refusals - 1) == 0:  # a flood must not fill the log
                reason, count = str(error), self._refusals
                log.warning("a greeting was refused", replica=self.id, reason=reason, count=count)
        except asyncio.CancelledError:
            sock.close()
            raise

    async def _greet(self, sock: socket.socket, hello: Hello) -> None:
        loaded, gpus = self._checked(hello), parse_gpus(hello.get("gpus"))
        redials = self._connections.redials
        listener = None if loaded else self._data_listener
        welcome(sock, listener, round(self._ping_s * 1e3) if redials else 0)
        dial = hello["dial"]
        stream = FrameStream(
            lambda frame: self._on_frame(dial, frame),
            lambda reason: self._on_lost(dial, reason),
            f"control {self.id}",
            CONTROL_MAX,
        )
        await adopt(sock, stream)
        self._take_over(stream, dial)
        phases = parse_numbers(hello["phases"])
        self._emit(events.Greeted(self.id, phases, loaded is not None, gpus))
        if not self._state.has_greeted:
            self._state.has_greeted = True
            self._background.append(self._tasks.spawn(f"pings {self.id}", self._ping_always()))
            # It served under an earlier server, whose runs are not counted: ask how many it made
            # before any gateway can connect.
            self._is_base_due = loaded is not None
        self._renew()
        if redials or loaded is not None:
            self._ask()
        if loaded is not None:
            self._update(loaded)

    def _checked(self, hello: Hello) -> events.Loaded | None:
        """Return what the replica has loaded. Raises LinkError unless HELLO is from this replica,
        newer than the last one, and does not contradict what is known."""
        if not hmac.compare_digest(hello["token"].encode("utf-8", "replace"), self._token.encode()):
            raise LinkError("wrong token")
        if hello["dial"] <= self._dial:
            raise LinkError(f"expected a dial after {self._dial}, got {hello['dial']}")
        loaded = parse_loaded(self.id, dict(hello["loaded"])) if "loaded" in hello else None
        bound, known = hello["bound"], self._bound
        if known is not None and (bound not in ("", known) or (loaded and not bound)):
            raise LinkError(f"expected a replica of {known!r}, got one of {text(bound, 100)!r}")
        if self._state.is_loaded and loaded is None:
            raise LinkError("expected a replica with a model, got one without")
        return loaded

    def _take_over(self, stream: FrameStream, dial: int) -> None:
        """Use this connection from now on, and end the last one."""
        if self._relinking is not None:
            self._relinking.cancel()
            self._relinking = None
        last, self._stream, self._dial = self._stream, stream, dial
        self._missed = self._pings = self._pongs = 0
        self._sent = _Sent()
        self._fail_asked("the replica dialled again")
        if last is not None:
            last.abort("the replica dialled again")

    def _update(self, loaded: events.Loaded) -> None:
        """Handle the model that a HELLO states: it is news once."""
        if not self._state.has_tried:
            self._tell_loaded(loaded)
        elif loaded.refuted and not self._state.is_refuted:
            self._state.is_refuted = True
            self._emit(events.BatchingRefuted(self.id, loaded.refuted))

    def _on_lost(self, dial: int, reason: str) -> None:
        """Handle the end of a connection. A replica that may dial again has time to do so."""
        if self._closed or dial != self._dial or self._stream is None:
            return
        if not self._connections.redials:
            self._end(reason, is_its_fault=True)
            return
        self._stream = None
        self._missed = self._pings = 0
        self._relinking = self._tasks.spawn(f"relink {self.id}", self._relink(reason))

    async def _relink(self, reason: str) -> None:
        """Report the replica as lost if it does not dial again in time."""
        is_its_fault, left_s = True, RELINK_S
        while left_s > 0:
            is_its_fault &= await self._connections.wait_up()
            await asyncio.sleep(RELINK_STEP_S)
            left_s -= RELINK_STEP_S
        self._relinking = None
        why = f"{reason}; no new connection for {RELINK_S:g} s"
        self._end(why, is_its_fault=is_its_fault)

    def _end(self, reason: str, *, is_its_fault: bool) -> None:
        if not self._closed:
            self._closed = True
            self._fail_asked(reason)
            self._receiver.on_link_lost(self.id, reason, is_its_fault=is_its_fault)

    def close(self) -> None:
        """Close the link without calling the receiver."""
        self._closed = True
        self._fail_asked("the link was closed")
        for task in self._background:
            task.cancel()
        if self._relinking is not None:
            self._relinking.cancel()
        self._accepting.cancel()
        # `ControlConnections.close` must not be called while `accept` waits.
        self._accepting.add_done_callback(lambda _task: self._close_listeners())
        if self._stream is not None:
            self._stream.abort("closed")

    def _close_listeners(self) -> None:
        self._connections.close()
        if self._data_listener is not None:
            self._data_listener.close()
            self._data_listener = None

    # Commands

    @property
    def is_greeted(self) -> bool:
        """Whether the replica has sent HELLO, so that frames can be sent to it."""
        return self._state.has_greeted

    @property
    def is_answering(self) -> bool:
        """Whether the replica is connected, or has yet to be, and all PINGs but the last were
        answered; the last answer may be on its way."""
        return self._missed <= 1 and (self._stream is not None or not self._state.has_greeted)

    def bind(self, request: BindRequest) -> None:
        """Send the model to load, and the role."""
        if self._state.is_loaded:
            return
        if self._bound is not None:
            self._bound = request["bound"]
        self._send(pack_bind(request))

    def stop_batching(self) -> None:
        """Stop the replica from batching requests."""
        self._send(pack(Kind.BATCHING_OFF))

    async def upgrade(
        self, compiled: CompiledModel, files: Sequence[FetchedFile] = ()
    ) -> UpgradeResult:
        """Send a compiled model whose files are in the replica's model folder, but for `files`,
        which it is to fetch; return the outcome, which is emitted, too. Raises OSError if the link
        ends or does not stand."""
        if self._stream is None or not self._state.is_loaded or len(self._upgrades) >= UPGRADES_MAX:
            raise ConnectionError("the replica takes no upgrade now")
        answer: asyncio.Future[UpgradeResult] = asyncio.get_running_loop().create_future()
        self._upgrades.append(answer)
        request: UpgradeRequest = {"compiled": asdict(compiled)}
        if files:
            request["files"] = list(files)
        self._send(pack(Kind.UPGRADE, body=json.dumps(request).encode()))
        return await answer

    async def sample(self) -> Sampled:
        """Have a sidecar ask its server the golden sample; return what that showed. Raises OSError
        if the link ends or does not stand, or if it asks already."""
        if self._stream is None or not self._state.is_loaded or self._sample is not None:
            raise ConnectionError("the replica can be asked no golden sample now")
        self._sample = asyncio.get_running_loop().create_future()
        self._send(pack(Kind.SAMPLE))
        return await self._sample

    def _fail_asked(self, reason: str) -> None:
        """Fail what waits for an answer that this connection will not bring."""
        if self._sample is not None and not self._sample.done():
            self._sample.set_exception(ConnectionError(reason))
        self._sample = None
        self._fail_upgrades(reason)

    def _fail_upgrades(self, reason: str) -> None:
        for answer in self._upgrades:
            if not answer.done():
                answer.set_exception(ConnectionError(reason))
        self._upgrades.clear()

    def drain(self, if_idle_s: float | None) -> None:
        """Ask the replica to drain; with `if_idle_s` it may refuse."""
        # A PING first, for a last PONG with the run time: the replica may exit before the next one.
        self._ask()
        self._sent.drains += 1
        self._send(pack(Kind.DRAIN, aux=max(0, round((if_idle_s or 0.0) * 1e3))))

    def quiesce(self) -> None:
        """Ask a sidecar to finish its exchanges and exit, unless `resume` revokes it."""
        self._ask()
        self._send(pack(Kind.QUIESCE))

    def resume(self) -> None:
        """Revoke `quiesce`; the sidecar answers NOT_IDLE, or LIFE if it sleeps."""
        self._sent.drains += 1
        self._sent.lives += 1
        self._send(pack(Kind.RESUME))

    def park(self, if_idle_s: float | None, limit_s: float) -> None:
        """Have a sidecar put its engine to sleep within `limit_s` seconds, unless it was used
        within the last `if_idle_s`; with None, once its open exchanges have ended."""
        self._sent.drains += 1
        self._sent.lives += 1
        least_ms = 0 if if_idle_s is None else max(1, round(if_idle_s * 1e3))
        body = IDLE_LEAST.pack(least_ms)
        self._send(pack(Kind.PARK, aux=limit_ms(limit_s), body=body))

    def unpark(self, limit_s: float) -> None:
        """Have a sidecar wake its engine within `limit_s` seconds."""
        self._sent.lives += 1
        self._send(pack(Kind.UNPARK, aux=limit_ms(limit_s)))

    def verify(self, limit_s: float) -> None:
        """Have a sidecar ask its engine, which is awake, the golden sample within `limit_s`
        seconds, and serve after a right answer."""
        self._sent.lives += 1
        self._send(pack(Kind.VERIFY, aux=limit_ms(limit_s)))

    def keep_learnt(self, learnt: Learnt) -> None:
        """Have a sidecar keep `learnt` for the next manager. An older sidecar skips the frame."""
        seconds = LEARNT_SECONDS.pack(learnt.usual_s, learnt.longest_s)
        frame = pack(Kind.LEARNT, flags=Flag.OPTIONAL, aux=learnt.known, body=seconds)
        self._send(frame)

    def _renew(self) -> None:
        """Send the replica the certificate that it is to use from now on, if one is due."""
        if self._stream is not None and (due := self._connections.renewal()) is not None:
            self._send(pack(Kind.CERTIFICATE, body=json.dumps(due).encode()))

    def _send(self, frame: list[Piece]) -> None:
        if self._stream is not None:
            self._stream.send(frame)

    # PINGs

    async def _ping_always(self) -> None:
        while not self._closed:
            await asyncio.sleep(self._ping_s)
            self._ping()

    def _ping(self) -> None:
        if self._stream is None:
            return
        if self._missed >= PINGS_MISSED_MAX:
            self._stream.abort(f"did not answer {self._missed} PINGs")
            return
        self._missed += 1
        self._ask()
        self._renew()

    def _ask(self) -> None:
        if self._stream is not None:
            self._pings += 1
            self._asked += 1
            flags = Flag.HEALTH if self._is_server else 0
            self._stream.send(pack(Kind.PING, flags=flags, aux=self._pongs & NUMBER_MASK))

    def ask(self) -> int:
        """Send a PING now, unless ASKED_MAX are unanswered; return the number of the last one."""
        if self._pings < ASKED_MAX:
            self._ask()
        return self._asked

    def has_answered(self, number: int) -> bool:
        """Whether the PING with this number is answered, or will never be."""
        return self._closed or self._asked - self._pings >= number

    # Frames

    def _on_frame(self, dial: int, frame: Frame) -> None:
        if dial != self._dial:
            return  # of a connection that was replaced
        match frame.kind:
            case Kind.PONG:
                self._on_pong(frame)
            case Kind.PROBED | Kind.LOADED | Kind.LOAD_FAILED:
                self._on_start(frame)
            case Kind.BATCHING_OFF:
                is_due = (
                    self._state.has_tried and not self._state.is_refuted and not self._is_server
                )
                self._expect(is_due, frame)
                self._state.is_refuted = True
                self._emit(parse_batching_off(self.id, parse_frame(frame)))
            case Kind.UPGRADED | Kind.SAMPLED:
                self._on_answer(frame)
            case Kind.NOT_IDLE | Kind.FIRST_RUN | Kind.HEALTH | Kind.LIFE:
                self._on_use(frame)
            case Kind.REPORT if self._on_report is not None:
                self._on_report(_report(frame))
            case _:
                raise LinkError(f"unexpected {frame.kind.name} on a control link")

    def _on_use(self, frame: Frame) -> None:
        """Handle what a serving replica says about its calls, and about its park."""
        if frame.kind is Kind.NOT_IDLE:
            self._expect(self._sent.drains > 0, frame)
            self._sent.drains -= 1
            self._emit(events.NotIdle(self.id, frame.aux / 1e3))
        elif frame.kind is Kind.FIRST_RUN:
            self._expect(not self._state.has_run, frame)
            self._state.has_run = True
            self._emit(events.FirstRun(self.id, frame.aux / 1e3))
        elif frame.kind is Kind.LIFE:
            self._expect(self._state.is_loaded and self._sent.lives > 0, frame)
            self._sent.lives -= 1
            self._emit(parse_life(self.id, parse_frame(frame)))
        else:
            is_due = self._is_server and self._state.is_loaded and self._healths < HEALTHS_MAX
            self._expect(is_due, frame)
            self._healths += 1
            self._emit(parse_health(self.id, parse_frame(frame)))

    def _on_start(self, frame: Frame) -> None:
        """Handle a frame of a start: what its probes meet, or its end."""
        if frame.kind is Kind.LOADED:
            self._tell_loaded(parse_loaded(self.id, parse_frame(frame)))
            return
        self._expect(not self._state.has_tried, frame)
        if frame.kind is Kind.PROBED:
            self._on_probed(frame)
            return
        self._state.has_tried = True
        self._emit(parse_load_failed(self.id, parse_frame(frame)))

    def _on_probed(self, frame: Frame) -> None:
        """Pass on what the probes of a starting server meet; drop what comes too often."""
        self._expect(self._is_server, frame)
        event, now_s = parse_probed(self.id, parse_frame(frame)), asyncio.get_running_loop().time()
        if now_s >= self._probed_s:
            self._probed_s = now_s + PROBED_S / 2
            self._emit(event)

    def _on_upgraded(self, event: events.Upgraded) -> None:
        answer = self._upgrades.popleft()
        if not answer.done():  # a request whose caller has left is answered all the same
            answer.set_result({"session": event.session, "reason": event.reason})
        self._emit(event)

    def _on_answer(self, frame: Frame) -> None:
        """Handle the answer to an order whose sender waits, or did."""
        if frame.kind is Kind.UPGRADED:
            self._expect(bool(self._upgrades), frame)
            self._on_upgraded(parse_upgraded(self.id, parse_frame(frame)))
            return
        self._expect(self._sample is not None, frame)
        found = parse_sampled(parse_frame(frame))
        answer, self._sample = self._sample, None
        if answer is not None and not answer.done():
            answer.set_result(found)

    def _on_pong(self, frame: Frame) -> None:
        self._expect(self._pings > 0, frame)
        self._pings -= 1
        self._pongs += 1
        self._missed = self._healths = 0
        self._receiver.on_pong(self.id, frame.aux, self._new_runs(frame))

    def _new_runs(self, frame: Frame) -> list[RunCount]:
        """Return the runs since the last PONG. Raises LinkError if they are not due, or fewer than
        before."""
        if not frame.body and not self._is_base_due:
            return []
        self._expect(not frame.body or (self._state.has_tried and not self._is_server), frame)
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
        if self._state.has_tried:
            raise LinkError("unexpected LOADED")
        if self._is_server and not (loaded.limit or loaded.report):
            raise LinkError("malformed LOADED: limit 0 of a server")
        self._state.has_tried = self._state.is_loaded = True
        self._state.is_refuted = bool(loaded.refuted)
        self._emit(loaded)

    @staticmethod
    def _expect(is_due: bool, frame: Frame) -> None:
        """Raise LinkError if a frame is not due: every frame costs work, some of it disk I/O."""
        if not is_due:
            raise LinkError(f"unexpected {frame.kind.name}")


def _report(frame: Frame) -> HostReport:
    try:
        return from_json(parse_frame(frame))
    except ValueError as error:
        raise LinkError(str(error)) from error


def _difference(now: RunCount, before: RunCount | None) -> RunCount:
    if before is None:
        return now
    more = [a - b for a, b in zip(now[1:], before[1:], strict=True)]
    if min(more) < 0:
        raise LinkError(f"malformed PONG: numbers of {now.rows} rows fell")
    return RunCount(now.rows, *more)
