"""How many replicas are wanted."""

from __future__ import annotations

import pytest

from pool_manager.core.scaling import PANIC_S, STABLE_S, LoadWindow, Scaler, Wanted, wanted
from pool_manager.core.state import PoolSpec
from registry.exchange import Load

NOW = 1000.0


def spec(least: int = 0, most: int = 10, target: int = 2) -> PoolSpec:
    return PoolSpec("default/a@1", least, most, target=target)


class Pace:
    """A pool whose load is observed every second."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.scaler = Scaler()
        self.now = NOW

    def seconds(self, count: int, busy: int, ready: int) -> list[int]:
        """What is wanted in each of so many seconds of this load."""
        found = []
        for _ in range(count):
            self.now += 1.0
            self.scaler.observe(busy, self.now)
            found.append(self.want(busy, ready).replicas)
        return found

    def want(self, busy: int, ready: int, *, is_fresh: bool = True) -> Wanted:
        load = Load(busy, 0, 0.0)
        return wanted(self.spec, load, self.scaler, ready, self.now, is_fresh=is_fresh)


def test_a_burst_at_zero_wants_one() -> None:
    """While none is ready a burst wants one replica, not as many as its size would."""
    pace = Pace(spec())

    assert set(pace.seconds(20, busy=500, ready=0)) == {1}
    assert pace.want(500, 0).reason == "500 held and 0 in flight, none is ready yet"


def test_what_one_cannot_take_is_wanted_at_once() -> None:
    """Load of twice the ready replicas is a burst: the short window decides, without a minute's
    wait."""
    pace = Pace(spec())
    pace.seconds(3, busy=8, ready=0)

    assert pace.want(8, ready=1) == (4, "a burst, up to 4 x 2 requests at once")


def test_load_that_lasts_is_followed_by_the_stable_window() -> None:
    """A load slightly above the ready replicas adds one only when the mean over a minute requires
    it."""
    pace = Pace(spec())
    pace.seconds(STABLE_S, busy=4, ready=2)

    asked = pace.seconds(STABLE_S, busy=6, ready=2)

    assert asked[0] == 3
    assert pace.want(6, 2).reason == "2 requests per replica over 60 s"
    assert set(asked) == {3}


def test_load_that_falls_is_followed_slowly() -> None:
    """The number falls with the mean over a minute, step by step, never by a single second."""
    pace = Pace(spec())
    pace.seconds(STABLE_S, busy=8, ready=4)

    asked = pace.seconds(STABLE_S, busy=1, ready=4)

    assert asked[0] == 4
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] == 1


def test_panic_never_scales_down() -> None:
    """No replica is stopped for a minute after a burst; then the windows decide."""
    pace = Pace(spec())
    pace.seconds(2, busy=1, ready=1)
    peak = pace.seconds(6, busy=12, ready=1)[-1]
    assert peak >= 4

    after = pace.seconds(STABLE_S - 1, busy=1, ready=peak)
    assert set(after) == {peak}
    assert pace.seconds(STABLE_S, busy=1, ready=peak)[-1] == 1


def test_a_new_panic_knows_nothing_of_an_old_one() -> None:
    """A new panic does not use the peak of an earlier one."""
    pace = Pace(spec())
    pace.seconds(6, busy=20, ready=1)
    assert pace.want(20, 1).replicas == 10
    pace.now += 300.0
    pace.scaler.observe(0, pace.now)
    pace.now += 120.0

    assert pace.seconds(6, busy=4, ready=1)[-1] <= 2


def test_without_calls_no_replica_is_started() -> None:
    """Without calls, the windows keep existing replicas; they start none and begin no panic."""
    pace = Pace(spec())
    pace.seconds(6, busy=20, ready=1)

    assert pace.want(0, ready=3) == (3, "a burst, up to 10 x 2 requests at once")
    assert pace.want(0, ready=1) == (1, "kept for the next call")
    assert pace.want(1, ready=3).replicas == 10


def test_what_is_left_between_two_reports_is_known() -> None:
    """Load that ended without a full report does not count for ever."""
    pace = Pace(spec())
    pace.seconds(STABLE_S, busy=8, ready=4)
    pace.scaler.hold(0, pace.now)
    pace.now += STABLE_S

    assert pace.want(1, ready=4).replicas == 1


def test_a_cold_pool_is_forgotten() -> None:
    """Neither the windows nor a panic outlive a pool that became cold."""
    pace = Pace(spec())
    pace.seconds(10, busy=20, ready=1)

    pace.scaler.forget()

    assert pace.want(1, ready=1) == (1, "calls, 2 at once per replica")


def test_max_is_named_where_it_bounds() -> None:
    """The reason names `max` if more replicas would be wanted."""
    pace = Pace(spec(most=3))
    pace.seconds(6, busy=20, ready=1)

    assert pace.want(20, 1) == (3, "a burst, up to 10 x 2 requests at once; max is 3")
    assert "max" not in pace.want(0, 1).reason


@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize("ready", [0, 2])
@pytest.mark.parametrize("busy", [0, 1])
def test_min_is_a_floor(busy: int, ready: int, is_fresh: bool) -> None:
    """At least `min` replicas are wanted, with and without load, and the reason says so."""
    asked = Pace(spec(least=2)).want(busy, ready, is_fresh=is_fresh)

    assert asked.replicas == 2
    assert asked.reason.endswith("; min is 2")


def test_nobody_calls() -> None:
    """Without load and floor none is wanted, once the pool is not fresh any more."""
    pace = Pace(spec())

    assert pace.want(0, ready=1, is_fresh=False) == (0, "no calls")
    assert pace.want(0, ready=1) == (1, "kept for the next call")
    assert pace.want(0, ready=0) == (1, "a start was requested")


def test_a_trial_wants_one() -> None:
    """A deploy needs one replica and no load."""
    trial = Pace(PoolSpec("default/a@1", role="trial"))

    assert trial.want(0, ready=0, is_fresh=False) == (1, "a deploy verifies it")


def window(*busy: int, since_s: float = 100.0) -> LoadWindow:
    """A window with one observation per second."""
    made = LoadWindow()
    for second, value in enumerate(busy):
        made.observe(value, since_s + second)
    return made


def test_nothing_observed_is_nothing() -> None:
    """Before the first observation the mean is zero, and `hold` does not start the window."""
    empty = LoadWindow()
    empty.hold(5, 100.0)

    assert empty.mean(STABLE_S, 200.0) == 0.0


def test_the_mean_is_over_the_seconds_known() -> None:
    """The mean covers only observed seconds."""
    assert window(3, 6, 9).mean(STABLE_S, 102.0) == 6.0


def test_a_window_forgets_what_is_older() -> None:
    """The short window covers only its own seconds."""
    loads = window(*[60] * 10, *[6] * PANIC_S)

    assert loads.mean(PANIC_S, 115.0) == 6.0
    assert loads.mean(STABLE_S, 115.0) == pytest.approx((600 + 36) / 16)


def test_the_last_observation_of_a_second_counts() -> None:
    """Two reports within a second are one sample, not two."""
    loads = window(4)
    loads.observe(8, 100.9)

    assert loads.mean(STABLE_S, 100.9) == 8.0


def test_seconds_without_news_are_as_the_one_before() -> None:
    """A second without a report counts like the one before it."""
    loads = window(6)

    assert loads.mean(STABLE_S, 105.0) == 6.0
    loads.observe(0, 106.0)
    assert loads.mean(STABLE_S, 106.0) == pytest.approx(36 / 7)


def test_what_is_held_counts_from_the_next_second() -> None:
    """A change between two samples affects the seconds after it, not the sample of its own
    second."""
    loads = window(6)
    loads.hold(0, 100.5)

    assert loads.mean(STABLE_S, 100.9) == 6.0
    assert loads.mean(STABLE_S, 102.0) == 2.0


def test_a_long_silence_fills_the_window() -> None:
    """After a silence longer than the window, no older sample is left."""
    loads = window(60, 60, 60, 6)

    assert loads.mean(STABLE_S, 1e6) == 6.0
