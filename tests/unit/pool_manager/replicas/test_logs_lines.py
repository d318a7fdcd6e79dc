from __future__ import annotations

import pytest

from pool_manager.replicas.logs import LINE_MAX, LineSplitter, left_out


def test_lines_are_whole() -> None:
    """A line is returned when it has ended, without a trailing carriage return."""
    lines = LineSplitter()

    assert lines.add(b"one\ntw") == ["one"]
    assert lines.pending == 2
    assert lines.add(b"o\r\n\nthree") == ["two", ""]
    assert lines.flush() == ["three"]
    assert lines.flush() == []


def test_characters_may_be_cut() -> None:
    """A character split into two pieces is joined; invalid UTF-8 is replaced."""
    lines = LineSplitter()

    assert lines.add("ä".encode()[:1]) == []
    assert lines.add("ä".encode()[1:] + b"\xff\n") == ["ä�"]


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_long_line_is_cut(pieces: int) -> None:
    """A long line is cut with the number of omitted bytes; the next line is whole."""
    lines = LineSplitter()
    long = b"x" * (LINE_MAX + 1000)
    step = -(-len(long) // pieces)

    found = [one for at in range(0, len(long), step) for one in lines.add(long[at : at + step])]
    found += lines.add(b"\nnext\n")

    assert found == ["x" * LINE_MAX + " ... 1000 bytes omitted", "next"]


def test_a_gap_is_told_once() -> None:
    """A partial line, dropped bytes and the rest of a line without a beginning count as one gap, in
    however many pieces the rest arrives."""
    lines = LineSplitter()
    lines.add(b"begun")

    lines.skip(100)
    assert lines.add(b"rest") == []
    lines.skip(10)

    assert lines.add(b"of it\nwhole\n") == [left_out(5 + 100 + 4 + 10 + 6), "whole"]


def test_a_gap_at_the_end_is_told() -> None:
    """A gap at the end of a log is reported."""
    lines = LineSplitter()
    lines.skip(7)

    assert lines.flush() == [left_out(7)]
