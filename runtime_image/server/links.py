"""The sidecar's data plane: links to gateways, connections to the server, sockets passed on.

The sidecar relays no bytes. It connects, passes the connected socket over the link's side channel
(SCM_RIGHTS, unix(7)), and keeps a duplicate, with which it can shut the connection down for every
holder.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from runtime_image.contract.link import SOCKET_NOTICE, VERSION, Flag, Kind
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import Frame, LinkError, Piece, pack
from runtime_image.link.socket_end import SocketEnd
from runtime_image.replica.loop import Loop
from runtime_image.server import slots
from runtime_image.server.connecting import Connecting, Server, shut
from runtime_image.server.slots import Command, Key, SlotTable

LINKS_MAX: Final = 64
"""Max gateway processes connected at once."""
UNREAD_MAX: Final = 256 * 1024
"""Bytes of frames that a gateway has not read above which its link is ended."""
TICK_S: Final = 0.5
PASS_AGAIN_S: Final = 0.01
"""Pause after the kernel's limit of descriptors in flight was reached (ETOOMANYREFS)."""


@dataclass(slots=True, eq=False)
class _Gateway:
    """One link. `unpassed` are connections for which the side channel had no room."""

    end: SocketEnd
    side: socket.socket | None = None
    unpassed: deque[Key] = field(default_factory=deque)
    is_blocked: bool = False


class Links:
    """Serves one server to every gateway that connects to the data listener."""

    def __init__(  # noqa: PLR0913 - the composition of the sidecar's parts
        self,
        loop: Loop,
        listener: socket.socket,
        server: Server,
        spec: ServerSpec,
        *,
        first_open: Callable[[], None],
        not_idle: Callable[[int], None],
        stop: Callable[[], None],
    ) -> None:
        """Callbacks: `first_open` for the first exchange that takes a slot, `not_idle(ms)` refuses
        or ends a drain, `stop` when a drain is over."""
        self._loop = loop
        self._listener = listener
        self._server = server
        self._spec = spec
        self._first_open: Callable[[], None] | None = first_open
        self._not_idle = not_idle
        self._stop = stop
        self._gateways: dict[int, _Gateway] = {}
        self._joined = 0
        self._connecting: dict[Key, Connecting] = {}
        self._duplicates: dict[Key, socket.socket] = {}
        self._is_closed = False
        self._table = SlotTable(spec.concurrency, spec.max_s, loop.clock())
        listener.setblocking(False)
        loop.watch(listener, self._accept)
        loop.after(TICK_S, self._tick)

    # The manager's side

    def busy_ms(self) -> int:
        """Return the total time with open exchanges, for PONG."""
        return self._table.busy_ms(self._loop.clock())

    def drain(self, if_idle_ms: int) -> None:
        """Handle DRAIN."""
        self._do(self._table.drain(if_idle_ms, self._loop.clock()))

    def quiesce(self) -> None:
        """Handle QUIESCE."""
        self._do(self._table.quiesce(self._loop.clock()))

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
        if len(self._gateways) >= LINKS_MAX:
            sock.close()
            return
        self._joined += 1
        link = self._joined
        self._gateways[link] = _Gateway(SocketEnd(sock, takes_descriptor=True))
        self._loop.watch(sock, lambda: self._readable(link))

    def _readable(self, link: int) -> None:
        gateway = self._gateways.get(link)
        if gateway is None:  # dropped earlier in this turn
            return
        try:
            frames = gateway.end.receive()
            for frame in frames or ():
                self._handle(link, gateway, frame)
        except LinkError:
            frames = None
        if frames is None:
            self._drop(link)

    def _handle(self, link: int, gateway: _Gateway, frame: Frame) -> None:
        if link not in self._gateways:
            return
        if frame.kind is Kind.HELLO:
            self._hello(link, gateway, frame)
        elif gateway.side is None:
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
            is_kept = bool(frame.flags & Flag.KEPT)
            return table.end(link, frame.id, now, is_kept=is_kept, ago_ms=frame.aux)
        if frame.kind is Kind.QUIESCED:
            return table.quiesced(link, frame.aux, now)
        raise LinkError(f"unexpected {frame.kind.name} on a data link")

    def _hello(self, link: int, gateway: _Gateway, frame: Frame) -> None:
        if frame.aux != VERSION or gateway.side is not None:
            raise LinkError(f"link version {frame.aux} is not {VERSION}, or a second HELLO")
        descriptor = gateway.end.take_descriptor()
        if descriptor is None:
            raise LinkError("expected a side channel with HELLO")
        gateway.side = _side_channel(descriptor)
        answer = {"revision": self._spec.revision, "limit": self._spec.concurrency}
        gateway.end.send(pack(Kind.HELLO, body=json.dumps(answer).encode(), aux=VERSION))
        self._do(self._table.join(link, self._loop.clock()))

    def _drop(self, link: int) -> None:
        gateway = self._gateways.pop(link, None)
        if gateway is None:
            return
        self._loop.forget(gateway.end.sock)
        gateway.end.close()
        if gateway.side is not None:
            if gateway.is_blocked:
                self._loop.forget(gateway.side)
            shut(gateway.side)
        self._do(self._table.link_lost(link, self._loop.clock()))

    # Commands

    def _tick(self) -> None:
        if not self._is_closed:
            self._do(self._table.tick(self._loop.clock()))
            self._loop.after(TICK_S, self._tick)

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case slots.Send(link, kind, id, aux):
                    self._send(link, pack(kind, id, aux=aux))
                case slots.Connect(key):
                    self._connect(key)
                case slots.Shut(key):
                    self._shut(key)
                case slots.Rename(old, key):
                    self._duplicates[key] = self._duplicates.pop(old)
                case slots.EndLink(link):
                    self._drop(link)
                case slots.NotIdle(idle_ms):
                    self._not_idle(idle_ms)
                case slots.Stop():
                    self._stop()

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
            self._do(self._table.refused(key, self._loop.clock()))
            return
        self._duplicates[key] = sock
        gateway = self._gateways[key.link]
        gateway.unpassed.append(key)
        if not gateway.is_blocked:
            self._pass_all(key.link)

    def _pass_all(self, link: int) -> None:
        """Pass the connections that wait, in order. At most one per OPEN is unread: the kernel
        limits the descriptors in flight of a user."""
        gateway = self._gateways.get(link)
        if gateway is None or gateway.side is None:
            return
        if gateway.is_blocked:
            self._loop.forget(gateway.side)
            gateway.is_blocked = False
        while gateway.unpassed:
            key = gateway.unpassed[0]
            sock = self._duplicates.get(key)
            if sock is not None:
                error = _pass(gateway.side, key.id, sock)
                if error:
                    self._wait(link, gateway, gateway.side, error)
                    return
                self._do(self._table.connected(key, self._loop.clock()))
            gateway.unpassed.popleft()

    def _wait(self, link: int, gateway: _Gateway, side: socket.socket, error: int) -> None:
        if error == errno.EAGAIN:
            gateway.is_blocked = True
            self._loop.when_writable(side, lambda: self._pass_all(link))
        elif error in (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM):
            self._loop.after(PASS_AGAIN_S, lambda: self._pass_all(link))
        else:
            # The other end is gone; not at once, as the caller may be in the middle of this link.
            self._loop.post(lambda: self._drop(link))

    def _shut(self, key: Key) -> None:
        connecting = self._connecting.pop(key, None)
        if connecting is not None:
            connecting.cancel()
        duplicate = self._duplicates.pop(key, None)
        if duplicate is not None:
            shut(duplicate)


def _side_channel(descriptor: int) -> socket.socket:
    try:
        side = socket.socket(fileno=descriptor)
    except OSError as error:
        os.close(descriptor)
        raise LinkError(f"expected a socket as side channel: {error}") from error
    if (side.family, side.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        side.close()
        raise LinkError(f"expected a SOCK_SEQPACKET side channel, got {side.type}")
    side.setblocking(False)
    return side


def _pass(side: socket.socket, id: int, sock: socket.socket) -> int:
    """Pass a connection; return the error, 0 for none."""
    try:
        socket.send_fds(side, [SOCKET_NOTICE.pack(id)], [sock.fileno()])
    except OSError as error:
        return error.errno or errno.EIO
    return 0
