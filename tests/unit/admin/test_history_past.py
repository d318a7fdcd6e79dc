"""What is remembered of cold starts and arrivals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from admin.history import ALPHA, Prior, ServerHistory, prior_of
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
