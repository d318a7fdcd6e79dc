"""One stream sent to one gateway, and the observed result in comparable form."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

from tests.support.fronts.client import Client
from tests.support.fronts.grammar import REST, Piece, Stream
from tests.support.fronts.sites import Served, connect

QUIET_TURNS = 40
"""Event-loop turns without a change after which nothing more happens. All parties run in this
process, and no path takes more than half as many turns without moving a byte."""
ACCEPT_TURNS = 4
"""Turns until a gateway reads from a new connection."""
END_TURNS = 1000
"""Turns within which a gateway must close a connection that its client has closed."""
_OUR_ID = re.compile(rb"[0-9a-f]{12}-[0-9a-f]+")
_HEAD = re.compile(rb"HTTP/\d\.\d (\d{3})[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n")


class Answer(NamedTuple):
    """One answer. `headers`: sorted, names in lower case, without Date, with the numbers of
    Server-Timing masked and generated X-Request-Ids replaced."""

    start: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Seen(NamedTuple):
    """All that a client and the replicas saw of one stream."""

    answers: tuple[Answer, ...]
    is_closed: bool
    """The server closed the connection before the client did."""
    got: tuple[tuple[bytes, int, str], ...]
    after: tuple[Answer, ...]
    """Answers that arrived only after the client closed."""
    is_over: bool
    """The gateway then released the connection completely."""


async def exchange(served: Served, stream: Stream) -> Seen:
    """Send a stream and wait until nothing moves any more."""
    served.forget()
    client = await connect(served)
    assert client.transport is not None
    await _pause(served, client, Piece(b"", ACCEPT_TURNS))
    for piece in stream.pieces:
        if client.is_lost:
            break
        client.write(piece.data)
        await _pause(served, client, piece)
    await rest(served, client)
    before, is_closed = bytes(client.received), client.is_ended
    client.received.clear()
    if stream.closes:
        client.transport.close()
    elif not client.is_lost:
        client.transport.write_eof()
    await rest(served, client)
    is_over = await _over(served, client)
    got = tuple(served.got())
    return Seen(answers(before), is_closed, got, answers(bytes(client.received)), is_over)


async def _over(served: Served, client: Client) -> bool:
    """Close our end once the server's is closed, or after a while; return whether the server's is
    closed and it kept no state. A client still waiting for an answer disconnects."""
    for turn in range(END_TURNS):
        if client.is_ended and not served.left():
            break
        if turn == END_TURNS // 2 and served.delivery.loads() and not client.is_lost:
            client.leave()
        elif turn == END_TURNS * 3 // 4:
            served.sweep()
        await asyncio.sleep(0)
    is_over = client.is_ended and not served.left()
    if not is_over:
        served.give_up()  # leftovers would be blamed on the next stream
    while not client.is_lost:
        client.leave()
        await asyncio.sleep(0)
    return is_over


async def rest(served: Served, *clients: Client) -> None:
    """Wait until nothing has moved for QUIET_TURNS."""
    state, quiet = None, 0
    while quiet < QUIET_TURNS:
        await asyncio.sleep(0)
        new = [(len(c.received), c.is_ended, c.is_lost, _unsent(c)) for c in clients]
        now = (new, sum(len(replica.got) for replica in served.replicas))
        quiet = quiet + 1 if now == state else 0
        state = now


async def _pause(served: Served, client: Client, piece: Piece) -> None:
    if piece.turns == REST:
        await rest(served, client)
    for _ in range(piece.turns):
        await asyncio.sleep(0)


def _unsent(client: Client) -> int:
    transport = client.transport
    return 0 if transport is None or client.is_lost else transport.get_write_buffer_size()


def answers(data: bytes) -> tuple[Answer, ...]:
    """Parse the answers in `data`. Bytes that are no answer come last, without status and
    headers."""
    found = []
    at = 0
    while head := _HEAD.match(data, at):
        answer = _answer(data, head)
        found.append(answer)
        at = head.end() + len(answer.body)
    if at < len(data):
        found.append(Answer(b"", (), data[at:]))
    return tuple(found)


def _answer(data: bytes, head: re.Match[bytes]) -> Answer:
    start, *lines = data[head.start() : head.end() - 4].split(b"\r\n")
    parts = [line.partition(b":") for line in lines]
    pairs = [(name.lower(), value.strip()) for name, _, value in parts]
    headers = dict(pairs)
    # An answer to HEAD only announces its length. No body here starts like an answer.
    length = int(headers.get(b"content-length", b"0"))
    if _HEAD.match(data, head.end()):
        length = 0
    body = data[head.end() : head.end() + length]
    shown = tuple(sorted(_comparable(name, value) for name, value in pairs if name != b"date"))
    if headers.get(b"content-type", b"").startswith(b"text/plain; version"):
        # Metrics differ by design: they count calls by the front and by aiohttp separately.
        return Answer(start, tuple(p for p in shown if p[0] != b"content-length"), body)
    return Answer(start, shown, body)


def _comparable(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    if name == b"server-timing":
        value = re.sub(rb"=[0-9.]+", b"=N", value)
    if name == b"x-request-id" and _OUR_ID.fullmatch(value):
        value = b"ours"
    return name, value
