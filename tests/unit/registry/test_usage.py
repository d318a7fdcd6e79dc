"""Tests of usage rows that add up in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from registry.usage import NUMBER_MAX, OTHERS, UsageCounts, UsageRow, bucket_of

rows = st.builds(
    UsageRow,
    st.sampled_from(["", "a", "b", "c"]),
    st.sampled_from(["default", "other"]),
    st.sampled_from(["chat", "embed", "rerank"]),
    st.sampled_from([0, 3600, 7200]),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 10_000),
)


@given(st.lists(rows), st.integers(1, 8))
def test_nothing_is_lost_within_the_limit_of_rows(added: list[UsageRow], most: int) -> None:
    """However few rows fit, their sums are those of all calls, by namespace too."""
    counts = UsageCounts(most)
    for row in added:
        counts.add(row)

    assert len(counts) <= most + 2
    taken = counts.take()
    for namespace in ("default", "other"):
        had = [row[4:] for row in added if row.namespace == namespace]
        got = [row[4:] for row in taken if row.namespace == namespace]
        assert [sum(one) for one in zip(*got, strict=True)] == [
            sum(one) for one in zip(*had, strict=True)
        ]
    assert counts.take() == []


def test_one_row_has_what_finds_no_row() -> None:
    """Calls of further keys go to one row that names none; known keys keep theirs."""
    counts = UsageCounts(1)
    for key in ("a", "b", "c", "a"):
        counts.add(UsageRow(key, "default", "chat", 3600, calls=1))

    assert counts.take() == [
        UsageRow("a", "default", "chat", 3600, calls=2),
        UsageRow(OTHERS, "default", OTHERS, 3600, calls=2),
    ]


def test_a_number_has_a_limit() -> None:
    """A server that says absurd numbers for ever cannot make one that the store refuses."""
    counts = UsageCounts()
    for _ in range(3):
        counts.add(UsageRow("", "default", "chat", 0, NUMBER_MAX, NUMBER_MAX))

    assert counts.take()[0].tokens_in == NUMBER_MAX


def test_hours_begin_at_whole_hours() -> None:
    """The last second of an hour belongs to it."""
    assert [bucket_of(at_s) for at_s in (0.0, 3599.9, 3600.0, 7199.0)] == [0, 0, 3600, 3600]
