"""The replica's side of the HELLO exchange."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from runtime_image.contract.link import Kind
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.handshake import greet
from runtime_image.link.reception import read_hello, welcome
from tests.support.greetings import HELLO, Pair


async def test_a_replica_is_welcomed(pair: Pair) -> None:
    """The manager reads who greets; the replica gets the data listener itself."""
    replica, manager = pair
    with socket.socket(socket.AF_UNIX) as listener:
        async with asyncio.TaskGroup() as group:
            greeted = group.create_task(asyncio.to_thread(greet, replica, HELLO))
            hello = await read_hello(manager, 10)
            welcome(manager, listener)

        _, descriptor, frames = greeted.result()
        same = os.path.samestat(os.fstat(descriptor), os.fstat(listener.fileno()))
        os.close(descriptor)

    assert hello == HELLO
    assert same
    assert frames == []


def test_frames_behind_the_welcome_are_kept(pair: Pair) -> None:
    """What comes in the same read as WELCOME is handed on, and half a frame stays readable."""
    replica, manager = pair
    [ping] = pack(Kind.PING, aux=3)
    data = b"".join([*pack(Kind.WELCOME), *pack(Kind.PING, aux=2), ping[:5]])
    socket.send_fds(manager, [data], [manager.fileno()])

    reader, descriptor, frames = greet(replica, HELLO)
    os.close(descriptor)
    rest = ping[5:]
    reader.buffer()[: len(rest)] = rest

    assert frames == [Frame(Kind.PING, 0, 0, 2, b"", b"")]
    assert reader.received(len(rest)) == [Frame(Kind.PING, 0, 0, 3, b"", b"")]


def test_a_refused_replica_is_told(pair: Pair) -> None:
    """A manager that closes instead of answering has refused."""
    replica, manager = pair
    manager.shutdown(socket.SHUT_WR)

    with pytest.raises(LinkError, match="the manager refused the greeting"):
        greet(replica, HELLO)


@pytest.mark.parametrize(("kind", "count"), [(Kind.PING, 1), (Kind.WELCOME, 0)])
def test_a_wrong_welcome_leaves_no_descriptor(pair: Pair, kind: Kind, count: int) -> None:
    """Another frame, or a WELCOME without a listener, is an error and nothing stays open."""
    replica, manager = pair
    socket.send_fds(manager, [b"".join(pack(kind))], [manager.fileno()] * count)

    with pytest.raises(LinkError, match=f"got {kind.name} with {count}"):
        greet(replica, HELLO)


@pytest.mark.slow
def test_a_replica_does_not_pay_for_asyncio() -> None:
    """Greeting is imported by every replica and must not bring asyncio along."""
    code = "import sys, runtime_image.link.handshake; sys.exit('asyncio' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
