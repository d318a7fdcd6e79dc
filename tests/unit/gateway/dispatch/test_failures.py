"""Tests of failed calls, and of the bodies that are refused for a while."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dispatch.call import Attempt, Call, Command, Fail, GiveUp, Link, Recall, Stage
from gateway.dispatch.failures import (
    REFUSED_MAX,
    SENDS_MAX,
    TIMEOUT_GRACE_S,
    CallFailures,
    PoisonList,
)
from gateway.dispatch.held import HeldBytes
from gateway.dispatch.pool import Pool
from gateway.dispatch.redirects import TrafficRedirects
from registry.errors import ExecutionTimeout, Poison, ReplicaDied, WaitBudgetOver
from runtime_image.contract.link import NotStarted
from runtime_image.link.meta import RequestMeta

KEY = "default/a@1"
OTHER_KEY = "default/b@1"
META = RequestMeta("application/json", "", -1, "")
NOW = 100.0


@pytest.fixture
def poison() -> PoisonList:
    """Empty poison list."""
    return PoisonList()


@pytest.fixture
def failures(poison: PoisonList) -> CallFailures:
    """Call failures with one retry; a body of four bytes is held."""
    failures = CallFailures(1, TrafficRedirects(Pool), poison, HeldBytes(100))
    failures.held.bytes = 4
    return failures


@pytest.fixture
def pool() -> Pool:
    """Pool without calls."""
    return Pool(KEY)


def call(stage: Stage, **changes: Any) -> Call:
    """Return a call that may be held until NOW + 55 and may run for 60 s."""
    return Call(KEY, META, b"body", NOW, NOW + 55.0, 60.0, stage=stage, link="r1", id=7, **changes)


def errors(commands: list[Command]) -> list[type[Exception]]:
    """Return the classes of the errors that were answered."""
    return [type(command.error) for command in commands if isinstance(command, Fail)]


def given_up(commands: list[Command]) -> list[str]:
    """Return the names of the links that were given up."""
    return [command.link for command in commands if isinstance(command, GiveUp)]


@pytest.mark.parametrize("stage", [Stage.SENT, Stage.STARTED])
def test_a_dropped_call_is_recalled_once(failures: CallFailures, pool: Pool, stage: Stage) -> None:
    """The replica gets one recall, the bytes are released, and a second drop has no effect."""
    commands: list[Command] = []
    gone = call(stage)

    failures.drop(gone, pool, commands)
    failures.drop(gone, pool, commands)

    assert commands == [Recall("r1", 7)]
    assert (gone.stage, failures.held.bytes) == (Stage.ABANDONED, 0)


@pytest.mark.parametrize(("may_rerun", "error"), [(True, []), (False, [ExecutionTimeout])])
def test_a_stopped_batch_mate_is_run_again_if_it_may_be(
    failures: CallFailures, pool: Pool, may_rerun: bool, error: list[type[Exception]]
) -> None:
    """A started call of a stopped batch is requeued if reruns are allowed, and fails otherwise."""
    commands: list[Command] = []
    mate = call(Stage.STARTED, may_rerun=may_rerun)

    link = Link("r1", KEY, 2, marks_started=True)
    failures.on_not_started(mate, link, pool, NotStarted.BATCH_TIMEOUT, NOW, commands)

    assert errors(commands) == error
    assert list(pool.queue) == ([mate] if may_rerun else [])


def test_deaths_are_counted_and_end_in_poison(
    failures: CallFailures, pool: Pool, poison: PoisonList
) -> None:
    """The first death causes a run alone, the second fails the call; its body is refused from then
    on."""
    commands: list[Command] = []
    deadly = call(Stage.STARTED)
    failures.on_replica_died(deadly, pool, NOW, commands)
    assert (deadly.alone, deadly.stage, commands) == (True, Stage.QUEUED, [])

    pool.queue.remove(deadly)
    deadly.stage = Stage.STARTED
    failures.on_replica_died(deadly, pool, NOW, commands)

    assert errors(commands) == [Poison]
    assert failures.held.bytes == 0
    assert poison.seconds_left(call(Stage.QUEUED), NOW) > 0


def test_a_death_fails_a_call_that_may_not_rerun(failures: CallFailures, pool: Pool) -> None:
    """A handler may have had effects, so the call fails."""
    commands: list[Command] = []

    failures.on_replica_died(call(Stage.STARTED, may_rerun=False), pool, NOW, commands)

    assert errors(commands) == [ReplicaDied]


def test_the_sweep_ends_waits_and_runs(failures: CallFailures, pool: Pool) -> None:
    """Queued and unstarted calls end with their wait budget, a run with its timeout."""
    link = Link("r1", KEY, 8, marks_started=True)
    pool.links["r1"] = link
    waits, was_sent, runs = call(Stage.QUEUED), call(Stage.SENT), call(Stage.STARTED)
    runs.started_s = NOW
    pool.queue.append(waits)
    link.in_flight = {1: was_sent, 2: runs}
    failures.held.bytes = 12

    assert failures.sweep(pool, NOW + 54.9) == []
    assert errors(failures.sweep(pool, NOW + 55)) == [WaitBudgetOver] * 2
    assert errors(failures.sweep(pool, NOW + 60 + TIMEOUT_GRACE_S)) == [ExecutionTimeout]
    assert failures.held.bytes == 0


def test_a_run_that_never_ends_costs_the_link(failures: CallFailures, pool: Pool) -> None:
    """After a run timed out the replica has the same grace again; then its link is given up, once,
    and gets no call meanwhile."""
    link = Link("r1", KEY, 8, marks_started=True)
    pool.links["r1"] = link
    link.in_flight = {7: call(Stage.STARTED, started_s=NOW)}
    late_s = NOW + 60 + TIMEOUT_GRACE_S
    failures.sweep(pool, late_s)

    assert failures.sweep(pool, late_s + TIMEOUT_GRACE_S - 0.1) == []
    assert given_up(failures.sweep(pool, late_s + TIMEOUT_GRACE_S)) == ["r1"]
    assert failures.sweep(pool, late_s + 999) == []
    assert pool.least_loaded_link() is None


def test_a_recalled_call_has_the_time_of_one_run(failures: CallFailures, pool: Pool) -> None:
    """A replica has the time of one run to confirm a recall before its link is given up."""
    link = Link("r1", KEY, 8, marks_started=True)
    pool.links["r1"] = link
    link.in_flight = {7: call(Stage.ABANDONED)}

    assert failures.sweep(pool, NOW) == []
    assert failures.sweep(pool, NOW + 60 + TIMEOUT_GRACE_S - 0.1) == []
    assert given_up(failures.sweep(pool, NOW + 60 + TIMEOUT_GRACE_S)) == ["r1"]


def test_failed_attempts_are_recorded(failures: CallFailures, pool: Pool) -> None:
    """An attempt records replica, start, end, and whether the replica died."""
    lost = call(Stage.SENT, sent_s=NOW + 1)
    failures.on_replica_died(lost, pool, NOW + 2, [])
    lost.link, lost.sent_s = "r2", NOW + 3
    link = Link("r2", KEY, 4, marks_started=True)
    failures.on_not_started(lost, link, pool, NotStarted.DRAINING, NOW + 4, [])

    assert lost.attempts == (
        Attempt("r1", NOW + 1, NOW + 2, has_died=True),
        Attempt("r2", NOW + 3, NOW + 4, has_died=False),
    )


def test_the_number_of_recorded_attempts_is_bounded(failures: CallFailures, pool: Pool) -> None:
    """Returns by a full replica are not counted as sends; only the last SENDS_MAX attempts are
    kept."""
    turned, link = call(Stage.SENT), Link("r1", KEY, 4, marks_started=True)
    for number in range(3 * SENDS_MAX):
        turned.sent_s = float(number)
        turned.sends = 1
        failures.on_not_started(turned, link, pool, NotStarted.FULL, NOW, [])

    assert [attempt.sent_s for attempt in turned.attempts] == [
        float(number) for number in range(2 * SENDS_MAX, 3 * SENDS_MAX)
    ]


def test_a_return_by_a_full_replica_uncounts_one_send(failures: CallFailures, pool: Pool) -> None:
    """Earlier sends stay counted."""
    refused, link = call(Stage.SENT, sends=3), Link("r1", KEY, 4, marks_started=True)

    failures.on_not_started(refused, link, pool, NotStarted.FULL, NOW, [])

    assert refused.sends == 2


def test_a_death_that_fails_the_call_is_no_attempt(failures: CallFailures, pool: Pool) -> None:
    """The death is how the last send ended, not an earlier attempt."""
    killer = call(Stage.STARTED, may_rerun=False)
    failures.on_replica_died(killer, pool, NOW, [])

    assert killer.attempts == ()


def bringing(body: bytes, pool: str = KEY) -> Call:
    return Call(pool, META, body, 0.0, 55.0, 60.0)


def test_a_body_is_refused_for_a_minute(poison: PoisonList) -> None:
    """Exactly this body is refused, for exactly this pool, for 60 s."""
    assert poison.seconds_left(bringing(b"bad"), 0.0) == 0.0

    poison.add(bringing(b"bad"), 100.0)

    assert poison.seconds_left(bringing(b"bad"), 100.0) == 60.0
    assert poison.seconds_left(bringing(b"bad"), 160.0) == 0.0
    assert poison.seconds_left(bringing(b"good"), 100.0) == 0.0
    assert poison.seconds_left(bringing(b"bad", OTHER_KEY), 100.0) == 0.0


def test_expired_refusals_are_forgotten(poison: PoisonList) -> None:
    """A sweep keeps current refusals; a body that kills again is refused for longer."""
    poison.add(bringing(b"twice"), 0.0)
    poison.add(bringing(b"once"), 10.0)
    poison.add(bringing(b"twice"), 50.0)

    poison.sweep(70.0)

    assert len(poison.until_s) == 1
    assert poison.seconds_left(bringing(b"twice"), 70.0) == 40.0
    poison.sweep(110.0)
    assert not poison.until_s


def test_the_list_is_bounded(poison: PoisonList) -> None:
    """A full list drops the body that was added first."""
    for number in range(REFUSED_MAX + 1):
        poison.add(bringing(str(number).encode()), 0.0)

    assert len(poison.until_s) == REFUSED_MAX
    assert poison.seconds_left(bringing(b"0"), 0.0) == 0.0
    assert poison.seconds_left(bringing(b"1"), 0.0) == 60.0
