"""Replaces a running engine's session by a faster one, if the memory allows it."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, Self

from runtime_image.contract.errors import LoadError

MIB: Final = 2**20
STATUS: Final = Path("/proc/self/status")
HOST: Final = Path("/proc/meminfo")
DELAY_S: Final = 1.0
"""Time before the upgrade starts, which the first callers have the processor for."""
POLL_S: Final = 0.02
"""Between two checks whether the old session is in use."""
SPARE_MIB: Final = 64
"""Left to the runs that go on meanwhile."""
NICENESS: Final = 5
"""Of the thread that builds. It has the interpreter's lock for moments, and where every processor
is taken it may be put aside in one of them: the lower its priority, the longer all others wait."""


def resident_mib() -> float:
    """Resident memory of this process in MiB (proc(5), VmRSS)."""
    return _sizes_mib(STATUS.read_text()).get("VmRSS", 0.0)


def free_mib(cap_mib: int) -> float:
    """MiB left until the process's cap (0 for none), the kernel's limit on private memory or the
    end of the host's memory; 0 where they cannot be read."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    data_mib = None if limit == resource.RLIM_INFINITY else limit / MIB
    try:
        return room_mib(STATUS.read_text(), HOST.read_text(), cap_mib, data_mib)
    except OSError:
        return 0.0


def room_mib(status: str, host: str, cap_mib: int, data_mib: float | None) -> float:
    """MiB left by the texts of /proc/self/status and /proc/meminfo. `data_mib` is RLIMIT_DATA.

    The cap of a container counts resident memory; RLIMIT_DATA counts every private writable
    mapping, resident or not.
    """
    process, machine = _sizes_mib(status), _sizes_mib(host)
    rooms = [machine.get("MemAvailable", 0.0)]
    if cap_mib:
        rooms.append(cap_mib - process.get("VmRSS", cap_mib))
    if data_mib is not None:
        rooms.append(data_mib - process.get("VmData", data_mib))
    return max(0.0, min(rooms))


def _sizes_mib(text: str) -> dict[str, float]:
    """Sizes in MiB by name, of lines such as "VmRSS:  123 kB"."""
    words = [line.split() for line in text.splitlines()]
    return {
        word[0].rstrip(":"): int(word[1]) / 1024
        for word in words
        if len(word) == 3 and word[2] == "kB"
    }


class Upgradable(Protocol):
    """An engine whose session can be exchanged while it runs."""

    has_run: bool

    @property
    def is_running(self) -> bool:
        """Whether a run is going on."""

    def exchange(self, better: Self, pause: Callable[[], object]) -> None:
        """Run with the session of `better` from the next run on. Raises LoadError."""


Build = Callable[[Callable[[], None]], Upgradable]
"""Makes the better engine; the argument is `before_work` of its session. Raises LoadError."""


def log_line(text: str) -> None:
    """Write one line to the replica's log, its standard output."""
    print(f"fngate: {text}", flush=True)  # noqa: T201 - see above


class SessionUpgrade:
    """One attempt to upgrade an engine, in threads of its own, which end with it.

    No failure of it reaches a caller: the engine then keeps its session, and the log has the
    reason. The threads are daemons, so that a replica can exit without waiting for them.
    """

    def __init__(
        self,
        engine: Upgradable,
        build: Build,
        needs_mib: float,
        *,
        pause: Callable[[float], object] = time.sleep,
        free: Callable[[int], float] = free_mib,
        write: Callable[[str], None] = log_line,
    ) -> None:
        """`needs_mib` is about the memory of the better session, which is made while the other is
        there; `free(cap_mib)` gives the memory left, `pause(seconds)` sleeps, `write` logs."""
        self._engine = engine
        self._build = build
        self._needs_mib = needs_mib
        self._pause = pause
        self._free = free
        self._write = write
        self._lock = threading.Lock()
        self._is_building = False
        self._is_abandoned = False

    def start(self, cap_mib: int) -> None:
        """Start soon: after the first answers, if requests come at once. `cap_mib` is the memory
        cap of this process, 0 for none. To be called once."""
        threading.Thread(target=self._work, args=(cap_mib,), name="upgrade", daemon=True).start()

    def abandon(self) -> bool:
        """Build nothing any more. True if ONNX Runtime is building: an orderly exit of the process
        would then free what it works on."""
        with self._lock:
            self._is_abandoned = True
            return self._is_building

    def _work(self, cap_mib: int) -> None:
        try:
            self._wait_for_first_run()
            if self._may_build():
                self._exchange(cap_mib)
                self._write("the fast session serves from now on")
        except Exception as error:  # noqa: BLE001 - no failure may reach a caller
            self._write(f"the quick session goes on serving: {error}"[:2000])
        finally:
            with self._lock:
                self._is_building = False

    def _wait_for_first_run(self) -> None:
        """Leave the processor to the first run, whose callers have waited for the cold start."""
        self._pause(DELAY_S)
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
                f"the fast one needs {self._needs_mib:.0f} MiB beside it and {SPARE_MIB} spare,"
                f" {free:.0f} are free"
            )
        self._engine.exchange(self._built(), lambda: self._pause(POLL_S))

    def _built(self) -> Upgradable:
        """The better engine, made in a thread of its own: a thread can lower its priority but not
        raise it again, and the exchange needs the usual one."""
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
    """Lower the priority of this thread; threads that it has started keep theirs (on Linux each
    thread has its own)."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
