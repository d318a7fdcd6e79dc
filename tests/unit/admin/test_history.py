"""Tests of the recorded history and of the estimates made from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import inf, nan
from pathlib import Path

import pytest

from admin.history import (
    ALPHA,
    BUCKETS_MAX,
    DEFAULT_OVERHEAD_MS,
    MAX_MS,
    MEMORY,
    MIN_MS,
    POOLS_MAX,
    ColdStarts,
    Prior,
    ServerHistory,
    Sketch,
    prior_of,
)
from gateway.dispatch.pool import SAMPLES_ENOUGH
from registry.catalog import Catalog, Deployed
from registry.exchange import Expected
from registry.model.history import Arrivals, ColdStart, StateInterval
from registry.model.revisions import DeviceNeed
from registry.settings import StoreSettings
from registry.store.database import Database
from registry.store.functions import Functions
from registry.store.history import History
from registry.usage import UsageCounts
from tests.support.nouns import bundle, function, profile, revision

KEY = "default/digits@1"
NOW_S = 1_000_000_020.0
MINUTE_S = 1_000_000_020


class Wall:
    """Wall clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def wall() -> Wall:
    """A clock at the start of a minute."""
    return Wall()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database in a file."""
    opened = await Database.open(tmp_path / "fngate.db")
    yield opened
    await opened.close()


@pytest.fixture
def history(database: Database, tmp_path: Path, wall: Wall) -> History:
    """An empty history."""
    return History(database, StoreSettings(tmp_path), wall)


@pytest.fixture
def past(history: History, wall: Wall) -> ServerHistory:
    """History without cold starts; every trial took 30 ms to load."""
    return ServerHistory(history, wall, lambda _key: Prior("cpu", 30.0), UsageCounts().add)


def cold_start(total_ms: float, outcome: str = "ready", number: int = 1) -> ColdStart:
    """Return a cold start of digits."""
    return ColdStart(
        "default", "digits", number, "r1", "cpu", NOW_S, total_ms, {"load": total_ms}, outcome
    )


async def test_estimates_come_from_cold_starts(past: ServerHistory, history: History) -> None:
    """The estimate is a guess until the first successful cold start; failed ones are stored but not
    estimated from."""
    assert past.expected(KEY) == Expected(0.05, 0.43, 0.43, 0)

    for ms in (100, 300, 200):
        past.cold_start(cold_start(ms))
    past.cold_start(cold_start(90_000, "failed: no memory"))

    assert past.expected(KEY).p50_s == pytest.approx(0.2, rel=ALPHA)
    assert past.expected(KEY).samples == 3
    await history.flush()
    assert len(await history.cold_starts("digits")) == 4


async def test_an_estimate_is_kept_until_there_is_news(past: ServerHistory) -> None:
    """An estimate is computed once per cold start, not for each publication."""
    past.cold_start(cold_start(100))
    first = past.expected(KEY)
    same = past.expected(KEY) is first

    past.cold_start(cold_start(900))

    assert same
    assert past.expected(KEY).samples == 2


async def test_the_estimate_survives_a_restart(
    past: ServerHistory, history: History, database: Database, wall: Wall
) -> None:
    """A restarted server has the same estimates; pools without cold starts have none."""
    functions = Functions(database)
    for _ in range(2):
        await functions.deploy(function(revision=0), revision(number=0), bundle(), None)
    for ms in (100, 300, 200):
        past.cold_start(cold_start(ms))
    await history.flush()

    later = ServerHistory(history, wall, lambda _key: Prior(), UsageCounts().add)
    await later.load()

    assert later.expected(KEY) == past.expected(KEY)
    assert later.expected("default/digits@2").samples == 0
    assert later.table(KEY) == past.table(KEY)


@pytest.mark.parametrize(
    ("state", "since_s", "expected"),
    [
        ("cold", NOW_S - 900, 200.0),
        ("draining", NOW_S - 900, 200.0),
        ("waking", NOW_S - 0.15, 50.0),
        ("waking", NOW_S - 3, 1.0),
        ("waking", NOW_S + 3, 200.0),
        ("warm", NOW_S - 900, 0.0),
        ("failing", NOW_S - 900, None),
    ],
)
async def test_the_time_to_readiness_is_estimated(
    past: ServerHistory, state: str, since_s: float, expected: float | None
) -> None:
    """The time to readiness is that of a usual cold start, less the time already spent waking."""
    for _ in range(SAMPLES_ENOUGH):
        past.cold_start(cold_start(200))

    told = past.ready_in_ms(KEY, state, since_s, by_standby=True)

    assert told == (expected and pytest.approx(expected, abs=200 * ALPHA))


async def test_a_trial_and_few_cold_starts_promise_nothing(past: ServerHistory) -> None:
    """With fewer than five cold starts the time to readiness is unknown, except for a warm pool."""
    for _ in range(SAMPLES_ENOUGH - 1):
        past.cold_start(cold_start(200))

    for state in ("cold", "waking", "draining"):
        assert past.ready_in_ms(KEY, state, NOW_S, by_standby=True) is None
    assert past.ready_in_ms(KEY, "warm", NOW_S, by_standby=True) == 0


def test_a_deploy_says_what_to_expect_of_a_model() -> None:
    """The prior is the trial's load time, or the manifest's device; a removed revision has none."""
    profiled = Deployed(function(), revision(number=1), profile())
    gpu = revision(number=2, device=DeviceNeed("cuda"))
    catalog = Catalog([profiled, Deployed(function(), gpu), Deployed(function("b"), revision("b"))])

    assert prior_of(catalog, KEY) == Prior("cpu", profile().load_ms)
    assert prior_of(catalog, "default/digits@2") == Prior("cuda", 0.0)
    assert prior_of(catalog, revision("b").key) == Prior("cpu", 0.0)
    assert prior_of(catalog, "default/gone@1") == Prior()


async def test_arrivals_are_counted_by_the_minute(
    past: ServerHistory, history: History, wall: Wall
) -> None:
    """Requests are counted per function and stored per minute."""
    for name in ("digits", "digits", "faces"):
        past.arrived("default", name)
    wall.now_s += 60
    past.arrived("default", "digits")
    await history.flush()

    assert await history.arrivals("digits", 0) == [Arrivals("default", "digits", MINUTE_S, 2)]
    assert await history.arrivals("faces", 0) == [Arrivals("default", "faces", MINUTE_S, 1)]


async def test_a_shutdown_keeps_the_current_minute(past: ServerHistory, history: History) -> None:
    """A shutdown stores the current minute; a second flush adds nothing."""
    past.arrived("default", "digits")

    past.flush()
    past.flush()
    await history.flush()

    assert await history.arrivals("digits", 0) == [Arrivals("default", "digits", MINUTE_S, 1)]


async def test_a_minute_is_kept_in_parts(past: ServerHistory, history: History) -> None:
    """Counts of a minute before and after a flush add up."""
    for _ in range(2):
        past.arrived("default", "digits")
        past.flush()
        await history.flush()

    assert await history.arrivals("digits", 0) == [Arrivals("default", "digits", MINUTE_S, 2)]


async def test_state_intervals_are_kept(past: ServerHistory, history: History) -> None:
    """State intervals are stored with their reason."""
    interval = StateInterval("default", "digits", 1, "warm", "idle", NOW_S - 5, NOW_S)

    past.state_interval(interval)
    await history.flush()

    assert await history.intervals("digits") == [interval]


async def test_requests_that_came_elsewhere_are_added(history: History, wall: Wall) -> None:
    """Counts reported by gateway processes are added to the server's own."""
    past = ServerHistory(history, wall, lambda _key: Prior(), UsageCounts().add)
    past.arrived("default", "digits", 3)
    past.arrived("default", "digits")
    past.flush()
    await history.flush()

    assert await history.arrivals("digits", 0) == [Arrivals("default", "digits", MINUTE_S, 4)]


async def test_a_new_estimate_is_told(history: History, wall: Wall) -> None:
    """Subscribers are called after the estimate includes the new cold start."""
    past = ServerHistory(history, wall, lambda _key: Prior(), UsageCounts().add)
    told: list[tuple[str, float]] = []
    end = past.subscribe(lambda one: told.append((one.name, past.expected(KEY).samples)))
    past.cold_start(ColdStart("default", "digits", 1, "r", "cpu", NOW_S, 500.0, {}))
    end()
    past.cold_start(ColdStart("default", "digits", 1, "r", "cpu", NOW_S, 500.0, {}))

    assert told == [("digits", 1)]


PRIOR = Prior("cpu", 30.0)


def started(
    total_ms: float,
    number: int = 1,
    kind: str = "cpu",
    outcome: str = "ready",
    **phases: float,
) -> ColdStart:
    """Return a cold start; one with a phase `start` did not use a standby."""
    return ColdStart("default", "digits", number, "r1", kind, 0.0, total_ms, dict(phases), outcome)


def past_of(*records: ColdStart) -> ColdStarts:
    """Return an estimator that has seen these cold starts."""
    made = ColdStarts()
    for record in records:
        made.add(record)
    return made


def test_before_the_first_cold_start_the_trial_is_asked() -> None:
    """Without cold starts the estimate is the trial's load time plus a default overhead."""
    expected = past_of().expected(KEY, PRIOR)

    assert expected.samples == 0
    assert expected.p10_s * 1e3 == pytest.approx(30 + DEFAULT_OVERHEAD_MS[True])
    assert expected.p90_s * 1e3 == pytest.approx(30 + DEFAULT_OVERHEAD_MS[False])
    assert past_of().median_ms(KEY, PRIOR, by_standby=True) == 30 + DEFAULT_OVERHEAD_MS[True]
    assert past_of().median_ms(KEY, PRIOR, by_standby=False) == 30 + DEFAULT_OVERHEAD_MS[False]


def test_neighbours_tell_what_is_usual_here() -> None:
    """Other models on this host give the usual overhead, such as process start, but neither load
    nor eviction times."""
    known = past_of(
        started(900.0, 2, start=200.0, load=5000.0, evict=700.0, bind=10.0),
        started(900.0, 3, kind="cuda", start=9000.0),
    )

    assert known.median_ms(KEY, PRIOR, by_standby=False) == pytest.approx(240.0, rel=ALPHA)
    assert known.median_ms(KEY, PRIOR, by_standby=True) == 30 + DEFAULT_OVERHEAD_MS[True]
    assert known.expected(KEY, PRIOR).samples == 0


def test_its_own_past_goes_before_all_else() -> None:
    """With cold starts of its own, a revision's quantiles come from these; failed starts are
    ignored."""
    known = past_of(*(started(ms, start=1.0) for ms in [100.0] * 5 + [200.0] * 4 + [900.0] * 2))
    known.add(started(60_000.0, outcome="failed: no memory"))

    expected = known.expected(KEY, PRIOR)

    assert expected.samples == 11
    assert expected.p10_s == pytest.approx(0.1, rel=ALPHA)
    assert expected.p50_s == pytest.approx(0.2, rel=ALPHA)
    assert expected.p90_s == pytest.approx(0.9, rel=ALPHA)


def test_the_shortest_estimate_includes_starts_by_standby() -> None:
    """The p10 includes starts by standby: a single one prevents a caller from being refused for
    lack of time."""
    known = past_of(*[started(400.0, start=300.0)] * 30, started(20.0))

    expected = known.expected(KEY, PRIOR)

    assert expected.p10_s == pytest.approx(0.02, rel=ALPHA)
    assert expected.p50_s == pytest.approx(0.4, rel=ALPHA)
    assert expected.samples == 31


def test_standbys_are_told_apart() -> None:
    """Starts with and without a standby have medians of their own."""
    known = past_of(started(400.0, start=250.0), started(50.0))

    assert known.median_ms(KEY, PRIOR, by_standby=True) == pytest.approx(50.0, rel=ALPHA)
    assert known.median_ms(KEY, PRIOR, by_standby=False) == pytest.approx(400.0, rel=ALPHA)


def test_one_way_says_something_of_the_other() -> None:
    """Without starts of one way, its median is derived from the other by the phases that a standby
    saves."""
    launched = {"start": 100.0, "import": 150.0}
    anew = past_of(started(400.0, **launched))
    woken = past_of(started(50.0))
    woken_here = past_of(started(50.0), started(900.0, 2, **launched))

    def of(known: ColdStarts, *, by_standby: bool) -> float:
        return known.median_ms(KEY, PRIOR, by_standby=by_standby)

    assert of(anew, by_standby=True) == pytest.approx(150.0, abs=(400 + 250) * ALPHA)
    assert of(woken, by_standby=False) == pytest.approx(450.0, rel=ALPHA)
    assert of(woken_here, by_standby=False) == pytest.approx(300.0, rel=ALPHA)


def test_the_last_device_kind_counts() -> None:
    """The estimate is for the device kind of the latest cold start."""
    known = past_of(started(9000.0), started(100.0, kind="cuda"))

    assert known.expected(KEY, PRIOR).samples == 1
    assert known.expected(KEY, PRIOR).p90_s == pytest.approx(0.1, rel=ALPHA)


def test_the_table_tells_of_every_phase() -> None:
    """The table has every known phase in order, per device kind and way; unknown phases are left
    out."""
    known = past_of(started(400.0, start=300.0, load=100.0, nonsense=1.0), started(50.0, load=50.0))

    table = known.table(KEY)

    assert [(row.device_kind, row.standby, row.samples) for row in table] == [
        ("cpu", False, 1),
        ("cpu", True, 1),
    ]
    assert list(table[0].phases) == ["start", "load"]
    assert table[0].phases["start"].p90_ms == pytest.approx(300.0, rel=ALPHA)
    assert table[1].total.p50_ms == pytest.approx(50.0, rel=ALPHA)
    assert known.table("default/other@1") == []


def test_revisions_remembered_are_bounded() -> None:
    """The number of revisions is bounded; the oldest are dropped."""
    known = past_of(*(started(100.0, number) for number in range(1, POOLS_MAX + 2)))

    assert known.expected(KEY, PRIOR).samples == 0
    assert known.expected("default/digits@2", PRIOR).samples == 1
    assert known.expected(f"default/digits@{POOLS_MAX + 1}", PRIOR).samples == 1


def test_a_false_phase_has_little_effect_on_others() -> None:
    """A phase counts at most as long as its whole cold start, so that a false report has little
    effect on others."""
    known = past_of(started(900.0, 2, start=200.0, bind=1e9))

    assert known.median_ms(KEY, PRIOR, by_standby=False) <= 30 + 200 + 900 * (1 + ALPHA)


def of(*all_ms: float) -> Sketch:
    """Return a sketch of these durations."""
    made = Sketch()
    for ms in all_ms:
        made.add(ms)
    return made


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 10.0), (0.1, 10.0), (0.5, 500.0), (0.9, 9000.0), (1.0, 9000.0)]
)
def test_quantiles_are_near_the_true_ones(share: float, expected: float) -> None:
    """Every quantile is within five percent of the true value."""
    assert of(9000.0, 10.0, 500.0).quantile_ms(share) == pytest.approx(expected, rel=ALPHA)


def test_without_durations_there_is_no_quantile() -> None:
    """A sketch without durations has quantile 0."""
    assert (Sketch().quantile_ms(0.5), Sketch().samples) == (0.0, 0)


@pytest.mark.parametrize("share", [-0.1, 1.1, nan])
def test_a_share_is_between_0_and_1(share: float) -> None:
    """A share outside 0 to 1 is a ValueError."""
    with pytest.raises(ValueError, match="expected a share between 0 and 1"):
        of(1.0).quantile_ms(share)


def test_a_duration_is_a_number() -> None:
    """A NaN is refused and not counted."""
    sketch = of(5.0)

    with pytest.raises(ValueError, match="got nan"):
        sketch.add(nan)

    assert sketch.samples == 1


@pytest.mark.parametrize(
    ("ms", "expected"), [(0.0, MIN_MS), (-3.0, MIN_MS), (1e12, MAX_MS), (inf, MAX_MS)]
)
def test_extremes_are_cut(ms: float, expected: float) -> None:
    """Extreme durations are clamped, so that buckets stay few."""
    assert of(ms).quantile_ms(0.5) == pytest.approx(expected, rel=ALPHA)


def test_the_newest_durations_count_most() -> None:
    """Recent durations weigh more: after MEMORY faster ones the median is theirs."""
    sketch = of(*[9000.0] * 1000)
    for _ in range(MEMORY):
        sketch.add(10.0)

    assert sketch.quantile_ms(0.5) == pytest.approx(10.0, rel=ALPHA)
    assert sketch.samples == 1000 + MEMORY


def test_a_bucket_without_weight_is_dropped() -> None:
    """A bucket that has lost nearly all its weight is dropped."""
    sketch = of(9000.0, *[10.0] * (5 * MEMORY))

    assert sketch.buckets == 1
    assert sketch.quantile_ms(1.0) == pytest.approx(10.0, rel=ALPHA)


def test_buckets_are_bounded() -> None:
    """The number of buckets is bounded, however far the durations lie apart."""
    assert of(*(MIN_MS * 1.05**n for n in range(1000))).buckets <= BUCKETS_MAX


def test_two_sketches_make_one() -> None:
    """A merged sketch equals one of all durations; the merged ones are unchanged."""
    left, right = of(10.0, 10.0), of(500.0, 10.0)

    both = left.merged(right)

    assert both.samples == 4
    assert both.quantile_ms(0.5) == pytest.approx(10.0, rel=ALPHA)
    assert both.quantile_ms(1.0) == pytest.approx(500.0, rel=ALPHA)
    assert left.quantile_ms(1.0) == pytest.approx(10.0, rel=ALPHA)
    assert right.samples == 2
