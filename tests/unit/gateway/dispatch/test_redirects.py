"""Tests of calls that follow their function's traffic to another revision."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dispatch.call import Call, Command, Fail, Link, Priority, Send
from gateway.dispatch.dispatcher import Dispatcher, Limits
from gateway.dispatch.pool import Pool
from gateway.dispatch.redirects import RerunPolicy, TrafficRedirects
from registry.errors import UnknownFunction
from registry.exchange import PoolEndpoints
from runtime_image.contract.link import NotStarted
from runtime_image.link.meta import RequestMeta

OLD, NEW, NEXT = "default/a@1", "default/a@2", "default/a@3"
META = RequestMeta("application/json", "", -1, "")
NOW = 100.0
POLICY = RerunPolicy(may_rerun=False, timeout_s=9.0)
FAILING = PoolEndpoints([], "failing", "no such operator", retry_after_s=5.0)


def call(pool: str = OLD, **changes: Any) -> Call:
    """Return a call that arrives at NOW, may be held for 55 s and may run for 60 s."""
    return Call(pool, META, b"{}", NOW, NOW + 55.0, 60.0, **changes)


def sent(commands: list[Command]) -> list[tuple[str, Call]]:
    """Return (link, call) of every send."""
    return [(c.link, c.call) for c in commands if isinstance(c, Send)]


@pytest.fixture
def dispatcher() -> Dispatcher:
    """Dispatcher with default limits."""
    return Dispatcher(Limits())


def submitted(dispatcher: Dispatcher, *calls: Call) -> None:
    for each in calls:
        dispatcher.submit(each, NOW)


def test_queued_calls_follow_in_order_with_the_time_left(dispatcher: Dispatcher) -> None:
    """Queued calls keep order and wait budget, and get the new revision's rerun policy and
    timeout."""
    first, urgent, last = call(), call(priority=Priority.HIGH), call()
    submitted(dispatcher, first, urgent, last)

    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW + 50)
    commands = dispatcher.on_link_up(Link("r2", NEW, 8, marks_started=True), NOW + 50)

    assert sent(commands) == [("r2", urgent), ("r2", first), ("r2", last)]
    assert {(c.pool, c.wait_until_s) for c in (first, urgent, last)} == {(NEW, NOW + 55)}
    assert (first.may_rerun, first.timeout_s) == (False, 9.0)


def test_a_warm_new_revision_serves_them_at_once(dispatcher: Dispatcher) -> None:
    """Moved calls are sent at once where the new revision has room."""
    waits = call()
    submitted(dispatcher, waits)
    dispatcher.on_link_up(Link("r2", NEW, 8, marks_started=True), NOW)

    assert sent(dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)) == [("r2", waits)]


def test_a_call_that_named_its_revision_stays(dispatcher: Dispatcher) -> None:
    """A call of digits@1 stays with digits@1, before and after the traffic moves."""
    pinned = call(pinned=True)
    submitted(dispatcher, pinned)
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)
    later = call(pinned=True)
    submitted(dispatcher, later)

    assert list(dispatcher.pool(OLD).queue) == [pinned, later]
    assert not dispatcher.pool(NEW).queue


def test_calls_that_do_not_fit_stay(dispatcher: Dispatcher) -> None:
    """Without a policy (the signature changed) calls stay, and so does one submitted later."""
    first, late = call(), call()
    submitted(dispatcher, first)
    dispatcher.on_traffic_moved(OLD, NEW, None, NOW)
    submitted(dispatcher, late)

    assert list(dispatcher.pool(OLD).queue) == [first, late]


def test_a_call_that_found_its_revision_before_the_move_follows(dispatcher: Dispatcher) -> None:
    """A call whose body arrived during the move is queued at the new revision."""
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)
    late = call()
    submitted(dispatcher, late)

    assert list(dispatcher.pool(NEW).queue) == [late]


@pytest.mark.parametrize("how", ["not_started", "goaway", "lost"])
def test_a_returned_call_follows_to_its_position(dispatcher: Dispatcher, how: str) -> None:
    """A call returned unstarted keeps its order of arrival at the new revision."""
    dispatcher.on_link_up(Link("r1", OLD, 2, marks_started=True), NOW)
    early = call()
    submitted(dispatcher, early)
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)
    submitted(dispatcher, call(NEW))

    if how == "not_started":
        dispatcher.on_not_started("r1", early.id, NotStarted.DRAINING, NOW)
    elif how == "goaway":
        dispatcher.on_goaway("r1", early.id - 1, NOW)
    else:
        dispatcher.on_link_lost("r1", NOW)

    assert next(iter(dispatcher.pool(NEW).queue)) is early
    assert early.pool == NEW


def test_a_returned_call_is_sent_at_once_where_there_is_room(dispatcher: Dispatcher) -> None:
    """A replica of the new revision gets it with the same event."""
    dispatcher.on_link_up(Link("r1", OLD, 2, marks_started=True), NOW)
    dispatcher.on_link_up(Link("r2", NEW, 2, marks_started=True), NOW)
    early = call()
    submitted(dispatcher, early)
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)

    commands = dispatcher.on_not_started("r1", early.id, NotStarted.DRAINING, NOW)

    assert sent(commands) == [("r2", early)]


def test_a_started_call_stays_with_its_revision(dispatcher: Dispatcher) -> None:
    """A call that killed a replica is retried on the same revision, alone."""
    dispatcher.on_link_up(Link("r1", OLD, 2, marks_started=True), NOW)
    begun = call()
    submitted(dispatcher, begun)
    dispatcher.on_started("r1", [begun.id], NOW)
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)

    dispatcher.on_link_lost("r1", NOW)

    assert list(dispatcher.pool(OLD).queue) == [begun]
    assert begun.alone


def test_traffic_may_move_on_and_back(dispatcher: Dispatcher) -> None:
    """Calls follow a chain of moves; a revision that regains the traffic keeps its calls."""
    waits = call()
    submitted(dispatcher, waits)

    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)
    dispatcher.on_traffic_moved(NEW, NEXT, POLICY, NOW)
    assert list(dispatcher.pool(NEXT).queue) == [waits]

    late = call()
    submitted(dispatcher, late)
    assert late.pool == NEXT

    dispatcher.on_traffic_moved(NEXT, OLD, POLICY, NOW)
    assert list(dispatcher.pool(OLD).queue) == [waits, late]
    assert dispatcher.successor(NEW) == OLD


def test_an_incompatible_move_ends_an_older_redirect(dispatcher: Dispatcher) -> None:
    """The revision with the traffic never redirects, whatever moves there were before."""
    dispatcher.on_traffic_moved(NEW, OLD, POLICY, NOW)
    dispatcher.on_traffic_moved(OLD, NEW, None, NOW)
    late = call(NEW)
    submitted(dispatcher, late)

    assert list(dispatcher.pool(NEW).queue) == [late]


def test_calls_do_not_follow_to_a_failing_pool(dispatcher: Dispatcher) -> None:
    """Their revision still serves them, so they must not fail with the new one."""
    waits = call()
    submitted(dispatcher, waits)
    dispatcher.on_endpoints(NEW, FAILING, NOW)

    assert dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW) == []

    assert list(dispatcher.pool(OLD).queue) == [waits]


def test_calls_do_not_follow_to_a_removed_pool(dispatcher: Dispatcher) -> None:
    """A redirect to a removed revision is ignored; if the own revision is removed too, calls
    fail."""
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)
    dispatcher.on_endpoints(NEW, PoolEndpoints([], "gone", "removed"), NOW)
    stays = call()
    submitted(dispatcher, stays)
    assert stays.pool == OLD

    commands = dispatcher.on_endpoints(OLD, PoolEndpoints([], "gone", "removed"), NOW)

    (fail,) = commands
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, UnknownFunction)


def test_a_merged_queue_keeps_its_limit(dispatcher: Dispatcher) -> None:
    """Accepted calls stay accepted; new ones are refused until the queue is below the limit."""
    submitted(dispatcher, *(call(queue_max=2) for _ in range(2)))
    submitted(dispatcher, call(NEW, pinned=True, queue_max=2))

    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)

    assert len(dispatcher.pool(NEW).queue) == 3
    with pytest.raises(Exception, match="3 requests are queued already, at most 2 may wait"):
        dispatcher.submit(call(NEW, queue_max=2), NOW)


def test_redirects_work_without_a_dispatcher() -> None:
    """Without a move calls stay; after it those that may follow do."""
    pools = {key: Pool(key) for key in (OLD, NEW)}
    redirects = TrafficRedirects(pools.__getitem__)
    each = call()
    pools[OLD].queue.append(each)
    redirects.redirect_queued(pools[OLD], NOW)
    assert redirects.redirect(each, pools[OLD], NOW) is pools[OLD]
    assert list(pools[OLD].queue) == [each]

    redirects.on_traffic_moved(OLD, NEW, POLICY)
    redirects.redirect_queued(pools[OLD], NOW)

    assert (list(pools[OLD].queue), list(pools[NEW].queue)) == ([], [each])
    assert (redirects.successor(OLD), redirects.successor(NEW)) == (NEW, NEW)


def test_no_redirect_leads_to_a_removed_revision() -> None:
    """Redirects from and to a removed revision end; the others stay."""
    redirects = TrafficRedirects(Pool)
    redirects.on_traffic_moved(OLD, NEW, POLICY)
    redirects.on_traffic_moved(NEW, NEXT, POLICY)
    assert redirects.successor(OLD) == NEXT

    redirects.forget(NEW)
    assert (redirects.successor(NEW), redirects.successor(OLD)) == (NEW, NEXT)

    redirects.forget(NEXT)
    assert redirects.successor(OLD) == OLD


def test_only_redirects_to_the_revision_that_lost_the_traffic_change() -> None:
    """When traffic moves on, the redirects of other functions stay as they are."""
    redirects = TrafficRedirects(Pool)
    redirects.on_traffic_moved("default/b@1", "default/b@2", POLICY)
    redirects.on_traffic_moved(OLD, NEW, POLICY)

    redirects.on_traffic_moved(NEW, NEXT, POLICY)

    assert redirects.successor(OLD) == redirects.successor(NEW) == NEXT
    assert redirects.successor("default/b@1") == "default/b@2"
