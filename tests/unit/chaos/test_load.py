"""Who is called when, and who leaves."""

from __future__ import annotations

import random
from collections import Counter

from tests.chaos.load import bursts, schedule
from tests.chaos.subjects import SUBJECTS


def test_every_function_has_its_turns() -> None:
    """All take part equally often, in phases of one or two."""
    phases = bursts(random.Random(1), SUBJECTS, 40)
    turns = Counter(subject.name for phase in phases for subject in phase)

    assert {len(phase) for phase in phases} == {1, 2}
    assert set(turns.values()) == {10}


def test_all_requests_are_unique_and_in_their_phase() -> None:
    """Numbers go on from the first; each request is of a function of its phase."""
    phases = bursts(random.Random(1), SUBJECTS, 4)
    requests = list(schedule(random.Random(1), phases, 1000, 500, leavers=0.1))

    assert [request.number for request in requests] == list(range(500, 1500))
    for index, request in enumerate(requests):
        assert request.subject in phases[index // 250]


def test_some_leave_early() -> None:
    """About so many as asked for, within 0.3 s; a seed gives the same again."""
    one, other = (
        [r.leaves_s for r in schedule(random.Random(1), [SUBJECTS], 1000, 0, leavers=0.1)]
        for _ in range(2)
    )
    leavers = [seconds for seconds in one if seconds is not None]

    assert 50 < len(leavers) < 150
    assert 0 <= min(leavers) <= max(leavers) <= 0.3
    assert one == other
