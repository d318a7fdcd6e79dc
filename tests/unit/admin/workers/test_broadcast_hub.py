"""Tests of what workers are told, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from admin.workers import messages as m
from admin.workers.broadcast import TOGETHER, Broadcaster
from admin.workers.worker import CatalogReplica
from registry.catalog import Catalog
from registry.exchange import Expected
from registry.model import ColdStart, Key
from registry.store.keys import KeyRing
from tests.support import nouns

KEY = Key("k", "ab" * 32, ("invoke",))
OTHER = Key("o", "cd" * 32, ("read",))

GUESS = Expected(0.1, 0.2, 0.3, 0)


class Told:
    """A worker: what it was told, in order."""

    def __init__(self) -> None:
        self.messages: list[m.Down] = []

    def send(self, data: bytes) -> None:
        """What the hub calls."""
        self.messages.append(m.decode_down(data))

    def mirror(self) -> CatalogReplica:
        """What it knows by now."""
        mirror = CatalogReplica()
        for message in self.messages:
            if isinstance(message, m.Functions | m.KeyNow | m.Estimates):
                mirror.apply(message)
        return mirror


class Rig:
    """A hub between a supervisor's memory and two workers."""

    def __init__(self) -> None:
        self.catalog = Catalog([nouns.deployed("digits")])
        self.ring = KeyRing([KEY])
        self.estimates = {"default/digits@1": Expected(1.0, 1.5, 2.0, 3)}
        self.broadcaster = Broadcaster(
            self.catalog, self.ring, lambda pool: self.estimates.get(pool, GUESS)
        )
        self.close = self.broadcaster.open()
        self.a, self.b = Told(), Told()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """With one function and one key."""
    rig = Rig()
    yield rig
    rig.close()


def test_a_new_worker_is_told_everything_and_then_that_it_was_all(rig: Rig) -> None:
    """Functions, estimates and keys; nothing comes after Began but changes."""
    rig.broadcaster.add_worker("a", rig.a.send)

    mirror = rig.a.mirror()
    assert mirror.catalog.all() == rig.catalog.all()
    assert mirror.ring.all() == (KEY,)
    assert mirror.expected == rig.estimates
    assert isinstance(rig.a.messages[-1], m.Began)


def test_a_worker_that_joins_late_knows_the_same(rig: Rig) -> None:
    """Snapshot and changes lead to the same knowledge, whenever the snapshot was."""
    rig.broadcaster.add_worker("a", rig.a.send)
    rig.catalog.put(nouns.deployed("digits", 2))
    rig.catalog.put(nouns.deployed("other"))
    rig.ring.put(OTHER)
    rig.broadcaster.add_worker("b", rig.b.send)
    rig.ring.remove(KEY)
    rig.catalog.remove("other")

    for told in (rig.a, rig.b):
        mirror = told.mirror()
        assert mirror.catalog.revisions("digits") == rig.catalog.revisions("digits")
        assert mirror.catalog.find("other") is None
        assert mirror.ring.all() == (OTHER,)


def test_a_start_with_many_functions_comes_in_pieces(rig: Rig) -> None:
    """No message grows with what is deployed."""
    for number in range(2 * TOGETHER):
        rig.catalog.put(nouns.deployed(f"f{number}"))
    rig.broadcaster.add_worker("a", rig.a.send)

    sizes = [len(one.functions) for one in rig.a.messages if isinstance(one, m.Functions)]
    assert sizes == [TOGETHER, TOGETHER, 1]
    assert rig.a.mirror().catalog.all() == rig.catalog.all()


def test_a_revision_is_told_before_its_pool(rig: Rig) -> None:
    """Whoever hears of the catalog later than the hub may speak of the pool at once."""
    rig.broadcaster.add_worker("a", rig.a.send)
    rig.catalog.subscribe(lambda _change: rig.broadcaster.send_endpoints(b"endpoints"))
    rig.catalog.put(nouns.deployed("new"))

    kinds = [type(message) for message in rig.a.messages]
    after = kinds[kinds.index(m.Began) + 1 :]
    assert after == [m.Functions, m.Estimates, m.Pools]


def test_estimates_are_told_as_they_change(rig: Rig) -> None:
    """Of the pool that was measured alone."""
    rig.broadcaster.add_worker("a", rig.a.send)
    faster = rig.estimates["default/digits@1"] = Expected(0.1, 0.5, 0.9, 4)
    record = ColdStart("default", "digits", 1, "r", "cpu", 0.0, 500.0, {})
    rig.broadcaster.on_cold_start(record)

    assert rig.a.messages[-1] == m.Estimates({"default/digits@1": faster})


async def test_a_change_is_settled_when_every_worker_has_it(rig: Rig) -> None:
    """Not before the last one has said so; a worker that dies is not waited for."""
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
    """A worker that says nothing is given up by others, some time."""
    monkeypatch.setattr("admin.workers.broadcast.SETTLED_S", 0.0)
    rig.broadcaster.add_worker("a", rig.a.send)

    await rig.broadcaster.settled()


async def test_without_workers_all_is_settled(rig: Rig) -> None:
    """There is nobody who could not know; one that is gone says nothing more."""
    rig.broadcaster.add_worker("a", rig.a.send)
    rig.broadcaster.remove_worker("a")
    rig.broadcaster.on_reached("a", 1)
    await rig.broadcaster.settled()
    rig.broadcaster.send_endpoints(b"x")

    assert isinstance(rig.a.messages[-1], m.Began)
