"""Random sequences of messages against both ends of the gateway protocol.

`python -m tests.support.gateway_protocol --sequences 100000`. A sequence has valid messages, those
of the other direction, replayed, damaged and unknown ones, bytes of chance and lengths over the
limit, cut anywhere. No exception may leave an end, no more may stay in memory after a sequence than
before it, and the next stream must make everything right.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast

import structlog

from admin.workers import messages as m
from admin.workers.hub import Hub, StateFeed
from admin.workers.link import ServerLink
from admin.workers.messages import encode
from admin.workers.pool import WorkerPool, WorkerSlot
from admin.workers.replica import CatalogReplica
from admin.workers.reports import Reports
from admin.workers.stream import SocketStream, Stream
from gateway.settings import GatewaySettings
from registry.catalog import Catalog
from registry.exchange import Expected
from registry.model.keys import Key
from registry.store.keys import KeyRing
from registry.upstream_keys import UpstreamKey, UpstreamKeys
from tests.support import nouns
from tests.support.gateway_messages import DOWN, UP

NAME = "7"
MESSAGES_MAX = 12
SPARE_MIB = 24
"""Resident memory that a run may take beyond what it had after its first tenth."""
HELLO = m.Hello(m.VERSION, "1")


class Wire(asyncio.Transport):
    """Transport of a stream whose other end is a test."""

    def __init__(self, stream: SocketStream) -> None:
        super().__init__()
        self._stream = stream
        self._is_closing = False

    def write(self, data: Any) -> None:
        """Forget what is sent."""

    def get_write_buffer_size(self) -> int:
        """Return that all is read."""
        return 0

    def is_closing(self) -> bool:
        """Return whether the end was asked for."""
        return self._is_closing

    def abort(self) -> None:
        """End soon, as transports do."""
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._stream.connection_lost, None)

    close = abort


class WiredStream(SocketStream):
    """Stream on a wire."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        super().__init__(cast("Any", None), decode)
        self.wire = Wire(self)

    async def _begin(self) -> None:
        self.connection_made(self.wire)


def packed(data: bytes) -> bytes:
    """Return a message as it stands in a stream."""
    return struct.pack("<I", len(data)) + data


def sequence(chance: random.Random, own: list[Any], other: list[Any]) -> bytes:
    """Return the bytes of one sequence to an end that gets the messages `own`."""
    earlier: list[bytes] = []
    data = b""
    first = chance.random()
    if first < 0.9:
        data += packed(encode(HELLO if first < 0.85 else m.Hello(chance.randrange(-1, 5), "x")))
    for _ in range(chance.randrange(1, MESSAGES_MAX)):
        kind = chance.randrange(10)
        if kind == 0:  # what does not fit a message
            data += chance.choice([struct.pack("<I", 2**32 - 1), chance.randbytes(3)])
            continue
        if kind == 1 and earlier:
            one = chance.choice(earlier)
        elif kind == 2:
            one = damaged(chance, encode(chance.choice(own)))
        elif kind == 3:
            names = ["Nonsense", "", "Keys", "Ask"]
            one = encode({"type": chance.choice(names), "number": 2**63})
        elif kind == 4:
            one = chance.randbytes(chance.randrange(40))
        else:
            one = encode(numbered(chance, chance.choice(other if kind == 5 else own)))
        earlier.append(one)
        data += packed(one)
    return data


def numbered(chance: random.Random, message: Any) -> Any:
    """Return a message; one with a number has one that may be in use."""
    if isinstance(message, m.Ask):
        return m.Ask(chance.randrange(6), message.question)
    if isinstance(message, m.Answer | m.Leave):
        return type(message)(chance.randrange(6))
    return message


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return bytes with a few changes."""
    found = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(found) + 1)
        change = chance.randrange(3)
        if change == 0:
            found.insert(place, chance.randrange(256))
        elif found:
            place %= len(found)
            if change == 1:
                found[place] = chance.randrange(256)
            else:
                del found[place : place + chance.randrange(1, 20)]
    return bytes(found)


def cut(chance: random.Random, data: bytes) -> Iterator[bytes]:
    """Yield data in pieces."""
    at = 0
    while at < len(data):
        end = at + chance.choice([1, 50, 10_000])
        yield data[at:end]
        at = end


class Ignored:
    """Receiver that forgets everything."""

    def __getattr__(self, _what: str) -> Any:
        return lambda *_given: None


class Process:
    """Gateway whose stream the test writes to."""

    name = NAME

    def __init__(self) -> None:
        self.stream = WiredStream(m.decode_up)
        self.kills = 0

    def connect(self) -> Stream:
        """Implement `GatewayProcess`."""
        self.stream = WiredStream(m.decode_up)
        return self.stream

    def kill(self) -> None:
        """Implement `GatewayProcess`."""
        self.kills += 1


async def forever(_question: Any) -> None:
    """Answer nothing."""
    await asyncio.Event().wait()


@dataclass
class State:
    """A server's state, and its feed. The messages of a sequence are about other things, which must
    be gone after the whole state."""

    catalog: Catalog = field(default_factory=lambda: Catalog([nouns.deployed("kept")]))
    ring: KeyRing = field(default_factory=lambda: KeyRing([Key("o", "cd" * 32, ("invoke",))]))
    upstream_keys: UpstreamKeys = field(default_factory=UpstreamKeys)

    def __post_init__(self) -> None:
        self.upstream_keys.put(UpstreamKey("kept", "s3cret"))
        guess = Expected(0.1, 0.2, 0.3, 0)
        self.feed = StateFeed(self.catalog, self.ring, self.upstream_keys, lambda _pool: guess)


class ServerEnd:
    """The server's end: pool, hub and reports of one gateway."""

    def __init__(self) -> None:
        self._state = State()
        self._hub = Hub(self._state.feed.whole)
        self._hub.answer({m.LoadModel: forever, m.UnloadModel: forever, m.ReadStatistics: forever})
        ignored = cast("Any", Ignored())
        self._reports = Reports(ignored, ignored, self._hub.refresh)
        self._pool = WorkerPool(1, self._hub, self._reports, ignored, ignored)
        self._pool._welcome = _welcome

    async def play(self, chance: random.Random, data: bytes) -> None:
        """Receive a sequence on a new stream, and then see its end."""
        process = Process()
        slot = WorkerSlot(0.0, cast("Any", process))
        slot.name = NAME
        await self._pool._connect(slot)
        asked = await self._questions(slot)
        stream = process.stream
        for piece in cut(chance, data):
            if not stream.wire.is_closing():
                stream.data_received(piece)
        stream.close()
        slot.is_finished = True  # this one does not come back
        for one in asked:
            one.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        assert not stream.is_open
        assert self._hub._sessions == {}
        assert len(self._hub._tasks) == 0, "questions are still being answered"
        assert self._reports.tasks == 0
        self._hub.remove(NAME, comes_back=False)

    async def _questions(self, slot: WorkerSlot) -> list[asyncio.Future[Any]]:
        """Ask what answers of chance may meet."""
        assert slot.session is not None
        session = slot.session
        found = [
            session.requests.begin(question)
            for question in (m.Applied(), m.ReadLedger(), m.ListConnections("default", "f"))
        ]
        return cast("list[asyncio.Future[Any]]", found)


def _welcome(name: str) -> m.Welcome:
    return m.Welcome(name, GatewaySettings(), "json", "", False, True)


class WiredDoor:
    """Door through which the test passes streams."""

    def __init__(self) -> None:
        self._streams: asyncio.Queue[Stream] = asyncio.Queue()

    def put(self) -> WiredStream:
        """Pass a stream, and return it."""
        stream = WiredStream(m.decode_down)
        self._streams.put_nowait(stream)
        return stream

    async def next(self) -> Stream | None:
        """Return the next stream."""
        return await self._streams.get()


class GatewayEnd:
    """A gateway's end: its link and its copy of the state."""

    def __init__(self) -> None:
        self._state = State()
        self._begin()

    def _begin(self) -> None:
        self._copy, self._door = CatalogReplica(), WiredDoor()
        handlers: dict[Any, Any] = {m.Applied: lambda _question: None, m.ReadLedger: forever}
        self._link = ServerLink(self._door.next, handlers, self._take)
        self._link.open(lambda: None)

    def _take(self, message: Any) -> None:
        if isinstance(message, m.State):
            self._copy.apply(message)

    async def play(self, chance: random.Random, data: bytes) -> None:
        """Receive a sequence on a new stream, and then the whole state on the next one."""
        stream = await self._next()
        for piece in cut(chance, data):
            if not stream.wire.is_closing():
                stream.data_received(piece)
        stream.close()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not stream.is_open
        assert not self._link.is_whole
        if self._link.is_gone:  # another version
            await self._link.close()
            self._begin()
        stream = await self._next()
        for message in (HELLO, _welcome(NAME), *self._state.feed.whole(), m.Began()):
            stream.data_received(packed(encode(message)))
        assert self._link.is_whole
        assert len(self._link._tasks) == 2, "questions are still being answered"
        assert self._copy.ring.all() == self._state.ring.all()
        assert self._copy.ring.openness is self._state.ring.openness
        assert self._copy.upstream_keys.all() == self._state.upstream_keys.all()
        assert self._copy.catalog.all() == self._state.catalog.all()
        stream.close()
        for _ in range(3):
            await asyncio.sleep(0)

    async def _next(self) -> WiredStream:
        stream = self._door.put()
        while not stream.is_open:  # noqa: ASYNC110 - the link opens it in its next turns
            await asyncio.sleep(0)
        return stream

    async def close(self) -> None:
        """End the link."""
        await self._link.close()


async def play(count: int, seed: int) -> tuple[int, float]:
    """Play `count` sequences against each end; return how many, and the MiB that memory grew after
    the first tenth."""
    escaped: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, what: escaped.append(what))
    chance = random.Random(seed)
    server, gateway = ServerEnd(), GatewayEnd()
    base_mib = 0.0
    for number in range(count):
        await server.play(chance, sequence(chance, UP, DOWN))
        await gateway.play(chance, sequence(chance, DOWN, UP))
        assert escaped == [], f"sequence {number} of seed {seed}: {escaped}"
        if number == count // 10:
            base_mib = resident_mib()
    await gateway.close()
    return 2 * count, resident_mib() - base_mib


def resident_mib() -> float:
    """Return this process's resident memory."""
    gc.collect()
    with open("/proc/self/statm") as file:  # noqa: PTH123 - proc(5)
        return int(file.read().split()[1]) * 4 / 1024


def main() -> None:
    """Play sequences, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    structlog.configure(processors=[_drop])
    began_s = monotonic()
    played, grown_mib = asyncio.run(play(options.sequences // 2, options.seed))
    assert grown_mib < SPARE_MIB, f"memory grew by {grown_mib:.1f} MiB"
    took_s = monotonic() - began_s
    sys.stdout.write(f"{played} sequences in {took_s:.0f} s; memory +{grown_mib:.1f} MiB\n")


def _drop(_logger: Any, _name: str, _event: Any) -> Any:
    raise structlog.DropEvent


if __name__ == "__main__":
    main()
