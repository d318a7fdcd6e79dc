"""What an agent reads on its host: GPUs, memory, cores, disk."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from runtime_image.contract.agent import LINKS_MAX, PROCESSES_MAX, TEXT_MAX, XIDS_MAX
from runtime_image.contract.gpus import NoDriver, Snapshot, XidEvent
from runtime_image.proc import parse_sizes

MIB: Final = 2**20
READINGS_PER_RENEWAL: Final = 5
"""Readings between two new sessions while a GPU is missing: an old session does not see it come
back."""


class GpuSession(Protocol):
    """A session with the driver, as `runtime_image.gpus.nvml.Nvml`."""

    def renew(self) -> None:
        """Start a new session. Raises NoDriver."""

    def read(self) -> Snapshot:
        """Read all GPUs. Raises NoDriver."""

    def xids(self) -> list[XidEvent]:
        """Return the errors reported since the last call."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Result of one reading; fields as in `HostReport`."""

    gpus: Snapshot | None = None
    no_driver: str = "the NVIDIA driver has not been read yet"
    is_absent: bool = False
    xids: tuple[tuple[int, XidEvent], ...] = ()


class GpuReader:
    """Reads the GPUs in a thread of its own: a driver may block for ever, and the agent still
    answers."""

    def __init__(
        self,
        session: GpuSession,
        clock: Callable[[], float],
        post: Callable[[Callable[[], None]], None],
        done: Callable[[], None],
    ) -> None:
        """`done()` is called by way of `post` after each reading; `latest` then has its result."""
        self._session = session
        self._clock = clock
        self._post = post
        self._done = done
        self._wanted = threading.Event()
        self._xids: deque[tuple[int, XidEvent]] = deque(maxlen=XIDS_MAX)
        self._xid_count = 0
        self._known: set[str] = set()
        self._is_amiss = True
        self._readings = 0
        self.latest = GpuReading()
        self.began_s: float | None = None
        """When the reading began that is not over."""
        threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def ask(self) -> None:
        """Read the GPUs soon; no effect while a reading is under way."""
        if self.began_s is None:
            self.began_s = self._clock()
            self._wanted.set()

    def _run(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            reading = self._read()
            self._post(lambda reading=reading: self._on_read(reading))  # type: ignore[misc]

    def _on_read(self, reading: GpuReading) -> None:
        self.latest, self.began_s = reading, None
        self._done()

    def _read(self) -> GpuReading:
        try:
            if self._is_amiss and self._readings % READINGS_PER_RENEWAL == 0:
                self._session.renew()
            self._readings += 1
            snapshot = _limited(self._session.read())
            for event in self._session.xids():
                self._xid_count += 1
                self._xids.append((self._xid_count, event))
        except NoDriver as error:
            self._is_amiss = True
            return GpuReading(None, str(error)[:TEXT_MAX], error.is_absent, tuple(self._xids))
        except Exception as error:  # noqa: BLE001 - the thread must go on
            self._is_amiss = True
            return GpuReading(None, repr(error)[:TEXT_MAX], xids=tuple(self._xids))
        seen = {gpu.uuid for gpu in snapshot.gpus}
        self._known |= seen
        self._is_amiss = bool(snapshot.lost or snapshot.unreadable or self._known - seen)
        return GpuReading(snapshot, "", xids=tuple(self._xids))


def _limited(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with at most PROCESSES_MAX processes and LINKS_MAX connections."""
    room, gpus = PROCESSES_MAX, []
    for gpu in snapshot.gpus:
        processes = None if gpu.processes is None else gpu.processes[:room]
        room -= len(processes or ())
        gpus.append(replace(gpu, processes=processes))
    return replace(snapshot, gpus=tuple(gpus), links=snapshot.links[:LINKS_MAX])


class Memory(NamedTuple):
    """MiB of a host's memory."""

    total_mib: float
    free_mib: float


def read_memory(text: str | None = None) -> Memory:
    """Return the memory of this host, by the text of /proc/meminfo (proc_meminfo(5))."""
    if text is None:
        text = Path("/proc/meminfo").read_text()
    kib = parse_sizes(text)
    return Memory(kib.get("MemTotal", 0) / 1024, kib.get("MemAvailable", 0) / 1024)


def read_disk(folder: Path) -> Memory:
    """Return the space of a folder's file system, and what is left for users."""
    state = os.statvfs(folder)
    return Memory(state.f_blocks * state.f_frsize / MIB, state.f_bavail * state.f_frsize / MIB)


def core_count() -> int:
    """Return the number of cores that containers of this host may use."""
    return len(os.sched_getaffinity(0))
