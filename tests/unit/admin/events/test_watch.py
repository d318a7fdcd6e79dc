"""Tests of what followers of the event stream receive, over a scripted state."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

from admin.client.sse import Parser
from admin.documents.events import BeatEvent, DecisionEvent, ServerFacts
from admin.events import watch as watches
from admin.events.log import Item
from admin.events.snapshot import StateReader
from admin.events.sse import Position
from admin.events.watch import EventWatch, Follower
from gateway.openapi.answers import Readiness
from registry.catalog import Catalog
from registry.exchange import Endpoints, PoolEndpoints, encode
from tests.support.nouns import deployed

Joined = Callable[..., "Reader"]


class Play:
    """State reader whose functions, replicas and hosts the test sets; records each read in
    `looks`."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.active: set[str] = set()
        self.there: list[str] = []
        self.hosts_there: list[str] = []
        self.looks: list[list[str]] = []

    def tick(self) -> None:
        """Do nothing: there are no rates."""

    def busy_functions(self) -> set[str]:
        """Return the functions that the test marked as busy."""
        return self.active

    def functions(self, names: Iterable[str]) -> tuple[list[Item], list[str]]:
        """Return the functions that have a state, and the others' names."""
        self.looks.append(list(names))
        found = [n for n in self.looks[-1] if n in self.states]
        things = [Item(n, n, json.dumps({"name": n, "s": self.states[n]}).encode()) for n in found]
        return things, [n for n in self.looks[-1] if n not in self.states]

    def replicas(self) -> Iterator[Item]:
        """Return the replicas that the test set."""
        return (Item(id, "f", b'{"id":"%s"}' % id.encode()) for id in self.there)

    def devices(self) -> Iterator[Item]:
        """Return one device."""
        yield Item("cpu:0", "", b"{}")

    def hosts(self) -> Iterator[Item]:
        """Return the hosts that the test set."""
        return (Item(name, "", b'{"name":"%s"}' % name.encode()) for name in self.hosts_there)

    def beat(self) -> BeatEvent:
        """Return an empty beat."""
        return BeatEvent(0.0, 0, 0, 0.0, Readiness("ok", []))


def decision(text: str) -> DecisionEvent:
    """Return a decision about `digits`."""
    return DecisionEvent("digits", "digits@1", 0.0, text)


class Clock:
    """Clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Reader:
    """Follower that parses its events into kind and data."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._parser = Parser()
        self.told: list[tuple[str, Any]] = []
        self.last_id = ""

    async def until(self, kind: str) -> list[tuple[str, Any]]:
        """Read up to and including the next event of that kind; return them."""
        async with asyncio.timeout(60):
            while kind not in [one for one, _ in self.told]:
                await self._follower.news()
                for event in self._parser.feed(b"".join(self._follower.take())):
                    self.told.append((event.type, json.loads(event.data)))
                    self.last_id = event.id
        at = [one for one, _ in self.told].index(kind) + 1
        found, self.told = self.told[:at], self.told[at:]
        return found


@pytest.fixture
def play() -> Play:
    """A state with one function."""
    made = Play()
    made.states["digits"] = "cold"
    return made


@pytest.fixture
def clock() -> Clock:
    """The watch's clock."""
    return Clock()


@pytest.fixture
async def watch(
    play: Play, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EventWatch]:
    """A watch without delays, whose seconds the test advances."""
    monkeypatch.setattr(watches, "UPDATE_S", 0.0)
    monkeypatch.setattr(watches, "BATCH_GAP_S", 0.0)
    catalog = Catalog([deployed()])
    made = EventWatch(cast("StateReader", play), catalog, ServerFacts("1", "fake", 1, 0.0), clock)
    yield made
    made.close()


def pools(*keys: str) -> bytes:
    """Encode the manager's message that these pools changed."""
    return encode(Endpoints(1, False, {key: PoolEndpoints([], "warm", "") for key in keys}))


@pytest.fixture
def joined(watch: EventWatch) -> Iterator[Joined]:
    """Add followers, which leave at the end of the test."""
    with ExitStack() as stack:

        def join(last: Position | None = None, about: str = "") -> Reader:
            return Reader(stack.enter_context(watch.follow(last, about)))

        yield join


async def test_without_followers_the_state_is_not_read(watch: EventWatch, play: Play) -> None:
    """Without followers the state is not read, whatever happens."""
    watch.pools(pools("default/digits@1"))
    watch.record("decision", "digits", decision("x"))
    watch.tick()
    await asyncio.sleep(0)

    assert play.looks == []


async def test_a_new_follower_gets_snapshot_and_latest_events(
    watch: EventWatch, joined: Joined
) -> None:
    """A new follower gets the snapshot and the latest occurrences, including those before it
    connected."""
    watch.record("decision", "digits", decision("x"))

    told = await joined().until("ready")

    assert [kind for kind, _ in told] == ["reset", "devices", "functions", "decision", "ready"]
    assert told[2][1] == {"items": [{"name": "digits", "s": "cold"}]}


async def test_a_change_is_told_once(watch: EventWatch, play: Play, joined: Joined) -> None:
    """An unchanged function is not sent again."""
    reader = joined()
    await reader.until("ready")
    watch.pools(pools("default/digits@1"))
    play.states["digits"] = "warm"

    told = await reader.until("functions")
    watch.pools(pools("default/digits@1"))
    watch.record("decision", "digits", decision("after"))
    later = await reader.until("decision")

    assert told[-1][1] == {"items": [{"name": "digits", "s": "warm"}]}
    assert [kind for kind, _ in later if kind != "beat"] == ["decision"]


async def test_removals_are_reported(watch: EventWatch, play: Play, joined: Joined) -> None:
    """Removed functions and replicas are reported."""
    play.there = ["r1"]
    reader = joined()
    await reader.until("ready")
    play.there = []
    del play.states["digits"]
    watch.pools(pools("default/digits@1"))

    first = await reader.until("gone")
    second = await reader.until("gone")

    assert first[-1][1] == {"functions": ["digits"], "replicas": []}
    assert second[-1][1] == {"functions": [], "replicas": ["r1"]}


async def test_hosts_come_and_go(watch: EventWatch, play: Play, joined: Joined) -> None:
    """A host is part of the snapshot, and a removed one is reported."""
    play.hosts_there = ["gpu2"]
    reader = joined()
    told = await reader.until("ready")
    assert ("hosts", {"items": [{"name": "gpu2"}]}) in told

    play.hosts_there = []
    watch.refresh()

    assert (await reader.until("gone"))[-1][1] == {
        "functions": [],
        "replicas": [],
        "hosts": ["gpu2"],
    }


async def test_busy_functions_are_read_each_second_and_once_more(
    watch: EventWatch, play: Play, joined: Joined
) -> None:
    """Busy functions are read each second, and once more after they became idle."""
    reader = joined()
    await reader.until("ready")
    play.active = {"digits"}
    watch.tick()
    await reader.until("beat")
    play.active = set()
    play.looks.clear()
    watch.tick()
    await reader.until("beat")
    play.states["digits"] = "idle"
    watch.pools(pools("default/digits@1"))
    await reader.until("functions")

    assert play.looks[0] == ["digits"]


async def test_many_functions_are_read_in_batches(
    watch: EventWatch, play: Play, joined: Joined
) -> None:
    """A large change is read in batches, so that the event loop can answer calls in between."""
    reader = joined()
    await reader.until("ready")
    names = [f"f{number}" for number in range(120)]
    play.states.update(dict.fromkeys(names, "warm"))
    play.looks.clear()
    watch.pools(pools(*(f"default/{name}@1" for name in names)))
    found: list[str] = []
    while len(found) < 120:
        found += [item["name"] for item in (await reader.until("functions"))[-1][1]["items"]]

    assert sorted(found) == sorted(names)
    assert [len(one) for one in play.looks] == [50, 50, 20]


async def test_a_follower_that_returns_soon_misses_nothing(watch: EventWatch, clock: Clock) -> None:
    """A follower that returns within LINGER_S gets what it missed; later it gets a snapshot."""
    with watch.follow(None, "") as follower:
        reader = Reader(follower)
        await reader.until("ready")
    last = Position(*_split(reader.last_id))
    clock.now += 20.0
    watch.tick()
    watch.record("decision", "digits", decision("missed"))

    with watch.follow(last, "") as again:
        told = await Reader(again).until("decision")
    clock.now += 31.0
    watch.tick()
    with watch.follow(last, "") as after:
        late = await Reader(after).until("ready")

    assert [kind for kind, _ in told if kind != "beat"] == ["decision"]
    assert late[0][0] == "reset"


def _split(id: str) -> tuple[str, int]:
    boot, _, seq = id.rpartition("-")
    return boot, int(seq)


async def test_a_follower_that_is_too_slow_gets_a_new_snapshot(
    watch: EventWatch, joined: Joined
) -> None:
    """A follower that is too far behind gets a new snapshot with the reason."""
    reader = joined()
    await reader.until("ready")
    for number in range(6000):
        watch.record("decision", "digits", decision(str(number)))

    told = await reader.until("ready")

    assert (told[0][0], told[0][1]["reason"]) == ("reset", "too old")


async def test_a_broken_snapshot_cannot_be_resumed(watch: EventWatch, joined: Joined) -> None:
    """Only the last event of a snapshot has an id, so that a broken snapshot is sent again as a
    whole."""
    watch.record("decision", "digits", decision("x"))
    with watch.follow(None, "") as follower:
        ids = []
        parser = Parser()
        while not (ids and ids[-1]):
            await follower.news()
            ids += [event.id for event in parser.feed(b"".join(follower.take()))]

    assert len(ids) >= 5
    assert set(ids[:-1]) == {""}


async def test_followers_at_the_same_position_share_bytes(watch: EventWatch) -> None:
    """Followers at the same position share the same bytes objects."""
    with watch.follow(None, "") as first, watch.follow(None, "") as second:
        pieces: list[bytes] = []
        while not pieces:
            await first.news()
            pieces = first.take()
        others = second.take()

    assert [id(one) for one in pieces] == [id(one) for one in others]


async def test_a_newcomer_need_not_wait_for_a_beat(watch: EventWatch, joined: Joined) -> None:
    """A new follower beside others gets a beat directly after the snapshot."""
    await joined().until("ready")

    told = await joined().until("beat")

    assert [kind for kind, _ in told[-2:]] == ["ready", "beat"]


async def test_a_pending_read_is_dropped_at_the_end(
    watch: EventWatch, play: Play, clock: Clock
) -> None:
    """A pending read is dropped when the linger time after the last follower is over."""
    with watch.follow(None, "") as follower:
        await Reader(follower).until("ready")
    watch.pools(pools("default/digits@1"))
    clock.now += 31.0
    watch.tick()
    play.looks.clear()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert play.looks == []


async def test_a_failed_read_is_survived(watch: EventWatch, play: Play, joined: Joined) -> None:
    """An error in one read is survived; the next read succeeds."""
    reader = joined()
    await reader.until("ready")
    play.there = cast("list[str]", None)
    watch.pools(pools("default/digits@1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    play.there = ["r9"]
    watch.tick()

    assert (await reader.until("replicas"))[-1][1] == {"items": [{"id": "r9"}]}


async def test_a_snapshot_comes_however_many_functions_are_busy(
    watch: EventWatch, play: Play, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot completes with replicas and devices although more functions change per read than
    fit a batch."""
    monkeypatch.setattr(watches, "FUNCTIONS_PER_BATCH", 2)
    names = [f"f{number}" for number in range(10)]
    play.states |= dict.fromkeys(names, "warm")
    play.active = set(names)
    functions = play.functions

    def busy(asked: Iterable[str]) -> tuple[list[Item], list[str]]:
        watch._mark_dirty([*names, "digits"])
        return functions(asked)

    monkeypatch.setattr(play, "functions", busy)
    reader = joined()
    told = await reader.until("ready")

    listed = [data for kind, data in told if kind == "functions"]
    assert {"digits", *names} <= set(re.findall(r'"name": "(\w+)"', json.dumps(listed)))
    assert "devices" in {kind for kind, _ in told}


async def test_a_follower_reads_from_its_position() -> None:
    """A follower reads from its position on, and gets only the latest beat."""
    asked: list[tuple[int, str]] = []

    def read(seq: int, about: str) -> tuple[list[bytes], int]:
        asked.append((seq, about))
        return [b"n"], seq + 5

    follower = Follower(read, 2, "f")
    await follower.news()
    assert follower.take() == [b"n"]
    follower.beat(b"1")
    follower.beat(b"2")
    await follower.news()

    assert follower.take() == [b"n", b"2"]
    assert asked == [(2, "f"), (7, "f")]
