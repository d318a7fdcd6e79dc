"""Tests of the dispatcher's decisions, one event at a time."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dispatch.call import (
    RERUN_WAIT_S,
    Call,
    Command,
    Fail,
    GiveUp,
    Link,
    Priority,
    Recall,
    Send,
    Stage,
)
from gateway.dispatch.dispatcher import Dispatcher, Limits
from gateway.dispatch.failures import SENDS_MAX
from gateway.dispatch.pool import UNKNOWN
from registry.errors import (
    ExecutionTimeout,
    FnError,
    FunctionFailing,
    Poison,
    QueueFull,
    ReplicaDied,
    ShuttingDown,
    UnknownFunction,
    WaitBudgetOver,
)
from registry.exchange import Expected, Load, PoolEndpoints, ReplicaEndpoint
from runtime_image.contract.link import NotStarted
from runtime_image.link.meta import RequestMeta

KEY = "default/a@1"
META = RequestMeta("application/json", "", -1, "")
NOW = 100.0


def call(body: bytes = b"{}", **changes: Any) -> Call:
    """Return a call that arrives at NOW, may be held for 55 s and may run for 60 s."""
    times = {"arrived_s": NOW, "wait_until_s": NOW + 55.0, "timeout_s": 60.0}
    return Call(KEY, META, body, **{**times, **changes})


def up(dispatcher: Dispatcher, id: str = "r1", limit: int = 2, *, marks: bool = True) -> Link:
    """Connect a replica and return its link."""
    link = Link(id, KEY, limit, marks)
    dispatcher.on_link_up(link, NOW)
    return link


def sent(commands: list[Command]) -> list[tuple[str, Call]]:
    """Return (link, call) of every send."""
    return [(c.link, c.call) for c in commands if isinstance(c, Send)]


def failed(commands: list[Command]) -> list[tuple[Call, type[FnError]]]:
    """Return (call, error class) of every failure."""
    return [(c.call, type(c.error)) for c in commands if isinstance(c, Fail)]


@pytest.fixture
def dispatcher() -> Dispatcher:
    """Dispatcher with the default retries and room for 100 bytes."""
    return Dispatcher(Limits(bytes_max=100))


def started(dispatcher: Dispatcher, each: Call, link: str) -> None:
    dispatcher.on_started(link, [each.id], NOW)


def test_a_warm_call_is_sent_at_once(dispatcher: Dispatcher) -> None:
    """With room at a replica a call is not queued."""
    up(dispatcher)
    each = call()

    assert dispatcher.submit(each, NOW) == [Send("r1", 1, each)]
    assert (each.stage, each.was_held) == (Stage.SENT, False)


def test_a_cold_call_is_held_until_a_link_is_up(dispatcher: Dispatcher) -> None:
    """A held call causes no command and is sent when a link is up."""
    each = call()
    assert dispatcher.submit(each, NOW) == []
    assert each.was_held

    assert dispatcher.on_link_up(Link("r1", KEY, 2, marks_started=True), NOW) == [
        Send("r1", 1, each)
    ]


def test_a_call_that_meets_only_a_closing_replica_is_held(dispatcher: Dispatcher) -> None:
    """A closing link gets no new call."""
    up(dispatcher).closing = True
    each = call()

    assert dispatcher.submit(each, NOW) == []
    assert each.was_held


def test_the_least_busy_replica_is_chosen(dispatcher: Dispatcher) -> None:
    """A call goes to the link with the fewest calls in flight, within each link's limit."""
    up(dispatcher, "r1", 2)
    up(dispatcher, "r2", 1)
    calls = [call() for _ in range(4)]

    links = [link for each in calls for link, _ in sent(dispatcher.submit(each, NOW))]

    assert links == ["r1", "r2", "r1"]
    assert dispatcher.loads(NOW + 2.0) == {KEY: Load(1, 3, 2.0)}


def test_an_answer_makes_room(dispatcher: Dispatcher) -> None:
    """The answered call is returned, and the next one is sent."""
    up(dispatcher, limit=1)
    first, second = call(), call()
    dispatcher.submit(first, NOW)
    dispatcher.submit(second, NOW)

    assert dispatcher.on_ended("r1", first.id, NOW) == (first, [Send("r1", 2, second)])
    assert first.stage is Stage.DONE
    assert dispatcher.on_ended("r1", second.id, NOW) == (second, [])
    assert dispatcher.is_idle


def test_an_unknown_id_is_an_error(dispatcher: Dispatcher) -> None:
    """An answer or return with an unknown id raises; an unknown id in STARTED is ignored."""
    up(dispatcher)

    with pytest.raises(KeyError):
        dispatcher.on_ended("r1", 7, NOW)
    with pytest.raises(KeyError):
        dispatcher.on_not_started("r1", 7, NotStarted.FULL, NOW)
    dispatcher.on_started("r1", [7], NOW)


def test_bytes_are_released_with_the_answer(dispatcher: Dispatcher) -> None:
    """A body counts from its acceptance to its answer, whatever the stage of its call."""
    up(dispatcher, limit=1)
    first, second = call(b"x" * 60), call(b"x" * 40)
    dispatcher.submit(first, NOW)
    dispatcher.submit(second, NOW)
    with pytest.raises(QueueFull, match="100 bytes"):
        dispatcher.submit(call(b"x"), NOW)

    dispatcher.on_ended("r1", first.id, NOW)

    dispatcher.submit(call(b"x" * 60), NOW)


# Cancelled calls


def test_a_cancelled_queued_call_is_removed(dispatcher: Dispatcher) -> None:
    """A cancelled call is never sent; a second cancel has no effect."""
    each = call()
    dispatcher.submit(each, NOW)

    assert dispatcher.cancel(each, NOW) == []
    assert dispatcher.cancel(each, NOW) == []
    assert dispatcher.is_idle
    up(dispatcher)
    assert each.stage is Stage.DONE


def test_a_cancelled_sent_call_is_recalled(dispatcher: Dispatcher) -> None:
    """The replica gets a recall; its slot is free when the replica confirms, and its answer is
    dropped."""
    up(dispatcher, limit=1)
    first, second = call(), call()
    dispatcher.submit(first, NOW)
    dispatcher.submit(second, NOW)

    assert dispatcher.cancel(first, NOW) == [Recall("r1", 1)]
    assert dispatcher.on_ended("r1", 1, NOW) == (None, [Send("r1", 2, second)])


def test_an_abandoned_call_is_not_sent_again(dispatcher: Dispatcher) -> None:
    """An abandoned call is neither requeued nor failed when its replica returns it or dies."""
    up(dispatcher)
    first, second = call(), call()
    dispatcher.submit(first, NOW)
    dispatcher.submit(second, NOW)
    started(dispatcher, second, "r1")
    dispatcher.cancel(first, NOW)
    dispatcher.cancel(second, NOW)

    assert dispatcher.on_not_started("r1", first.id, NotStarted.FULL, NOW) == []
    assert dispatcher.on_link_lost("r1", NOW) == []
    assert dispatcher.is_idle


def test_a_cancel_does_not_recreate_a_removed_pool(dispatcher: Dispatcher) -> None:
    """A late cancel of a removed function's call creates no pool."""
    each = call()
    dispatcher.submit(each, NOW)
    dispatcher.on_endpoints(KEY, PoolEndpoints([], "gone", "removed"), NOW)

    assert dispatcher.cancel(each, NOW) == []
    assert dispatcher.pools == {}


# Endpoints published by the manager


def test_a_failing_pool_fails_its_queue(dispatcher: Dispatcher) -> None:
    """Queued calls fail at once with the cause, and new calls are refused until the next try."""
    each = call()
    dispatcher.submit(each, NOW)

    commands = dispatcher.on_endpoints(KEY, PoolEndpoints([], "failing", "no memory", 16.0), NOW)

    assert failed(commands) == [(each, FunctionFailing)]
    with pytest.raises(FunctionFailing, match="no memory"):
        dispatcher.submit(call(), NOW)
    dispatcher.submit(call(), NOW + 16.0)


def test_a_waking_pool_keeps_its_queue(dispatcher: Dispatcher) -> None:
    """A state in which a replica may still start fails no call."""
    dispatcher.submit(call(), NOW)

    assert dispatcher.on_endpoints(KEY, PoolEndpoints([], "waking", "1 held"), NOW) == []
    assert dispatcher.loads(NOW) == {KEY: Load(1, 0, 0.0)}


def test_waking_ends_when_the_manager_publishes_a_replica(dispatcher: Dispatcher) -> None:
    """The waking time counts from the first queued call to the first published replica."""
    dispatcher.submit(call(), NOW)
    pool = dispatcher.pool(KEY)
    assert pool.waking_s(NOW + 2.0) == 2.0

    replica = ReplicaEndpoint("r1", "", 1, True, ("cpu:0",), {})
    dispatcher.on_endpoints(KEY, PoolEndpoints([replica], "warm", "1 ready"), NOW + 2.0)

    assert pool.waking_s(NOW + 3.0) == 0.0


def listed(*, paused: bool) -> PoolEndpoints:
    """Return the endpoints of a pool whose only replica is paused, or takes two calls."""
    replica = ReplicaEndpoint("r1", "", 2, True, "cpu:0", {}, paused=paused)
    return PoolEndpoints([replica], "waking" if paused else "warm", "for a reason")


def test_a_paused_replica_gets_no_calls(dispatcher: Dispatcher) -> None:
    """What is in flight there goes on. Others are held as for a cold pool, so that the manager
    learns of them at once, and are sent when the pause ends."""
    link = up(dispatcher)
    first, second = call(), call()
    dispatcher.submit(first, NOW)

    assert dispatcher.on_endpoints(KEY, listed(paused=True), NOW) == []
    assert not dispatcher.send_now(second, NOW)
    assert dispatcher.submit(second, NOW) == []
    assert second.was_held
    assert dispatcher.on_ended("r1", first.id, NOW) == (first, [])
    assert sent(dispatcher.on_endpoints(KEY, listed(paused=False), NOW)) == [("r1", second)]
    assert link.limit == 2


def test_a_replica_is_paused_before_it_is_connected(dispatcher: Dispatcher) -> None:
    """The connection takes a moment, and the manager knows more then."""
    dispatcher.submit(call(), NOW)
    dispatcher.on_endpoints(KEY, listed(paused=True), NOW)

    link = up(dispatcher)

    assert link.in_flight == {}
    assert not dispatcher.pools[KEY].is_connected


def test_a_pause_ends_with_the_manager(dispatcher: Dispatcher) -> None:
    """Nobody else would end it."""
    up(dispatcher)
    dispatcher.on_endpoints(KEY, listed(paused=True), NOW)
    held = call()
    dispatcher.submit(held, NOW)

    assert sent(dispatcher.on_manager_lost(NOW)) == [("r1", held)]


def test_a_removed_pool_is_forgotten_with_its_last_link(dispatcher: Dispatcher) -> None:
    """Queued calls fail at once; calls in flight finish first."""
    up(dispatcher, limit=1)
    first, second = call(), call()
    dispatcher.submit(first, NOW)
    dispatcher.submit(second, NOW)

    commands = dispatcher.on_endpoints(KEY, PoolEndpoints([], "gone", "removed"), NOW)

    assert failed(commands) == [(second, UnknownFunction)]
    assert dispatcher.on_ended("r1", first.id, NOW) == (first, [])
    assert dispatcher.on_link_lost("r1", NOW) == []
    assert dispatcher.pools == {}


def test_a_cold_pool_never_called_is_not_kept(dispatcher: Dispatcher) -> None:
    """The dispatcher keeps no state for cold functions without calls."""
    assert dispatcher.on_endpoints(KEY, UNKNOWN, NOW) == []
    assert dispatcher.pools == {}


def test_an_idle_cold_pool_is_forgotten(dispatcher: Dispatcher) -> None:
    """The next sweep drops a pool that is cold, without calls and without links."""
    up(dispatcher)
    dispatcher.on_endpoints(KEY, PoolEndpoints([], "warm", "1 held"), NOW)
    dispatcher.on_endpoints(KEY, UNKNOWN, NOW)
    dispatcher.sweep(NOW)
    assert list(dispatcher.pools) == [KEY]

    dispatcher.on_link_lost("r1", NOW)
    dispatcher.sweep(NOW)

    assert dispatcher.pools == {}


@pytest.mark.parametrize("endpoints", [PoolEndpoints([], "cold", "no memory"), UNKNOWN])
def test_a_pool_with_calls_or_a_failure_stays(
    dispatcher: Dispatcher, endpoints: PoolEndpoints
) -> None:
    """A pool stays while calls are queued or while it has the reason of a failed start."""
    each = call()
    dispatcher.submit(each, NOW)
    dispatcher.on_endpoints(KEY, endpoints, NOW)

    assert dispatcher.sweep(NOW) == []
    assert list(dispatcher.pools[KEY].queue) == [each]

    dispatcher.cancel(each, NOW)
    dispatcher.sweep(NOW)
    assert (KEY in dispatcher.pools) == (endpoints != UNKNOWN)


def test_a_returned_call_of_a_removed_pool_fails(dispatcher: Dispatcher) -> None:
    """A call returned by a removed function's last replica fails; it is not queued."""
    up(dispatcher)
    each = call()
    dispatcher.submit(each, NOW)
    dispatcher.on_endpoints(KEY, PoolEndpoints([], "gone", "removed"), NOW)

    assert failed(dispatcher.on_goaway("r1", 0, NOW)) == [(each, UnknownFunction)]
    dispatcher.on_link_lost("r1", NOW)
    assert dispatcher.pools == {}


# Replicas that return calls


def test_a_full_replica_gets_no_call_until_window(dispatcher: Dispatcher) -> None:
    """After FULL no call is sent until WINDOW."""
    up(dispatcher)
    each = call()
    dispatcher.submit(each, NOW)

    assert dispatcher.on_not_started("r1", each.id, NotStarted.FULL, NOW) == []
    assert dispatcher.submit(call(), NOW) == []
    assert sent(dispatcher.on_window("r1", NOW))[0] == ("r1", each)


def test_returns_for_lack_of_room_are_not_counted(dispatcher: Dispatcher) -> None:
    """A replica filled by other gateways may return a call any number of times."""
    up(dispatcher)
    each = call()
    dispatcher.submit(each, NOW)
    for _ in range(3 * SENDS_MAX):
        assert dispatcher.on_not_started("r1", each.id, NotStarted.FULL, NOW) == []
        assert sent(dispatcher.on_window("r1", NOW)) == [("r1", each)]


def test_a_call_that_every_replica_returns_fails(dispatcher: Dispatcher) -> None:
    """After SENDS_MAX counted sends a call fails."""
    each = call()
    dispatcher.submit(each, NOW)
    for number in range(SENDS_MAX):
        up(dispatcher, f"r{number}")
        commands = dispatcher.on_not_started(f"r{number}", each.id, NotStarted.DRAINING, NOW)
        dispatcher.on_link_lost(f"r{number}", NOW)

    assert failed(commands) == [(each, ReplicaDied)]
    assert dispatcher.is_idle


def test_a_draining_replica_gets_no_new_call(dispatcher: Dispatcher) -> None:
    """A call returned by a draining replica goes to another one."""
    up(dispatcher, "r1")
    each = call()
    dispatcher.submit(each, NOW)
    up(dispatcher, "r2")

    assert sent(dispatcher.on_not_started("r1", each.id, NotStarted.DRAINING, NOW)) == [
        ("r2", each)
    ]
    assert dispatcher.links["r1"].closing


def test_a_goaway_without_calls_closes_the_link(dispatcher: Dispatcher) -> None:
    """A draining replica gets no further call, also if no call has to move."""
    up(dispatcher, "r1")

    assert dispatcher.on_goaway("r1", 0, NOW) == []
    assert dispatcher.submit(call(), NOW) == []
    assert dispatcher.loads(NOW) == {KEY: Load(1, 0, 0.0)}


def test_answers_set_the_retry_after_of_a_full_queue(dispatcher: Dispatcher) -> None:
    """One answer in two seconds and two queued calls: room is expected in four seconds."""
    up(dispatcher, limit=1)
    calls = [call() for _ in range(4)]
    for each in calls:
        dispatcher.submit(each, NOW)
    dispatcher.on_ended("r1", calls[0].id, NOW)

    assert dispatcher.pool(KEY).retry_after_s(NOW + 2.0) == 4


def test_a_goaway_moves_calls_sent_after_its_id(dispatcher: Dispatcher) -> None:
    """Calls with later ids move to another replica at once, in order; a later return of such a call
    is ignored once."""
    up(dispatcher, "r1", 3)
    calls = [call() for _ in range(3)]
    for each in calls:
        dispatcher.submit(each, NOW)
    up(dispatcher, "r2")

    assert sent(dispatcher.on_goaway("r1", 1, NOW)) == [("r2", calls[1]), ("r2", calls[2])]
    assert dispatcher.on_not_started("r1", 2, NotStarted.DRAINING, NOW) == []
    with pytest.raises(KeyError):
        dispatcher.on_not_started("r1", 2, NotStarted.DRAINING, NOW)
    assert dispatcher.on_ended("r1", 1, NOW) == (calls[0], [])


def test_batch_mates_of_a_timed_out_call_run_alone(dispatcher: Dispatcher) -> None:
    """A call whose batch timed out because of another one runs again, alone, and with enough wait
    budget."""
    up(dispatcher)
    each = call()
    dispatcher.submit(each, NOW)
    started(dispatcher, each, "r1")
    late = NOW + 90.0

    commands = dispatcher.on_not_started("r1", each.id, NotStarted.BATCH_TIMEOUT, late)

    assert sent(commands) == [("r1", each)]
    assert (each.alone, each.deaths) == (True, 0)
    assert dispatcher.sweep(late) == []


@pytest.mark.parametrize("marks", [False, True])
def test_batch_mates_that_may_not_rerun_fail(dispatcher: Dispatcher, marks: bool) -> None:
    """A started call of a stopped batch is not sent again if its function forbids it."""
    up(dispatcher, marks=marks)
    each = call(may_rerun=False)
    dispatcher.submit(each, NOW)
    started(dispatcher, each, "r1")

    commands = dispatcher.on_not_started("r1", each.id, NotStarted.BATCH_TIMEOUT, NOW)

    assert failed(commands) == [(each, ExecutionTimeout)]


def test_a_replica_that_contradicts_itself_is_not_believed(dispatcher: Dispatcher) -> None:
    """A call reported as started is not rerun because a later frame says that it was not."""
    up(dispatcher, "r1")
    each = call(may_rerun=False)
    dispatcher.submit(each, NOW)
    started(dispatcher, each, "r1")
    up(dispatcher, "r2")

    assert failed(dispatcher.on_goaway("r1", 0, NOW)) == [(each, ExecutionTimeout)]


def test_an_unmarked_start_may_be_returned(dispatcher: Dispatcher) -> None:
    """A replica that does not mark starts may return a call unstarted; the call is sent again."""
    up(dispatcher, "r1", marks=False)
    each = call(may_rerun=False)
    dispatcher.submit(each, NOW)
    assert each.stage is Stage.STARTED
    up(dispatcher, "r2")

    assert sent(dispatcher.on_goaway("r1", 0, NOW)) == [("r2", each)]


# Replicas that die


def test_an_unstarted_call_survives_any_number_of_deaths(dispatcher: Dispatcher) -> None:
    """A replica's death before the start is not counted against the call."""
    each = call(may_rerun=False)
    dispatcher.submit(each, NOW)
    for number in range(5):
        up(dispatcher, f"r{number}")
        assert dispatcher.on_link_lost(f"r{number}", NOW) == []

    assert (each.deaths, each.alone, each.stage) == (0, False, Stage.QUEUED)


def test_a_started_call_is_retried_alone(dispatcher: Dispatcher) -> None:
    """The retry runs in a batch of one, reports its start, and has its full time again."""
    up(dispatcher, "r1")
    each = call()
    dispatcher.submit(each, NOW)
    started(dispatcher, each, "r1")
    up(dispatcher, "r2", marks=False)

    assert sent(dispatcher.on_link_lost("r1", NOW + 54.0)) == [("r2", each)]
    assert (each.alone, each.deaths, each.stage) == (True, 1, Stage.SENT)
    assert each.wait_until_s == NOW + 54.0 + 60.0 + RERUN_WAIT_S


def test_a_request_that_kills_three_replicas_is_poison(dispatcher: Dispatcher) -> None:
    """After two retries the call fails, and its body is refused for a minute."""
    each = call(b"bad")
    dispatcher.submit(each, NOW)
    for number in range(3):
        up(dispatcher, f"r{number}")
        started(dispatcher, each, f"r{number}")
        commands = dispatcher.on_link_lost(f"r{number}", NOW)

    assert failed(commands) == [(each, Poison)]
    with pytest.raises(Poison) as refused:
        dispatcher.submit(call(b"bad"), NOW + 15.0)
    assert refused.value.retry_after_s == 45.0
    dispatcher.sweep(NOW + 60.0)
    dispatcher.submit(call(b"bad"), NOW + 60.0)


def test_calls_take_the_fast_path_again_once_no_body_is_refused(dispatcher: Dispatcher) -> None:
    """While a body is refused, every body is checked and the fast path is off; the sweep ends
    this."""
    each = call(b"bad")
    dispatcher.submit(each, NOW)
    for number in range(3):
        up(dispatcher, f"r{number}")
        started(dispatcher, each, f"r{number}")
        dispatcher.on_link_lost(f"r{number}", NOW)
    up(dispatcher)

    assert not dispatcher.send_now(call(b"good"), NOW + 1.0)
    dispatcher.sweep(NOW + 60.0)
    assert dispatcher.send_now(call(b"good"), NOW + 60.0)


def test_a_call_that_may_not_rerun_fails_with_its_replica(dispatcher: Dispatcher) -> None:
    """A started call of a function without reruns fails when its replica dies."""
    up(dispatcher)
    each = call(may_rerun=False)
    dispatcher.submit(each, NOW)
    started(dispatcher, each, "r1")

    assert failed(dispatcher.on_link_lost("r1", NOW)) == [(each, ReplicaDied)]


def test_the_loss_of_an_unknown_link_is_ignored(dispatcher: Dispatcher) -> None:
    """The loss of an unknown link causes no command."""
    assert dispatcher.on_link_lost("r1", NOW) == []


# Time


def test_an_expired_wait_budget_fails_unstarted_calls(dispatcher: Dispatcher) -> None:
    """Queued calls and unstarted sent calls get 503 with an estimate; started calls do not."""
    up(dispatcher, limit=2)
    running, unstarted, waiting = call(), call(), call()
    for each in (running, unstarted, waiting):
        dispatcher.submit(each, NOW)
    started(dispatcher, running, "r1")
    assert dispatcher.sweep(NOW + 54.9) == []

    commands = dispatcher.sweep(NOW + 55.0)

    assert failed(commands) == [(waiting, WaitBudgetOver), (unstarted, WaitBudgetOver)]
    assert Recall("r1", unstarted.id) in commands
    (error, _) = [c.error for c in commands if isinstance(c, Fail)]
    assert "not started within 55.0 s; the function is cold: no calls" in str(error)
    assert error.retry_after_s == 5


def test_the_start_of_a_sent_call_has_time_to_be_reported(dispatcher: Dispatcher) -> None:
    """A call without wait budget that was sent at once fails only if its start is not reported
    within a second."""
    up(dispatcher)
    each = call(wait_until_s=NOW)
    dispatcher.submit(each, NOW)

    assert dispatcher.sweep(NOW + 0.9) == []
    assert failed(dispatcher.sweep(NOW + 1.0)) == [(each, WaitBudgetOver)]


def test_a_run_that_never_ends_is_given_up(dispatcher: Dispatcher) -> None:
    """A run fails a grace period after its timeout, within which the replica may report the timeout
    itself."""
    up(dispatcher)
    each = call()
    dispatcher.submit(each, NOW)
    started(dispatcher, each, "r1")
    assert dispatcher.sweep(NOW + 64.9) == []

    commands = dispatcher.sweep(NOW + 65.0)

    assert failed(commands) == [(each, ExecutionTimeout)]
    assert Recall("r1", each.id) in commands
    assert [type(one) for one in dispatcher.sweep(NOW + 99.0)] == [GiveUp]


def test_priorities_are_served_8_3_1(dispatcher: Dispatcher) -> None:
    """While all three priorities are queued, twelve calls served are eight high, three normal, one
    low."""
    for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
        for _ in range(12):
            dispatcher.submit(call(priority=priority), NOW)

    commands = dispatcher.on_link_up(Link("r1", KEY, 12, marks_started=True), NOW)

    served = [each.priority for _, each in sent(commands)]
    assert [served.count(priority) for priority in Priority] == [8, 3, 1]


def test_a_dispatcher_without_calls_has_no_load(dispatcher: Dispatcher) -> None:
    """Without calls there is no load, also for a known pool."""
    up(dispatcher)

    assert dispatcher.loads(NOW) == {}
    assert dispatcher.is_idle


def test_a_call_refused_for_its_wait_budget_wakes_the_pool(dispatcher: Dispatcher) -> None:
    """The refused call keeps nothing and counts as demand until the pool is warm; the next call is
    served."""
    pool = dispatcher.pool(KEY)
    pool.cold_start = Expected(2.0, 3.0, 9.0, 5)
    short = call(wait_until_s=NOW + 1)

    with pytest.raises(WaitBudgetOver):
        dispatcher.submit(short, NOW)

    assert short.was_held
    assert dispatcher.held.bytes == 0
    assert dispatcher.is_idle
    assert dispatcher.take_called() == [KEY]
    assert dispatcher.sweep(NOW + 5) == []
    assert dispatcher.loads(NOW + 5) == {KEY: Load(1, 0, 5.0)}
    up(dispatcher)
    assert dispatcher.loads(NOW) == {}
    following = call(wait_until_s=NOW + 1)
    assert dispatcher.submit(following, NOW) == [Send("r1", 1, following)]


def test_a_failing_pool_has_no_demand(dispatcher: Dispatcher) -> None:
    """The demand of refused calls ends when the pool fails."""
    dispatcher.pool(KEY).cold_start = Expected(2.0, 3.0, 9.0, 5)
    with pytest.raises(WaitBudgetOver):
        dispatcher.submit(call(wait_until_s=NOW), NOW)

    dispatcher.on_endpoints(KEY, PoolEndpoints([], "failing", "no memory", 16.0), NOW)

    assert dispatcher.loads(NOW) == {}


def test_demand_of_refused_calls_expires(dispatcher: Dispatcher) -> None:
    """The demand of refused calls ends after one cold start's time."""
    dispatcher.pool(KEY).cold_start = Expected(2.0, 3.0, 9.0, 5)
    with pytest.raises(WaitBudgetOver):
        dispatcher.submit(call(wait_until_s=NOW), NOW)

    dispatcher.sweep(NOW + 9)
    dispatcher.sweep(NOW + 9)

    assert dispatcher.pools == {}


@pytest.mark.parametrize("other", ["no room", "no queue", "no replica", "over the bytes"])
def test_the_fast_path_leaves_every_other_case_alone(other: str) -> None:
    """A call that may have to wait or be refused is left to `submit`, with nothing changed."""
    dispatcher = Dispatcher(Limits(bytes_max=100))
    link = up(dispatcher, limit=1)
    each = call(bytes(101) if other == "over the bytes" else b"{}")
    if other == "no room":
        dispatcher.submit(call(), NOW)
    elif other == "no queue":
        each.queue_max = 0
    elif other == "no replica":
        link.closing = True
    taken = dict(link.in_flight)

    assert not dispatcher.send_now(each, NOW)
    assert (link.in_flight, each.stage) == (taken, call().stage)


def test_without_a_manager_only_connected_pools_take_calls(dispatcher: Dispatcher) -> None:
    """When the manager is lost, held calls of pools without a replica are refused, and so are all
    later ones; a connected replica goes on."""
    held = call()
    dispatcher.submit(held, NOW)

    assert failed(dispatcher.on_manager_lost(NOW)) == [(held, ShuttingDown)]
    with pytest.raises(ShuttingDown):
        dispatcher.submit(call(), NOW)
    up(dispatcher)
    each = call()
    assert sent(dispatcher.submit(each, NOW)) == [("r1", each)]
