"""What /proc says of processes and of memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime_image.proc import THREADS_MAX, activity, parse_sizes, parse_stat, read_stat, read_text

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


def process(folder: Path, states: str, tracer: int = 0) -> str:
    """Write what /proc has of a process with a thread in each of these states; one second of CPU
    time."""
    ticks = os.sysconf("SC_CLK_TCK")
    for number, state in enumerate(states):
        thread = folder / "task" / str(number)
        thread.mkdir(parents=True)
        text = STAT.replace(b" S ", b" %b " % state.encode()) % (0, 0)
        (thread / "stat").write_bytes(text)
    (folder / "stat").write_bytes(STAT % (ticks, 0))
    (folder / "status").write_text(f"Name:\ta\nTracerPid:\t{tracer}\n")
    return str(folder)


def test_what_processes_do_adds_up(tmp_path: Path) -> None:
    """One that is gone counts as nothing."""
    idle, busy = process(tmp_path / "1", "SS"), process(tmp_path / "2", "SD")
    traced = process(tmp_path / "3", "t", tracer=7)

    assert activity([idle, str(tmp_path / "4")]) == (1.0, False, False)
    assert activity([idle, busy, traced]) == (3.0, True, True)
    assert activity([busy, idle]) == (2.0, True, False)


def test_few_threads_are_looked_at(tmp_path: Path) -> None:
    """Over all processes; their CPU time counts all the same."""
    many = process(tmp_path / "1", "S" * THREADS_MAX)
    late = process(tmp_path / "2", "R")

    assert activity([many, late]) == (2.0, False, False)
    assert activity([late, many]) == (2.0, True, False)


def test_sizes_are_those_with_a_unit() -> None:
    """Other lines have other meanings."""
    assert parse_sizes("Name:\ta\nVmRSS:\t   12 kB\nThreads:\t1\nHugePages: 3\n") == {"VmRSS": 12}
    assert parse_sizes(read_text("/proc/self/status"))["VmRSS"] > 0
    assert read_text("/proc/0/status") == ""
