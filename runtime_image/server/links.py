"""The sidecar's data plane: links to gateways, connections to the server.

The sidecar connects to the server, and `Passing` gets each connection to its gateway: as a
descriptor on one machine, as relayed bytes from another one.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runtime_image.contract.link import VERSION, Flag, Kind
from runtime_image.contract.server import ServerSpec
from runtime_image.link.data_listener import DataListener, pack_greeting
from runtime_image.link.frames import Frame, FrameReader, LinkError, Piece, pack
from runtime_image.link.socket_end import SocketEnd
from runtime_image.replica.loop import Loop
from runtime_image.server import slots
from runtime_image.server.connecting import Connecting, Server
from runtime_image.server.passing import DescriptorPassing, Passing, side_channel
from runtime_image.server.progress import Progress
from runtime_image.server.slots import Command, Key, SlotTable

if TYPE_CHECKING:
    # Loaded with the first connection from another machine: gateways on this one need neither.
    from runtime_image.server.arrivals import Arrival
    from runtime_image.server.splicing import Splicing

LINKS_MAX: Final = 64
"""Max gateway processes connected at once."""
UNREAD_MAX: Final = 256 * 1024
"""Bytes of frames that a gateway has not read above which its link is ended."""
ARRIVALS_MAX: Final = 256
"""Max connections at once that have yet to send their first frame."""
ARRIVAL_S: Final = 5.0
"""Seconds that such a connection has."""
TICK_S: Final = 0.5


@dataclass(slots=True, eq=False)
class _Gateway:
    """One link. `passing` is None before its HELLO; `splicing` is the same object if the gateway is
    on another machine."""

    end: SocketEnd
    passing: Passing | None = None
    splicing: Splicing | None = None


class Links:
    """Serves one server to every gateway that connects to the data listener."""

    def __init__(  # noqa: PLR0913 - the composition of the sidecar's parts
        self,
        loop: Loop,
        listener: DataListener,
        server: Server,
        spec: ServerSpec,
        *,
        first_open: Callable[[], None],
        not_idle: Callable[[int], None],
        stop: Callable[[], None],
        suspect: Callable[[], None] = lambda: None,
        parked: Callable[[], None] = lambda: None,
        greeting: str = "",
        guard: Callable[[], None] | None = None,
    ) -> None:
        """Callbacks: `first_open` for the first exchange that takes a slot, `not_idle(ms)` refuses
        or ends a drain, `stop` when a drain is over, `parked` when `park` is, `suspect` after an
        exchange whose connection was refused, or that got no answer. `greeting`: the gateways are
        on another machine, and every connection begins with this text. `guard` is called before
        something new is accepted, and may close this."""
        self._greeting = greeting
        self._guard = guard
        self._arrivals: set[Arrival] = set()
        self._loop = loop
        self._listener = listener
        self._server = server
        self._spec = spec
        self._first_open: Callable[[], None] | None = first_open
        self._not_idle = not_idle
        self._stop = stop
        self._suspect = suspect
        self._parked = parked
        self.progress = Progress()
        """Totals over all exchanges."""
        self._gateways: dict[int, _Gateway] = {}
        self._joined = 0
        self._connecting: dict[Key, Connecting] = {}
        self._is_closed = False
        self._table = SlotTable(spec.concurrency, spec.max_s, loop.clock())
        listener.setblocking(False)
        loop.watch(listener, self._accept)
        loop.after(TICK_S, self._tick)

    # The manager's side

    def busy_ms(self) -> int:
        """Return the total time with open exchanges, for PONG."""
        return self._table.busy_ms(self._loop.clock())

    def read_progress(self) -> tuple[int, bool]:
        """Read the progress of all open exchanges, but for WebSockets and those without a slot;
        return their number, and whether bytes of the server lie unread."""
        keys = self._table.counted()
        there = [(key, sock) for key in keys if (sock := self._socket(key)) is not None]
        return len(keys), self.progress.read(there)

    @property
    def has_one_busy_slot(self) -> bool:
        """Whether the server answers one exchange at a time, and does so now."""
        return self._spec.concurrency == 1 and self._table.in_use > 0

    def drain(self, if_idle_ms: int) -> None:
        """Handle DRAIN."""
        self._do(self._table.drain(if_idle_ms, self._loop.clock()))

    def quiesce(self) -> None:
        """Handle QUIESCE."""
        self._do(self._table.quiesce(self._loop.clock()))

    def park(self, if_idle_ms: int) -> None:
        """Handle PARK: no exchange is opened until `serve`, unless the server is not idle."""
        self._do(self._table.park(if_idle_ms, self._loop.clock()))

    def serve(self) -> None:
        """Serve again after `parked`."""
        self._do(self._table.serve(self._loop.clock()))

    def resume(self) -> None:
        """Handle RESUME."""
        self._do(self._table.resume(self._loop.clock()))

    def close(self) -> None:
        """Shut every connection and end every link."""
        self._is_closed = True
        self._loop.forget(self._listener)
        self._listener.close()
        for link in list(self._gateways):
            self._drop(link)
        for arrival in list(self._arrivals):
            arrival.close()

    def turn_end(self) -> None:
        """Write the frames of this turn."""
        for link, gateway in list(self._gateways.items()):
            try:
                is_done = gateway.end.flush()
            except LinkError:
                self._drop(link)
                continue
            if not is_done and gateway.end.waiting_bytes > UNREAD_MAX:
                self._drop(link)
                continue
            self._loop.want_write(gateway.end.sock, not is_done)

    # Gateways

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if self._greeting:
            self._greet(sock)
        else:
            self._begin(sock, SocketEnd(sock, takes_descriptor=True))

    def _greet(self, sock: socket.socket) -> None:
        """Greet a gateway on another machine, and wait for its first frame."""
        from runtime_image.server.arrivals import Arrival

        if len(self._arrivals) >= ARRIVALS_MAX:
            sock.close()
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # else its end is read
            # These few bytes always fit the buffer of a new socket.
            sock.send(b"".join(pack_greeting(self._greeting)))
        arrival = Arrival(
            self._loop,
            sock,
            on_link=self._begin_remote,
            on_channel=self._on_channel,
            over=self._arrivals.discard,
        )
        self._arrivals.add(arrival)

    def _begin_remote(self, sock: socket.socket, reader: FrameReader, frames: list[Frame]) -> None:
        link = self._begin(sock, SocketEnd(sock, reader))
        if link is not None:
            self._handle_all(link, frames)

    def _begin(self, sock: socket.socket, end: SocketEnd) -> int | None:
        """Begin a link; return its number, None if there are too many."""
        if len(self._gateways) >= LINKS_MAX:
            end.close()
            return None
        self._joined += 1
        link = self._joined
        self._gateways[link] = _Gateway(end)
        self._loop.watch(sock, lambda: self._readable(link))
        return link

    def _on_channel(self, sock: socket.socket, id: int, key: bytes) -> None:
        """Handle CONNECT."""
        for gateway in self._gateways.values():
            splicing = gateway.splicing
            if splicing is not None and splicing.is_key(key):
                splicing.connect(id, sock)
                return
        sock.close()

    def _readable(self, link: int) -> None:
        gateway = self._gateways.get(link)
        if gateway is None:  # dropped earlier in this turn
            return
        try:
            frames = gateway.end.receive()
        except LinkError:
            frames = None
        if frames is None:
            self._drop(link)
        elif frames:
            self._handle_all(link, frames)

    def _handle_all(self, link: int, frames: list[Frame]) -> None:
        if self._guard is not None:
            self._guard()
        try:
            for frame in frames:
                gateway = self._gateways.get(link)
                if gateway is not None:  # else dropped by an earlier frame
                    self._handle(link, gateway, frame)
        except LinkError:
            self._drop(link)

    def _handle(self, link: int, gateway: _Gateway, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            self._hello(link, gateway, frame)
        elif gateway.passing is None:
            raise LinkError(f"expected HELLO, got {frame.kind.name}")
        else:
            self._do(self._decide(link, frame))

    def _decide(self, link: int, frame: Frame) -> list[Command]:
        table, now = self._table, self._loop.clock()
        if frame.kind is Kind.OPEN:
            if frame.flags & Flag.REUSE:
                return table.reuse(link, frame.id, frame.aux, now)
            return table.open(link, frame.id, now, is_free=bool(frame.flags & Flag.FREE))
        if frame.kind is Kind.END:
            key, is_kept = Key(link, frame.id), bool(frame.flags & Flag.KEPT)
            if is_kept:
                self.progress.kept(key)
            elif frame.flags & Flag.FAILED and self._socket(key) is not None:
                self.progress.failed(key)
            return table.end(link, frame.id, now, is_kept=is_kept, ago_ms=frame.aux)
        if frame.kind is Kind.TUNNEL:
            return table.tunnel(link, frame.id, now, is_quiet=bool(frame.flags & Flag.FREE))
        if frame.kind is Kind.UNANSWERED:
            self._suspect()
            return []
        if frame.kind is Kind.QUIESCED:
            return table.quiesced(link, frame.aux, now)
        raise LinkError(f"unexpected {frame.kind.name} on a data link")

    def _hello(self, link: int, gateway: _Gateway, frame: Frame) -> None:
        if frame.aux != VERSION or gateway.passing is not None:
            raise LinkError(f"link version {frame.aux} is not {VERSION}, or a second HELLO")
        answer: dict[str, str | int] = {
            "revision": self._spec.revision,
            "limit": self._spec.concurrency,
        }
        if self._greeting:
            gateway.passing = gateway.splicing = self._splicing(link)
            answer["key"] = gateway.splicing.key
        else:
            descriptor = gateway.end.take_descriptor()
            if descriptor is None:
                raise LinkError("expected a side channel with HELLO")
            gateway.passing = DescriptorPassing(
                self._loop,
                side_channel(descriptor),
                passed=self._passed,
                broken=lambda: self._drop(link),
            )
        gateway.end.send(pack(Kind.HELLO, body=json.dumps(answer).encode(), aux=VERSION))
        self._do(self._table.join(link, self._loop.clock()))

    def _splicing(self, link: int) -> Splicing:
        from runtime_image.server.splicing import Splicing

        limit, guard = self._spec.concurrency, self._guard
        return Splicing(
            self._loop, link, limit, opened=self._opened, passed=self._passed, guard=guard
        )

    def _opened(self, key: Key) -> None:
        """Answer OPEN of a gateway on another machine, which gets no descriptor as an answer."""
        port = 0 if self._server.socket_path else self._server.port
        self._send(key.link, pack(Kind.OPEN, key.id, aux=port))

    def _drop(self, link: int) -> None:
        gateway = self._gateways.pop(link, None)
        if gateway is None:
            return
        self._loop.forget(gateway.end.sock)
        gateway.end.close()
        self._do(self._table.link_lost(link, self._loop.clock()))
        if gateway.passing is not None:
            gateway.passing.close()

    # Commands

    def _tick(self) -> None:
        if self._is_closed:
            return
        now = self._loop.clock()
        self._do(self._table.tick(now))
        for gateway in self._gateways.values():
            if gateway.passing is not None:
                gateway.passing.tick()
        for arrival in [one for one in self._arrivals if now - one.since_s >= ARRIVAL_S]:
            arrival.close()
        self._loop.after(TICK_S, self._tick)

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case slots.Send(link, kind, id, aux):
                    if kind is Kind.NOT_STARTED:
                        self._shut(Key(link, id))
                    self._send(link, pack(kind, id, aux=aux))
                case slots.Connect(key):
                    self._connect(key)
                case slots.Shut(key):
                    self._shut(key)
                case slots.Rename(old, key):
                    self._rename(old, key)
                case slots.EndLink(link):
                    self._drop(link)
                case slots.NotIdle() | slots.Stop() | slots.Parked():
                    self._report(command)

    def _report(self, command: slots.NotIdle | slots.Stop | slots.Parked) -> None:
        match command:
            case slots.NotIdle(idle_ms):
                self._not_idle(idle_ms)
            case slots.Stop():
                self._stop()
            case slots.Parked():
                self._parked()

    def _send(self, link: int, frame: list[Piece]) -> None:
        gateway = self._gateways.get(link)
        if gateway is not None:  # else dropped by an earlier command
            gateway.end.send(frame)

    def _connect(self, key: Key) -> None:
        if self._first_open is not None:
            self._first_open()
            self._first_open = None
        began = Connecting(
            self._loop, self._server, lambda sock, reason: self._connected(key, sock, reason)
        )
        if not began.is_over:
            self._connecting[key] = began

    def _connected(self, key: Key, sock: socket.socket | None, _reason: str) -> None:
        self._connecting.pop(key, None)
        if sock is None:
            self._suspect()
            self._do(self._table.refused(key, self._loop.clock()))
            return
        passing = self._passing(key)
        if passing is None:
            sock.close()
        else:
            passing.put(key, sock)

    def _passed(self, key: Key) -> None:
        self._do(self._table.connected(key, self._loop.clock()))

    def _passing(self, key: Key) -> Passing | None:
        gateway = self._gateways.get(key.link)
        return gateway.passing if gateway is not None else None

    def _socket(self, key: Key) -> socket.socket | None:
        passing = self._passing(key)
        return passing.socket(key) if passing is not None else None

    def _rename(self, old: Key, key: Key) -> None:
        self.progress.rename(old, key)
        passing = self._passing(key)
        if passing is not None:
            passing.rename(old, key)

    def _shut(self, key: Key) -> None:
        connecting = self._connecting.pop(key, None)
        if connecting is not None:
            connecting.cancel()
            self._suspect()  # the server did not take the connection in time, or its caller left
        self.progress.ended(key, self._socket(key))
        passing = self._passing(key)
        if passing is not None:
            passing.shut(key)
