"""The dispatcher's decisions, one mishap at a time."""

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
    """Arrives at NOW, may be held for 55 s, may run for 60 s."""
    times = {"arrived_s": NOW, "wait_until_s": NOW + 55.0, "timeout_s": 60.0}
    return Call(KEY, META, body, **{**times, **changes})


def up(dispatcher: Dispatcher, id: str = "r1", limit: int = 2, *, marks: bool = True) -> Link:
    """A replica that is connected."""
    link = Link(id, KEY, limit, marks)
    dispatcher.on_link_up(link, NOW)
    return link


def sent(commands: list[Command]) -> list[tuple[str, Call]]:
    """(link, call) of every send."""
    return [(c.link, c.call) for c in commands if isinstance(c, Send)]


def failed(commands: list[Command]) -> list[tuple[Call, type[FnError]]]:
    """(call, error) of every failure."""
    return [(c.call, type(c.error)) for c in commands if isinstance(c, Fail)]


@pytest.fixture
def dispatcher() -> Dispatcher:
    """A new one with the usual retries and room for 100 bytes."""
    return Dispatcher(Limits(bytes_max=100))


def started(dispatcher: Dispatcher, each: Call, link: str) -> None:
    dispatcher.on_started(link, [each.id], NOW)


def test_a_warm_call_is_sent_at_once(dispatcher: Dispatcher) -> None:
    """With room at a replica nobody waits."""
    up(dispatcher)
    each = call()

    assert dispatcher.submit(each, NOW) == [Send("r1", 1, each)]
    assert (each.stage, each.was_held) == (Stage.SENT, False)


def test_a_cold_call_is_held_until_a_replica_comes(dispatcher: Dispatcher) -> None:
    """It waits without a word and is sent by the link's arrival."""
    each = call()
    assert dispatcher.submit(each, NOW) == []
    assert each.was_held

    assert dispatcher.on_link_up(Link("r1", KEY, 2, marks_started=True), NOW) == [
        Send("r1", 1, each)
    ]


def test_a_call_that_meets_only_a_closing_replica_is_held(dispatcher: Dispatcher) -> None:
    """A replica that takes nothing new is no replica for it."""
    up(dispatcher).closing = True
    each = call()

    assert dispatcher.submit(each, NOW) == []
    assert each.was_held


def test_the_least_busy_replica_is_chosen(dispatcher: Dispatcher) -> None:
    """Calls go where the fewest are in flight, up to each limit."""
    up(dispatcher, "r1", 2)
    up(dispatcher, "r2", 1)
    calls = [call() for _ in range(4)]

    links = [link for each in calls for link, _ in sent(dispatcher.submit(each, NOW))]

    assert links == ["r1", "r2", "r1"]
    assert dispatcher.loads(NOW + 2.0) == {KEY: Load(1, 3, 2.0)}


def test_an_answer_makes_room(dispatcher: Dispatcher) -> None:
    """The call is returned to be answered, and the next one is sent."""
    up(dispatcher, limit=1)
    first, second = call(), call()
    dispatcher.submit(first, NOW)
    dispatcher.submit(second, NOW)

    assert dispatcher.on_ended("r1", first.id, NOW) == (first, [Send("r1", 2, second)])
    assert first.stage is Stage.DONE
    assert dispatcher.on_ended("r1", second.id, NOW) == (second, [])
    assert dispatcher.is_idle


def test_an_id_that_is_not_there_is_an_error(dispatcher: Dispatcher) -> None:
    """A replica that speaks of a request it does not have is not believed."""
    up(dispatcher)

    with pytest.raises(KeyError):
        dispatcher.on_ended("r1", 7, NOW)
    with pytest.raises(KeyError):
        dispatcher.on_not_started("r1", 7, NotStarted.FULL, NOW)
    dispatcher.on_started("r1", [7], NOW)


def test_bytes_are_given_back(dispatcher: Dispatcher) -> None:
    """A body counts from its acceptance to its answer, wherever its call is."""
    up(dispatcher, limit=1)
    first, second = call(b"x" * 60), call(b"x" * 40)
    dispatcher.submit(first, NOW)
    dispatcher.submit(second, NOW)
    with pytest.raises(QueueFull, match="100 bytes"):
        dispatcher.submit(call(b"x"), NOW)

    dispatcher.on_ended("r1", first.id, NOW)

    dispatcher.submit(call(b"x" * 60), NOW)


# Clients that leave


def test_a_waiter_that_leaves_is_gone(dispatcher: Dispatcher) -> None:
    """It is not sent any more, and leaving twice does no harm."""
    each = call()
    dispatcher.submit(each, NOW)

    assert dispatcher.cancel(each, NOW) == []
    assert dispatcher.cancel(each, NOW) == []
    assert dispatcher.is_idle
    up(dispatcher)
    assert each.stage is Stage.DONE


def test_a_call_left_alone_is_recalled(dispatcher: Dispatcher) -> None:
    """Its replica is told; its place is free only when the replica says so, and no answer is
    wanted."""
    up(dispatcher, limit=1)
    first, second = call(), call()
    dispatcher.submit(first, NOW)
    dispatcher.submit(second, NOW)

    assert dispatcher.cancel(first, NOW) == [Recall("r1", 1)]
    assert dispatcher.on_ended("r1", 1, NOW) == (None, [Send("r1", 2, second)])


def test_an_abandoned_call_is_not_sent_again(dispatcher: Dispatcher) -> None:
    """What nobody waits for is neither requeued nor failed when its replica ends."""
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


def test_leaving_a_removed_function_leaves_no_trace(dispatcher: Dispatcher) -> None:
    """A client may find out late; its pool is not made anew."""
    each = call()
    dispatcher.submit(each, NOW)
    dispatcher.on_endpoints(KEY, PoolEndpoints([], "gone", "removed"), NOW)

    assert dispatcher.cancel(each, NOW) == []
    assert dispatcher.pools == {}


# What the manager says


def test_a_failing_pool_answers_its_waiters(dispatcher: Dispatcher) -> None:
    """Everybody who waits is woken at once with the cause, and newcomers are told as well."""
    each = call()
    dispatcher.submit(each, NOW)

    commands = dispatcher.on_endpoints(KEY, PoolEndpoints([], "failing", "no memory", 16.0), NOW)

    assert failed(commands) == [(each, FunctionFailing)]
    with pytest.raises(FunctionFailing, match="no memory"):
        dispatcher.submit(call(), NOW)
    dispatcher.submit(call(), NOW + 16.0)


def test_news_of_a_waking_pool_leave_its_waiters(dispatcher: Dispatcher) -> None:
    """A state in which a replica may come answers nobody."""
    dispatcher.submit(call(), NOW)

    assert dispatcher.on_endpoints(KEY, PoolEndpoints([], "waking", "1 held"), NOW) == []
    assert dispatcher.loads(NOW) == {KEY: Load(1, 0, 0.0)}


def test_waking_ends_when_the_manager_publishes_a_replica(dispatcher: Dispatcher) -> None:
    """The time a pool has been waking counts from the first caller to the first replica."""
    dispatcher.submit(call(), NOW)
    pool = dispatcher.pool(KEY)
    assert pool.waking_s(NOW + 2.0) == 2.0

    replica = ReplicaEndpoint("r1", "", 1, True, "cpu:0", {})
    dispatcher.on_endpoints(KEY, PoolEndpoints([replica], "warm", "1 ready"), NOW + 2.0)

    assert pool.waking_s(NOW + 3.0) == 0.0


def test_a_removed_pool_is_forgotten_with_its_last_link(dispatcher: Dispatcher) -> None:
    """Waiters get an answer at once; what runs is finished first."""
    up(dispatcher, limit=1)
    first, second = call(), call()
    dispatcher.submit(first, NOW)
    dispatcher.submit(second, NOW)

    commands = dispatcher.on_endpoints(KEY, PoolEndpoints([], "gone", "removed"), NOW)

    assert failed(commands) == [(second, UnknownFunction)]
    assert dispatcher.on_ended("r1", first.id, NOW) == (first, [])
    assert dispatcher.on_link_lost("r1", NOW) == []
    assert dispatcher.pools == {}


def test_a_pool_never_called_leaves_no_trace(dispatcher: Dispatcher) -> None:
    """Of thousands of cold functions the dispatcher keeps nothing."""
    assert dispatcher.on_endpoints(KEY, UNKNOWN, NOW) == []
    assert dispatcher.pools == {}


def test_a_pool_at_rest_is_forgotten(dispatcher: Dispatcher) -> None:
    """Cold again and nobody there: the next sweep lets it go, whichever of them came last."""
    up(dispatcher)
    dispatcher.on_endpoints(KEY, PoolEndpoints([], "warm", "1 held"), NOW)
    dispatcher.on_endpoints(KEY, UNKNOWN, NOW)
    dispatcher.sweep(NOW)
    assert list(dispatcher.pools) == [KEY]

    dispatcher.on_link_lost("r1", NOW)
    dispatcher.sweep(NOW)

    assert dispatcher.pools == {}


@pytest.mark.parametrize("endpoints", [PoolEndpoints([], "cold", "no memory"), UNKNOWN])
def test_a_pool_with_something_to_tell_or_to_do_stays(
    dispatcher: Dispatcher, endpoints: PoolEndpoints
) -> None:
    """Who waits is not forgotten, nor why the last start failed."""
    each = call()
    dispatcher.submit(each, NOW)
    dispatcher.on_endpoints(KEY, endpoints, NOW)

    assert dispatcher.sweep(NOW) == []
    assert list(dispatcher.pools[KEY].queue) == [each]

    dispatcher.cancel(each, NOW)
    dispatcher.sweep(NOW)
    assert (KEY in dispatcher.pools) == (endpoints != UNKNOWN)


def test_nobody_is_put_back_into_a_line_that_is_closed(dispatcher: Dispatcher) -> None:
    """A call that a removed function's last replica hands back is answered, not held."""
    up(dispatcher)
    each = call()
    dispatcher.submit(each, NOW)
    dispatcher.on_endpoints(KEY, PoolEndpoints([], "gone", "removed"), NOW)

    assert failed(dispatcher.on_goaway("r1", 0, NOW)) == [(each, UnknownFunction)]
    dispatcher.on_link_lost("r1", NOW)
    assert dispatcher.pools == {}


# Replicas that hand back


def test_a_full_replica_is_left_alone_until_it_has_room(dispatcher: Dispatcher) -> None:
    """After FULL nothing is sent until WINDOW."""
    up(dispatcher)
    each = call()
    dispatcher.submit(each, NOW)

    assert dispatcher.on_not_started("r1", each.id, NotStarted.FULL, NOW) == []
    assert dispatcher.submit(call(), NOW) == []
    assert sent(dispatcher.on_window("r1", NOW))[0] == ("r1", each)


def test_being_turned_away_for_lack_of_room_is_never_counted(dispatcher: Dispatcher) -> None:
    """A replica that other gateways fill may turn a call away any number of times."""
    up(dispatcher)
    each = call()
    dispatcher.submit(each, NOW)
    for _ in range(3 * SENDS_MAX):
        assert dispatcher.on_not_started("r1", each.id, NotStarted.FULL, NOW) == []
        assert sent(dispatcher.on_window("r1", NOW)) == [("r1", each)]


def test_a_call_that_circles_is_given_up(dispatcher: Dispatcher) -> None:
    """One that every replica hands back is failed after a dozen sends, not sent for ever."""
    each = call()
    dispatcher.submit(each, NOW)
    for number in range(SENDS_MAX):
        up(dispatcher, f"r{number}")
        commands = dispatcher.on_not_started(f"r{number}", each.id, NotStarted.DRAINING, NOW)
        dispatcher.on_link_lost(f"r{number}", NOW)

    assert failed(commands) == [(each, ReplicaDied)]
    assert dispatcher.is_idle


def test_a_draining_replica_gets_nothing_new(dispatcher: Dispatcher) -> None:
    """What it hands back goes to another one."""
    up(dispatcher, "r1")
    each = call()
    dispatcher.submit(each, NOW)
    up(dispatcher, "r2")

    assert sent(dispatcher.on_not_started("r1", each.id, NotStarted.DRAINING, NOW)) == [
        ("r2", each)
    ]
    assert dispatcher.links["r1"].closing


def test_a_goaway_without_calls_closes_the_link(dispatcher: Dispatcher) -> None:
    """A replica that drains gets no further call, also where no call has to move."""
    up(dispatcher, "r1")

    assert dispatcher.on_goaway("r1", 0, NOW) == []
    assert dispatcher.submit(call(), NOW) == []
    assert dispatcher.loads(NOW) == {KEY: Load(1, 0, 0.0)}


def test_answers_set_the_retry_after_of_a_full_queue(dispatcher: Dispatcher) -> None:
    """One call in two seconds was answered and two wait: room is expected in four seconds."""
    up(dispatcher, limit=1)
    calls = [call() for _ in range(4)]
    for each in calls:
        dispatcher.submit(each, NOW)
    dispatcher.on_ended("r1", calls[0].id, NOW)

    assert dispatcher.pool(KEY).retry_after_s(NOW + 2.0) == 4


def test_a_goaway_settles_what_came_after_it(dispatcher: Dispatcher) -> None:
    """Later ids are sent elsewhere at once, in order; what the replica says of them later is
    known already."""
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


def test_mates_of_a_late_request_run_alone(dispatcher: Dispatcher) -> None:
    """A batch that ran out of time because of another request is no fault of theirs: they run
    again, alone, and have the time for it."""
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
def test_mates_that_may_not_run_twice_are_told_so(dispatcher: Dispatcher, marks: bool) -> None:
    """A call that had started in a stopped batch is not sent again against its function's word."""
    up(dispatcher, marks=marks)
    each = call(may_rerun=False)
    dispatcher.submit(each, NOW)
    started(dispatcher, each, "r1")

    commands = dispatcher.on_not_started("r1", each.id, NotStarted.BATCH_TIMEOUT, NOW)

    assert failed(commands) == [(each, ExecutionTimeout)]


def test_a_replica_that_contradicts_itself_is_not_believed(dispatcher: Dispatcher) -> None:
    """What it said to have started is not run twice because it says later that it was not."""
    up(dispatcher, "r1")
    each = call(may_rerun=False)
    dispatcher.submit(each, NOW)
    started(dispatcher, each, "r1")
    up(dispatcher, "r2")

    assert failed(dispatcher.on_goaway("r1", 0, NOW)) == [(each, ExecutionTimeout)]


def test_what_only_counts_as_started_may_be_handed_back(dispatcher: Dispatcher) -> None:
    """A replica that does not mark starts knows what it did not take."""
    up(dispatcher, "r1", marks=False)
    each = call(may_rerun=False)
    dispatcher.submit(each, NOW)
    assert each.stage is Stage.STARTED
    up(dispatcher, "r2")

    assert sent(dispatcher.on_goaway("r1", 0, NOW)) == [("r2", each)]


# Replicas that die


def test_what_had_not_started_is_sent_elsewhere(dispatcher: Dispatcher) -> None:
    """A death before the start is not counted, in any number."""
    each = call(may_rerun=False)
    dispatcher.submit(each, NOW)
    for number in range(5):
        up(dispatcher, f"r{number}")
        assert dispatcher.on_link_lost(f"r{number}", NOW) == []

    assert (each.deaths, each.alone, each.stage) == (0, False, Stage.QUEUED)


def test_what_had_started_is_retried_alone(dispatcher: Dispatcher) -> None:
    """It runs in a batch of one, says when it starts, and has its full time again."""
    up(dispatcher, "r1")
    each = call()
    dispatcher.submit(each, NOW)
    started(dispatcher, each, "r1")
    up(dispatcher, "r2", marks=False)

    assert sent(dispatcher.on_link_lost("r1", NOW + 54.0)) == [("r2", each)]
    assert (each.alone, each.deaths, each.stage) == (True, 1, Stage.SENT)
    assert each.wait_until_s == NOW + 54.0 + 60.0 + RERUN_WAIT_S


def test_a_request_that_kills_three_replicas_is_poison(dispatcher: Dispatcher) -> None:
    """After two retries it is given up, and its body is refused for a minute."""
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
    """While one body is refused, every body has to be checked; the sweep ends that."""
    each = call(b"bad")
    dispatcher.submit(each, NOW)
    for number in range(3):
        up(dispatcher, f"r{number}")
        started(dispatcher, each, f"r{number}")
        dispatcher.on_link_lost(f"r{number}", NOW)
    up(dispatcher)

    assert dispatcher.send_now(call(b"good"), NOW + 1.0) is None
    dispatcher.sweep(NOW + 60.0)
    assert dispatcher.send_now(call(b"good"), NOW + 60.0) is not None


def test_what_may_not_run_twice_fails_with_its_replica(dispatcher: Dispatcher) -> None:
    """A started call of such a function is answered with the death of its replica."""
    up(dispatcher)
    each = call(may_rerun=False)
    dispatcher.submit(each, NOW)
    started(dispatcher, each, "r1")

    assert failed(dispatcher.on_link_lost("r1", NOW)) == [(each, ReplicaDied)]


def test_a_link_is_lost_once(dispatcher: Dispatcher) -> None:
    """The end of a link that is not there leads to nothing."""
    assert dispatcher.on_link_lost("r1", NOW) == []


# Time


def test_a_wait_budget_ends(dispatcher: Dispatcher) -> None:
    """Who waits or was sent without starting gets 503 with an estimate; who started does not."""
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


def test_a_run_that_never_ends_is_given_up(dispatcher: Dispatcher) -> None:
    """Some seconds after its timeout, in which the replica says so itself, a run is not waited
    for any more."""
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
    """While all three wait, twelve calls served are eight high, three normal and one low."""
    for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
        for _ in range(12):
            dispatcher.submit(call(priority=priority), NOW)

    commands = dispatcher.on_link_up(Link("r1", KEY, 12, marks_started=True), NOW)

    served = [each.priority for _, each in sent(commands)]
    assert [served.count(priority) for priority in Priority] == [8, 3, 1]


def test_a_new_dispatcher_owes_nothing(dispatcher: Dispatcher) -> None:
    """Without calls there is no load, also where a pool is known."""
    up(dispatcher)

    assert dispatcher.loads(NOW) == {}
    assert dispatcher.is_idle


def test_who_would_wait_in_vain_wakes_the_function(dispatcher: Dispatcher) -> None:
    """The call is refused, keeps nothing, and counts as demand until the function is warm; the
    next call is served."""
    pool = dispatcher.pool(KEY)
    pool.cold_start = Expected(2.0, 3.0, 9.0, 5)
    short = call(wait_until_s=NOW + 1)

    with pytest.raises(WaitBudgetOver):
        dispatcher.submit(short, NOW)

    assert short.was_held
    assert dispatcher.held_bytes == 0
    assert dispatcher.is_idle
    assert dispatcher.take_called() == [KEY]
    assert dispatcher.sweep(NOW + 5) == []
    assert dispatcher.loads(NOW + 5) == {KEY: Load(1, 0, 5.0)}
    up(dispatcher)
    assert dispatcher.loads(NOW) == {}
    following = call(wait_until_s=NOW + 1)
    assert dispatcher.submit(following, NOW) == [Send("r1", 1, following)]


def test_a_function_that_fails_is_wanted_no_more(dispatcher: Dispatcher) -> None:
    """Whoever would have waited would have been answered, too."""
    dispatcher.pool(KEY).cold_start = Expected(2.0, 3.0, 9.0, 5)
    with pytest.raises(WaitBudgetOver):
        dispatcher.submit(call(wait_until_s=NOW), NOW)

    dispatcher.on_endpoints(KEY, PoolEndpoints([], "failing", "no memory", 16.0), NOW)

    assert dispatcher.loads(NOW) == {}


def test_what_was_wanted_and_never_came_is_forgotten(dispatcher: Dispatcher) -> None:
    """After one cold start's time nobody is waited for any more."""
    dispatcher.pool(KEY).cold_start = Expected(2.0, 3.0, 9.0, 5)
    with pytest.raises(WaitBudgetOver):
        dispatcher.submit(call(wait_until_s=NOW), NOW)

    dispatcher.sweep(NOW + 9)
    dispatcher.sweep(NOW + 9)

    assert dispatcher.pools == {}
