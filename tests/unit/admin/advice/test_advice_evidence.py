"""From what was recorded to what can be played."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from admin.advice.advice import UNKNOWN_RUN_S, Evidence, RecordedSpan, weigh
from registry.catalog import Deployed
from registry.model import ColdStart, Limits, Profile, Scaling
from registry.store.timeline import BucketUse, Seconds, Span
from tests.support.nouns import function, revision

FROM = 1_800_000_000
SPAN = Span(FROM, FROM + 86_400.0 + 30.0, 600)
PROFILE = Profile("b", "onnx", "cpu", 100.0, 10.0, {1: 4.0, 8: 9.0}, True)
PAST = RecordedSpan([(FROM + 60 * n, 5) for n in range(10)], [], [], [], 1.5)


def deployed(profile: Profile | None = PROFILE, **changes: Any) -> Deployed:
    made = replace(function(), **changes)
    return Deployed(made, revision(), profile)


def cold_start(total_ms: float, number: int = 1, outcome: str = "ready") -> ColdStart:
    phases = {"load": total_ms - 20.0, "first_run": 20.0}
    return ColdStart("default", "digits", number, "r1", "cpu", FROM, total_ms, phases, outcome)


def weighed(past: RecordedSpan = PAST, **changes: Any) -> Evidence:
    return weigh(deployed(**changes), SPAN, past)


def test_a_case_has_the_functions_own_times_and_settings() -> None:
    """The median of this revision's cold starts up to the first run, and busy time per request
    since that is recorded."""
    past = replace(
        PAST,
        arrivals=[(FROM, 1000), (FROM + 600, 50), (FROM + 1200, 50)],
        use=[BucketUse(FROM + at_s, "cuda:0", Seconds(1.0, 2.0, 3.0)) for at_s in (600, 1200)],
        cold_starts=[
            cold_start(220.0),
            cold_start(320.0),
            cold_start(9000.0),
            cold_start(5.0, number=2),
            cold_start(5.0, outcome="failed"),
        ],
    )

    found = weighed(past, scaling=Scaling(1, 3, 60.0), limits=Limits(wait_s=7.0))

    assert (found.cold_s, found.cold_starts_seen, found.run_s) == (0.3, 3, 0.06)
    assert found.requests == 50
    assert found.case is not None
    assert (found.case.from_s, found.case.to_s) == (FROM, FROM + 86_400)
    assert (found.case.min, found.case.max, found.case.idle_s) == (1, 3, 60.0)
    assert found.case.wait_s == 7.0
    assert any("min is 1" in note for note in found.notes)
    assert any("other functions" in note for note in found.notes)


def test_without_a_history_of_its_own_the_trial_speaks() -> None:
    """The estimate and the profile's single run; without either a guess, and a note."""
    found, blind = weighed(), weighed(profile=None)

    assert (found.cold_s, found.cold_starts_seen, found.run_s) == (1.5, 0, 0.004)
    assert any("is an estimate" in note for note in found.notes)
    assert blind.run_s == UNKNOWN_RUN_S
    assert any("10 ms" in note for note in blind.notes)


def test_too_little_is_no_case() -> None:
    """A few requests say nothing about the next ones."""
    found = weighed(replace(PAST, minutes=[(FROM, 9)]))

    assert found.case is None
    assert found.notes == [
        "no advice: 9 requests were recorded in 24.0 h, at least 10 are needed; ask again later,"
        " or about more hours"
    ]


def test_nothing_is_said_of_the_time_before_it_was_deployed() -> None:
    """Else hours in which it could not be called would count as idle."""
    found = weighed(created_s=FROM + 90.0)

    assert (found.from_s, found.requests) == (FROM + 60, 45)
    assert any("first deployed 24.0 h ago" in note for note in found.notes)


@pytest.mark.parametrize(
    ("idle_s", "text"),
    [(300.0, "idle 0 s is left out"), (0.0, "its cold starts are too many")],
)
def test_busy_minutes_are_told_of(idle_s: float, text: str) -> None:
    """What cannot be told from counts per minute is said."""
    busy = replace(PAST, minutes=[(FROM, 100_000)])

    found = weighed(busy, scaling=Scaling(idle_s=idle_s))

    assert any(text in note for note in found.notes)
