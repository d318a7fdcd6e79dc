"""Tests of the port that several processes listen on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from admin.workers.port import TRIES, reserve

HOST = "127.0.0.1"


class Pauses:
    """Sleep that only counts; calls `then` at the third pause."""

    def __init__(self) -> None:
        self.count = 0
        self.then = lambda: None

    async def __call__(self, _seconds: float) -> None:
        self.count += 1
        if self.count == 3:
            self.then()


@pytest.fixture
def pauses() -> Pauses:
    """Pauses that return at once."""
    return Pauses()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A foreign server whose port can be shared."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((HOST, 0))
        sock.listen()
        yield sock


async def test_several_sockets_share_a_reserved_port(pauses: Pauses) -> None:
    """Several processes can listen on the reserved port, which the system has chosen."""
    port = await reserve(HOST, 0, pauses)
    socks = [socket.create_server((HOST, port.number), reuse_port=True) for _ in range(2)]

    assert {sock.getsockname() for sock in socks} == {(HOST, port.number)}
    with socket.create_connection((HOST, port.number)):
        pass
    for sock in socks:
        sock.close()
    port.close()


async def test_a_reserved_port_refuses_connections(pauses: Pauses) -> None:
    """A reserved port refuses connections until a worker listens."""
    port = await reserve(HOST, 0, pauses)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port.number))
    port.close()


async def test_a_port_where_somebody_listens_is_refused(
    listener: socket.socket, pauses: Pauses
) -> None:
    """A port with a listener is refused although the kernel would share it: some of the calls would
    go to the other server."""
    number = listener.getsockname()[1]
    with pytest.raises(OSError, match=f"cannot listen on {HOST} port {number}: Address already"):
        await reserve(HOST, number, pauses)

    assert pauses.count == TRIES - 1


async def test_a_port_that_is_about_to_be_free_is_waited_for(
    listener: socket.socket, pauses: Pauses
) -> None:
    """A port in use is retried for a while: workers of a killed server release it a little
    later."""
    number = listener.getsockname()[1]
    pauses.then = listener.close

    port = await reserve(HOST, number, pauses)

    assert port.number == number
    port.close()


async def test_two_servers_that_start_together_do_not_share(pauses: Pauses) -> None:
    """Two starting servers do not share a port although neither listens yet."""
    first = await reserve(HOST, 0, pauses)
    with pytest.raises(OSError, match="another server has it"):
        await reserve(HOST, first.number, pauses)
    number = first.number
    first.close()

    (await reserve(HOST, number, pauses)).close()


async def test_other_errors_are_not_waited_for(pauses: Pauses) -> None:
    """An address that this machine does not have is refused without a retry."""
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1"):
        await reserve("192.0.2.1", 0, pauses)

    assert pauses.count == 0


async def test_every_address_of_a_name_has_the_same_port(pauses: Pauses) -> None:
    """A port is reserved on every address of a name: localhost may be IPv4 and IPv6."""
    port = await reserve("localhost", 0, pauses)
    for family, host in ((socket.AF_INET, HOST), (socket.AF_INET6, "::1")):
        if (family, host) in await addresses("localhost"):
            with pytest.raises(OSError, match="in use"), socket.socket(family) as other:
                other.bind((host, port.number))
    port.close()


async def addresses(name: str) -> set[tuple[int, str]]:
    """Return the addresses of a name on this machine."""
    found = await asyncio.get_running_loop().getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    return {(family, str(sockaddr[0])) for family, *_, sockaddr in found}
