"""Tests of the dispatcher's decisions about links to other hosts: breaks, channels, distances."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dispatch.call import RERUN_WAIT_S, Call, Command, Fail, Link, Recall, Send, Stage
from gateway.dispatch.dispatcher import Dispatcher, Limits
from gateway.dispatch.failures import CONFIRM_S, SENDS_MAX, TIMEOUT_GRACE_S, cancelled_error
from registry.errors import ExecutionTimeout, FnError, ReplicaDied, WaitBudgetOver
from runtime_image.link.meta import RequestMeta

KEY = "default/a@1"
META = RequestMeta("application/json", "", -1, "")
NOW = 100.0


def call(**changes: Any) -> Call:
    """Return a call that arrives at NOW, may be held for 5 s and may run for 60 s."""
    times = {"arrived_s": NOW, "wait_until_s": NOW + 5.0, "timeout_s": 60.0}
    return Call(KEY, META, b"{}", **{**times, **changes})


def up(dispatcher: Dispatcher, id: str = "far", rtt_s: float = 0.07, limit: int = 4) -> Link:
    """Connect a replica on another host, or here for 0 s."""
    link = Link(id, KEY, limit, marks_started=True, host="gpu2" if rtt_s else "", rtt_s=rtt_s)
    dispatcher.on_link_up(link, NOW)
    return link


def send(dispatcher: Dispatcher, *calls: Call) -> None:
    """Send calls; each must go out at once."""
    for each in calls:
        assert dispatcher.submit(each, NOW)[0].call is each  # type: ignore[union-attr]


def errors(commands: list[Command]) -> list[FnError]:
    """Return the errors of all failures."""
    return [c.error for c in commands if isinstance(c, Fail)]


def resent(commands: list[Command]) -> list[Call]:
    """Return the calls of all sends."""
    return [c.call for c in commands if isinstance(c, Send)]


@pytest.fixture
def dispatcher() -> Dispatcher:
    """Dispatcher with the default limits."""
    return Dispatcher(Limits())


@pytest.mark.parametrize("has_started", [True, False])
def test_a_handlers_call_never_runs_twice_after_a_break(
    dispatcher: Dispatcher, *, has_started: bool
) -> None:
    """Whether or not its start was reported: the report may be lost with the connection."""
    link, other = up(dispatcher), up(dispatcher, "other")
    each = call(may_rerun=False)
    send(dispatcher, each)
    if has_started:
        dispatcher.on_started("far", [each.id], NOW)

    (error,) = errors(commands := dispatcher.on_link_lost("far", NOW, is_broken=True))

    assert isinstance(error, ReplicaDied)
    assert "connection to the replica's host broke" in error.message
    assert "may have run" in error.message
    assert (resent(commands), each.stage, each.deaths) == ([], Stage.DONE, 0)
    assert not other.in_flight
    assert link.in_flight == {each.id: each}  # the lost link is not used any more


@pytest.mark.parametrize("has_started", [False, True])
def test_a_models_call_runs_elsewhere_after_a_break(
    dispatcher: Dispatcher, has_started: bool
) -> None:
    """With the wait budget of a second start, and no death; alone if the replica may have died of
    it, else in a batch with others."""
    up(dispatcher)
    each = call()
    send(dispatcher, each)
    if has_started:
        dispatcher.on_started("far", [each.id], NOW)
    up(dispatcher, "other")

    commands = dispatcher.on_link_lost("far", NOW + 8, is_broken=True)

    assert resent(commands) == [each]
    assert (each.link, each.deaths, each.alone) == ("other", 0, has_started)
    assert each.wait_until_s == NOW + 8 + 60.0 + RERUN_WAIT_S
    assert [attempt.replica for attempt in each.attempts] == ["far"]


def test_breaks_are_never_poison_but_have_a_limit(dispatcher: Dispatcher) -> None:
    """A body that meets many broken connections is not refused; its call ends nevertheless."""
    each = call()
    up(dispatcher, "r0")
    send(dispatcher, each)
    for number in range(SENDS_MAX - 1):
        up(dispatcher, f"r{number + 1}")
        dispatcher.on_started(f"r{number}", [each.id], NOW)
        assert not errors(dispatcher.on_link_lost(f"r{number}", NOW, is_broken=True))

    (error,) = errors(dispatcher.on_link_lost(f"r{SENDS_MAX - 1}", NOW, is_broken=True))

    assert isinstance(error, ReplicaDied)
    up(dispatcher, "last")
    send(dispatcher, call())


def test_an_abandoned_call_is_forgotten_with_its_link(dispatcher: Dispatcher) -> None:
    """No answer is owed to a client that has left."""
    up(dispatcher)
    each = call()
    send(dispatcher, each)
    dispatcher.cancel(each, NOW)

    assert dispatcher.on_link_lost("far", NOW, is_broken=True) == []
    assert dispatcher.is_idle


def test_a_clean_end_keeps_the_rules_of_a_death(dispatcher: Dispatcher) -> None:
    """All that the replica sent has arrived: a handler's call that had not started runs again."""
    up(dispatcher)
    each = call(may_rerun=False)
    send(dispatcher, each)
    up(dispatcher, "other")

    assert resent(dispatcher.on_link_lost("far", NOW)) == [each]


def test_the_other_channel_serves_on(dispatcher: Dispatcher) -> None:
    """Requests of a lost channel fail over, oldest first; the others stay in flight."""
    link = up(dispatcher)
    calls = [call(), call(), call(may_rerun=False), call()]
    send(dispatcher, *calls)
    link.full = True
    lost = {each.id for each in calls[:3]}

    commands = dispatcher.on_channel_lost("far", lost, NOW, is_broken=True)

    assert resent(commands) == calls[:2]
    assert [type(error) for error in errors(commands)] == [ReplicaDied]
    assert link.in_flight[calls[3].id] is calls[3]
    assert not link.full  # its WINDOW was lost with the channel
    assert dispatcher.links == {"far": link}


def test_a_channel_that_ended_cleanly_returns_its_unstarted_calls(dispatcher: Dispatcher) -> None:
    """A replica that closes one channel is treated as one that closes its link."""
    up(dispatcher)
    each = call(may_rerun=False)
    send(dispatcher, each)

    assert resent(dispatcher.on_channel_lost("far", {each.id}, NOW, is_broken=False)) == [each]


def test_goaway_concerns_its_own_channel(dispatcher: Dispatcher) -> None:
    """The last id is that of one channel: a later id on the other channel may be accepted."""
    link = up(dispatcher)
    first, second, third = calls = [call(), call(), call()]
    send(dispatcher, *calls)
    up(dispatcher, "other")

    commands = dispatcher.on_goaway("far", first.id, NOW, ids={first.id, third.id})

    assert resent(commands) == [third]
    assert list(link.in_flight) == [first.id, second.id]


def test_the_nearest_of_equally_busy_replicas_is_chosen(dispatcher: Dispatcher) -> None:
    """This machine first, then the lowest round trip time, whatever the order of connecting."""
    for id, rtt_s in (("far", 0.07), ("here", 0.0), ("near", 0.002), ("here2", 0.0)):
        up(dispatcher, id, rtt_s)
    calls = [call() for _ in range(5)]

    send(dispatcher, *calls)

    assert [each.link for each in calls] == ["here", "here2", "near", "far", "here"]


def test_replicas_of_one_host_keep_their_order(dispatcher: Dispatcher) -> None:
    """Without another host, links are used in the order in which they came up."""
    for id in ("b", "a"):
        up(dispatcher, id, 0.0)
    first = call()

    send(dispatcher, first)

    assert first.link == "b"


def test_an_unconfirmed_call_of_a_handler_is_recalled_first(dispatcher: Dispatcher) -> None:
    """The report of its start may be held up: that it has not started must be confirmed."""
    up(dispatcher)
    each = call(may_rerun=False)
    send(dispatcher, each)

    assert dispatcher.sweep(NOW + 5) == [Recall("far", each.id)]
    assert dispatcher.sweep(NOW + 5 + CONFIRM_S - 1) == []
    assert dispatcher.on_ended("far", each.id, NOW + 6) == (each, [])
    assert isinstance(cancelled_error(each, NOW + 6), WaitBudgetOver)


def test_a_recalled_call_that_had_started_may_have_run(dispatcher: Dispatcher) -> None:
    """Its start is reported late, then its end."""
    up(dispatcher)
    each = call(may_rerun=False)
    send(dispatcher, each)
    dispatcher.sweep(NOW + 5)
    dispatcher.on_started("far", [each.id], NOW + 6)

    error = cancelled_error(each, NOW + 6)

    assert isinstance(error, ReplicaDied)
    assert "may have run" in error.message


def test_a_silent_host_is_named(dispatcher: Dispatcher) -> None:
    """Nothing is confirmed: the call may have run. Its late answer is dropped, the link stays."""
    link = up(dispatcher)
    each = call(may_rerun=False)
    send(dispatcher, each)
    dispatcher.sweep(NOW + 5)

    (error,) = errors(dispatcher.sweep(NOW + 5 + CONFIRM_S))

    assert isinstance(error, ReplicaDied)
    assert "host gpu2" in error.message
    assert "may have run" in error.message
    assert not link.given_up
    assert dispatcher.on_ended("far", each.id, NOW + 20) == (None, [])


def test_a_models_unstarted_call_expires_at_once(dispatcher: Dispatcher) -> None:
    """It may run again, so it does not matter whether it has started."""
    up(dispatcher)
    each = call()
    send(dispatcher, each)

    assert [type(error) for error in errors(dispatcher.sweep(NOW + 5))] == [WaitBudgetOver]


def test_a_late_run_names_its_host(dispatcher: Dispatcher) -> None:
    """The timeout of a call on a hung connection says where it was."""
    up(dispatcher)
    each = call()
    send(dispatcher, each)
    dispatcher.on_started("far", [each.id], NOW)

    (error,) = errors(dispatcher.sweep(NOW + 60 + TIMEOUT_GRACE_S))

    assert isinstance(error, ExecutionTimeout)
    assert "replica on host gpu2" in error.message


def test_a_cancelled_call_that_was_not_recalled(dispatcher: Dispatcher) -> None:
    """A replica that cancels a request by itself is at fault."""
    up(dispatcher)
    each = call()
    send(dispatcher, each)

    assert "cancelled" in cancelled_error(each, NOW).message
