"""Networks made ahead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pool_manager.drivers.docker.network_holders import HOLDERS, NetworkHolders
from pool_manager.drivers.docker.spec import Owner
from registry.tasks import Tasks
from tests.support.containers import RecordedEngine, Recorder, refusal, settled

OWNER = Owner("0123456789abcdef")


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    made = Tasks("test")
    yield made
    await made.close()


def made(client: Recorder, tasks: Tasks) -> tuple[NetworkHolders, RecordedEngine]:
    engine: Any = RecordedEngine(client)
    return NetworkHolders(engine, "image:1", OWNER, 9000, tasks, 0.0), engine


async def test_two_are_kept_and_each_is_used_once(tasks: Tasks) -> None:
    """Two holders are kept, and each is used once; without one `take` returns None."""
    holders, _ = made(Recorder(), tasks)
    holders.refill()
    holders.refill()
    await settled(tasks)

    taken = [holders.take() for _ in range(HOLDERS + 1)]

    assert {one.container for one in taken if one} == {"c1", "c2"}
    assert taken[-1] is None


async def test_a_spent_one_is_removed(tasks: Tasks) -> None:
    """A used holder stays known until it is removed, so that no list treats it as a leftover."""
    client = Recorder()
    holders, _ = made(client, tasks)
    holders.refill()
    await settled(tasks)
    spent = holders.take()
    assert spent

    assert holders.knows(spent.number)
    holders.discard(spent)
    await settled(tasks)

    assert spent.container not in client.left
    assert not holders.knows(spent.number)


async def test_one_that_is_being_made_is_known(tasks: Tasks) -> None:
    """A holder's number is known before the engine has created it."""
    client = Recorder()
    holders, engine = made(client, tasks)
    engine.gate.clear()
    holders.refill()
    await engine.asked.get()
    labels = client.configs[0]["Labels"]

    assert holders.knows(labels["fngate.holder"])
    engine.gate.set()
    await settled(tasks)


async def test_one_that_ends_is_replaced(tasks: Tasks) -> None:
    """A holder that ends is replaced, also if it ends before its start has returned."""
    client = Recorder()
    holders, engine = made(client, tasks)
    engine.gate.clear()
    holders.refill()
    await engine.asked.get()
    holders.ended("c1")
    engine.gate.set()
    await settled(tasks)
    holders.ended("c2")
    holders.ended("of somebody else")
    await settled(tasks)

    assert {one.container for one in holders.ready()} == {"c3", "c4"}


async def test_a_list_without_one(tasks: Tasks) -> None:
    """A ready holder missing from the list is forgotten; one that became ready later is not."""
    holders, _ = made(Recorder(), tasks)
    before = holders.ready()
    holders.refill()
    await settled(tasks)

    holders.sync({}, before)
    assert len(holders.ready()) == HOLDERS
    first, second = holders.ready()
    holders.sync({first.number: first.container}, holders.ready())

    assert holders.ready() == {first}
    assert not holders.knows(second.number)


async def test_what_cannot_be_made_is_no_reason_to_stop(tasks: Tasks) -> None:
    """After a failed creation nothing is left, and the next refill retries it."""
    client = Recorder(start=[refusal(500, "no space left on device")])
    holders, _ = made(client, tasks)
    holders.refill()
    await settled(tasks)
    assert client.left == set()

    holders.refill()
    await settled(tasks)

    assert len(holders.ready()) == HOLDERS


async def test_nothing_is_made_after_the_end(tasks: Tasks) -> None:
    """A holder that was being created at `close` is removed."""
    client = Recorder()
    holders, _ = made(client, tasks)
    holders.close()
    holders.refill()
    await settled(tasks)

    assert client.done == []
