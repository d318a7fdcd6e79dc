"""What /proc says of processes and of memory."""

from __future__ import annotations

import os

import pytest

from runtime_image.proc import parse_sizes, parse_stat, read_stat, read_text

STAT = b"7 (a) b (c) S 1 2 3 0 -1 4194304 9 9 0 0 %d %d 5 5 20 0 1 0 1234 0"


def test_a_name_may_have_spaces_and_parentheses() -> None:
    """The fields begin behind its last parenthesis."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = parse_stat(STAT % (ticks, 2 * ticks))

    assert found == (b"S", 1, 2, 3, 3.0, 1234)
    assert found is not None
    assert not found.is_zombie


@pytest.mark.parametrize("data", [b"", b"7 (a) S 1", STAT.replace(b"1234", b"x") % (1, 1)])
def test_other_texts_are_no_process(data: bytes) -> None:
    """As that of one which ended while it was read."""
    assert parse_stat(data) is None


def test_this_process_is_read() -> None:
    """The fields are those of a real /proc."""
    found = read_stat("/proc/self")

    assert found is not None
    assert (found.state, found.parent) == (b"R", os.getppid())
    assert (found.group, found.session) == (os.getpgid(0), os.getsid(0))
    assert found.cpu_s > 0
    assert read_stat("/proc/0") is None


def test_sizes_are_those_with_a_unit() -> None:
    """Other lines have other meanings."""
    assert parse_sizes("Name:\ta\nVmRSS:\t   12 kB\nThreads:\t1\nHugePages: 3\n") == {"VmRSS": 12}
    assert parse_sizes(read_text("/proc/self/status"))["VmRSS"] > 0
    assert read_text("/proc/0/status") == ""
