"""Replicas that listen for TLS: each channel is a connection of its own, to its own address."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from weakref import WeakValueDictionary

from gateway.hosts.tls_channel import TlsChannel
from hosts.errors import ConnectionLost, shown
from registry.exchange import HostRoute, TlsRoute
from registry.tasks import Tasks
from runtime_image.contract.addresses import TlsAddress
from runtime_image.link.stream import adopt
from runtime_image.link.tcp_state import is_silent, rtt_of
from runtime_image.link.tls_context import tls_context

CONNECT_S: Final = 5.0
HANDSHAKE_S: Final = 5.0
"""Max seconds of the two halves of a dial."""
DIALS_MAX: Final = 8
"""Max dials of one replica at the same time over one connection: a replica has at most 128
unfinished ones of one address, and all gateway processes of a machine have the same. One that it
refuses is repeated. Dials of one that cannot be reached keep no other waiting."""
SILENT_S: Final = 12.0
"""Seconds without any packet of a peer that owes an acknowledgement, after which it counts as gone.
TCP doubles its pauses, so that a path which was cut for 5 s may be silent for 10 s."""
WATCH_S: Final = 1.0
"""Seconds between two looks for peers that are silent."""
OPTIONS: Final = {
    (socket.IPPROTO_TCP, socket.TCP_NODELAY): 1,
    (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT): 256 * 1024,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 4,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 4,
}
"""The kernel keeps at most 256 KiB that it has not sent. A peer from which nothing has come for 4 s
is asked, and counts as gone after another 4 s."""


class TlsConnection:
    """`gateway.hosts.greeting.Connection` to a host whose replicas listen for TLS.

    There is no connection below the channels: the host has no address of its own. So it is up from
    `open` to `close`, as a dial does not wait for anything; whether a replica can be reached, its
    dial says. `rtt_s` is that of the channel that was opened last, as the kernel has measured it.
    """

    def __init__(self, name: str, way: TlsRoute, tasks: Tasks) -> None:
        self._name = name
        self._way = way
        self._tasks = tasks
        self._dials: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """The turns of each replica that is being dialled, by its address."""
        self._channels: dict[TlsChannel, socket.socket] = {}
        self._watching: asyncio.Task[None] | None = None
        self.is_up = False
        self.rtt_s = 0.0

    def open(self) -> None:
        """Implement `Connection.open`."""
        self.is_up = True
        self._watching = self._tasks.spawn(f"watch {self._name}", self._watch())

    def renew(self, way: HostRoute) -> bool:
        """Implement `Connection.renew`: the next dials use it, what is open stays."""
        if not isinstance(way, TlsRoute):
            return False
        self._way = way
        return True

    async def close(self) -> None:
        """Implement `Connection.close`."""
        self.is_up = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        for channel in list(self._channels):
            channel.fail(ConnectionLost("this process has left the host"))

    async def wait_up(self, timeout_s: float) -> None:  # noqa: ARG002 - nothing is waited for
        """Implement `Connection.wait_up`."""
        if not self.is_up:
            raise ConnectionError(f"{self._name}: closed")

    async def dial(self, path: str, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Implement `Connection.dial`; `path` is an address with a name, `tls://IP:PORT/NAME`."""
        step = "no turn among its other dials"
        turns = self._dials.setdefault(path, asyncio.Semaphore(DIALS_MAX))
        try:
            async with asyncio.timeout(CONNECT_S + HANDSHAKE_S), turns:
                address = TlsAddress.parse(path)
                if not address.name:
                    raise ValueError("expected an address with the name of the replica")
                step = "no TCP connection"
                sock = await self._connect(address)
                step = "no TLS handshake"
                return await self._shake(sock, address, protocol)
        except TimeoutError as error:
            raise ConnectionLost(f"cannot reach {shown(path)}: {step} in time") from error
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"cannot reach {shown(path)}: {shown(error)}") from error

    async def _connect(self, address: TlsAddress) -> socket.socket:
        # A number, never a name: no DNS server decides where a replica is, or delays this process.
        is_v4 = ip_address(address.host).version == 4
        sock = socket.socket(socket.AF_INET if is_v4 else socket.AF_INET6)
        try:
            sock.setblocking(False)
            for option, value in OPTIONS.items():
                sock.setsockopt(*option, value)
            where = address.host, address.port
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().sock_connect(sock, where)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _shake(
        self, sock: socket.socket, address: TlsAddress, protocol: asyncio.BaseProtocol
    ) -> TlsChannel:
        try:
            if not self.is_up:
                raise ConnectionLost("this process has left the host")
            context = client_context(self._way)
            channel = TlsChannel(context, address.name, protocol, self._forget)
        except BaseException:
            sock.close()
            raise
        self._channels[channel] = sock
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await adopt(sock, channel)
                await channel.shaken
            self.rtt_s = rtt_of(sock)
        except BaseException:
            channel.abort()
            raise
        return channel

    def _forget(self, channel: TlsChannel) -> None:
        self._channels.pop(channel, None)

    async def _watch(self) -> None:
        """End the channels whose peer is silent at two looks in a row."""
        before = set[TlsChannel]()
        while True:
            await asyncio.sleep(WATCH_S)
            channels = self._channels.items()
            silent = {channel for channel, sock in channels if is_silent(sock, SILENT_S)}
            for channel in silent & before:
                channel.fail(ConnectionLost(f"no sign of the other side for {SILENT_S:g} s"))
            before = silent


@lru_cache(maxsize=2)
def client_context(way: TlsRoute) -> ssl.SSLContext:
    """Return the context for a route: that of now and the one before it, as all hosts share one.

    Raises OSError or ValueError for certificates that cannot be used.
    """
    return tls_context(way.authority, {"certificate": way.certificate, "key": way.key})
