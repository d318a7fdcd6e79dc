"""Batches hold every request once, keep to their rows and never mix shapes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime_image.replica.batching import Candidate, group, row_ranges

candidates = st.lists(st.builds(Candidate, st.integers(1, 12), st.sampled_from("abc")), max_size=30)


@given(candidates, st.integers(1, 10))
def test_every_request_is_in_exactly_one_batch(items: list[Candidate], rows_max: int) -> None:
    """None is lost or doubled, and those of one shape keep their order."""
    groups = group(list(enumerate(items)), rows_max)
    places = [place for members in groups for place in members]

    assert sorted(places) == list(range(len(items)))
    for shape in "abc":
        mine = [place for place in places if items[place].shape == shape]
        assert mine == sorted(mine)


@given(candidates, st.integers(1, 10))
def test_batches_are_bounded_and_uniform(items: list[Candidate], rows_max: int) -> None:
    """A batch has one shape and at most the rows allowed, unless it is one request alone."""
    for members in group(list(enumerate(items)), rows_max):
        rows = sum(items[place].rows for place in members)

        assert members
        assert rows <= rows_max or len(members) == 1
        assert len({items[place].shape for place in members}) == 1


@given(st.lists(st.integers(0, 20), max_size=20))
def test_ranges_cover_the_batch(rows: list[int]) -> None:
    """Ranges lie end to end, each as long as its request."""
    ranges = row_ranges(rows)

    assert [stop - start for start, stop in ranges] == rows
    assert [start for start, _ in ranges] == [sum(rows[:place]) for place in range(len(rows))]
