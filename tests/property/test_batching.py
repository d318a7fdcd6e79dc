"""Property tests of batches: each request is in one batch, rows are bounded, shapes never mix."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime_image.replica.stages import Candidate, group, row_ranges, violates

candidates = st.lists(st.builds(Candidate, st.integers(1, 12), st.sampled_from("abc")), max_size=30)


@given(candidates, st.integers(1, 10))
def test_every_request_is_in_exactly_one_batch(items: list[Candidate], rows_max: int) -> None:
    """No request is lost or duplicated, and requests of one shape keep their order."""
    groups = group(list(enumerate(items)), rows_max)
    places = [place for members in groups for place in members]

    assert sorted(places) == list(range(len(items)))
    for shape in "abc":
        mine = [place for place in places if items[place].shape == shape]
        assert mine == sorted(mine)


@given(candidates, st.integers(1, 10))
def test_batches_are_bounded_and_uniform(items: list[Candidate], rows_max: int) -> None:
    """A batch has one shape and at most the allowed rows, unless it is a single request."""
    for members in group(list(enumerate(items)), rows_max):
        rows = sum(items[place].rows for place in members)

        assert members
        assert rows <= rows_max or len(members) == 1
        assert len({items[place].shape for place in members}) == 1


sizes = st.integers(1, 3)
requests = st.lists(
    st.fixed_dictionaries({"a": st.tuples(sizes, sizes), "b": st.tuples(sizes, sizes, sizes)}),
    max_size=20,
)
conditions = st.lists(
    st.lists(st.sampled_from([("a", 1), ("b", 1), ("b", 2)]), min_size=2, max_size=3).map(tuple),
    max_size=2,
).map(tuple)


@given(requests, conditions)
def test_no_batch_violates_the_proof(
    shapes: list[dict[str, tuple[int, ...]]], equal_axes: tuple[tuple[tuple[str, int], ...], ...]
) -> None:
    """In a batch of several requests all axes that the proof assumes equal are equal, and all
    shapes match."""
    items = []
    for place, one in enumerate(shapes):
        shape = tuple((name, size[1:]) for name, size in one.items())
        mine = object() if violates(one, equal_axes) else shape
        items.append((place, Candidate(one["a"][0], mine)))

    for members in group(items, 8):
        if len(members) == 1:
            continue
        joined = [shapes[place] for place in members]
        assert len({(one["a"][1:], one["b"][1:]) for one in joined}) == 1
        for one in joined:
            assert all(len({one[name][axis] for name, axis in same}) == 1 for same in equal_axes)


@given(st.lists(st.integers(0, 20), max_size=20))
def test_ranges_cover_the_batch(rows: list[int]) -> None:
    """Ranges are contiguous, each as long as its request."""
    ranges = row_ranges(rows)

    assert [stop - start for start, stop in ranges] == rows
    assert [start for start, _ in ranges] == [sum(rows[:place]) for place in range(len(rows))]
