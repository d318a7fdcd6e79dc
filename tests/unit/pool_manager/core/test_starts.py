"""Starts of servers: what is told of them, and which of them make no progress."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core import events
from pool_manager.core.commands import Command, EndTrial, Release
from pool_manager.core.starts import (
    IDLE_BYTES_S,
    IDLE_CPU,
    NO_PROGRESS_S,
    NO_PROGRESS_WANTED_S,
    READ_LATE_S,
    TOLD_AFTER_S,
    WRONG,
    Activity,
    Probing,
    awaited,
    folded,
    has_moved,
    hopeless_text,
    is_hopeless,
)
from pool_manager.core.state import PoolSpec
from tests.support.play import Play

STEP_S = 5.0
STILL = Activity(3.0, 1000, 2, 500.0, ("last line",))
MOVES = {
    "CPU": STILL._replace(cpu_s=3.0 + 2 * IDLE_CPU * STEP_S),
    "a process has ended": STILL._replace(cpu_s=2.0),
    "bytes": STILL._replace(io_bytes=1001 + int(IDLE_BYTES_S * STEP_S)),
    "a process with its bytes has ended": STILL._replace(io_bytes=0),
    "a log line": STILL._replace(log_lines=3),
    "more GPU memory": STILL._replace(gpu_mib=502.0),
    "less GPU memory": STILL._replace(gpu_mib=498.0),
    "a debugger holds it": STILL._replace(is_traced=True),
}
RESTS = {
    "nothing": STILL,
    "little CPU": STILL._replace(cpu_s=3.0 + IDLE_CPU * STEP_S / 2),
    "the bytes of probes": STILL._replace(io_bytes=1000 + int(IDLE_BYTES_S * STEP_S)),
    "bytes that cannot be read": STILL._replace(io_bytes=None),
    "GPU memory that cannot be read": STILL._replace(gpu_mib=None),
    "noise of GPU memory": STILL._replace(gpu_mib=500.5),
}


@pytest.mark.parametrize("after", MOVES.values(), ids=MOVES)
def test_what_counts_as_progress(after: Activity) -> None:
    """Any of them alone."""
    assert has_moved(STILL, after, STEP_S)


@pytest.mark.parametrize("after", RESTS.values(), ids=RESTS)
def test_what_is_no_progress(after: Activity) -> None:
    """What the answers to probes take, and what is unknown."""
    assert not has_moved(STILL, after, STEP_S)


@pytest.mark.parametrize("before", [False, True], ids=["slept", "waited"])
@pytest.mark.parametrize("after", [False, True], ids=["sleeps", "waits"])
def test_a_server_that_gets_no_cpu_is_not_idle(before: bool, after: bool) -> None:
    """It waits at both looks; a server that a probe wakes is runnable at one."""
    first, second = (STILL._replace(is_waiting=one) for one in (before, after))

    assert has_moved(first, second, STEP_S) == (before and after)


def met(status: int = 404, activity: Activity | None = STILL, since_s: float = 0.0) -> Probing:
    return Probing("/health", status, f"{status} said", since_s, activity)


def seen(until_s: float, status: int = 404) -> Probing:
    """What is known of a server that rests from 0 to `until_s`."""
    known, now = None, 0.0
    while now <= until_s:
        known = folded(known, met(status), now)
        now += STEP_S
    assert known is not None
    return known


@pytest.mark.parametrize(
    ("known", "report", "idle_since_s"),
    [
        (None, met(), 100.0),
        (None, met(activity=None), None),
        (seen(95.0), met(), 0.0),
        (seen(95.0), met(activity=None), 0.0),
        (seen(95.0), met(activity=MOVES["CPU"]), 100.0),
        (seen(100.0 - READ_LATE_S - STEP_S), met(), 100.0),
    ],
    ids=["first", "never read", "rests", "not read now", "moves", "late"],
)
def test_since_when_a_server_rests(
    known: Probing | None, report: Probing, idle_since_s: float | None
) -> None:
    """Only the time counts that readings cover without a gap."""
    assert folded(known, report, 100.0).idle_since_s == idle_since_s


@pytest.mark.parametrize("status", [0, 200, 400, 408, 425, 429, 500, 502, 503])
def test_other_answers_never_end_a_start(status: int) -> None:
    """Servers give them while they load; 0 stands for refused connections and for no answer."""
    assert status not in WRONG
    assert not is_hopeless(seen(3600.0, status), 3600.0, is_wanted=True)


@pytest.mark.parametrize("status", sorted(WRONG))
@pytest.mark.parametrize(
    ("is_wanted", "limit_s"), [(False, NO_PROGRESS_S), (True, NO_PROGRESS_WANTED_S)]
)
def test_the_same_wrong_status_for_long_ends_a_start(
    status: int, is_wanted: bool, limit_s: float
) -> None:
    """Sooner while calls wait for its device."""
    before = limit_s - STEP_S
    assert not is_hopeless(seen(before, status), before, is_wanted=is_wanted)
    assert is_hopeless(seen(limit_s, status), limit_s, is_wanted=is_wanted)


def test_the_time_begins_with_the_status() -> None:
    """A server that rests for minutes before it answers 404 has its whole time from then on."""
    late = replace(seen(600.0), since_s=590.0)

    assert not is_hopeless(late, 600.0, is_wanted=False)


def test_what_is_not_read_ends_nothing() -> None:
    """On another host, or while reading fails for long."""
    unread = folded(None, met(activity=None), 600.0)
    assert not is_hopeless(unread, 600.0, is_wanted=True)
    assert not is_hopeless(seen(600.0), 601.0 + READ_LATE_S, is_wanted=True)


def test_a_text_tells_what_is_met_and_for_how_long() -> None:
    """After some seconds, in steps; the status alone, or why there was no answer."""
    refused = Probing("/", 0, "connection refused", 0.0)

    assert awaited(None, 100.0) is None
    assert awaited(met(), TOLD_AFTER_S - 0.1) is None
    assert str(awaited(met(), 38.0)) == "waiting for GET /health: 404 for 35 s"
    assert str(awaited(refused, 10.0)) == "waiting for GET /: connection refused for 10 s"


def test_the_reason_names_only_what_was_read() -> None:
    """And the option that mends it."""
    text = hopeless_text(seen(60.0), 60.0)

    assert text.startswith("not ready: GET /health was answered with 404 for 60 s.")
    assert "read and wrote nothing" in text
    assert "--ready PATH" in text
    hidden = replace(seen(60.0), activity=STILL._replace(io_bytes=None))
    assert "read and wrote nothing" not in hopeless_text(hidden, 60.0)


# The machine

TRIAL = "default/web@trial-1"


def probed(id: str, seconds: float, activity: Activity | None = STILL) -> events.Probed:
    return events.Probed(id, "/health", 404, "404 Not Found", seconds, activity)


def resting(play: Play, id: str, seconds: int) -> list[Command]:
    """Report the same for `seconds`."""
    commands: list[Command] = []
    for passed in range(0, seconds + 1, int(STEP_S)):
        commands += play.on(probed(id, passed), STEP_S)
    return commands


def trial(**changes: object) -> PoolSpec:
    return PoolSpec(TRIAL, role="trial", is_server=True, **changes)  # type: ignore[arg-type]


def test_a_trial_without_progress_ends_with_what_was_met() -> None:
    """As a failed start, with the end of its log; its device gets free."""
    play = Play(trial())
    play.demand()
    play.on(events.Greeted("r1", {}))

    commands = resting(play, "r1", int(NO_PROGRESS_S))

    (end,) = [one for one in commands if isinstance(one, EndTrial)]
    assert (end.key, end.stage, end.log_tail) == (TRIAL, "start", ("last line",))
    assert "404 for 60 s" in end.reason
    assert [one.id for one in commands if isinstance(one, Release)] == ["r1"]


def test_a_trial_that_gets_no_cpu_is_left_alone() -> None:
    """On a busy machine it may be unable to do anything for long. Once it sleeps, it is idle."""
    play = Play(trial())
    play.demand()
    play.on(events.Greeted("r1", {}))
    commands: list[Command] = []
    for passed in range(0, 600, int(STEP_S)):
        starved = STILL._replace(is_waiting=True)
        commands += play.on(probed("r1", passed, starved), STEP_S)
    assert not [one for one in commands if isinstance(one, EndTrial)]

    assert [one for one in resting(play, "r1", 65) if isinstance(one, EndTrial)]


def test_a_trial_that_others_wait_for_ends_sooner() -> None:
    """So that their callers need not be refused."""
    play = Play(trial(), PoolSpec("default/a@1"), devices=1)
    play.demand()
    play.on(events.Greeted("r1", {}))
    play.demand(a=1)

    ended = [one for one in resting(play, "r1", 40) if isinstance(one, EndTrial)]

    assert "404 for 30 s" in ended[0].reason


def test_nobody_waits_who_could_not_have_the_device() -> None:
    """A function that needs another kind of device shortens no trial."""
    play = Play(trial(), PoolSpec("default/a@1", device_kind="cpu"), devices=1)
    play.demand()
    play.on(events.Greeted("r1", {}))
    play.demand(a=1)

    assert not [one for one in resting(play, "r1", 40) if isinstance(one, EndTrial)]
    assert play.replica("r1").role == "trial"


def test_another_trial_that_waits_shortens_none() -> None:
    """A deploy is in no hurry."""
    play = Play(trial(), PoolSpec("default/b@trial-2", role="trial"), devices=1)
    play.demand()
    first, *_ = play.machine.replicas()
    play.on(events.Greeted(first.id, {}))

    assert not [one for one in resting(play, first.id, 40) if isinstance(one, EndTrial)]
    assert play.machine.cluster.blocked


def test_a_function_that_was_tried_is_left_alone() -> None:
    """Its path is right. What it waits for is its reason; a ready one waits for nothing."""
    play = Play(PoolSpec("default/a@1", is_server=True))
    play.demand(a=1)
    play.on(events.Greeted("r1", {}))

    assert not [one for one in resting(play, "r1", 120) if isinstance(one, Release)]
    assert play.reason("a") == "waiting for GET /health: 404 for 120 s"
    play.ready("r1")
    assert play.pool("a").awaited(play.now) is None
    play.on(probed("r1", 100.0))
    assert play.replica("r1").probing is None
