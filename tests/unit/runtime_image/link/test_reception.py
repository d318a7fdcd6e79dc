"""The manager's side of the HELLO exchange."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from runtime_image.contract.link import HEADER, SPOKEN, VERSION, Kind
from runtime_image.link.frames import LinkError, pack
from runtime_image.link.handshake import pack_hello
from runtime_image.link.reception import GREETING_MAX, read_hello, welcome
from tests.support.greetings import HELLO, Pair


async def test_a_known_replica_gets_no_second_listener(pair: Pair) -> None:
    """A replica that already has its listener is welcomed without a descriptor."""
    replica, manager = pair

    welcome(manager, None)
    data, descriptors, _, _ = socket.recv_fds(replica, 100, 1)

    assert data == b"".join(pack(Kind.WELCOME))
    assert descriptors == []


async def answer_to(pair: Pair, data: bytes) -> LinkError:
    pair[0].sendall(data)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(LinkError) as caught:
        await read_hello(pair[1], 10)
    return caught.value


def changed(**fields: Any) -> bytes:
    body = {key: value for key, value in {**HELLO, **fields}.items() if value is not None}
    return b"".join(pack(Kind.HELLO, body=json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "closed before HELLO"),
        (b"".join(pack(Kind.PING)), "expected HELLO alone, got PING"),
        (b"".join([*pack_hello(HELLO), *pack(Kind.PING)]), "expected HELLO alone"),
        (b"".join(pack(Kind.HELLO, body=b"{")), "malformed HELLO"),
        (b"".join(pack(Kind.HELLO, body=b"[]")), "malformed HELLO"),
        (HEADER.pack(GREETING_MAX + 1, 0, Kind.HELLO, 0, 0, 0), "over the limit"),
        (changed(version=VERSION + 1), f"link version {VERSION + 1} is not 9 to {VERSION}"),
        (changed(version=8), f"link version 8 is not 9 to {VERSION}"),
        (changed(version="9"), f"link version 9 is not 9 to {VERSION}"),
        (changed(version=[9]), f"link version [9] is not 9 to {VERSION}"),
        (changed(token=None), "malformed HELLO"),
        (changed(token=1), "malformed HELLO"),
        (changed(pid="7"), "malformed HELLO"),
        (changed(bound=[]), "malformed HELLO"),
        (changed(phases=[]), "malformed HELLO"),
        (changed(loaded="yes"), "malformed HELLO"),
    ],
)
async def test_anything_but_a_hello_is_refused(pair: Pair, data: bytes, reason: str) -> None:
    """A HELLO that is truncated, malformed, too long or of another version is refused."""
    assert reason in str(await answer_to(pair, data))


async def test_a_silent_stranger_is_not_waited_for(pair: Pair) -> None:
    """A connection that sends nothing is dropped."""
    with pytest.raises(LinkError, match="no HELLO: TimeoutError"):
        await read_hello(pair[1], 0)


@pytest.mark.parametrize("version", SPOKEN)
async def test_a_replica_of_an_earlier_server_is_greeted(pair: Pair, version: int) -> None:
    """A HELLO of each version that a server speaks is read."""
    pair[0].sendall(changed(version=version))

    assert (await read_hello(pair[1], 10))["version"] == version
