"""What is remembered of cold starts and arrivals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from admin.past import POOLS_MAX, SAMPLES, Past
from registry.model import Arrivals, ColdStart, StateInterval
from registry.settings import StoreSettings
from registry.store.database import Database
from registry.store.functions import Functions
from registry.store.history import History
from tests.support.nouns import bundle, function, revision

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


def cold_start(total_ms: float, outcome: str = "ready", number: int = 1) -> ColdStart:
    """A receipt of digits."""
    return ColdStart(
        "default", "digits", number, "r1", "cpu", NOW_S, total_ms, {"load": total_ms}, outcome
    )


async def test_the_estimate_is_the_median_of_successful_cold_starts(
    history: History, wall: Wall
) -> None:
    """One slow start moves the estimate little, and a failed one not at all."""
    past = Past(history, wall)
    assert past.cold_start_s(KEY) == 0.0

    for ms in (100, 300, 200):
        past.cold_start(cold_start(ms))
    past.cold_start(cold_start(90_000, "failed: no memory"))

    assert past.cold_start_s(KEY) == pytest.approx(0.2)
    await history.flush()
    assert len(await history.cold_starts("digits")) == 4


async def test_old_cold_starts_are_outweighed(history: History, wall: Wall) -> None:
    """Only the last ones count, so that a faster machine is believed."""
    past = Past(history, wall)

    for ms in [9_000] * SAMPLES + [100] * SAMPLES:
        past.cold_start(cold_start(ms))

    assert past.cold_start_s(KEY) == pytest.approx(0.1)


async def test_the_estimate_survives_a_restart(
    history: History, database: Database, wall: Wall
) -> None:
    """The next server begins with what this one has measured; pools without a past have none."""
    functions = Functions(database)
    for _ in range(2):
        await functions.deploy(function(revision=0), revision(number=0), bundle(), None)
    past = Past(history, wall)
    for ms in (100, 300, 200):
        past.cold_start(cold_start(ms))
    await history.flush()

    later = Past(history, wall)
    await later.load()

    assert later.cold_start_s(KEY) == pytest.approx(0.2)
    assert later.cold_start_s("default/digits@2") == 0.0


async def test_revisions_remembered_are_bounded(history: History, wall: Wall) -> None:
    """However many revisions there ever were, the oldest estimates make room."""
    past = Past(history, wall)

    for number in range(1, POOLS_MAX + 2):
        past.cold_start(cold_start(100, number=number))

    assert past.cold_start_s(KEY) == 0.0
    assert past.cold_start_s("default/digits@2") == pytest.approx(0.1)
    assert past.cold_start_s(f"default/digits@{POOLS_MAX + 1}") == pytest.approx(0.1)


async def test_arrivals_are_counted_by_the_minute(history: History, wall: Wall) -> None:
    """A minute's count is kept when the next minute begins, per function."""
    past = Past(history, wall)
    for name in ("digits", "digits", "faces"):
        past.arrived("default", name)
    wall.now_s += 60
    past.arrived("default", "digits")
    await history.flush()

    assert await history.arrivals("digits", 0) == [Arrivals("default", "digits", MINUTE_S, 2)]
    assert await history.arrivals("faces", 0) == [Arrivals("default", "faces", MINUTE_S, 1)]


async def test_a_shutdown_keeps_the_broken_minute(history: History, wall: Wall) -> None:
    """Requests of the last minute are not lost; a second flush adds nothing."""
    past = Past(history, wall)
    past.arrived("default", "digits")

    past.flush()
    past.flush()
    await history.flush()

    assert await history.arrivals("digits", 0) == [Arrivals("default", "digits", MINUTE_S, 1)]


async def test_state_intervals_are_kept(history: History, wall: Wall) -> None:
    """How long a pool was warm, and why, comes back from the store."""
    interval = StateInterval("default", "digits", 1, "warm", "idle", NOW_S - 5, NOW_S)

    Past(history, wall).state_interval(interval)
    await history.flush()

    assert await history.intervals("digits") == [interval]
