from __future__ import annotations

import pytest

from admin.cli.top.lines import apart, cut, faded, fit, meter, shown, spark, text


def test_a_text_takes_exactly_its_columns() -> None:
    """A text is padded or cut to its columns; a cut is marked."""
    found = [fit("abc", 5), fit("abc", 5, right=True), fit("abc", 2), fit("abc", 0)]

    assert found == ["abc  ", "  abc", "a…", ""]


def test_a_line_is_cut_where_the_screen_ends() -> None:
    """A line is cut at the screen's edge, and the remaining text keeps its styles."""
    line = (("abc", "red"), ("def", ""))

    assert cut(line, 10) == line
    assert cut(line, 4) == (("abc", "red"), ("…", ""))
    assert faded(line) == (("abc", "dim"), ("def", "dim"))


@pytest.mark.parametrize("width", [1, 5, 9, 20])
def test_two_texts_share_a_line(width: int) -> None:
    """Of two texts in a line, the right one is cut only if it alone is too long."""
    found = text(apart((("on the left", ""),), (("right", ""),), width))

    assert len(found) == width
    assert found.endswith("right"[:width] if width >= 5 else "…")


def test_a_stranger_cannot_break_a_line() -> None:
    """Control characters and line breaks are removed."""
    assert shown("a\x1b[2J\nb") == "a�[2J b"


def test_bars_keep_their_width() -> None:
    """A bar has its width whatever the share."""
    assert [len(meter(share, 8)) for share in (-1.0, 0.0, 0.3, 2.0)] == [8] * 4


def test_a_trend_shows_the_newest_on_the_right() -> None:
    """A trend ends with the newest value on the right, is scaled to its maximum, and shows every
    value above 0."""
    assert spark([9.0, 0.0, 1.0, 8.0, 0.001], 4) == " ▁█▁"
    assert spark([8.0], 3) == "  █"
    assert spark([0.0], 3) == "   "
    assert spark([1.0], 0) == ""
