"""Tests of the delivery around the dispatcher, and of calls that follow traffic."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.data_links import Delivered
from gateway.delivery import follow_traffic, rerun_policy
from gateway.dispatch.redirects import RerunPolicy
from registry.catalog import Catalog, Deployed
from registry.errors import (
    FunctionFailing,
    QueueFull,
    UnknownFunction,
    WaitBudgetOver,
)
from registry.exchange import Load
from registry.model.functions import Limits
from registry.spec import model_spec
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
    """Pool manager that records the demand reported by the gateway."""
    return ListeningManager()


@pytest.fixture
def client() -> Client:
    """Client that records the outcomes of its calls."""
    return Client()


async def test_a_held_call_is_reported_to_the_manager_at_once(
    manager: ListeningManager, client: Client
) -> None:
    """Demand for a cold pool is reported without waiting for the periodic report; calls of one
    event-loop turn share a report."""
    async with delivering(manager) as delivery:
        first = await manager.demands.get()
        delivery.submit(client.call())
        delivery.submit(client.call())
        told = await manager.heard()

    assert (first.worker, first.full, first.revisions) == ("worker", True, {})
    assert not told.full
    assert (told.revisions[KEY].queued, told.revisions[KEY].in_flight) == (2, 0)
    assert told.seq > first.seq


async def test_a_held_call_is_sent_to_a_replica_and_answered(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """A held call is sent once a replica is connected; the answer names the replica."""
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
    assert (outcome.body, outcome.replica, outcome.devices) == (b"answer", "r1", ("cpu:0",))
    assert outcome.phases == {"load": 5.0}
    assert call.was_held
    assert outcome.connected_s > call.arrived_s


async def test_a_client_that_leaves_cancels_its_request(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """The replica gets CANCEL, and the request counts as in flight until the replica confirms."""
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


async def test_a_wait_budget_ends_by_a_timer(manager: ListeningManager, client: Client) -> None:
    """A wait budget ends without any other event; Retry-After is the revision's own estimate."""
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
    """The estimate from past cold starts is used before the manager has reported on the pool."""
    async with delivering(manager, KnownPast(30.0)) as delivery:
        delivery.submit(client.call(wait_until_s=asyncio.get_running_loop().time()))
        outcome = await client.outcomes.get()

    assert isinstance(outcome, WaitBudgetOver)
    assert outcome.retry_after_s == 30


async def test_a_call_refused_for_its_wait_budget_is_demand(
    manager: ListeningManager, client: Client
) -> None:
    """A call that no cold start can serve in time is refused at once, and still reported as
    queued."""
    async with delivering(manager, KnownPast(30.0, 5)) as delivery:
        call = client.call(wait_until_s=asyncio.get_running_loop().time())
        with pytest.raises(WaitBudgetOver) as refused:
            delivery.submit(call)
        told = await manager.heard()

    assert refused.value.retry_after_s == 30
    assert told.revisions[KEY].queued == 1
    assert client.outcomes.empty()


async def test_cold_pools_are_not_kept(manager: ListeningManager, client: Client) -> None:
    """Only pools that are not cold have a state here; all others read as cold."""
    async with delivering(manager) as delivery:
        delivery.receive_endpoints(published(state="cold", reason="no calls"))
        assert delivery.states() == {}
        delivery.receive_endpoints(published(state="waking"))
        assert delivery.states() == {KEY: "waking"}
        assert delivery.endpoints("default/other@1").state == "cold"


async def test_a_failing_pool_answers_all_queued_calls(
    manager: ListeningManager, client: Client
) -> None:
    """A pool reported as failing answers its queued calls at once, with cause, next retry and last
    log lines."""
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


async def test_a_removed_pool_answers_all_queued_calls(
    manager: ListeningManager, client: Client
) -> None:
    """A pool missing from a full message counts as removed; its queued calls fail as unknown
    function."""
    async with delivering(manager) as delivery:
        delivery.submit(client.call())
        delivery.receive_endpoints(nothing_left())
        outcome = client.outcomes.get_nowait()

        assert delivery.states() == {}
        assert delivery.endpoints(KEY).state == "cold"
    assert isinstance(outcome, UnknownFunction)


async def test_the_byte_limit_is_shared_by_all_pools(
    manager: ListeningManager, client: Client
) -> None:
    """Bodies of all pools share one limit; a cancelled call returns its bytes."""
    async with delivering(manager, bytes_max=10) as delivery:
        first = client.call(b"123456")
        delivery.submit(first)
        with pytest.raises(QueueFull, match="have 6 bytes, at most 10"):
            delivery.submit(client.call(b"12345", pool="default/other@1"))
        delivery.cancel(first)
        delivery.submit(client.call(b"12345", pool="default/other@1"))


async def test_closing_ends_the_links_and_withdraws_the_demand(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """`close` reports to the manager that this worker has no demand, and closes links to
    replicas."""
    async with Peer(tmp_path / "r1").listening() as peer:
        async with delivering(manager) as delivery:
            delivery.receive_endpoints(published(peer.endpoint()))
            await peer.greet()
            delivery.submit(client.call())
            await peer.next(Kind.REQUEST)
        ended = await peer.lost.get()

    assert manager.lost == ["worker"]
    assert ended


async def test_wait_idle_ends_with_the_last_call(manager: ListeningManager, client: Client) -> None:
    """`wait_idle` returns when the last call was answered, and at once if there is none."""
    async with delivering(manager) as delivery:
        await delivery.wait_idle()
        call = client.call()
        delivery.submit(call)
        waiting = asyncio.create_task(delivery.wait_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        delivery.cancel(call)
        await waiting


async def test_an_idle_pool_is_reported_while_another_waits_for_room(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """While a call waits for room, a pool that has fallen idle is reported at once, because the
    manager may evict it; the order of the two events does not matter."""
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


async def test_a_warm_pool_falls_idle_without_an_extra_report(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """While no call waits for a replica, only the periodic reports are sent."""
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


async def test_endpoints_received_after_close_are_ignored(tmp_path: Path) -> None:
    """A manager in another process may publish once more before it learns that this worker
    stopped."""
    async with delivering(ListeningManager()) as delivery:
        pass
    async with Peer(tmp_path / "r1").listening() as peer:
        delivery.receive_endpoints(published(peer.endpoint()))

    assert delivery.states() == {}


async def test_every_call_is_accounted_for(
    manager: ListeningManager, client: Client, tmp_path: Path
) -> None:
    """Each accepted call is held, in flight or ended; a cancelled call counts as ended although its
    replica still runs it."""
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


async def test_expired_and_failed_calls_are_counted_apart(
    manager: ListeningManager, client: Client
) -> None:
    """A call that waited too long counts as expired, a failed one as failed; a refused call was
    never accepted."""
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
    """Return digits@2, which has the traffic."""
    return Deployed(nouns.function(revision=2), nouns.revision(number=2, signature=signature))


async def test_queued_calls_follow_the_traffic_in_one_report() -> None:
    """Queued calls move to the new revision; one message reports both revisions' demand."""
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


async def test_calls_do_not_move_to_another_signature() -> None:
    """A new revision with another signature gets none of the calls queued for the old one."""
    manager, client = ListeningManager(), Client()
    catalog = Catalog([nouns.deployed()])
    async with delivering(manager) as delivery:
        follow_traffic(catalog, delivery)
        delivery.submit(client.call())

        catalog.put(second(OTHER_SIGNATURE))

        assert delivery.loads().keys() == {KEY}


async def test_other_changes_move_no_calls() -> None:
    """Changed settings, a first deploy and a removal move no calls, nor does any change after the
    end."""
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
def test_moved_calls_use_the_new_revisions_rerun_policy(
    retry: str, handler: str, may: bool
) -> None:
    """The new revision's handler and the function's current settings decide retry and timeout."""
    limits = Limits(timeout_s=3.0, retry=retry)  # type: ignore[arg-type]
    after = Deployed(
        nouns.function(revision=2, limits=limits), nouns.revision(number=2, handler=handler)
    )

    assert model_spec(after).may_rerun is may
    assert rerun_policy(nouns.deployed(), after) == RerunPolicy(may, 3.0)
