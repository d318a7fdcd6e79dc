"""Time of calls by key and function."""

from __future__ import annotations

import pytest

from gateway.metrics import key_times
from gateway.metrics.key_times import KeyTime, KeyTimes
from registry.usage import HOUR_S
from tests.support.peers import KnownPast

NOW_S = 5 * HOUR_S + 60.0


class Rig:
    """Times, and what they pass on."""

    def __init__(self) -> None:
        self.past = KnownPast()
        self.rows = self.past.usage
        self.times = KeyTimes(self.past, lambda: NOW_S)

    def taken(self) -> list[tuple[str, str, int]]:
        """Pass on what waits; return key, function and milliseconds of the rows."""
        self.times.flush()
        rows = self.rows[:]
        self.rows.clear()
        assert all((one.bucket_s, one.calls) == (5 * HOUR_S, 0) for one in rows)
        return [(one.key_id, one.name, one.busy_ms) for one in rows]


def test_times_add_up_until_a_flush() -> None:
    """A short call counts for a millisecond; without calls nothing is passed on."""
    rig = Rig()
    one, other = KeyTime("k1", "default", "a"), KeyTime("", "default", "b")
    for seconds in (0.25, 0.5):
        rig.times.add(one, seconds)
    rig.times.add(other, 0.0001)
    rig.times.add(other, 0.0)

    assert rig.taken() == [("k1", "a", 750), ("", "b", 1)]
    rig.times.add(one, 2.0)
    assert rig.taken() == [("k1", "a", 2000)]
    assert rig.taken() == []


def test_arrivals_are_counted_by_function() -> None:
    """A call counts as it arrives, and takes no time of its key until it has ended."""
    rig = Rig()
    one, other = KeyTime("k1", "default", "a"), KeyTime("", "default", "a")
    for _ in range(2):
        rig.times.arrived(one)
    rig.times.arrived(other)

    assert rig.taken() == []
    assert rig.past.arrivals == [("default", "a")] * 3
    rig.times.add(one, 0.5)
    rig.times.arrived(one)
    assert rig.taken() == [("k1", "a", 500)]
    assert rig.past.arrivals == [("default", "a")] * 4


def test_heads_of_one_key_are_one_row() -> None:
    """Many different heads do not make short calls longer."""
    rig = Rig()
    for _ in range(1000):
        rig.times.add(KeyTime("k1", "default", "a"), 0.0001)

    assert rig.taken() == [("k1", "a", 100)]


def test_times_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit they are passed on at once; nothing is lost."""
    monkeypatch.setattr(key_times, "WAITING_MAX", 3)
    rig = Rig()
    for number in range(5):
        rig.times.add(KeyTime(f"k{number}", "default", "a"), 1.0)

    assert [one.key_id for one in rig.rows] == ["k0", "k1", "k2"]
    assert [key for key, _, _ in rig.taken()] == ["k0", "k1", "k2", "k3", "k4"]
