"""Tests of the timeline: use, arrivals and states of a span of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.model.devices import Use
from registry.model.history import Arrivals, ColdStart, StateInterval
from registry.settings import StoreSettings
from registry.store.database import Database
from registry.store.history import Event, History
from registry.store.timeline import NONE, BucketUse, Seconds, Span, Timeline, total

NOW_S = 1_800_000_030.0
MINUTE = 1_800_000_000


@pytest.fixture
async def history(database: Database, tmp_path: Path) -> History:
    return History(database, StoreSettings(tmp_path), lambda: NOW_S)


async def record(history: History, *events: Event) -> None:
    for event in events:
        history.record(event)
    await history.flush()


def use(name: str, minute_s: int, busy_s: float, device: str = "cuda:0", number: int = 1) -> Use:
    return Use("default", name, number, device, minute_s, 1.0, 2.0, busy_s)


def interval(state: str, from_s: float, to_s: float) -> StateInterval:
    return StateInterval("default", "digits", 1, state, "why", from_s, to_s)


@pytest.mark.parametrize(
    ("hours", "bucket_s", "count"), [(1, 60, 60), (2, 600, 12), (24, 600, 144), (168, 3600, 168)]
)
def test_a_longer_span_has_longer_buckets(hours: int, bucket_s: int, count: int) -> None:
    """A span consists of whole buckets; the last one contains the present."""
    span = Span.of_hours(hours, NOW_S)

    assert (span.bucket_s, span.to_s) == (bucket_s, NOW_S)
    assert span.from_s % bucket_s == 0
    assert span.from_s + (count - 1) * bucket_s <= NOW_S < span.from_s + count * bucket_s


async def test_a_function_in_its_buckets(database: Database, history: History) -> None:
    """Seconds per device over all revisions, requests and cold starts are those of the function and
    the span."""
    timeline, span = Timeline(database), Span.of_hours(1, NOW_S)
    cold = [
        ColdStart("default", "digits", 1, "r1", "cpu", at_s, 10.0, {})
        for at_s in (NOW_S - 4000, NOW_S - 90, NOW_S)
    ]
    await record(
        history,
        use("digits", MINUTE, 3.0),
        use("digits", MINUTE, 4.0, number=2),
        use("digits", MINUTE, 5.0, "cuda:1"),
        use("digits", MINUTE - 7200, 6.0),
        use("other", MINUTE, 7.0),
        *(Arrivals("default", "digits", MINUTE - ago_s, 2) for ago_s in (0, 60, 7200)),
        *cold,
    )

    assert await timeline.use("digits", span) == [
        BucketUse(MINUTE, "cuda:0", Seconds(2.0, 4.0, 7.0)),
        BucketUse(MINUTE, "cuda:1", Seconds(1.0, 2.0, 5.0)),
    ]
    assert await timeline.arrivals("digits", span) == [(MINUTE - 60, 2), (MINUTE, 2)]
    assert await timeline.arrivals("digits", Span.of_hours(24, NOW_S)) == [
        (MINUTE - 7200, 2),
        (MINUTE // 600 * 600 - 600, 2),
        (MINUTE, 2),
    ]
    assert await timeline.cold_starts("digits", span) == 2
    assert await timeline.use("nothing", span) == []


async def test_states_that_reach_into_the_span(database: Database, history: History) -> None:
    """States are listed oldest first, including one that began before the span."""
    timeline, span = Timeline(database), Span.of_hours(1, NOW_S)
    intervals = [
        interval("cold", NOW_S - 9000, NOW_S - 8000),
        interval("warm", NOW_S - 8000, NOW_S - 3000),
        interval("cold", NOW_S - 3000, NOW_S - 10),
    ]
    await record(history, *intervals)

    assert await timeline.states("digits", span) == intervals[1:]


async def test_all_functions_and_devices(database: Database, history: History) -> None:
    """Functions are sorted by seconds; the seconds of standbys count for the device and for no
    function."""
    timeline, span = Timeline(database), Span.of_hours(1, NOW_S)
    await record(
        history,
        use("less", MINUTE, 1.0),
        use("most", MINUTE, 9.0, "cuda:1"),
        use("most", MINUTE - 60, 9.0, "cuda:1"),
        Use("", "", 0, "cuda:0", MINUTE, 0.0, 20.0, 0.0),
        Arrivals("default", "most", MINUTE, 5),
        Arrivals("default", "none", MINUTE, 5),
    )

    assert await timeline.functions(span) == [
        ("most", Seconds(2.0, 4.0, 18.0), 5),
        ("less", Seconds(1.0, 2.0, 1.0), 0),
    ]
    assert await timeline.devices(span) == [
        BucketUse(MINUTE - 60, "cuda:1", Seconds(1.0, 2.0, 9.0)),
        BucketUse(MINUTE, "cuda:0", Seconds(1.0, 22.0, 1.0)),
        BucketUse(MINUTE, "cuda:1", Seconds(1.0, 2.0, 9.0)),
    ]


def test_seconds_are_added_up() -> None:
    """Seconds are added per kind; the total of an empty list is zero."""
    both = total([Seconds(1.0, 2.0, 3.0), Seconds(10.0, 20.0, 30.0)])

    assert (both, total([])) == (Seconds(11.0, 22.0, 33.0), NONE)


async def test_future_records_are_left_out(database: Database, history: History) -> None:
    """Records from a time when the clock was wrong are ignored; the last bucket contains the
    present."""
    timeline, span = Timeline(database), Span.of_hours(1, NOW_S)
    later = MINUTE + 60
    await record(
        history,
        use("digits", MINUTE, 3.0),
        use("digits", later, 4.0),
        Arrivals("default", "digits", MINUTE, 2),
        Arrivals("default", "digits", later, 5),
        ColdStart("default", "digits", 1, "r1", "cpu", NOW_S + 60, 10.0, {}),
        interval("warm", NOW_S - 10, NOW_S),
        interval("cold", NOW_S + 60, NOW_S + 90),
    )
    seconds = Seconds(1.0, 2.0, 3.0)

    assert await timeline.use("digits", span) == [BucketUse(MINUTE, "cuda:0", seconds)]
    assert await timeline.devices(span) == [BucketUse(MINUTE, "cuda:0", seconds)]
    assert await timeline.arrivals("digits", span) == [(MINUTE, 2)]
    assert await timeline.functions(span) == [("digits", seconds, 2)]
    assert await timeline.cold_starts("digits", span) == 0
    assert [one.state for one in await timeline.states("digits", span)] == ["warm"]
