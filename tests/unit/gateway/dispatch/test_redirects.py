"""Calls that follow their function's traffic to another revision."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dispatch.call import Call, Command, Fail, Link, Priority, Send
from gateway.dispatch.dispatcher import Dispatcher, Limits
from gateway.dispatch.pool import Pool
from gateway.dispatch.redirects import Moves, Terms
from registry.errors import UnknownFunction
from registry.exchange import PoolEndpoints
from runtime_image.contract.link import NotStarted
from runtime_image.link.meta import RequestMeta

OLD, NEW, NEXT = "default/a@1", "default/a@2", "default/a@3"
META = RequestMeta("application/json", "", -1, "")
NOW = 100.0
TERMS = Terms(may_rerun=False, timeout_s=9.0)
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

    dispatcher.move(OLD, NEW, TERMS, NOW + 50)
    commands = dispatcher.link_up(Link("r2", NEW, 8, marks_started=True), NOW + 50)

    assert sent(commands) == [("r2", urgent), ("r2", first), ("r2", last)]
    assert {(c.pool, c.wait_until_s) for c in (first, urgent, last)} == {(NEW, NOW + 55)}
    assert (first.may_rerun, first.timeout_s) == (False, 9.0)


def test_a_warm_new_revision_serves_them_at_once(dispatcher: Dispatcher) -> None:
    """Nobody waits where there is room."""
    waits = call()
    submitted(dispatcher, waits)
    dispatcher.link_up(Link("r2", NEW, 8, marks_started=True), NOW)

    assert sent(dispatcher.move(OLD, NEW, TERMS, NOW)) == [("r2", waits)]


def test_a_call_that_named_its_revision_stays(dispatcher: Dispatcher) -> None:
    """digits@1 means digits@1, before traffic moves and afterwards."""
    pinned = call(pinned=True)
    submitted(dispatcher, pinned)
    dispatcher.move(OLD, NEW, TERMS, NOW)
    later = call(pinned=True)
    submitted(dispatcher, later)

    assert list(dispatcher.pool(OLD).waiting) == [pinned, later]
    assert not dispatcher.pool(NEW).waiting


def test_calls_that_do_not_fit_stay(dispatcher: Dispatcher) -> None:
    """The revision they were meant for serves them; so it does with one whose body came late."""
    first, late = call(), call()
    submitted(dispatcher, first)
    dispatcher.move(OLD, NEW, None, NOW)
    submitted(dispatcher, late)

    assert list(dispatcher.pool(OLD).waiting) == [first, late]


def test_a_call_that_found_its_revision_before_the_move_follows(dispatcher: Dispatcher) -> None:
    """Its body came while traffic moved: it waits where the others do."""
    dispatcher.move(OLD, NEW, TERMS, NOW)
    late = call()
    submitted(dispatcher, late)

    assert list(dispatcher.pool(NEW).waiting) == [late]


@pytest.mark.parametrize("how", ["not_started", "goaway", "lost"])
def test_what_a_replica_hands_back_unrun_follows_to_its_place(
    dispatcher: Dispatcher, how: str
) -> None:
    """It came before those who wait at the new revision by now, and stands before them."""
    dispatcher.link_up(Link("r1", OLD, 2, marks_started=True), NOW)
    early = call()
    submitted(dispatcher, early)
    dispatcher.move(OLD, NEW, TERMS, NOW)
    submitted(dispatcher, call(NEW))

    if how == "not_started":
        dispatcher.not_started("r1", early.id, NotStarted.DRAINING, NOW)
    elif how == "goaway":
        dispatcher.goaway("r1", early.id - 1, NOW)
    else:
        dispatcher.link_lost("r1", NOW)

    assert next(iter(dispatcher.pool(NEW).waiting)) is early
    assert early.pool == NEW


def test_what_comes_back_is_served_at_once_where_there_is_room(dispatcher: Dispatcher) -> None:
    """The replica of the new revision gets it in the same turn."""
    dispatcher.link_up(Link("r1", OLD, 2, marks_started=True), NOW)
    dispatcher.link_up(Link("r2", NEW, 2, marks_started=True), NOW)
    early = call()
    submitted(dispatcher, early)
    dispatcher.move(OLD, NEW, TERMS, NOW)

    commands = dispatcher.not_started("r1", early.id, NotStarted.DRAINING, NOW)

    assert sent(commands) == [("r2", early)]


def test_what_had_begun_stays_with_its_model(dispatcher: Dispatcher) -> None:
    """A request that killed a replica is tried again on that revision, alone."""
    dispatcher.link_up(Link("r1", OLD, 2, marks_started=True), NOW)
    begun = call()
    submitted(dispatcher, begun)
    dispatcher.started("r1", [begun.id], NOW)
    dispatcher.move(OLD, NEW, TERMS, NOW)

    dispatcher.link_lost("r1", NOW)

    assert list(dispatcher.pool(OLD).waiting) == [begun]
    assert begun.alone


def test_traffic_may_move_on_and_back(dispatcher: Dispatcher) -> None:
    """Calls follow along the whole way; a revision that has the traffic again keeps them."""
    waits = call()
    submitted(dispatcher, waits)

    dispatcher.move(OLD, NEW, TERMS, NOW)
    dispatcher.move(NEW, NEXT, TERMS, NOW)
    assert list(dispatcher.pool(NEXT).waiting) == [waits]

    late = call()
    submitted(dispatcher, late)
    assert late.pool == NEXT

    dispatcher.move(NEXT, OLD, TERMS, NOW)
    assert list(dispatcher.pool(OLD).waiting) == [waits, late]
    assert dispatcher.heir(NEW) == OLD


def test_a_move_that_breaks_callers_ends_an_older_way(dispatcher: Dispatcher) -> None:
    """A revision with the traffic is never left, whatever was before."""
    dispatcher.move(NEW, OLD, TERMS, NOW)
    dispatcher.move(OLD, NEW, None, NOW)
    late = call(NEW)
    submitted(dispatcher, late)

    assert list(dispatcher.pool(NEW).waiting) == [late]


def test_nobody_follows_to_a_pool_that_fails(dispatcher: Dispatcher) -> None:
    """Their revision still serves them; answering them with the new one's failure helps nobody."""
    waits = call()
    submitted(dispatcher, waits)
    dispatcher.look(NEW, FAILING, NOW)

    assert dispatcher.move(OLD, NEW, TERMS, NOW) == []

    assert list(dispatcher.pool(OLD).waiting) == [waits]


def test_nobody_follows_to_a_pool_that_is_gone(dispatcher: Dispatcher) -> None:
    """A revision that was removed after the move is no place to wait; nor is one's own then."""
    dispatcher.move(OLD, NEW, TERMS, NOW)
    dispatcher.look(NEW, PoolEndpoints([], "gone", "removed"), NOW)
    stays = call()
    submitted(dispatcher, stays)
    assert stays.pool == OLD

    commands = dispatcher.look(OLD, PoolEndpoints([], "gone", "removed"), NOW)

    (fail,) = commands
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, UnknownFunction)


def test_a_long_line_keeps_its_limit_after_a_move(dispatcher: Dispatcher) -> None:
    """Those who were accepted stay accepted; nobody new is until there is room again."""
    submitted(dispatcher, *(call(queue_max=2) for _ in range(2)))
    submitted(dispatcher, call(NEW, pinned=True, queue_max=2))

    dispatcher.move(OLD, NEW, TERMS, NOW)

    assert len(dispatcher.pool(NEW).waiting) == 3
    with pytest.raises(Exception, match="3 requests wait already, at most 2 may"):
        dispatcher.submit(call(NEW, queue_max=2), NOW)


def test_pools_decide_without_a_dispatcher() -> None:
    """Where nothing has moved everybody stays; else who may follows."""
    pools = {key: Pool(key) for key in (OLD, NEW)}
    moves = Moves(pools.__getitem__)
    each = call()
    pools[OLD].waiting.append(each)
    moves.follow(pools[OLD], NOW)
    assert moves.readdress(each, pools[OLD], NOW) is pools[OLD]
    assert list(pools[OLD].waiting) == [each]

    moves.moved(OLD, NEW, TERMS)
    moves.follow(pools[OLD], NOW)

    assert (list(pools[OLD].waiting), list(pools[NEW].waiting)) == ([], [each])
    assert (moves.heir(OLD), moves.heir(NEW)) == (NEW, NEW)


def test_no_way_leads_to_what_is_gone() -> None:
    """Nor from it; those to other revisions stay."""
    moves = Moves(Pool)
    moves.moved(OLD, NEW, TERMS)
    moves.moved(NEW, NEXT, TERMS)
    assert moves.heir(OLD) == NEXT

    moves.forget(NEW)
    assert (moves.heir(NEW), moves.heir(OLD)) == (NEW, NEXT)

    moves.forget(NEXT)
    assert moves.heir(OLD) == OLD
