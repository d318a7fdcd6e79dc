"""Who is connected to a server function: kinds, order, and bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from gateway.http import connected
from gateway.http.connected import (
    SHOWN_MAX,
    Connected,
    Connections,
    LastExchanges,
    connections_of,
    joined,
)
from registry.model.servers import PathRules
from tests.support.proxied import Gate, gate, until
from tests.unit.gateway.http.test_pages import KEYS, OWN, UPGRADE, cookie

FIELDS = OWN + cookie()


async def test_open_exchanges_are_listed(tmp_path: Path) -> None:
    """By kind, with the key of the cookie, without queries; free ones keep nothing awake."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/events" in head:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; x=y\r\n\r\ndata: 1\n"
            )
        await reader.read(-1)

    paths = PathRules(free=("/free/*",))
    async with gate(tmp_path, serve, keys=KEYS, paths=paths) as one:
        wires = []
        for line, more in (
            (b"/events?secret", b""),
            (b"/ws", UPGRADE),
            (b"/free/x", b""),
            (b"/" + b"p" * 400, b""),
        ):
            wire = await one.connect()
            wire.send(b"GET " + line + b" HTTP/1.1\r\n" + FIELDS + more + b"\r\n")
            wires.append(wire)
        await wires[0].head()
        await until(lambda: len(one.exchanges) == len(wires))

        found = shown(one)

        assert (found.counting, found.free) == (3, 1)
        assert {(item.kind, item.path, item.counts) for item in found.items} == {
            ("events", "/events", True),
            ("websocket", "/ws", True),
            ("request", "/free/x", False),
            ("request", "/" + "p" * 199, True),
        }
        assert {item.key_id for item in found.items} == {"key-of"}
        assert one.gateway.connections("default", "we").items == []
        assert one.gateway.connections("other", "web").items == []
        for wire in wires:
            wire.close()
        await one.settled()


async def test_the_exchange_that_ended_last_is_named(tmp_path: Path) -> None:
    """Of those that kept the function awake: whole, cut, or left by its client, but not a free one,
    nor one without an answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/dies" in head:
            writer.close()
        kind = b"text/event-stream" if b"/events" in head else b"text/plain"
        begun = b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nContent-Length: 2\r\n\r\nx"
        writer.write(begun if b"/events" in head else begun + b"x")

    paths = PathRules(free=("/free/*",))
    async with gate(tmp_path, serve, keys=KEYS, paths=paths) as one:
        assert shown(one).last is None
        for path, expected in (
            (b"/a?secret", ("request", "/a")),
            (b"/events", ("events", "/events")),
            (b"/free/x", ("events", "/events")),
            (b"/dies", ("events", "/events")),
        ):
            wire = await one.connect()
            wire.send(b"GET " + path + b" HTTP/1.1\r\n" + FIELDS + b"\r\n")
            await wire.head()
            wire.close()
            await until(lambda: not one.exchanges.all())
            last = shown(one).last
            assert last is not None
            assert (last.kind, last.path, last.key_id) == (*expected, "key-of")
        assert one.gateway.connections("default", "we").last is None
        await one.settled()


def test_few_functions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose last exchange is the longest ago are forgotten."""
    monkeypatch.setattr(connected, "POOLS_MAX", 2)
    found = LastExchanges()
    answer = Mock(fields=Mock(get=lambda _: b""))
    for at_s, name in enumerate(("a", "b", "a", "c")):
        plan = Mock(pool=f"default/{name}@{at_s}", key_id="k", websocket_key=None)
        plan.target.path = b"/"
        found.put(plan, answer, float(at_s))

    ended = [found.get("default", name) for name in ("a", "b", "c")]
    assert [one and one.since_s for one in ended] == [2.0, None, 3.0]


def test_the_last_exchange_of_all_processes_is_the_latest() -> None:
    """A process may know none."""
    one, other = (Connected("", "request", float(at), "/", True) for at in (3, 5))
    several = [Connections([], 0, 0, [], last) for last in (one, None, other)]

    assert joined(several).last == other


def shown(one: Gate) -> Connections:
    """Return who is connected to the function."""
    return one.gateway.connections("default", "web")


def test_the_longest_that_counts_comes_first() -> None:
    """Lists of several processes become one, bounded; all are counted."""

    def at(since_s: float, *, counts: bool = True) -> Connected:
        return Connected("k", "request", since_s, "/", counts)

    many = [at(float(number)) for number in range(SHOWN_MAX)]
    found = joined(
        [
            Connections([at(-1.0, counts=False), at(7.5)], 10, 20),
            Connections(many, SHOWN_MAX, 0),
        ]
    )

    assert len(found.items) == SHOWN_MAX
    assert found.items[8] == at(7.5)
    assert all(item.counts for item in found.items)
    assert (found.counting, found.free) == (SHOWN_MAX + 10, 20)
    assert joined([]) == Connections([], 0, 0)


def test_it_goes_over_the_wire() -> None:
    """Gateway processes send it as msgpack."""
    found = Connections([Connected("k", "events", 1.5, "/\xe4", True)], 1, 2)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Connections) == found


def test_closed_websockets_are_joined_newest_first() -> None:
    """Those that ended because their replica stopped; another function's are left out."""
    at = [("default/web@1", Connected("k", "websocket", float(s), "/", False)) for s in (1, 3)]
    other = ("default/webs@1", Connected("k", "websocket", 9.0, "/", False))

    found = joined([connections_of((), "default", "web", 0.0, [*at, other]), Connections([], 0, 0)])

    assert [one.since_s for one in found.closed] == [3.0, 1.0]
