"""Tests of the memory allocator's settings for large buffers."""

from __future__ import annotations

import subprocess
import sys

import pytest

PAGES = """
import resource, sys
from admin.buffers import keep_large_buffers

mib = b"x" * 2**20

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        [mib * 10 for _ in range(6)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

kept = sys.argv[1] == "kept" and keep_large_buffers()
faults()
print(kept, faults())
"""


@pytest.mark.slow
def test_buffers_of_large_bodies_stay_with_the_process() -> None:
    """Buffers of large bodies stay mapped, which cuts page faults at least tenfold."""
    faults = {}
    for how in ("kept", "given back"):
        command = [sys.executable, "-c", PAGES, how]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        was_kept, count = done.stdout.split()
        assert was_kept == str(how == "kept")
        faults[how] = int(count)

    assert faults["kept"] * 10 < faults["given back"]
