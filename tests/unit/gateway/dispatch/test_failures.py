"""How calls end that were given up, and which bodies are refused for a while."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dispatch.call import Attempt, Call, Command, Fail, GiveUp, Link, Recall, Stage
from gateway.dispatch.failures import KEPT_MAX, SENDS_MAX, TIMEOUT_GRACE_S, Endings, PoisonList
from gateway.dispatch.pool import Pool
from gateway.dispatch.redirects import Moves
from registry.errors import ExecutionTimeout, Poison, ReplicaDied, WaitBudgetOver
from runtime_image.link.meta import RequestMeta

KEY = "default/a@1"
META = RequestMeta("application/json", "", -1, "")
NOW = 100.0


@pytest.fixture
def endings() -> Endings:
    """One retry; a body of four bytes is held."""
    endings = Endings(1, Moves(Pool))
    endings.held_bytes = 4
    return endings


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
    endings: Endings, pool: Pool, stage: Stage
) -> None:
    """The replica is told, the bytes are free, and a second time changes nothing."""
    commands: list[Command] = []
    gone = call(stage)

    endings.drop(gone, pool, commands)
    endings.drop(gone, pool, commands)

    assert commands == [Recall("r1", 7)]
    assert (gone.stage, endings.held_bytes) == (Stage.ABANDONED, 0)


@pytest.mark.parametrize(("may_rerun", "error"), [(True, []), (False, [ExecutionTimeout])])
def test_a_stopped_batch_mate_is_run_again_if_it_may_be(
    endings: Endings, pool: Pool, may_rerun: bool, error: list[type[Exception]]
) -> None:
    """What had begun may have had effects; what had not goes back in line."""
    commands: list[Command] = []
    mate = call(Stage.STARTED, may_rerun=may_rerun)

    endings.hand_back(mate, Link("r1", KEY, 2, marks_started=True), pool, NOW, commands)

    assert errors(commands) == error
    assert list(pool.waiting) == ([mate] if may_rerun else [])


def test_deaths_are_counted_and_end_in_poison(endings: Endings, pool: Pool) -> None:
    """The first costs a run alone, the second the answer; that body is refused from then on."""
    commands: list[Command] = []
    deadly = call(Stage.STARTED)
    endings.bereave(deadly, pool, NOW, commands)
    assert (deadly.alone, deadly.stage, commands) == (True, Stage.QUEUED, [])

    pool.waiting.remove(deadly)
    deadly.stage = Stage.STARTED
    endings.bereave(deadly, pool, NOW, commands)

    assert errors(commands) == [Poison]
    assert endings.held_bytes == 0
    assert endings.poison.seconds_left(KEY, b"body", NOW) > 0


def test_a_death_ends_what_may_not_be_run_again(endings: Endings, pool: Pool) -> None:
    """A handler may have had effects."""
    commands: list[Command] = []

    endings.bereave(call(Stage.STARTED, may_rerun=False), pool, NOW, commands)

    assert errors(commands) == [ReplicaDied]


def test_time_ends_waits_and_runs(endings: Endings, pool: Pool) -> None:
    """Who waits, and who was sent but never begun, ends with its budget; a run with its timeout."""
    link = Link("r1", KEY, 8, marks_started=True)
    pool.links["r1"] = link
    waits, was_sent, runs = call(Stage.QUEUED), call(Stage.SENT), call(Stage.STARTED)
    runs.started_s = NOW
    pool.waiting.append(waits)
    link.in_flight = {1: was_sent, 2: runs}
    endings.held_bytes = 12

    assert endings.sweep(pool, NOW + 54.9) == []
    assert errors(endings.sweep(pool, NOW + 55)) == [WaitBudgetOver] * 2
    assert errors(endings.sweep(pool, NOW + 60 + TIMEOUT_GRACE_S)) == [ExecutionTimeout]
    assert endings.held_bytes == 0


def test_a_run_that_does_not_come_back_costs_the_link(endings: Endings, pool: Pool) -> None:
    """Its client was answered; the replica has the same time again, then the link is ended, once,
    and nothing is sent over it meanwhile."""
    link = Link("r1", KEY, 8, marks_started=True)
    pool.links["r1"] = link
    link.in_flight = {7: call(Stage.STARTED, started_s=NOW)}
    late_s = NOW + 60 + TIMEOUT_GRACE_S
    endings.sweep(pool, late_s)

    assert endings.sweep(pool, late_s + TIMEOUT_GRACE_S - 0.1) == []
    assert given_up(endings.sweep(pool, late_s + TIMEOUT_GRACE_S)) == ["r1"]
    assert endings.sweep(pool, late_s + 999) == []
    assert not link.has_room


def test_what_is_recalled_may_be_part_of_a_run(endings: Endings, pool: Pool) -> None:
    """A replica that was told to let go has the time of one run for it."""
    link = Link("r1", KEY, 8, marks_started=True)
    pool.links["r1"] = link
    link.in_flight = {7: call(Stage.ABANDONED)}

    assert endings.sweep(pool, NOW) == []
    assert endings.sweep(pool, NOW + 60 + TIMEOUT_GRACE_S - 0.1) == []
    assert given_up(endings.sweep(pool, NOW + 60 + TIMEOUT_GRACE_S)) == ["r1"]


def test_times_in_vain_are_remembered(endings: Endings, pool: Pool) -> None:
    """With whom, from when to when, and whether the replica died of it or not."""
    lost = call(Stage.SENT, sent_s=NOW + 1)
    endings.bereave(lost, pool, NOW + 2, [])
    lost.link, lost.sent_s = "r2", NOW + 3
    endings.hand_back(lost, Link("r2", KEY, 4, True), pool, NOW + 4, [])

    assert lost.attempts == (
        Attempt("r1", NOW + 1, NOW + 2, has_died=True),
        Attempt("r2", NOW + 3, NOW + 4, has_died=False),
    )


def test_only_the_last_times_in_vain_are_kept(endings: Endings, pool: Pool) -> None:
    """What a full replica turns away is sent again without being counted."""
    turned = call(Stage.SENT)
    for number in range(3 * SENDS_MAX):
        turned.sent_s = float(number)
        endings.hand_back(turned, Link("r1", KEY, 4, True), pool, NOW, [])

    assert [attempt.sent_s for attempt in turned.attempts] == [
        float(number) for number in range(2 * SENDS_MAX, 3 * SENDS_MAX)
    ]


def test_a_death_that_ends_a_call_is_no_time_in_vain(endings: Endings, pool: Pool) -> None:
    """It is how the last time ended."""
    killer = call(Stage.STARTED, may_rerun=False)
    endings.bereave(killer, pool, NOW, [])

    assert killer.attempts == ()


A, B = "default/a@1", "default/b@1"


def test_a_body_is_refused_for_a_minute() -> None:
    """Just this body for just this pool, and for 60 s."""
    poison = PoisonList()
    assert poison.seconds_left(A, b"bad", 0.0) == 0.0

    poison.add(A, b"bad", 100.0)

    assert poison.seconds_left(A, b"bad", 100.0) == 60.0
    assert poison.seconds_left(A, b"bad", 160.0) == 0.0
    assert poison.seconds_left(A, b"good", 100.0) == 0.0
    assert poison.seconds_left(B, b"bad", 100.0) == 0.0


def test_what_is_over_is_forgotten() -> None:
    """A sweep keeps what is still refused, and a body that killed again stays for longer."""
    poison = PoisonList()
    poison.add(A, b"twice", 0.0)
    poison.add(A, b"once", 10.0)
    poison.add(A, b"twice", 50.0)

    poison.sweep(70.0)

    assert len(poison) == 1
    assert poison.seconds_left(A, b"twice", 70.0) == 40.0
    poison.sweep(110.0)
    assert len(poison) == 0


def test_the_list_is_bounded() -> None:
    """When it is full, the body added longest ago is let go."""
    poison = PoisonList()
    for number in range(KEPT_MAX + 1):
        poison.add(A, str(number).encode(), 0.0)

    assert len(poison) == KEPT_MAX
    assert poison.seconds_left(A, b"0", 0.0) == 0.0
    assert poison.seconds_left(A, b"1", 0.0) == 60.0
