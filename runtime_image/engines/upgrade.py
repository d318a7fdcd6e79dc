"""Replaces a running engine's session by a faster one, if the free memory suffices."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, Self

from runtime_image.contract.control import SessionName
from runtime_image.contract.errors import LoadError
from runtime_image.proc import parse_sizes

MIB: Final = 2**20
STATUS: Final = Path("/proc/self/status")
HOST: Final = Path("/proc/meminfo")
DELAY_S: Final = 1.0
"""Delay before the upgrade starts; leaves the processor to the first callers."""
POLL_S: Final = 0.02
"""Interval between two checks whether the old session is still in use."""
SPARE_MIB: Final = 64
"""Memory left for the runs in progress."""
NICENESS: Final = 5
"""Nice value of the building thread, moderate on purpose: the thread holds the interpreter lock for
short moments. If it is preempted in one on a busy machine, a lower priority delays all others
longer."""


REASON_MAX: Final = 1950
"""Max characters of the reason of a failure in the log."""


def resident_mib() -> float:
    """Return the resident memory of this process in MiB (proc(5), VmRSS)."""
    return parse_sizes(STATUS.read_text()).get("VmRSS", 0) / 1024


def free_mib(cap_mib: int) -> float:
    """Return the MiB this process can still use within its cap (0 for none), RLIMIT_DATA and the
    host's available memory; 0 if they cannot be read."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    data_mib = None if limit == resource.RLIM_INFINITY else limit / MIB
    try:
        return room_mib(STATUS.read_text(), HOST.read_text(), cap_mib, data_mib)
    except OSError:
        return 0.0


def room_mib(status: str, host: str, cap_mib: int, data_mib: float | None) -> float:
    """Return the free MiB by the texts of /proc/self/status and /proc/meminfo.

    `data_mib` is RLIMIT_DATA. The cap of a container counts resident memory; RLIMIT_DATA counts
    every private writable mapping, resident or not.
    """
    process, machine = parse_sizes(status), parse_sizes(host)
    rooms = [machine.get("MemAvailable", 0) / 1024]
    if cap_mib:
        rooms.append(cap_mib - process.get("VmRSS", 1024 * cap_mib) / 1024)
    if data_mib is not None:
        rooms.append(data_mib - process.get("VmData", 1024 * data_mib) / 1024)
    return max(0.0, min(rooms))


class Upgradable(Protocol):
    """An engine whose session can be exchanged while it runs."""

    has_run: bool

    @property
    def is_running(self) -> bool:
        """Whether a run is in progress."""

    def exchange(self, better: Self, pause: Callable[[], object]) -> None:
        """Use the session of `better` from the next run on. Raises LoadError."""


Build = Callable[[Callable[[], None]], Upgradable]
"""Builds the faster engine; the argument is `before_work` of its session. Raises LoadError."""


def log_line(text: str) -> None:
    """Write one line to the replica's log, its standard output."""
    print(f"fngate: {text}", flush=True)  # noqa: T201 - see above


class SessionUpgrade:
    """One attempt to upgrade an engine, in threads that end with the attempt.

    Failures reach no caller: the engine keeps its session, and the reason is logged.
    The threads are daemons, so that a replica can exit without waiting for them.
    """

    def __init__(  # noqa: PLR0913 - the attempt and its surroundings
        self,
        engine: Upgradable,
        build: Build,
        needs_mib: float,
        *,
        better: SessionName = "fast",
        delay_s: float = DELAY_S,
        after: SessionUpgrade | None = None,
        ended: Callable[[str], None] = lambda _reason: None,
        pause: Callable[[float], object] = time.sleep,
        free: Callable[[int], float] = free_mib,
        write: Callable[[str], None] = log_line,
    ) -> None:
        """`needs_mib` is the approximate memory of the faster session, which is built while the old
        one still exists; `better` is its name. It is built after `delay_s`. An earlier upgrade
        `after` is abandoned, or awaited if it is building. `ended(reason)` is called once, in
        another thread, with the reason why the engine keeps its session, "" if it does not.
        `free(cap_mib)` returns the free memory, `pause(seconds)` sleeps, `write` logs."""
        self._engine = engine
        self._build = build
        self._needs_mib = needs_mib
        self._better = better
        self._delay_s = delay_s
        self._after = after
        self._ended = ended
        self._over = threading.Event()
        self._pause = pause
        self._free = free
        self._write = write
        self._lock = threading.Lock()
        self._is_building = False
        self._is_abandoned = False

    def start(self, cap_mib: int) -> None:
        """Start the upgrade after the delay and, if a first run is in progress, after it. `cap_mib`
        is the memory cap of this process, 0 for none. Call it once."""
        threading.Thread(target=self._work, args=(cap_mib,), name="upgrade", daemon=True).start()

    def abandon(self) -> bool:
        """Prevent further building. True if ONNX Runtime is building: an orderly exit of the
        process would then free memory that is in use."""
        with self._lock:
            self._is_abandoned = True
            return self._is_building

    def end(self) -> None:
        """Prevent further building; wait for the end of a session that is being built."""
        if self.abandon():
            self._over.wait()

    def _work(self, cap_mib: int) -> None:
        reason = "the replica stops"
        try:
            if self._after is not None:
                self._after.end()
            self._wait_for_first_run()
            if self._may_build():
                self._exchange(cap_mib)
                reason = ""
                self._write(f"now serving with the {self._better} session")
        except Exception as error:  # noqa: BLE001 - no failure may reach a caller
            reason = str(error)[:REASON_MAX]
            worse = "quick" if self._better == "fast" else "ordinary"
            self._write(f"still serving with the {worse} session: {reason}")
        finally:
            with self._lock:
                self._is_building = False
            self._over.set()
            self._ended(reason)

    def _wait_for_first_run(self) -> None:
        """Leave the processor to the first run, whose callers have waited for the cold start."""
        if self._delay_s:
            self._pause(self._delay_s)
        while self._engine.is_running and not self._engine.has_run:
            self._pause(DELAY_S)

    def _may_build(self) -> bool:
        with self._lock:
            self._is_building = not self._is_abandoned
            return self._is_building

    def _exchange(self, cap_mib: int) -> None:
        free = self._free(cap_mib)
        if free < self._needs_mib + SPARE_MIB:
            raise LoadError(
                f"the {self._better} session needs {self._needs_mib:.0f} MiB and"
                f" {SPARE_MIB} MiB spare, {free:.0f} MiB are free"
            )
        self._engine.exchange(self._built(), lambda: self._pause(POLL_S))

    def _built(self) -> Upgradable:
        """Build the faster engine in a separate thread: a thread can lower its priority but not
        raise it again, and the exchange needs the normal one."""
        built: list[Upgradable | Exception] = []

        def build() -> None:
            try:
                built.append(self._build(_lower_priority))
            except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
                built.append(error)

        builder = threading.Thread(target=build, name="builder", daemon=True)
        builder.start()
        builder.join()
        if isinstance(built[0], Exception):
            raise built[0]
        return built[0]


def _lower_priority() -> None:
    """Lower the priority of this thread. Threads that it has started keep theirs (on Linux, each
    thread has its own)."""
    thread = threading.get_native_id()
    niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
    os.setpriority(os.PRIO_PROCESS, thread, niceness)
