"""Tests of what a client may ask of the waiting."""

from __future__ import annotations

import pytest

from gateway.dispatch.call import Priority
from gateway.http.admission import requested_priority, requested_wait_s


@pytest.mark.parametrize(
    ("header", "seconds", "applied"),
    [
        (None, 55.0, ""),
        ("", 55.0, ""),
        ("respond-async", 55.0, ""),
        ("wait=0", 0.0, "wait=0"),
        ("wait=10", 10.0, "wait=10"),
        ("WAIT = 10", 10.0, "wait=10"),
        ('wait="10"', 10.0, "wait=10"),
        ("respond-async, wait=10", 10.0, "wait=10"),
        ("handling=lenient; wait=9", 9.0, "wait=9"),
        ("wait=5000", 600.0, "wait=600"),
        ("await=10", 55.0, ""),
    ],
)
def test_a_wait_is_read_where_there_is_one(
    header: str | None, seconds: float, applied: str
) -> None:
    """Prefer: wait counts up to the server's limit; what was applied is what is waited."""
    assert requested_wait_s(header, 55.0, 600.0) == (seconds, applied)


@pytest.mark.parametrize("value", ["", "soon", "-1", "1.5", "9999999999", "0x10", "\u0663"])
def test_a_malformed_wait_is_ignored(value: str) -> None:
    """Only whole seconds are a wait (RFC 7240, 4.3); all else is as no header (RFC 7240, 2)."""
    assert requested_wait_s(f"wait={value}", 55.0, 600.0) == (55.0, "")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, Priority.NORMAL),
        ("", Priority.NORMAL),
        ("u=0", Priority.HIGH),
        ("u=2", Priority.HIGH),
        ("u=3", Priority.NORMAL),
        ("u=4", Priority.LOW),
        ("u=7, i", Priority.LOW),
        ("i, u = 1", Priority.HIGH),
        ("u=8", Priority.NORMAL),
        ("u=", Priority.NORMAL),
        ("u=high", Priority.NORMAL),
    ],
)
def test_urgency_is_one_of_three_priorities(header: str | None, expected: Priority) -> None:
    """Urgency 3 is the default, and nonsense counts as no header (RFC 9218, 4)."""
    assert requested_priority(header) is expected
