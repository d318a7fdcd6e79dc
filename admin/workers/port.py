"""TCP port on which several processes listen together (SO_REUSEPORT, socket(7))."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final, cast

TRIES: Final = 20
TRY_S: Final = 0.1
"""Seconds between attempts. Workers of a killed server release the port as soon as they notice its
end, which takes some milliseconds, more on a busy machine."""

SocketAddress = tuple[str | int, ...]
"""Address for `bind`: host, port, and for IPv6 flow and scope."""


class Port:
    """Port reserved for this server's gateway processes, without listening on it."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        """`sockets` are bound and do not listen."""
        self._sockets = sockets

    @property
    def number(self) -> int:
        """Port number, also if the system chose it."""
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Release the port."""
        for one in self._sockets:
            one.close()


async def reserve(
    host: str, port: int, pause: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> Port:
    """Reserve `port` on every address of `host`; 0 lets the system choose one.

    Raises OSError if another process listens there. The kernel would silently let two servers of
    one user share a port. So the port is first bound without sharing, and a name in the abstract
    namespace excludes a second server that starts at the same time.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
    )
    places = [
        (int(family), cast("SocketAddress", sockaddr))
        for family, sockaddr in dict.fromkeys((family, sockaddr) for family, *_, sockaddr in found)
    ]
    for left in reversed(range(TRIES)):
        try:
            return _reserve(places)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not left:
                raise
        await pause(TRY_S)
    raise AssertionError("the last try returns or raises")


def _reserve(places: list[tuple[int, SocketAddress]]) -> Port:
    sockets: list[socket.socket] = []
    try:
        number = 0
        for family, sockaddr in places:
            address = (sockaddr[0], sockaddr[1] or number, *sockaddr[2:])
            with _bound(family, address, is_shared=False) as alone:
                address = alone.getsockname()
            sockets.append(_bound(family, address, is_shared=True))
            number = int(address[1])
        sockets.append(_guard(str(places[0][1][0]), number))
    except BaseException:
        for one in sockets:
            one.close()
        raise
    return Port(sockets)


def _guard(host: str, number: int) -> socket.socket:
    """Bind a name that one process of this user can hold at a time (unix(7)), until it exits."""
    guard = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        guard.bind(f"\0fngate-{os.getuid()}-{host}-{number}")
    except OSError as error:
        guard.close()
        raise OSError(error.errno, f"{_in_use((host, number))}: another server has it") from error
    return guard


def _bound(family: int, sockaddr: SocketAddress, *, is_shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{_in_use(sockaddr)}: {error.strerror}") from error
    return sock


def _in_use(sockaddr: SocketAddress) -> str:
    return f"cannot listen on {sockaddr[0]} port {sockaddr[1]}"
