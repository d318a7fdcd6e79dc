"""How calls end that were given up, and which bodies are refused for a while."""

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
    """No body is refused."""
    return PoisonList()


@pytest.fixture
def failures(poison: PoisonList) -> CallFailures:
    """One retry; a body of four bytes is held."""
    failures = CallFailures(1, TrafficRedirects(Pool), poison)
    failures.held_bytes = 4
    return failures


@pytest.fixture
def pool() -> Pool:
    """Nobody waits."""
    return Pool(KEY)


def call(stage: Stage, **changes: Any) -> Call:
    """Waits until NOW + 55, runs for 60 s at most."""
    return Call(KEY, META, b"body", NOW, NOW + 55.0, 60.0, stage=stage, link="r1", id=7, **changes)


def errors(commands: list[Command]) -> list[type[Exception]]:
    """What was answered."""
    return [type(command.error) for command in commands if isinstance(command, Fail)]


def given_up(commands: list[Command]) -> list[str]:
    """Which links."""
    return [command.link for command in commands if isinstance(command, GiveUp)]


@pytest.mark.parametrize("stage", [Stage.SENT, Stage.STARTED])
def test_work_that_nobody_waits_for_is_recalled_once(
    failures: CallFailures, pool: Pool, stage: Stage
) -> None:
    """The replica is told, the bytes are free, and a second time changes nothing."""
    commands: list[Command] = []
    gone = call(stage)

    failures.drop(gone, pool, commands)
    failures.drop(gone, pool, commands)

    assert commands == [Recall("r1", 7)]
    assert (gone.stage, failures.held_bytes) == (Stage.ABANDONED, 0)


@pytest.mark.parametrize(("may_rerun", "error"), [(True, []), (False, [ExecutionTimeout])])
def test_a_stopped_batch_mate_is_run_again_if_it_may_be(
    failures: CallFailures, pool: Pool, may_rerun: bool, error: list[type[Exception]]
) -> None:
    """What had begun may have had effects; what had not goes back in line."""
    commands: list[Command] = []
    mate = call(Stage.STARTED, may_rerun=may_rerun)

    link = Link("r1", KEY, 2, marks_started=True)
    failures.on_not_started(mate, link, pool, NotStarted.BATCH_TIMEOUT, NOW, commands)

    assert errors(commands) == error
    assert list(pool.queue) == ([mate] if may_rerun else [])


def test_deaths_are_counted_and_end_in_poison(
    failures: CallFailures, pool: Pool, poison: PoisonList
) -> None:
    """The first costs a run alone, the second the answer; that body is refused from then on."""
    commands: list[Command] = []
    deadly = call(Stage.STARTED)
    failures.on_replica_died(deadly, pool, NOW, commands)
    assert (deadly.alone, deadly.stage, commands) == (True, Stage.QUEUED, [])

    pool.queue.remove(deadly)
    deadly.stage = Stage.STARTED
    failures.on_replica_died(deadly, pool, NOW, commands)

    assert errors(commands) == [Poison]
    assert failures.held_bytes == 0
    assert poison.seconds_left(call(Stage.QUEUED), NOW) > 0


def test_a_death_ends_what_may_not_be_run_again(failures: CallFailures, pool: Pool) -> None:
    """A handler may have had effects."""
    commands: list[Command] = []

    failures.on_replica_died(call(Stage.STARTED, may_rerun=False), pool, NOW, commands)

    assert errors(commands) == [ReplicaDied]


def test_time_ends_waits_and_runs(failures: CallFailures, pool: Pool) -> None:
    """Who waits, and who was sent but never begun, ends with its budget; a run with its timeout."""
    link = Link("r1", KEY, 8, marks_started=True)
    pool.links["r1"] = link
    waits, was_sent, runs = call(Stage.QUEUED), call(Stage.SENT), call(Stage.STARTED)
    runs.started_s = NOW
    pool.queue.append(waits)
    link.in_flight = {1: was_sent, 2: runs}
    failures.held_bytes = 12

    assert failures.sweep(pool, NOW + 54.9) == []
    assert errors(failures.sweep(pool, NOW + 55)) == [WaitBudgetOver] * 2
    assert errors(failures.sweep(pool, NOW + 60 + TIMEOUT_GRACE_S)) == [ExecutionTimeout]
    assert failures.held_bytes == 0


def test_a_run_that_does_not_come_back_costs_the_link(failures: CallFailures, pool: Pool) -> None:
    """Its client was answered; the replica has the same time again, then the link is ended, once,
    and nothing is sent over it meanwhile."""
    link = Link("r1", KEY, 8, marks_started=True)
    pool.links["r1"] = link
    link.in_flight = {7: call(Stage.STARTED, started_s=NOW)}
    late_s = NOW + 60 + TIMEOUT_GRACE_S
    failures.sweep(pool, late_s)

    assert failures.sweep(pool, late_s + TIMEOUT_GRACE_S - 0.1) == []
    assert given_up(failures.sweep(pool, late_s + TIMEOUT_GRACE_S)) == ["r1"]
    assert failures.sweep(pool, late_s + 999) == []
    assert pool.least_loaded_link() is None


def test_what_is_recalled_may_be_part_of_a_run(failures: CallFailures, pool: Pool) -> None:
    """A replica that was told to let go has the time of one run for it."""
    link = Link("r1", KEY, 8, marks_started=True)
    pool.links["r1"] = link
    link.in_flight = {7: call(Stage.ABANDONED)}

    assert failures.sweep(pool, NOW) == []
    assert failures.sweep(pool, NOW + 60 + TIMEOUT_GRACE_S - 0.1) == []
    assert given_up(failures.sweep(pool, NOW + 60 + TIMEOUT_GRACE_S)) == ["r1"]


def test_times_in_vain_are_remembered(failures: CallFailures, pool: Pool) -> None:
    """With whom, from when to when, and whether the replica died of it or not."""
    lost = call(Stage.SENT, sent_s=NOW + 1)
    failures.on_replica_died(lost, pool, NOW + 2, [])
    lost.link, lost.sent_s = "r2", NOW + 3
    link = Link("r2", KEY, 4, marks_started=True)
    failures.on_not_started(lost, link, pool, NotStarted.DRAINING, NOW + 4, [])

    assert lost.attempts == (
        Attempt("r1", NOW + 1, NOW + 2, has_died=True),
        Attempt("r2", NOW + 3, NOW + 4, has_died=False),
    )


def test_only_the_last_times_in_vain_are_kept(failures: CallFailures, pool: Pool) -> None:
    """What a full replica turns away is sent again without being counted."""
    turned, link = call(Stage.SENT), Link("r1", KEY, 4, marks_started=True)
    for number in range(3 * SENDS_MAX):
        turned.sent_s = float(number)
        turned.sends = 1
        failures.on_not_started(turned, link, pool, NotStarted.FULL, NOW, [])

    assert [attempt.sent_s for attempt in turned.attempts] == [
        float(number) for number in range(2 * SENDS_MAX, 3 * SENDS_MAX)
    ]


def test_a_full_replica_takes_back_just_the_send_that_it_refused(
    failures: CallFailures, pool: Pool
) -> None:
    """Sends before that one stay counted."""
    refused, link = call(Stage.SENT, sends=3), Link("r1", KEY, 4, marks_started=True)

    failures.on_not_started(refused, link, pool, NotStarted.FULL, NOW, [])

    assert refused.sends == 2


def test_a_death_that_ends_a_call_is_no_time_in_vain(failures: CallFailures, pool: Pool) -> None:
    """It is how the last time ended."""
    killer = call(Stage.STARTED, may_rerun=False)
    failures.on_replica_died(killer, pool, NOW, [])

    assert killer.attempts == ()


def bringing(body: bytes, pool: str = KEY) -> Call:
    return Call(pool, META, body, 0.0, 55.0, 60.0)


def test_a_body_is_refused_for_a_minute(poison: PoisonList) -> None:
    """Just this body for just this pool, and for 60 s."""
    assert poison.seconds_left(bringing(b"bad"), 0.0) == 0.0

    poison.add(bringing(b"bad"), 100.0)

    assert poison.seconds_left(bringing(b"bad"), 100.0) == 60.0
    assert poison.seconds_left(bringing(b"bad"), 160.0) == 0.0
    assert poison.seconds_left(bringing(b"good"), 100.0) == 0.0
    assert poison.seconds_left(bringing(b"bad", OTHER_KEY), 100.0) == 0.0


def test_what_is_over_is_forgotten(poison: PoisonList) -> None:
    """A sweep keeps what is still refused, and a body that killed again stays for longer."""
    poison.add(bringing(b"twice"), 0.0)
    poison.add(bringing(b"once"), 10.0)
    poison.add(bringing(b"twice"), 50.0)

    poison.sweep(70.0)

    assert len(poison.until_s) == 1
    assert poison.seconds_left(bringing(b"twice"), 70.0) == 40.0
    poison.sweep(110.0)
    assert not poison.until_s


def test_the_list_is_bounded(poison: PoisonList) -> None:
    """When it is full, the body added longest ago is let go."""
    for number in range(REFUSED_MAX + 1):
        poison.add(bringing(str(number).encode()), 0.0)

    assert len(poison.until_s) == REFUSED_MAX
    assert poison.seconds_left(bringing(b"0"), 0.0) == 0.0
    assert poison.seconds_left(bringing(b"1"), 0.0) == 60.0
