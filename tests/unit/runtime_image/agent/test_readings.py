"""Readings of a host: GPUs by a driver that fails, memory, disk."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime_image.agent.readings import (
    READINGS_PER_RENEWAL,
    GpuReader,
    GpuReading,
    core_count,
    read_disk,
    read_memory,
)
from runtime_image.contract.agent import PROCESSES_MAX, TEXT_MAX, XIDS_MAX
from runtime_image.contract.gpus import GpuProcess, NoDriver, Reading, Snapshot, XidEvent

WAIT_S = 10.0


def gpu(uuid: str, processes: int = 0) -> Reading:
    """Return the state of a GPU with as many processes."""
    found = tuple(GpuProcess(pid, 1.0) for pid in range(processes))
    return Reading(uuid, uuid[-1], "A", 24_000.0, 400.0, 0.0, (9, 0), found)


class Session:
    """A driver's session that returns, or raises, what the test puts into `results`."""

    def __init__(self) -> None:
        self.results: list[Snapshot | Exception] = []
        self.errors: list[XidEvent] = []
        self.renewals = 0

    def renew(self) -> None:
        """GpuSession: count."""
        self.renewals += 1

    def read(self) -> Snapshot:
        """GpuSession: the next result."""
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def xids(self) -> list[XidEvent]:
        """GpuSession: the errors since the last call."""
        found, self.errors = self.errors, []
        return found


class Rig:
    """A reader whose loop is the test."""

    def __init__(self) -> None:
        self.session = Session()
        self._posted: queue.Queue[Callable[[], None]] = queue.Queue()
        self.reader = GpuReader(self.session, lambda: 7.0, self._posted.put, lambda: None)

    def read(self, result: Snapshot | Exception) -> GpuReading:
        """Return the reading of a result."""
        self.session.results.append(result)
        self.reader.ask()
        assert self.reader.began_s == 7.0
        self.reader.ask()  # no effect while a reading is under way
        self._posted.get(timeout=WAIT_S)()
        assert self.reader.began_s is None
        return self.reader.latest


def test_a_session_is_renewed_until_all_gpus_are_there() -> None:
    """The first one, and then every few readings while the driver fails or a known GPU is
    missing."""
    rig, both, one = Rig(), Snapshot("580", (gpu("A"), gpu("B"))), Snapshot("580", (gpu("A"),))
    assert rig.read(both).gpus == both
    for _ in range(READINGS_PER_RENEWAL):
        rig.read(both)
    assert rig.session.renewals == 1
    for _ in range(2 * READINGS_PER_RENEWAL):
        rig.read(one)

    assert rig.session.renewals == 3


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NoDriver("no driver", is_absent=True), GpuReading(None, "no driver", is_absent=True)),
        (NoDriver("x" * 9_999, is_absent=False), GpuReading(None, "x" * TEXT_MAX)),
        (ValueError("odd"), GpuReading(None, "ValueError('odd')")),
    ],
)
def test_a_failed_reading_has_a_reason(error: Exception, expected: GpuReading) -> None:
    """In a bounded text; the thread goes on."""
    rig = Rig()

    assert rig.read(error) == expected
    assert rig.read(Snapshot("580", ())).gpus == Snapshot("580", ())


def test_the_last_errors_of_gpus_are_kept() -> None:
    """Numbered from the agent's start, also while the driver fails."""
    rig = Rig()
    rig.session.errors = [XidEvent("A", number) for number in range(XIDS_MAX + 3)]
    rig.read(Snapshot("580", (gpu("A"),)))
    numbers = [number for number, _ in rig.read(NoDriver("lost", is_absent=False)).xids]

    assert numbers == list(range(4, XIDS_MAX + 4))


def test_processes_are_limited_over_all_gpus() -> None:
    """A host with more processes is still reported."""
    reading = Rig().read(Snapshot("580", (gpu("A", PROCESSES_MAX - 1), gpu("B", 9))))

    assert reading.gpus is not None
    counts = [len(one.processes or ()) for one in reading.gpus.gpus]
    assert counts == [PROCESSES_MAX - 1, 1]


def test_memory_is_read_in_mib() -> None:
    """Of the host, from the kernel's table; fields that are missing are 0."""
    assert read_memory("MemTotal: 2048 kB\nMemAvailable: 1024 kB\nHugePages:\n") == (2.0, 1.0)
    assert read_memory("") == (0.0, 0.0)
    assert read_memory().total_mib > read_memory().free_mib > 0


def test_disk_and_cores_are_read(tmp_path: Path) -> None:
    """The file system of a folder, and the cores of this process."""
    disk = read_disk(tmp_path)

    assert disk.total_mib > disk.free_mib > 0
    assert core_count() >= 1
