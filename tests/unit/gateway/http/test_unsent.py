"""Tests of answers that clients do not take: what counts, who is cut, and when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from gateway.dispatch.held import HeldBytes
from gateway.settings import MIB
from gateway.unsent import CUTS_MAX, PART, STILL_S, UnsentAnswer, UnsentAnswers, clients_to_cut
from runtime_image.contract.link import Kind
from tests.support.peers import Peer
from tests.support.proxied import gate, quiet, until
from tests.unit.gateway.http.conftest import Front
from tests.unit.gateway.http.test_fast_path import request

NOW = 1000.0
WHOLE = 16 * MIB
RECEIVE_BUFFER = 8 * 1024
LAST = 48 * 1024
"""Less than a transport takes before it pauses, and more than both buffers of the kernel hold."""
GET = b"GET /fn/web/x HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


async def large(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with WHOLE bytes."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % WHOLE + b"x" * WHOLE)
    await writer.drain()


class Client(NamedTuple):
    """A client whose answer has `bytes`; it has taken nothing for `still_s`."""

    name: str
    still_s: float
    paced: float | None = None
    may_pause: bool = False
    bytes: int = 100

    @property
    def moved_s(self) -> float:
        return NOW - self.still_s

    @property
    def paced_s(self) -> float:
        return NOW - (self.still_s if self.paced is None else self.paced)


def exchange(name: str, still_s: float) -> Client:
    """Return the client of an exchange."""
    return Client(name, still_s, may_pause=True)


@pytest.mark.parametrize(
    ("clients", "over", "cut"),
    [
        pytest.param([Client("a", 29), Client("b", 30)], -1, ["b"], id="whole-answers-at-30-s"),
        pytest.param([exchange("a", 600)], 0, [], id="an-exchange-may-pause"),
        pytest.param([exchange("a", 600)], 1, ["a"], id="but-not-over-the-limit"),
        pytest.param([exchange("a", 29)], 1, [], id="nor-before-30-s-over-the-limit"),
        pytest.param([exchange("a", 40), exchange("b", 50)], 1, ["b"], id="the-longest-first"),
        pytest.param([exchange("a", 40), Client("b", 30)], 1, ["b"], id="no-more-than-needed"),
        pytest.param([Client("a", 1, 30)], 0, [], id="a-slow-client-stays"),
        pytest.param([Client("a", 1, 30)], 1, ["a"], id="a-slow-client-over-the-limit"),
        pytest.param(
            [exchange(str(age), age) for age in range(40, 72)],
            10**6,
            ["71", "70"],
            id="a-sixteenth-at-a-time",
        ),
    ],
)
def test_who_is_cut(clients: list[Client], over: int, cut: list[str]) -> None:
    """A whole answer is cut after 30 s without progress, everything else only over the limit."""
    assert [one.name for one in clients_to_cut(clients, over, NOW)] == cut


def test_a_door_without_a_transport_counts_what_its_clients_take() -> None:
    """Bytes count until they are taken or the client is gone; a cut client is told once."""
    held, now, cut = HeldBytes(1000), [0.0], list[str]()
    answers = UnsentAnswers(held, lambda: now[0])
    one, other = (
        UnsentAnswer(answers, lambda: cut.append("one")),
        UnsentAnswer(answers, lambda: cut.append("other")),
    )
    one.add(600)
    other.add(200)
    one.add(100)
    assert (held.bytes, answers.bytes, len(answers)) == (900, 900, 2)
    now[0] = STILL_S - 1
    one.taken(1)
    now[0] = STILL_S
    assert (answers.sweep(), cut) == (1, ["other"])
    one.taken(10**6)
    one.close()
    assert (held.bytes, len(answers), answers.sweep()) == (0, 0, 0)


async def test_many_clients_are_cut_in_several_turns() -> None:
    """No turn of the event loop ends more than CUTS_MAX connections."""
    now, cut = [0.0], list[int]()
    answers = UnsentAnswers(HeldBytes(1000), lambda: now[0])
    for number in range(2 * CUTS_MAX + 1):
        UnsentAnswer(answers, partial(cut.append, number)).add(1)
    now[0] = STILL_S
    assert (answers.sweep(), len(cut)) == (CUTS_MAX, CUTS_MAX)
    await until(lambda: len(cut) == 2 * CUTS_MAX + 1)
    assert answers.cuts == len(cut)


def test_over_the_limit_a_client_has_to_take_a_part() -> None:
    """While the count is over its limit, a client that takes less than 1/PART in 30 s is cut."""
    now, cut = [0.0], list[str]()
    answers = UnsentAnswers(HeldBytes(1000), lambda: now[0])
    fast, slow = (
        UnsentAnswer(answers, lambda: cut.append("fast")),
        UnsentAnswer(answers, lambda: cut.append("slow")),
    )
    for one in (fast, slow):
        one.add(100 * PART)
    for now[0] in (10.0, 20.0, 30.0, 40.0):
        fast.taken(100)
        slow.taken(1)
        answers.sweep()
    assert cut == ["slow"]


class StillClient:
    """Connected client with small buffers, which takes only what the test reads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def take(self, count: int) -> bytes:
        """Read `count` bytes, fewer if the connection ends before."""
        got = bytearray()
        with suppress(ConnectionResetError):
            while len(got) < count:
                data = await asyncio.get_running_loop().sock_recv(self._sock, count - len(got))
                if not data:
                    break
                got += data
        return bytes(got)


@contextmanager
def still_client(port: int) -> Iterator[StillClient]:
    """Yield a client, closed with the block."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        sock.connect(("127.0.0.1", port))
        sock.setblocking(False)
        yield StillClient(sock)


async def test_an_answer_of_a_model_that_is_not_taken(front: Front, peer: Peer) -> None:
    """It counts until its client has taken nothing for 30 s, and is then reset: progress begins the
    time anew, other calls go on, and the connection is not idle meanwhile."""
    answers, now = front.gateway.invoker.body_budget.answers, [0.0]
    answers.clock = lambda: now[0]
    with still_client(int(urlsplit(front.url).port or 0)) as client:
        await client.send(request())
        peer.answer((await peer.next(Kind.REQUEST)).id, b"x" * WHOLE)
        await until(lambda: answers.bytes > WHOLE // 2)
        assert front.delivery.held.bytes == answers.bytes
        now[0] = 1.0
        assert answers.sweep() == 0
        assert len(await client.take(MIB)) == MIB
        now[0] = STILL_S
        assert answers.sweep() == 0
        now[0] = 2 * STILL_S - 1
        assert (answers.sweep(), len(answers)) == (0, 1)
        now[0] = 2 * STILL_S
        answers.sweep()
        await until(lambda: not front.delivery.held.bytes)
        assert len(await client.take(2 * WHOLE)) < WHOLE


async def test_a_download_from_a_server_may_pause(tmp_path: Path, is_fast: bool) -> None:
    """An exchange holds little and is not cut for a pause; also its end, which the server has sent
    already, arrives whole after ten minutes."""
    is_last = asyncio.Event()

    async def fills(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer, with the end in one piece that the kernel does not hold for the client."""
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MIB + LAST))
        writer.write(b"x" * MIB)
        await is_last.wait()
        writer.write(b"x" * LAST)
        await writer.drain()

    async with gate(tmp_path, fills, is_fast=is_fast, send_buffer=RECEIVE_BUFFER) as one:
        answers, now = one.gateway.invoker.body_budget.answers, [0.0]
        answers.clock = lambda: now[0]
        with still_client(one.port) as client:
            await client.send(GET)
            await until(lambda: answers.bytes)
            assert await quiet(lambda: answers.bytes) <= MIB
            for now[0] in (1.0, 600.0):
                one.sweep()
            assert len(one.exchanges) == 1
            _, _, begun = (await client.take(MIB)).partition(b"\r\n\r\n")
            is_last.set()
            await until(lambda: not len(one.exchanges))
            assert answers.bytes
            for now[0] in (601.0, 1200.0):
                one.sweep()
            assert begun + await client.take(WHOLE) == b"x" * (MIB + LAST)
        await until(lambda: not answers.bytes)


async def test_a_paused_download_is_cut_where_memory_is_short(
    tmp_path: Path, is_fast: bool
) -> None:
    """Over the limit, a new request gets 429, and the client of an exchange that has taken nothing
    for 30 s is reset; then requests are accepted again."""
    async with gate(tmp_path, large, is_fast=is_fast) as one:
        budget, now = one.gateway.invoker.body_budget, [0.0]
        budget.answers.clock = lambda: now[0]
        with still_client(one.port) as client:
            await client.send(GET)
            await quiet(lambda: budget.answers.bytes)
            document = UnsentAnswer(budget.answers, lambda: None)  # of another door
            document.add(256 * MIB)
            for now[0] in (1.0, STILL_S - 1):
                one.sweep()
                document.taken(MIB)
            document.add(2 * MIB)
            refused = await one.ask(GET)
            assert refused.startswith(b"HTTP/1.1 429 ")
            assert b"answers that their clients have not taken" in refused
            now[0] = STILL_S + 1
            one.sweep()
            assert len(await client.take(2 * WHOLE)) < WHOLE
        document.close()
        await one.settled()
