"""Tests of the shell around the dispatcher, and of calls that follow traffic."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.data_links import Delivered
from gateway.delivery import follow_traffic, may_rerun, rerun_policy
from gateway.dispatch.redirects import RerunPolicy
from registry.catalog import Catalog, Deployed
from registry.errors import (
    FunctionFailing,
    QueueFull,
    UnknownFunction,
    WaitBudgetOver,
)
from registry.exchange import Load
from registry.model import Limits
from runtime_image.contract.link import Kind
from runtime_image.contract.signature import Signature
from tests.support import nouns
from tests.support.peers import (
    KEY,
    Client,
    KnownPast,
    ListeningManager,
    Peer,
    delivering,
    nothing_left,
    published,
)

OTHER = "default/other@1"


@pytest.fixture
def manager() -> ListeningManager:
    """Hears what the gateway demands."""
    return ListeningManager()


@pytest.fixture
def client() -> Client:
    """Waits for outcomes."""
    return Client()


async def test_a_held_call_is_told_to_the_manager_at_once(
    manager: ListeningManager, client: Client
) -> None:
    """Demand for a cold pool does not wait for the next second; calls of one turn go together."""
    async with delivering(manager) as delivery:
        first = await manager.demands.get()
        delivery.submit(client.call())
        delivery.submit(client.call())
        told = await manager.heard()

    assert (first.worker, first.full, first.revisions) == ("worker", True, {})
    assert not told.full
    assert (told.revisions[KEY].queued, told.revisions[KEY].in_flight) == (2, 0)
    assert told.seq > first.seq


async def test_a_call_goes_to_a_replica_and_its_answer_comes_back(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """What is held is sent when a replica can be reached; the answer names it."""
    async with delivering(manager) as delivery, Peer(tmp_path / "r1").listening() as peer:
        call = client.call(b"body")
        delivery.submit(call)
        assert delivery.is_cold(KEY)
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        request = await peer.next(Kind.REQUEST)
        assert delivery.loads() == {KEY: Load(0, 1, 0.0)}
        peer.answer(request.id, b"answer")
        outcome = await client.outcomes.get()
        assert not delivery.is_cold(KEY)

    assert (request.body, request.aux) == (b"body", 60_000)
    assert isinstance(outcome, Delivered)
    assert (outcome.body, outcome.replica, outcome.device) == (b"answer", "r1", "cpu:0")
    assert outcome.phases == {"load": 5.0}
    assert call.was_held
    assert outcome.connected_s > call.arrived_s


async def test_a_client_that_leaves_recalls_its_request(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """The replica is told, and until it agrees the request counts as in flight."""
    async with delivering(manager) as delivery, Peer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        call = client.call()
        delivery.submit(call)
        request = await peer.next(Kind.REQUEST)
        delivery.cancel(call)
        cancel = await peer.next(Kind.CANCEL)
        assert delivery.loads()[KEY].in_flight == 1
        peer.send(Kind.CANCELLED, request.id)
        await delivery.wait_idle()

    assert cancel.id == request.id
    assert client.outcomes.empty()


async def test_a_call_whose_wait_is_over_is_answered_by_the_clock(
    manager: ListeningManager, client: Client
) -> None:
    """Nobody has to do anything for a wait budget to end; the estimate is the revision's own."""
    async with delivering(manager, KnownPast(30.0)) as delivery:
        delivery.receive_endpoints(published())
        now = asyncio.get_running_loop().time()
        delivery.submit(client.call(wait_until_s=now))
        outcome = await client.outcomes.get()

    assert isinstance(outcome, WaitBudgetOver)
    assert outcome.retry_after_s == 30
    assert "the function is waking: test" in outcome.message


async def test_the_first_caller_of_a_pool_gets_its_estimate(
    manager: ListeningManager, client: Client
) -> None:
    """What a revision's cold starts took is known before the manager has said anything of it."""
    async with delivering(manager, KnownPast(30.0)) as delivery:
        delivery.submit(client.call(wait_until_s=asyncio.get_running_loop().time()))
        outcome = await client.outcomes.get()

    assert isinstance(outcome, WaitBudgetOver)
    assert outcome.retry_after_s == 30


async def test_a_call_that_would_wait_in_vain_is_demand(
    manager: ListeningManager, client: Client
) -> None:
    """It is refused at once, and the manager is told as if it waited."""
    async with delivering(manager, KnownPast(30.0, 5)) as delivery:
        call = client.call(wait_until_s=asyncio.get_running_loop().time())
        with pytest.raises(WaitBudgetOver) as refused:
            delivery.submit(call)
        told = await manager.heard()

    assert refused.value.retry_after_s == 30
    assert told.revisions[KEY].queued == 1
    assert client.outcomes.empty()


async def test_cold_pools_are_not_kept(manager: ListeningManager, client: Client) -> None:
    """Only pools with something to tell have a state here; all others are cold."""
    async with delivering(manager) as delivery:
        delivery.receive_endpoints(published(state="cold", reason="no calls"))
        assert delivery.states() == {}
        delivery.receive_endpoints(published(state="waking"))
        assert delivery.states() == {KEY: "waking"}
        assert delivery.endpoints("default/other@1").state == "cold"


async def test_a_failing_pool_answers_all_who_wait(
    manager: ListeningManager, client: Client
) -> None:
    """The manager's word ends the wait at once, with cause, next try and last lines."""
    async with delivering(manager) as delivery:
        delivery.submit(client.call())
        failing = published(state="failing", reason="no", retry_after_s=9.0, log_tail=["last"])
        delivery.receive_endpoints(failing)
        outcome = client.outcomes.get_nowait()
        with pytest.raises(FunctionFailing):
            delivery.submit(client.call())
        assert delivery.states() == {KEY: "failing"}
        assert delivery.endpoints(KEY).reason == "no"

    assert isinstance(outcome, FunctionFailing)
    assert outcome.message == "the function fails to load: no"
    assert outcome.retry_after_s == pytest.approx(9.0, abs=0.5)
    assert outcome.admin_detail == {"log_tail": ["last"]}


async def test_a_pool_that_is_gone_answers_all_who_wait(
    manager: ListeningManager, client: Client
) -> None:
    """What a full message does not name was removed."""
    async with delivering(manager) as delivery:
        delivery.submit(client.call())
        delivery.receive_endpoints(nothing_left())
        outcome = client.outcomes.get_nowait()

        assert delivery.states() == {}
        assert delivery.endpoints(KEY).state == "cold"
    assert isinstance(outcome, UnknownFunction)


async def test_the_bound_on_bytes_is_the_whole_process(
    manager: ListeningManager, client: Client
) -> None:
    """Bodies of different pools share one limit; a call that leaves gives its bytes back."""
    async with delivering(manager, bytes_max=10) as delivery:
        first = client.call(b"123456")
        delivery.submit(first)
        with pytest.raises(QueueFull, match="have 6 bytes, at most 10"):
            delivery.submit(client.call(b"12345", pool="default/other@1"))
        delivery.cancel(first)
        delivery.submit(client.call(b"12345", pool="default/other@1"))


async def test_closing_ends_the_links_and_takes_the_demand_back(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """The manager hears that this worker holds nothing any more; replicas see the link's end."""
    async with Peer(tmp_path / "r1").listening() as peer:
        async with delivering(manager) as delivery:
            delivery.receive_endpoints(published(peer.endpoint()))
            await peer.greet()
            delivery.submit(client.call())
            await peer.next(Kind.REQUEST)
        ended = await peer.lost.get()

    assert manager.lost == ["worker"]
    assert ended


async def test_idle_is_waited_for(manager: ListeningManager, client: Client) -> None:
    """`wait_idle` ends when the last call was answered, and at once where there is none."""
    async with delivering(manager) as delivery:
        await delivery.wait_idle()
        call = client.call()
        delivery.submit(call)
        waiting = asyncio.create_task(delivery.wait_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        delivery.cancel(call)
        await waiting


async def test_who_waits_for_room_tells_who_has_fallen_idle(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """The manager believed the warm pool busy; an idle replica can make room at once, be it idle
    before somebody waits or after."""
    async with delivering(manager) as delivery, Peer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        delivery.submit(client.call())
        assert (await manager.heard()).revisions[KEY].queued == 1
        await peer.greet()
        request = await peer.next(Kind.REQUEST)
        peer.answer(request.id, b"answer")
        await client.outcomes.get()

        delivery.submit(replace(client.call(), pool=OTHER))
        before = await manager.heard()
        delivery.submit(client.call())
        request = await peer.next(Kind.REQUEST)
        peer.answer(request.id, b"answer")
        after = await manager.heard()

    assert before.revisions == {KEY: Load(0, 0, 0.0), OTHER: before.revisions[OTHER]}
    assert before.revisions[OTHER].queued == 1
    assert after.revisions == {KEY: Load(0, 0, 0.0)}


async def test_a_warm_pool_falls_idle_in_silence(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """While nobody waits for a replica nothing is said but each second's report."""
    async with delivering(manager) as delivery, Peer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))
        delivery.submit(client.call())
        await peer.greet()
        for _ in range(3):
            request = await peer.next(Kind.REQUEST)
            peer.answer(request.id, b"answer")
            await client.outcomes.get()
            delivery.submit(client.call())
        await peer.next(Kind.REQUEST)
        told = [manager.demands.get_nowait() for _ in range(manager.demands.qsize())]

    assert [demand.revisions[KEY].queued for demand in told if not demand.full] == [1]


async def test_news_that_come_too_late_connect_nobody(tmp_path: Path) -> None:
    """A manager in another process may speak once more before it hears that this one goes."""
    async with delivering(ListeningManager()) as delivery:
        pass
    async with Peer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))

    assert delivery.states() == {}


async def test_every_call_is_accounted_for(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """Held, in flight, or ended in its way; one whose client has left is cancelled although its
    replica still has it."""
    async with delivering(manager) as delivery, Peer(tmp_path / "r1").listening() as peer:
        held = [client.call(), client.call(), client.call()]
        for call in held:
            delivery.submit(call)
        assert (delivery.balance().held, delivery.balance().in_flight) == ({KEY: 3}, {})
        delivery.cancel(held[2])
        delivery.cancel(held[2])
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        first, second = await peer.next(Kind.REQUEST), await peer.next(Kind.REQUEST)
        assert (delivery.balance().held, delivery.balance().in_flight) == ({}, {KEY: 2})
        delivery.cancel(held[1])
        await peer.next(Kind.CANCEL)
        assert delivery.loads()[KEY].in_flight == 2
        assert delivery.balance().in_flight == {KEY: 1}
        peer.answer(first.id)
        peer.send(Kind.CANCELLED, second.id)
        await delivery.wait_idle()
        ended = delivery.balance()

    assert isinstance(await client.outcomes.get(), Delivered)
    assert (ended.accepted, ended.held, ended.in_flight) == (3, {}, {})
    assert {how: n for how, n in ended.ended.items() if n} == {"completed": 1, "cancelled": 2}


async def test_a_call_that_fails_or_waits_too_long_has_ended_so(
    manager: ListeningManager, client: Client
) -> None:
    """What was refused was never accepted."""
    async with delivering(manager) as delivery:
        delivery.receive_endpoints(published())
        now = asyncio.get_running_loop().time()
        delivery.submit(client.call(wait_until_s=now))
        delivery.submit(client.call())
        with pytest.raises(QueueFull):
            delivery.submit(client.call(queue_max=2))
        assert isinstance(await client.outcomes.get(), WaitBudgetOver)
        delivery.receive_endpoints(nothing_left())
        assert isinstance(await client.outcomes.get(), UnknownFunction)
        ended = delivery.balance()

    assert ended.accepted == 2
    assert {how: n for how, n in ended.ended.items() if n} == {"expired": 1, "failed": 1}


NEW = "default/digits@2"
OTHER_SIGNATURE = Signature("json", (), ())


def second(signature: Signature = nouns.SIGNATURE) -> Deployed:
    """digits@2, which has the traffic."""
    return Deployed(nouns.function(revision=2), nouns.revision(number=2, signature=signature))


async def test_who_waits_follows_and_the_manager_hears_of_both() -> None:
    """Demand leaves the old revision and comes to the new one in one message."""
    manager, client = ListeningManager(), Client()
    catalog = Catalog([nouns.deployed()])
    async with delivering(manager) as delivery:
        follow_traffic(catalog, delivery)
        delivery.submit(client.call())
        await manager.heard()

        catalog.put(second())

        told = await manager.heard(NEW)
        assert told.revisions[KEY] == Load(0, 0, 0.0)
        assert told.revisions[NEW].queued == 1


async def test_who_does_not_fit_stays() -> None:
    """A revision with another signature gets none of the calls that were meant for the old one."""
    manager, client = ListeningManager(), Client()
    catalog = Catalog([nouns.deployed()])
    async with delivering(manager) as delivery:
        follow_traffic(catalog, delivery)
        delivery.submit(client.call())

        catalog.put(second(OTHER_SIGNATURE))

        assert delivery.loads().keys() == {KEY}


async def test_other_changes_move_nobody() -> None:
    """Settings, a first deploy and a removal are no move; nor is anything after the end."""
    manager, client = ListeningManager(), Client()
    catalog = Catalog()
    async with delivering(manager) as delivery:
        end = follow_traffic(catalog, delivery)
        catalog.put(nouns.deployed())
        delivery.submit(client.call())
        catalog.put_function(nouns.function(labels={"team": "vision"}))
        catalog.put(replace(nouns.deployed(number=2), function=nouns.function()))
        assert delivery.loads().keys() == {KEY}

        end()
        catalog.put(second())
        catalog.remove("digits")

        assert delivery.loads().keys() == {KEY}


@pytest.mark.parametrize(
    ("retry", "handler", "may"),
    [
        ("auto", "", True),
        ("auto", "handler.py", False),
        ("always", "handler.py", True),
        ("never", "", False),
    ],
)
def test_calls_are_run_as_the_new_revision_says(retry: str, handler: str, may: bool) -> None:
    """Its handler, and the function's settings now, say whether and how long."""
    limits = Limits(timeout_s=3.0, retry=retry)  # type: ignore[arg-type]
    after = Deployed(
        nouns.function(revision=2, limits=limits), nouns.revision(number=2, handler=handler)
    )

    assert may_rerun(after) is may
    assert rerun_policy(nouns.deployed(), after) == RerunPolicy(may, 3.0)
