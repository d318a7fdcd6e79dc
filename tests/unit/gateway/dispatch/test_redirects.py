"""Calls that follow their function's traffic to another revision."""

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
    """Arrives at NOW, may be held for 55 s, may run for 60 s."""
    return Call(pool, META, b"{}", NOW, NOW + 55.0, 60.0, **changes)


def sent(commands: list[Command]) -> list[tuple[str, Call]]:
    """(link, call) of every send."""
    return [(c.link, c.call) for c in commands if isinstance(c, Send)]


@pytest.fixture
def dispatcher() -> Dispatcher:
    """A new one."""
    return Dispatcher(Limits())


def submitted(dispatcher: Dispatcher, *calls: Call) -> None:
    for each in calls:
        dispatcher.submit(each, NOW)


def test_who_waits_follows_in_order_with_the_time_left(dispatcher: Dispatcher) -> None:
    """By plain name, within each priority, and run as the new revision's calls are."""
    first, urgent, last = call(), call(priority=Priority.HIGH), call()
    submitted(dispatcher, first, urgent, last)

    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW + 50)
    commands = dispatcher.on_link_up(Link("r2", NEW, 8, marks_started=True), NOW + 50)

    assert sent(commands) == [("r2", urgent), ("r2", first), ("r2", last)]
    assert {(c.pool, c.wait_until_s) for c in (first, urgent, last)} == {(NEW, NOW + 55)}
    assert (first.may_rerun, first.timeout_s) == (False, 9.0)


def test_a_warm_new_revision_serves_them_at_once(dispatcher: Dispatcher) -> None:
    """Nobody waits where there is room."""
    waits = call()
    submitted(dispatcher, waits)
    dispatcher.on_link_up(Link("r2", NEW, 8, marks_started=True), NOW)

    assert sent(dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)) == [("r2", waits)]


def test_a_call_that_named_its_revision_stays(dispatcher: Dispatcher) -> None:
    """digits@1 means digits@1, before traffic moves and afterwards."""
    pinned = call(pinned=True)
    submitted(dispatcher, pinned)
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)
    later = call(pinned=True)
    submitted(dispatcher, later)

    assert list(dispatcher.pool(OLD).queue) == [pinned, later]
    assert not dispatcher.pool(NEW).queue


def test_calls_that_do_not_fit_stay(dispatcher: Dispatcher) -> None:
    """The revision they were meant for serves them; so it does with one whose body came late."""
    first, late = call(), call()
    submitted(dispatcher, first)
    dispatcher.on_traffic_moved(OLD, NEW, None, NOW)
    submitted(dispatcher, late)

    assert list(dispatcher.pool(OLD).queue) == [first, late]


def test_a_call_that_found_its_revision_before_the_move_follows(dispatcher: Dispatcher) -> None:
    """Its body came while traffic moved: it waits where the others do."""
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)
    late = call()
    submitted(dispatcher, late)

    assert list(dispatcher.pool(NEW).queue) == [late]


@pytest.mark.parametrize("how", ["not_started", "goaway", "lost"])
def test_what_a_replica_hands_back_unrun_follows_to_its_place(
    dispatcher: Dispatcher, how: str
) -> None:
    """It came before those who wait at the new revision by now, and stands before them."""
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


def test_what_comes_back_is_served_at_once_where_there_is_room(dispatcher: Dispatcher) -> None:
    """The replica of the new revision gets it in the same turn."""
    dispatcher.on_link_up(Link("r1", OLD, 2, marks_started=True), NOW)
    dispatcher.on_link_up(Link("r2", NEW, 2, marks_started=True), NOW)
    early = call()
    submitted(dispatcher, early)
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)

    commands = dispatcher.on_not_started("r1", early.id, NotStarted.DRAINING, NOW)

    assert sent(commands) == [("r2", early)]


def test_what_had_begun_stays_with_its_model(dispatcher: Dispatcher) -> None:
    """A request that killed a replica is tried again on that revision, alone."""
    dispatcher.on_link_up(Link("r1", OLD, 2, marks_started=True), NOW)
    begun = call()
    submitted(dispatcher, begun)
    dispatcher.on_started("r1", [begun.id], NOW)
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)

    dispatcher.on_link_lost("r1", NOW)

    assert list(dispatcher.pool(OLD).queue) == [begun]
    assert begun.alone


def test_traffic_may_move_on_and_back(dispatcher: Dispatcher) -> None:
    """Calls follow along the whole way; a revision that has the traffic again keeps them."""
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


def test_a_move_that_breaks_callers_ends_an_older_way(dispatcher: Dispatcher) -> None:
    """A revision with the traffic is never left, whatever was before."""
    dispatcher.on_traffic_moved(NEW, OLD, POLICY, NOW)
    dispatcher.on_traffic_moved(OLD, NEW, None, NOW)
    late = call(NEW)
    submitted(dispatcher, late)

    assert list(dispatcher.pool(NEW).queue) == [late]


def test_nobody_follows_to_a_pool_that_fails(dispatcher: Dispatcher) -> None:
    """Their revision still serves them; answering them with the new one's failure helps nobody."""
    waits = call()
    submitted(dispatcher, waits)
    dispatcher.on_endpoints(NEW, FAILING, NOW)

    assert dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW) == []

    assert list(dispatcher.pool(OLD).queue) == [waits]


def test_nobody_follows_to_a_pool_that_is_gone(dispatcher: Dispatcher) -> None:
    """A revision that was removed after the move is no place to wait; nor is one's own then."""
    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)
    dispatcher.on_endpoints(NEW, PoolEndpoints([], "gone", "removed"), NOW)
    stays = call()
    submitted(dispatcher, stays)
    assert stays.pool == OLD

    commands = dispatcher.on_endpoints(OLD, PoolEndpoints([], "gone", "removed"), NOW)

    (fail,) = commands
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, UnknownFunction)


def test_a_long_line_keeps_its_limit_after_a_move(dispatcher: Dispatcher) -> None:
    """Those who were accepted stay accepted; nobody new is until there is room again."""
    submitted(dispatcher, *(call(queue_max=2) for _ in range(2)))
    submitted(dispatcher, call(NEW, pinned=True, queue_max=2))

    dispatcher.on_traffic_moved(OLD, NEW, POLICY, NOW)

    assert len(dispatcher.pool(NEW).queue) == 3
    with pytest.raises(Exception, match="3 requests are queued already, at most 2 may wait"):
        dispatcher.submit(call(NEW, queue_max=2), NOW)


def test_pools_decide_without_a_dispatcher() -> None:
    """Where nothing has moved everybody stays; else who may follows."""
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


def test_no_way_leads_to_what_is_gone() -> None:
    """Nor from it; those to other revisions stay."""
    redirects = TrafficRedirects(Pool)
    redirects.on_traffic_moved(OLD, NEW, POLICY)
    redirects.on_traffic_moved(NEW, NEXT, POLICY)
    assert redirects.successor(OLD) == NEXT

    redirects.forget(NEW)
    assert (redirects.successor(NEW), redirects.successor(OLD)) == (NEW, NEXT)

    redirects.forget(NEXT)
    assert redirects.successor(OLD) == OLD
