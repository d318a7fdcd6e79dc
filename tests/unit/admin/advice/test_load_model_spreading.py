"""Counts per minute as single arrivals."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.advice.load_model import spread

FROM_S = 600.0


def test_the_same_minutes_are_the_same_arrivals() -> None:
    """Also where the look back begins later; another minute is another draw."""
    first = list(spread([(600, 3), (660, 3)], FROM_S, 15))
    second = list(spread([(660, 3)], 660.0, 15))

    assert first == list(spread([(600, 3), (660, 3)], FROM_S, 15))
    moved = [one.when_s - 60.0 for one in first[3:]]
    assert moved == pytest.approx([one.when_s for one in second])
    assert [one.when_s for one in first[:3]] != [one.when_s for one in second]


@given(st.lists(st.integers(0, 10_000), max_size=10), st.integers(1, 50))
def test_nobody_is_lost_and_nobody_comes_too_late(counts: list[int], most: int) -> None:
    """Each minute has its count, within itself, in order; of a minute with too many at most `most`
    are played, none further from the next than two parts."""
    minutes = [(600 + 60 * n, count) for n, count in enumerate(counts)]

    arrivals = list(spread(minutes, FROM_S, most))

    times = [one.when_s for one in arrivals]
    assert times == sorted(times)
    for n, count in enumerate(counts):
        mine = [one for one in arrivals if 60 * n <= one.when_s < 60 * (n + 1)]
        assert sum(one.weight for one in mine) == count
        assert len(mine) == min(count, most)
        if count > most:
            gaps = [later.when_s - one.when_s for one, later in pairwise(mine)]
            assert max(gaps, default=0.0) <= 2 * 60.0 / most
