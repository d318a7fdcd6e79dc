"""CPU time, memory and cores of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.measuring.processes import (
    Time,
    busiest,
    cpu_ms,
    cpu_ns,
    descendants,
    family,
    memory_kb,
    parse_rollup,
    parse_schedstat,
    pin,
    thread_times,
)

ROLLUP = """55d4c3a00000-7ffd1b5fe000 ---p 00000000 00:00 0                          [rollup]
Rss:               52108 kB
Pss:               43210 kB
Pss_Dirty:         30000 kB
Private_Clean:      1000 kB
Private_Dirty:     30000 kB
Swap:                  0 kB
"""
BURN_S = 0.005


@pytest.fixture
def child() -> Iterator[int]:
    """A process that waits for its stdin to close."""
    command = [sys.executable, "-I", "-S", "-c", "print(1, flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def burn() -> None:
    """Use some CPU time in this thread."""
    while time.thread_time() < BURN_S:
        pass


def test_the_clock_of_a_process_is_its_processor_time() -> None:
    """The CPU time is exact to the nanosecond: the process's own CPU clock."""
    before = time.process_time_ns()
    seen = cpu_ns(os.getpid())

    assert before <= seen <= time.process_time_ns()


def test_threads_that_ended_count() -> None:
    """CPU time of ended threads still counts."""
    before = cpu_ms([os.getpid()])
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()

    assert cpu_ms([os.getpid()]) - before >= BURN_S * 1e3


def test_the_clock_of_another_process_is_read(child: int) -> None:
    """A child process has used CPU time."""
    assert cpu_ns(child) > 0
    assert cpu_ms([child, os.getpid()]) > cpu_ns(child) / 1e6


def test_a_process_that_is_not_there_has_no_clock() -> None:
    """A missing process is an error that names it, not an idle process."""
    with pytest.raises(ProcessLookupError, match="expected a living process, got 99999999"):
        cpu_ns(99_999_999)


def test_each_thread_has_its_own_times() -> None:
    """The per-thread figures include the calling thread."""
    assert thread_times(os.getpid())[threading.get_native_id()].on_ns > 0


def test_a_schedstat_begins_with_the_time_on_a_processor() -> None:
    """The first field is the time on a CPU; wait time and number of time slices follow."""
    time = parse_schedstat("202565774 38615830 899\n")

    assert time == Time(on_ns=202_565_774, waiting_ns=38_615_830)
    assert time.wanted_ns == 241_181_604


def test_the_busiest_thread_is_the_one_that_worked_most_in_between() -> None:
    """CPU time within the interval counts, not the total so far; a new thread starts at zero."""
    before = {1: Time(900, 0), 2: Time(10, 5)}

    assert busiest(before, {1: Time(910, 50), 2: Time(60, 25)}) == Time(50, 20)
    assert busiest(before, {1: Time(910, 0), 3: Time(20, 1)}) == Time(20, 1)
    with pytest.raises(ValueError, match="expected at least one"):
        busiest(before, {})


@pytest.mark.parametrize("text", ["", "1 2", "1 2 3 4", "a 2 3", "-1 2 3"])
def test_another_schedstat_is_refused(text: str) -> None:
    """A schedstat of another format is refused."""
    with pytest.raises(ValueError, match="expected three whole numbers"):
        parse_schedstat(text)


def test_memory_is_shared_fairly_or_private() -> None:
    """PSS is the kernel's figure, USS the sum of the private parts."""
    assert parse_rollup(ROLLUP) == {"pss": 43210, "uss": 31000}
    with pytest.raises(ValueError, match="expected a line"):
        parse_rollup("Rss: 1 kB\n")


def test_the_memory_of_a_process_is_read(child: int) -> None:
    """A process's private memory is at most its proportional share."""
    memory = memory_kb(child)

    assert 0 < memory["uss"] <= memory["pss"]


def test_descendants_are_found_by_their_parents() -> None:
    """Descendants of all generations are found, and no other process."""
    assert descendants(1, {2: 1, 3: 2, 4: 3, 5: 9, 9: 8}) == [1, 2, 3, 4]


def test_a_family_has_the_children_that_run(child: int) -> None:
    """A family is this process and its running children."""
    assert family(os.getpid())[0] == os.getpid()
    assert child in family(os.getpid())


def test_processes_are_pinned(child: int) -> None:
    """A process is pinned to one of the available cores."""
    core = min(os.sched_getaffinity(0))
    pin([child], {core})

    assert os.sched_getaffinity(child) == {core}
