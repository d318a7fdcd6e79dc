"""How much memory may still be taken."""

from __future__ import annotations

import resource

import pytest

from runtime_image.engines import upgrade
from runtime_image.engines.upgrade import free_mib, room_mib

STATUS = "Name:\treplica\nVmRSS:\t  102400 kB\nVmData:\t  307200 kB\nThreads:\t3\n"
HOST = "MemTotal:  4096000 kB\nMemAvailable:  1024000 kB\nHugePages_Total: 0\n"


@pytest.mark.parametrize(
    ("cap_mib", "data_mib", "room"),
    [
        (0, None, 1000),  # only the host bounds it
        (400, None, 300),  # of the cap all that is resident is gone
        (0, 500, 200),  # of the limit all that is private and writable
        (400, 350, 50),  # the least of them counts
        (50, None, 0),  # over it already
    ],
)
def test_the_narrowest_bound_counts(cap_mib: int, data_mib: float | None, room: float) -> None:
    """Room is what is left under the cap, under the limit and on the host."""
    assert room_mib(STATUS, HOST, cap_mib, data_mib) == room


def test_what_cannot_be_read_leaves_no_room() -> None:
    """Without the process's sizes a bound on them is taken for reached, and so is the host's."""
    assert room_mib("", HOST, 400, None) == 0
    assert room_mib("", HOST, 0, 400) == 0
    assert room_mib(STATUS, "", 0, None) == 0


def test_this_process_has_room() -> None:
    """The kernel's own words are understood, and a cap makes it less."""
    assert free_mib(0) > 0
    assert free_mib(1) == 0


def test_the_kernels_limit_is_asked() -> None:
    """A limit on private memory bounds it also where the record names no cap."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    private_mib = private()

    resource.setrlimit(resource.RLIMIT_DATA, (int(private_mib + 64) * upgrade.MIB, hard))
    try:
        bounded = free_mib(0)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    assert 0 <= bounded <= 64


def private() -> float:
    """MiB of writable private mappings of this process."""
    [line] = [line for line in upgrade.STATUS.read_text().splitlines() if "VmData" in line]
    return int(line.split()[1]) / 1024
