from __future__ import annotations

from admin.cli.errors import failures


def test_the_newest_are_shown_oldest_first() -> None:
    """One line each, with how often it happened."""
    items = [
        {"at_s": 100.0, "code": "poison", "detail": "two\nlines", "count": 3},
        {"at_s": 50.0, "code": "queue_full", "detail": "full"},
        {"at_s": 1.0, "code": "old", "detail": "left out"},
    ]

    assert failures(items, 110.0, 2).split("\n") == [
        "errors",
        "  1 min ago     queue_full: full",
        "  10 s ago      poison (3 times): two lines",
    ]


def test_no_errors_are_no_section() -> None:
    """Nothing is said of what did not happen."""
    assert failures([], 1.0, 5) == ""
