"""Seconds of replicas, counted once and never below zero."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pool_manager.usage import Meter, Owner, Stage
from registry.model import Use
from runtime_image.contract.link import BUSY_MASK

DIGITS = Owner("default", "digits", 3)
OFFSET_S = 6000.0


def use(minute_s: int, waking_s: float, idle_s: float, busy_s: float) -> Use:
    return Use(*DIGITS, "cuda:0", minute_s, waking_s, idle_s, busy_s)


def up(meter: Meter, id: str = "r1", now: float = 0.0) -> None:
    meter.see(id, DIGITS, "cuda:0", "up", now)


def test_a_life_is_counted_by_stage() -> None:
    """Starting is waking; from ready on, what it says it ran is busy and the rest idle."""
    meter = Meter(OFFSET_S)
    meter.see("r1", DIGITS, "cuda:0", "waking", 1.0)
    up(meter, now=3.0)
    meter.hear("r1", 500, 8.0)
    meter.hear("r1", 2500, 13.0)
    meter.end("r1", 15.0)

    assert meter.take(20.0) == [use(6000, 2.0, 9.5, 2.5)]
    assert meter.take(30.0) == []
    assert not meter.knows("r1")


def test_seconds_go_to_the_minutes_they_were_in() -> None:
    """A span over the end of a minute is divided, the busy part of it evenly."""
    meter = Meter(OFFSET_S)
    up(meter, now=50.0)
    meter.hear("r1", 10_000, 70.0)

    assert meter.take(70.0) == [use(6000, 0.0, 5.0, 5.0), use(6060, 0.0, 5.0, 5.0)]


def test_a_replica_is_believed_up_to_the_time_that_passed() -> None:
    """Neither a lie nor a count that went back makes more seconds than there were."""
    meter = Meter(OFFSET_S)
    up(meter)
    meter.hear("r1", 2_000_000_000, 5.0)
    meter.hear("r1", 1, 10.0)
    meter.hear("r1", 900, 10.0)

    assert meter.take(10.0) == [use(6000, 0.0, 5.0, 5.0)]


def test_a_count_that_goes_back_a_little_is_no_run() -> None:
    """It was read while a run ended; that is not 49 days of running since."""
    meter = Meter(OFFSET_S)
    up(meter)
    meter.hear("r1", 1000, 5.0)
    meter.hear("r1", 998, 10.0)

    assert meter.take(10.0) == [use(6000, 0.0, 9.0, 1.0)]


def test_the_count_may_wrap() -> None:
    """After 49 days of running the 32 bits begin anew."""
    meter = Meter(OFFSET_S)
    up(meter)
    meter.hear("r1", BUSY_MASK - 999, 5.0)
    meter.take(5.0)
    meter.hear("r1", 1000, 10.0)

    assert meter.take(10.0) == [use(6000, 0.0, 3.0, 2.0)]


def test_what_an_adopted_replica_ran_before_is_not_counted() -> None:
    """Its first word tells where it stands, the second what it ran since."""
    meter = Meter(OFFSET_S)
    meter.see("r1", DIGITS, "cuda:0", "waking", 0.0)
    meter.adopt("r1")
    up(meter, now=1.0)
    meter.hear("r1", 40_000, 2.0)
    before = meter.busy("cuda:0")
    meter.hear("r1", 41_000, 4.0)

    assert before is None
    assert meter.take(4.0) == [use(6000, 1.0, 2.0, 1.0)]
    assert meter.busy("cuda:0") == 0.5


def test_busy_now_is_the_mean_of_the_last_seconds() -> None:
    """Nothing there: none of it; nobody has spoken: unknown; then the share of all replicas, of
    five seconds or of the time between two words."""
    meter = Meter(OFFSET_S)
    empty = meter.busy("cuda:0")
    up(meter)
    silent = meter.busy("cuda:0")
    for second in range(1, 21):
        meter.hear("r1", second * 1000 if second <= 10 else 10_000, float(second))
    after = meter.busy("cuda:0")
    up(meter, "r2", 20.0)
    meter.hear("r2", 2500, 25.0)

    assert (empty, silent, after) == (0.0, None, 0.0)
    assert meter.busy("cuda:0") == 0.5
    assert meter.busy("cuda:1") == 0.0


def test_standbys_are_idle_and_nobodys() -> None:
    """A standby on a GPU has its seconds under no name; one for the CPU has no device to have."""
    meter = Meter(OFFSET_S)
    nobody = Owner("", "", 0)
    meter.see("s1", nobody, "cuda:0", "standby", 0.0)
    meter.see("s2", nobody, "", "standby", 0.0)
    first = meter.take(2.0)
    meter.see("s1", DIGITS, "cuda:0", "waking", 3.0)
    meter.hear("s1", 100, 4.0)

    assert first == [Use(*nobody, "cuda:0", 6000, 0.0, 2.0, 0.0)]
    assert meter.take(4.0) == [
        Use(*nobody, "cuda:0", 6000, 0.0, 1.0, 0.0),
        use(6000, 1.0, 0.0, 0.0),
    ]


def test_nobody_speaks_for_a_replica_that_is_gone() -> None:
    """What comes after the end is not counted."""
    meter = Meter(OFFSET_S)
    meter.end("r1", 1.0)
    meter.hear("r1", 100, 2.0)

    assert meter.take(3.0) == []


STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 200.0),
        st.sampled_from(["waking", "up", "standby", "hear", "adopt", "end", "take"]),
        st.integers(0, BUSY_MASK),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_second_is_counted_once(steps: list[tuple[float, str, int]]) -> None:
    """Whatever happens in whatever order: no part is negative, and together they are the time
    that the replica was there."""
    meter, now, began_s, there_s = Meter(OFFSET_S), 0.0, None, 0.0
    kept: list[Use] = []
    stages: dict[str, Stage] = {"waking": "waking", "up": "up", "standby": "standby"}
    for pause_s, what, number in [*steps, (1.0, "end", 0)]:
        now += pause_s
        if what in stages:
            meter.see("r1", DIGITS, "cuda:0", stages[what], now)
            began_s = now if began_s is None else began_s
        elif what == "hear":
            meter.hear("r1", number, now)
        elif what == "adopt" and began_s is not None:
            meter.adopt("r1")
        elif what == "end":
            there_s += now - began_s if began_s is not None else 0.0
            began_s = None
            meter.end("r1", now)
        kept += meter.take(now) if what == "take" else []
        assert 0.0 <= (meter.busy("cuda:0") or 0.0) <= 1.0
    kept += meter.take(now)

    parts = [part for one in kept for part in (one.waking_s, one.idle_s, one.busy_s)]
    assert all(part >= 0.0 for part in parts)
    assert abs(sum(parts) - there_s) < 1e-6
