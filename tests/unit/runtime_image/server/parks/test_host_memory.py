"""The host memory that a server takes in a park."""

from __future__ import annotations

import itertools
import threading

import pytest

from runtime_image.server.parks.host_memory import HostMemoryPeak, shortage


@pytest.mark.parametrize(
    ("available", "said"),
    [
        ("MemAvailable:   52429 kB", ""),
        ("", ""),
        (
            "MemAvailable:   51200 kB",
            "its host has 50 MiB of memory left, expected at least 51 beside a sleeping engine",
        ),
    ],
)
def test_a_host_keeps_a_part_of_its_memory(available: str, said: str) -> None:
    """What a kernel does not tell ends nothing."""
    assert shortage(f"MemTotal:     1048576 kB\n{available}\nHugePages_Total:  0\n") == said


def test_the_most_beyond_what_was_held_before_counts() -> None:
    """Also if it was held for a moment only, and if less is held in the end."""
    values = iter((1000.0, 3000.0, 9000.0))
    is_read = threading.Event()

    def read() -> float:
        found = next(values, 500.0)
        if found == 500.0:
            is_read.set()
        return found

    peak = HostMemoryPeak(read)
    peak.begin()
    assert is_read.wait(60)

    assert peak.end() == 8000.0


def test_nothing_is_read_after_the_end() -> None:
    """The last reading counts, and the thread ends."""
    values = itertools.count(10.0, 10.0)
    peak = HostMemoryPeak(lambda: next(values))
    peak.begin()
    (thread,) = (one for one in threading.enumerate() if one.name == "host memory")

    assert peak.end() >= 10.0
    thread.join(60)
    assert not thread.is_alive()
