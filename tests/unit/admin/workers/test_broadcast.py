"""Tests of the messages to and from workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from admin.workers import messages as m
from admin.workers.broadcast import (
    TOGETHER,
    Broadcaster,
    ClusterState,
    WorkerMessages,
    pieces,
)
from admin.workers.messages import Arrived, Beat, FunctionNow, Reckoned, Woken
from admin.workers.worker import CatalogReplica
from gateway.dispatch.pool import UNKNOWN
from gateway.metrics.samples import RateSample
from registry.catalog import Catalog, Deployed
from registry.exchange import Demand, Endpoints, Expected, Load, PoolEndpoints, encode
from registry.model.history import ColdStart
from registry.model.keys import Key
from registry.model.revisions import Interface
from registry.store.keys import KeyRing
from registry.upstream_keys import UpstreamKey, UpstreamKeys
from tests.support import nouns
from tests.support.interfaces import python_revision

KEY = Key("k", "ab" * 32, ("invoke",))
UPSTREAM_KEY = UpstreamKey("k", "s3cret")
OTHER = Key("o", "cd" * 32, ("read",))

GUESS = Expected(0.1, 0.2, 0.3, 0)


class Told:
    """Worker that keeps the messages it receives."""

    def __init__(self) -> None:
        self.messages: list[m.Down] = []

    def send(self, data: bytes) -> None:
        """Receive a message of the broadcaster."""
        self.messages.append(m.decode_down(data))

    def mirror(self) -> CatalogReplica:
        """Return a catalog replica built from the messages so far."""
        mirror = CatalogReplica()
        for message in self.messages:
            if isinstance(message, m.Functions | m.KeyNow | m.UpstreamKeyNow | m.Estimates):
                mirror.apply(message)
        return mirror


class Rig:
    """Broadcaster between a supervisor's state and two workers."""

    def __init__(self) -> None:
        self.catalog = Catalog([nouns.deployed("digits")])
        self.ring = KeyRing([KEY])
        self.estimates = {"default/digits@1": Expected(1.0, 1.5, 2.0, 3)}
        self.upstream_keys = UpstreamKeys()
        self.upstream_keys.put(UPSTREAM_KEY)
        self.broadcaster = Broadcaster(
            self.catalog,
            self.ring,
            self.upstream_keys,
            lambda pool: self.estimates.get(pool, GUESS),
        )
        self.close = self.broadcaster.open()
        self.a, self.b = Told(), Told()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A rig with one function and one key."""
    rig = Rig()
    yield rig
    rig.close()


def test_a_new_worker_receives_the_whole_state_then_began(rig: Rig) -> None:
    """A new worker receives functions, estimates and keys, then Began; after that only changes."""
    rig.broadcaster.add_worker("a", rig.a.send)

    mirror = rig.a.mirror()
    assert mirror.catalog.all() == rig.catalog.all()
    assert mirror.ring.all() == (KEY,)
    assert mirror.upstream_keys.all() == (UPSTREAM_KEY,)
    assert mirror.expected == rig.estimates
    assert isinstance(rig.a.messages[-1], m.Began)


def test_a_worker_that_joins_late_knows_the_same(rig: Rig) -> None:
    """Snapshot and later changes give the same state, whenever a worker joins."""
    rig.broadcaster.add_worker("a", rig.a.send)
    rig.catalog.put(nouns.deployed("digits", 2))
    rig.catalog.put(nouns.deployed("other"))
    rig.ring.put(OTHER)
    rig.broadcaster.add_worker("b", rig.b.send)
    rig.ring.remove(KEY)
    rig.upstream_keys.put(UpstreamKey("k", "new"))
    rig.upstream_keys.put(UpstreamKey("gone", "x"))
    rig.upstream_keys.remove("gone")
    rig.catalog.remove("other")

    for told in (rig.a, rig.b):
        mirror = told.mirror()
        assert mirror.catalog.revisions("digits") == rig.catalog.revisions("digits")
        assert mirror.catalog.find("other") is None
        assert mirror.ring.all() == (OTHER,)
        assert mirror.upstream_keys.all() == (UpstreamKey("k", "new"),)


def test_a_key_is_told_before_functions_and_is_in_no_text(rig: Rig) -> None:
    """A worker never has a revision without its key. What a log may have of a message is not the
    value."""
    rig.broadcaster.add_worker("a", rig.a.send)

    kinds = [type(message) for message in rig.a.messages]
    assert kinds.index(m.UpstreamKeyNow) < kinds.index(m.Functions)
    assert "s3cret" not in f"{rig.a.messages!r} {rig.a.messages}"


def test_a_start_with_many_functions_comes_in_pieces(rig: Rig) -> None:
    """The snapshot is split, so that no message grows with the number of functions."""
    for number in range(2 * TOGETHER):
        rig.catalog.put(nouns.deployed(f"f{number}"))
    rig.broadcaster.add_worker("a", rig.a.send)

    sizes = [len(one.functions) for one in rig.a.messages if isinstance(one, m.Functions)]
    assert sizes == [TOGETHER, TOGETHER, 1]
    assert rig.a.mirror().catalog.all() == rig.catalog.all()


def test_a_revision_is_told_before_its_pool(rig: Rig) -> None:
    """A new revision and its estimate are sent before endpoints of its pool."""
    rig.broadcaster.add_worker("a", rig.a.send)
    rig.catalog.subscribe(lambda _change: rig.broadcaster.send_endpoints(b"endpoints"))
    rig.catalog.put(nouns.deployed("new"))

    kinds = [type(message) for message in rig.a.messages]
    after = kinds[kinds.index(m.Began) + 1 :]
    assert after == [m.Functions, m.Estimates, m.Pools]


def test_estimates_are_told_as_they_change(rig: Rig) -> None:
    """Only the estimate of the pool with the cold start is sent."""
    rig.broadcaster.add_worker("a", rig.a.send)
    faster = rig.estimates["default/digits@1"] = Expected(0.1, 0.5, 0.9, 4)
    record = ColdStart("default", "digits", 1, "r", "cpu", 0.0, 500.0, {})
    rig.broadcaster.on_cold_start(record)

    assert rig.a.messages[-1] == m.Estimates({"default/digits@1": faster})


async def test_a_change_is_settled_when_every_worker_has_it(rig: Rig) -> None:
    """`settled` returns once every living worker has reached the change."""
    for name, told in (("a", rig.a), ("b", rig.b)):
        rig.broadcaster.add_worker(name, told.send)
    settling = asyncio.create_task(rig.broadcaster.settled())
    await asyncio.sleep(0)
    reach = rig.a.messages[-1]
    assert isinstance(reach, m.Reach)
    assert rig.b.messages[-1] == reach
    rig.broadcaster.on_reached("a", reach.number)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not settling.done()
    rig.broadcaster.remove_worker("b")
    await settling

    later = asyncio.create_task(rig.broadcaster.settled())
    await asyncio.sleep(0)
    rig.broadcaster.on_reached("a", reach.number)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not later.done()
    rig.broadcaster.on_reached("a", reach.number + 1)
    await later


async def test_a_change_does_not_wait_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """`settled` gives up on a worker that does not answer after SETTLED_S."""
    monkeypatch.setattr("admin.workers.broadcast.SETTLED_S", 0.0)
    rig.broadcaster.add_worker("a", rig.a.send)

    await rig.broadcaster.settled()


async def test_without_workers_all_is_settled(rig: Rig) -> None:
    """Without workers `settled` returns at once, and messages go nowhere."""
    rig.broadcaster.add_worker("a", rig.a.send)
    rig.broadcaster.remove_worker("a")
    rig.broadcaster.on_reached("a", 1)
    await rig.broadcaster.settled()
    rig.broadcaster.send_endpoints(b"x")

    assert isinstance(rig.a.messages[-1], m.Began)


class Calls:
    """Stand-in for any receiver: records each method call with its arguments."""

    def __init__(self, said: list[tuple[Any, ...]], who: str) -> None:
        self._said = said
        self._who = who

    def __getattr__(self, what: str) -> Any:
        return lambda *given: self._said.append((self._who, what, *given))


class Process:
    """Process of a worker, reduced to its attributes."""

    name = "7"
    counters = "table"
    revisions = "numbers"

    class channel:
        """Channel of the worker."""

        send = "send"


@pytest.fixture
def said() -> list[tuple[Any, ...]]:
    """All calls of the receivers, in order."""
    return []


@pytest.fixture
def messages(said: list[tuple[Any, ...]]) -> WorkerMessages:
    """WorkerMessages whose receivers only record."""
    names = ("hub", "overview", "page", "own", "manager", "past", "connections")
    names = (*names, "statistics", "loads")
    return WorkerMessages(*(cast("Any", Calls(said, name)) for name in names))


def test_a_worker_is_joined_and_left_everywhere(
    messages: WorkerMessages, said: list[tuple[Any, ...]]
) -> None:
    """A started worker is added to the counters first, since it counts from its first message on;
    at its end it is removed everywhere."""
    process = cast("Any", Process())
    messages.on_started(process)
    assert said == [
        ("page", "add_worker", "7", "table", "send"),
        ("hub", "add_worker", "7", "send"),
        ("connections", "add_worker", "7", "send"),
        ("statistics", "add_worker", "7", "numbers", "send"),
        ("loads", "add_worker", "7", "send"),
    ]
    said.clear()
    messages.on_ended(process)

    assert set(said) == {
        ("page", "remove_worker", "7"),
        ("overview", "remove_worker", "7"),
        ("manager", "worker_lost", "7"),
        ("hub", "remove_worker", "7"),
        ("connections", "remove_worker", "7"),
        ("statistics", "remove_worker", "7"),
        ("loads", "remove_worker", "7"),
    }


def test_demand_reaches_the_manager_as_it_came(
    messages: WorkerMessages, said: list[tuple[Any, ...]]
) -> None:
    """A demand report is passed to the overview, then unchanged to the manager."""
    data = encode(Demand("7", 1, True, {"default/f@1": Load(1, 0, 0.1)}))
    messages.on_demand("7", data)

    assert ("manager", "receive_demand", data) in said
    assert [entry[:2] for entry in said] == [
        ("overview", "on_demand"),
        ("manager", "receive_demand"),
    ]


def test_a_worker_reports_only_its_own_demand(
    messages: WorkerMessages, said: list[tuple[Any, ...]]
) -> None:
    """A worker may only report its own demand: that of an unknown worker would never be removed."""
    with pytest.raises(ValueError, match="expected the demand of 7, got that of 8"):
        messages.on_demand("7", encode(Demand("8", 1, True, {})))

    assert said == []


def test_other_words_go_to_whom_they_concern(
    messages: WorkerMessages, said: list[tuple[Any, ...]]
) -> None:
    """Other messages reach their receivers: arrivals the history, cold starts the metrics, reached
    changes the broadcaster, rates the subscribers."""
    answered = [RateSample("default", "f", (0, 1))]
    end = messages.subscribe(lambda samples: said.append(("rates", samples)))
    messages.on_beat("7", Beat(4, [Arrived("default", "f", 3)], answered))
    end()
    messages.on_cold_start(Woken("default", "f", "r1", {"load": 1.0}))
    messages.on_reached("7", 9)
    reckoned = Reckoned(1, 0.0, {}, {}, {}, [])
    messages.on_reckoned("7", reckoned)

    assert said == [
        ("overview", "on_beat", "7", 4, []),
        ("past", "arrived", "default", "f", 3),
        ("rates", answered),
        ("own", "count_cold_start", "default", "f", "r1", {"load": 1.0}, None),
        ("hub", "on_reached", "7", 9),
        ("page", "on_reckoned", "7", reckoned),
    ]


F, G = "default/f@1", "default/g@1"


def published(full: bool, **states: str) -> bytes:
    """Encode the manager's message about the pools f and g."""
    keys = {"f": F, "g": G}
    pools = {
        keys[name]: UNKNOWN if state == "rest" else PoolEndpoints([], state, "because")
        for name, state in states.items()
    }
    return encode(Endpoints(1, full, pools))


def test_loads_are_summed_over_workers() -> None:
    """Loads are summed over living workers; the oldest wait is their maximum."""
    cluster = ClusterState()
    cluster.on_demand(Demand("a", 1, True, {F: Load(1, 2, 0.5)}), 0.0)
    cluster.on_demand(Demand("b", 1, True, {F: Load(3, 0, 2.0), G: Load(0, 1, 0.0)}), 0.0)
    assert cluster.loads() == {F: Load(4, 2, 2.0), G: Load(0, 1, 0.0)}
    cluster.remove_worker("b")

    assert cluster.loads() == {F: Load(1, 2, 0.5)}


def test_pools_at_rest_have_no_state() -> None:
    """A cold pool without a reason, or a removed one, has no state; a full message replaces all
    states."""
    cluster = ClusterState()
    cluster.on_endpoints(published(True, f="warm", g="failing"))
    assert cluster.states() == {F: "warm", G: "failing"}
    cluster.on_endpoints(published(False, f="rest"))
    assert cluster.states() == {G: "failing"}
    cluster.on_endpoints(published(False, g="gone", f="waking"))
    assert cluster.states() == {F: "waking"}
    cluster.on_endpoints(published(True, g="cold"))

    assert cluster.states() == {G: "cold"}


def test_background_work_is_counted_over_living_workers() -> None:
    """Background tasks are summed over living workers, each with its last number."""
    cluster = ClusterState()
    for worker, count in (("a", 3), ("b", 4), ("a", 5)):
        cluster.on_beat(worker, count, [])
    assert cluster.tasks == 9
    cluster.remove_worker("a")

    assert cluster.tasks == 4


def test_long_schemas_make_shorter_messages() -> None:
    """A message has a limit, which functions with long schemas would exceed together."""
    short, long = (python_revision(Interface(schema="x" * size)) for size in (10, 60))
    owner = nouns.function("web")
    functions = [
        FunctionNow("default", "web", [Deployed(owner, one)])
        for one in (short, long, long, short, short)
    ]

    sizes = [len(piece) for piece in pieces(functions, together=2, schemas_max=70)]

    assert sizes == [2, 2, 1]
    assert [len(piece) for piece in pieces(functions[1:3], schemas_max=50)] == [1, 1]
    assert [*pieces([])] == []
