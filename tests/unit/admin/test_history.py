"""The recorded history and its estimates."""

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
from registry.model import Arrivals, ColdStart, DeviceNeed, StateInterval
from registry.settings import StoreSettings
from registry.store.database import Database
from registry.store.functions import Functions
from registry.store.history import History
from tests.support.nouns import bundle, function, profile, revision

KEY = "default/digits@1"
NOW_S = 1_000_000_020.0
MINUTE_S = 1_000_000_020


class Wall:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def wall() -> Wall:
    """Begins at the start of a minute."""
    return Wall()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """An empty store in a file."""
    opened = await Database.open(tmp_path / "fngate.db")
    yield opened
    await opened.close()


@pytest.fixture
def history(database: Database, tmp_path: Path, wall: Wall) -> History:
    """An empty history."""
    return History(database, StoreSettings(tmp_path), wall)


@pytest.fixture
def past(history: History, wall: Wall) -> ServerHistory:
    """Knows no cold start; every trial took 30 ms to load."""
    return ServerHistory(history, wall, lambda _key: Prior("cpu", 30.0))


def cold_start(total_ms: float, outcome: str = "ready", number: int = 1) -> ColdStart:
    """A receipt of digits."""
    return ColdStart(
        "default", "digits", number, "r1", "cpu", NOW_S, total_ms, {"load": total_ms}, outcome
    )


async def test_estimates_come_from_cold_starts(past: ServerHistory, history: History) -> None:
    """What was guessed before is known after the first one; failed ones are kept, too."""
    assert past.expected(KEY) == Expected(0.05, 0.43, 0.43, 0)

    for ms in (100, 300, 200):
        past.cold_start(cold_start(ms))
    past.cold_start(cold_start(90_000, "failed: no memory"))

    assert past.expected(KEY).p50_s == pytest.approx(0.2, rel=ALPHA)
    assert past.expected(KEY).samples == 3
    await history.flush()
    assert len(await history.cold_starts("digits")) == 4


async def test_an_estimate_is_kept_until_there_is_news(past: ServerHistory) -> None:
    """What is asked for at every publication is worked out once per cold start."""
    past.cold_start(cold_start(100))
    first = past.expected(KEY)
    same = past.expected(KEY) is first

    past.cold_start(cold_start(900))

    assert same
    assert past.expected(KEY).samples == 2


async def test_the_estimate_survives_a_restart(
    past: ServerHistory, history: History, database: Database, wall: Wall
) -> None:
    """The next server begins with what this one has measured; pools without a past have none."""
    functions = Functions(database)
    for _ in range(2):
        await functions.deploy(function(revision=0), revision(number=0), bundle(), None)
    for ms in (100, 300, 200):
        past.cold_start(cold_start(ms))
    await history.flush()

    later = ServerHistory(history, wall, lambda _key: Prior())
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
async def test_it_is_told_when_a_replica_will_be_there(
    past: ServerHistory, state: str, since_s: float, expected: float | None
) -> None:
    """A cold start takes what it usually takes, one that goes on what is left of that."""
    for _ in range(SAMPLES_ENOUGH):
        past.cold_start(cold_start(200))

    told = past.ready_in_ms(KEY, state, since_s, by_standby=True)

    assert told == (expected and pytest.approx(expected, abs=200 * ALPHA))


async def test_a_trial_and_few_cold_starts_promise_nothing(past: ServerHistory) -> None:
    """Below five cold starts nobody can tell when a replica will be there; one that is, is."""
    for _ in range(SAMPLES_ENOUGH - 1):
        past.cold_start(cold_start(200))

    for state in ("cold", "waking", "draining"):
        assert past.ready_in_ms(KEY, state, NOW_S, by_standby=True) is None
    assert past.ready_in_ms(KEY, "warm", NOW_S, by_standby=True) == 0


def test_a_deploy_says_what_to_expect_of_a_model() -> None:
    """What its trial took; else where its manifest puts it; nothing of a revision that is gone."""
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
    """A minute's count is kept when the next minute begins, per function."""
    for name in ("digits", "digits", "faces"):
        past.arrived("default", name)
    wall.now_s += 60
    past.arrived("default", "digits")
    await history.flush()

    assert await history.arrivals("digits", 0) == [Arrivals("default", "digits", MINUTE_S, 2)]
    assert await history.arrivals("faces", 0) == [Arrivals("default", "faces", MINUTE_S, 1)]


async def test_a_shutdown_keeps_the_broken_minute(past: ServerHistory, history: History) -> None:
    """Requests of the last minute are not lost; a second flush adds nothing."""
    past.arrived("default", "digits")

    past.flush()
    past.flush()
    await history.flush()

    assert await history.arrivals("digits", 0) == [Arrivals("default", "digits", MINUTE_S, 1)]


async def test_a_minute_is_kept_in_parts(past: ServerHistory, history: History) -> None:
    """What came before a flush and after it adds up."""
    for _ in range(2):
        past.arrived("default", "digits")
        past.flush()
        await history.flush()

    assert await history.arrivals("digits", 0) == [Arrivals("default", "digits", MINUTE_S, 2)]


async def test_state_intervals_are_kept(past: ServerHistory, history: History) -> None:
    """How long a pool was warm, and why, comes back from the store."""
    interval = StateInterval("default", "digits", 1, "warm", "idle", NOW_S - 5, NOW_S)

    past.state_interval(interval)
    await history.flush()

    assert await history.intervals("digits") == [interval]


async def test_requests_that_came_elsewhere_are_added(history: History, wall: Wall) -> None:
    """Gateway processes count by themselves and tell each second."""
    past = ServerHistory(history, wall, lambda _key: Prior())
    past.arrivals("default", "digits", 3)
    past.arrived("default", "digits")
    past.flush()
    await history.flush()

    assert await history.arrivals("digits", 0) == [Arrivals("default", "digits", MINUTE_S, 4)]


async def test_a_new_estimate_is_told(history: History, wall: Wall) -> None:
    """Of the pool that was measured, when it is known already."""
    past = ServerHistory(history, wall, lambda _key: Prior())
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
    """A receipt; with a phase `start` no standby was there."""
    return ColdStart("default", "digits", number, "r1", kind, 0.0, total_ms, dict(phases), outcome)


def past_of(*records: ColdStart) -> ColdStarts:
    """What these cold starts leave behind."""
    made = ColdStarts()
    for record in records:
        made.add(record)
    return made


def test_before_the_first_cold_start_the_trial_is_asked() -> None:
    """Loading takes as long as it did there, all else as long as is usual anywhere."""
    expected = past_of().expected(KEY, PRIOR)

    assert expected.samples == 0
    assert expected.p10_s * 1e3 == pytest.approx(30 + DEFAULT_OVERHEAD_MS[True])
    assert expected.p90_s * 1e3 == pytest.approx(30 + DEFAULT_OVERHEAD_MS[False])
    assert past_of().median_ms(KEY, PRIOR, by_standby=True) == 30 + DEFAULT_OVERHEAD_MS[True]
    assert past_of().median_ms(KEY, PRIOR, by_standby=False) == 30 + DEFAULT_OVERHEAD_MS[False]


def test_neighbours_tell_what_is_usual_here() -> None:
    """How long processes take to start on this host is the same for all models; how long another
    model took to load, or its predecessor to go, says nothing."""
    known = past_of(
        started(900.0, 2, start=200.0, load=5000.0, evict=700.0, bind=10.0),
        started(900.0, 3, kind="cuda", start=9000.0),
    )

    assert known.median_ms(KEY, PRIOR, by_standby=False) == pytest.approx(240.0, rel=ALPHA)
    assert known.median_ms(KEY, PRIOR, by_standby=True) == 30 + DEFAULT_OVERHEAD_MS[True]
    assert known.expected(KEY, PRIOR).samples == 0


def test_its_own_past_goes_before_all_else() -> None:
    """Median and slow tenth of what was measured; failed starts say nothing."""
    known = past_of(*(started(ms, start=1.0) for ms in [100.0] * 5 + [200.0] * 4 + [900.0] * 2))
    known.add(started(60_000.0, outcome="failed: no memory"))

    expected = known.expected(KEY, PRIOR)

    assert expected.samples == 11
    assert expected.p10_s == pytest.approx(0.1, rel=ALPHA)
    assert expected.p50_s == pytest.approx(0.2, rel=ALPHA)
    assert expected.p90_s == pytest.approx(0.9, rel=ALPHA)


def test_the_short_way_is_what_nine_of_ten_take_at_least() -> None:
    """A single start by a standby keeps anybody from being told that it will take too long."""
    known = past_of(*[started(400.0, start=300.0)] * 30, started(20.0))

    expected = known.expected(KEY, PRIOR)

    assert expected.p10_s == pytest.approx(0.02, rel=ALPHA)
    assert expected.p50_s == pytest.approx(0.4, rel=ALPHA)
    assert expected.samples == 31


def test_standbys_are_told_apart() -> None:
    """What is next to happen is what is told, not a mean of what is not."""
    known = past_of(started(400.0, start=250.0), started(50.0))

    assert known.median_ms(KEY, PRIOR, by_standby=True) == pytest.approx(50.0, rel=ALPHA)
    assert known.median_ms(KEY, PRIOR, by_standby=False) == pytest.approx(400.0, rel=ALPHA)


def test_one_way_says_something_of_the_other() -> None:
    """A standby saves the start of a process and its imports."""
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
    """A revision that has moved to a GPU is expected there."""
    known = past_of(started(9000.0), started(100.0, kind="cuda"))

    assert known.expected(KEY, PRIOR).samples == 1
    assert known.expected(KEY, PRIOR).p90_s == pytest.approx(0.1, rel=ALPHA)


def test_the_table_tells_of_every_phase() -> None:
    """Per way and phase, in the order of the phases; what is no phase of ours is left out."""
    known = past_of(started(400.0, start=300.0, load=100.0, nonsense=1.0), started(50.0, load=50.0))

    table = known.table(KEY)

    assert [(row["device_kind"], row["standby"], row["samples"]) for row in table] == [
        ("cpu", False, 1),
        ("cpu", True, 1),
    ]
    assert list(table[0]["phases"]) == ["start", "load"]
    assert table[0]["phases"]["start"]["p90_ms"] == pytest.approx(300.0, rel=ALPHA)
    assert table[1]["total"]["p50_ms"] == pytest.approx(50.0, rel=ALPHA)
    assert known.table("default/other@1") == []


def test_revisions_remembered_are_bounded() -> None:
    """However many revisions there ever were, the oldest make room."""
    known = past_of(*(started(100.0, number) for number in range(1, POOLS_MAX + 2)))

    assert known.expected(KEY, PRIOR).samples == 0
    assert known.expected("default/digits@2", PRIOR).samples == 1
    assert known.expected(f"default/digits@{POOLS_MAX + 1}", PRIOR).samples == 1


def test_a_replica_that_lies_about_its_phases_misleads_nobody_else() -> None:
    """No phase took longer than all of its cold start."""
    known = past_of(started(900.0, 2, start=200.0, bind=1e9))

    assert known.median_ms(KEY, PRIOR, by_standby=False) <= 30 + 200 + 900 * (1 + ALPHA)


def of(*all_ms: float) -> Sketch:
    """A sketch of these durations."""
    made = Sketch()
    for ms in all_ms:
        made.add(ms)
    return made


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 10.0), (0.1, 10.0), (0.5, 500.0), (0.9, 9000.0), (1.0, 9000.0)]
)
def test_quantiles_are_near_the_true_ones(share: float, expected: float) -> None:
    """Each is off by five percent of its value at most, the small ones too."""
    assert of(9000.0, 10.0, 500.0).quantile_ms(share) == pytest.approx(expected, rel=ALPHA)


def test_without_durations_there_is_no_quantile() -> None:
    """It is 0, and nothing was counted."""
    assert (Sketch().quantile_ms(0.5), Sketch().samples) == (0.0, 0)


@pytest.mark.parametrize("share", [-0.1, 1.1, nan])
def test_a_share_is_between_0_and_1(share: float) -> None:
    """Anything else is a mistake of the caller's."""
    with pytest.raises(ValueError, match="expected a share between 0 and 1"):
        of(1.0).quantile_ms(share)


def test_a_duration_is_a_number() -> None:
    """What is none is refused, and nothing is counted."""
    sketch = of(5.0)

    with pytest.raises(ValueError, match="got nan"):
        sketch.add(nan)

    assert sketch.samples == 1


@pytest.mark.parametrize(
    ("ms", "expected"), [(0.0, MIN_MS), (-3.0, MIN_MS), (1e12, MAX_MS), (inf, MAX_MS)]
)
def test_extremes_are_cut(ms: float, expected: float) -> None:
    """Whatever comes, the buckets stay few."""
    assert of(ms).quantile_ms(0.5) == pytest.approx(expected, rel=ALPHA)


def test_the_newest_durations_count_most() -> None:
    """A machine that became faster is believed after as many starts as are remembered."""
    sketch = of(*[9000.0] * 1000)
    for _ in range(MEMORY):
        sketch.add(10.0)

    assert sketch.quantile_ms(0.5) == pytest.approx(10.0, rel=ALPHA)
    assert sketch.samples == 1000 + MEMORY


def test_what_is_long_past_is_forgotten() -> None:
    """A bucket that has lost nearly all its weight takes no room."""
    sketch = of(9000.0, *[10.0] * (5 * MEMORY))

    assert sketch.buckets == 1
    assert sketch.quantile_ms(1.0) == pytest.approx(10.0, rel=ALPHA)


def test_buckets_are_bounded() -> None:
    """However far the durations lie apart."""
    assert of(*(MIN_MS * 1.05**n for n in range(1000))).buckets <= BUCKETS_MAX


def test_two_sketches_make_one() -> None:
    """As if all durations had gone to one; neither is changed by it."""
    left, right = of(10.0, 10.0), of(500.0, 10.0)

    both = left.merged(right)

    assert both.samples == 4
    assert both.quantile_ms(0.5) == pytest.approx(10.0, rel=ALPHA)
    assert both.quantile_ms(1.0) == pytest.approx(500.0, rel=ALPHA)
    assert left.quantile_ms(1.0) == pytest.approx(10.0, rel=ALPHA)
    assert right.samples == 2
