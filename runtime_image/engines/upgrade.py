"""Makes a session that runs faster beside the one that was there sooner, and exchanges them.

How much more memory this process may take.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtime_image.contract.errors import LoadError

if TYPE_CHECKING:
    from runtime_image.engines.onnx import OnnxEngine

MIB: Final = 2**20
STATUS: Final = Path("/proc/self/status")
HOST: Final = Path("/proc/meminfo")


def free_mib(cap_mib: int) -> float:
    """MiB that can be taken until the process's cap (0 for none), the kernel's limit on private
    memory or the end of the host's memory is reached; 0 where none of it can be known."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    data_mib = None if limit == resource.RLIM_INFINITY else limit / MIB
    try:
        return room_mib(STATUS.read_text(), HOST.read_text(), cap_mib, data_mib)
    except OSError:
        return 0.0


def room_mib(status: str, host: str, cap_mib: int, data_mib: float | None) -> float:
    """The same of the texts of /proc/self/status and /proc/meminfo. `data_mib` is RLIMIT_DATA.

    The cap of a container counts what is resident; RLIMIT_DATA counts every private mapping that
    could be written to, resident or not.
    """
    process, machine = _sizes_mib(status), _sizes_mib(host)
    rooms = [machine.get("MemAvailable", 0.0)]
    if cap_mib:
        rooms.append(cap_mib - process.get("VmRSS", cap_mib))
    if data_mib is not None:
        rooms.append(data_mib - process.get("VmData", data_mib))
    return max(0.0, min(rooms))


def _sizes_mib(text: str) -> dict[str, float]:
    """The lines that are sizes, "Name:  123 kB"."""
    words = [line.split() for line in text.splitlines()]
    return {
        word[0].rstrip(":"): int(word[1]) / 1024
        for word in words
        if len(word) == 3 and word[2] == "kB"
    }


REST_S: Final = 1.0
"""How long the first callers have the processor for themselves."""
LOOK_S: Final = 0.02
"""Between two looks whether the old session is still in use."""
SPARE_MIB: Final = 64
"""Left to the runs that go on meanwhile."""
NICENESS: Final = 5
"""Of the thread that builds. It has the interpreter's lock for moments, and where every processor
is taken it may be put aside in one of them: the lower its priority, the longer all others wait."""

Build = Callable[[Callable[[], None]], "OnnxEngine"]
"""Makes the better engine, with this as `before_work`. Raises LoadError."""


def say(text: str) -> None:
    """One line to the replica's log."""
    print(f"fngate: {text}", flush=True)  # noqa: T201 - the log is its standard output


class Improvement:
    """One attempt, in threads of its own, which end with it.

    Nothing that goes wrong with it reaches a caller: the engine then stays as it is, and the log
    says why. Its threads are daemons, so that a replica that is to go does not wait for it.
    """

    def __init__(
        self,
        engine: OnnxEngine,
        build: Build,
        needs_mib: float,
        *,
        pause: Callable[[float], object] = time.sleep,
        free: Callable[[int], float] = free_mib,
        say: Callable[[str], None] = say,
    ) -> None:
        """`needs_mib` is about what the better session takes while the other is still there,
        `free(cap_mib)` what may be taken, `pause(seconds)` lets time pass."""
        self._engine = engine
        self._build = build
        self._needs_mib = needs_mib
        self._pause = pause
        self._free = free
        self._say = say
        self._lock = threading.Lock()
        self._is_building = False
        self._is_abandoned = False

    def begin(self, cap_mib: int) -> None:
        """Begin soon: after the first answers, if requests come at once. `cap_mib` is the memory
        that this process may have, 0 for any. To be called once."""
        threading.Thread(
            target=self._work, args=(cap_mib,), name="improvement", daemon=True
        ).start()

    def abandon(self) -> bool:
        """Begin no more. True where it has begun: ONNX Runtime is at work then, and would be torn
        down under its own feet by an orderly exit of the process."""
        with self._lock:
            self._is_abandoned = True
            return self._is_building

    def _work(self, cap_mib: int) -> None:
        try:
            self._rest()
            if self._may_begin():
                self._improve(cap_mib)
                self._say("the fast session serves from now on")
        except Exception as error:  # noqa: BLE001 - no caller is to notice whatever it is
            self._say(f"the quick session goes on serving: {error}"[:2000])
        finally:
            with self._lock:
                self._is_building = False

    def _rest(self) -> None:
        """Not beside the first run, whose callers have waited for the cold start."""
        self._pause(REST_S)
        while self._engine.is_running and not self._engine.has_run:
            self._pause(REST_S)

    def _may_begin(self) -> bool:
        with self._lock:
            self._is_building = not self._is_abandoned
            return self._is_building

    def _improve(self, cap_mib: int) -> None:
        free = self._free(cap_mib)
        if free < self._needs_mib + SPARE_MIB:
            raise LoadError(
                f"the fast one needs {self._needs_mib:.0f} MiB beside it and {SPARE_MIB} spare,"
                f" {free:.0f} are free"
            )
        self._engine.exchange(self._built(), lambda: self._pause(LOOK_S))

    def _built(self) -> OnnxEngine:
        """By a thread for this alone: a thread may lower its own priority, but not raise it again,
        and the exchange is not to be put aside."""
        built: list[OnnxEngine | Exception] = []

        def build() -> None:
            try:
                built.append(self._build(_step_back))
            except Exception as error:  # noqa: BLE001 - raised by the thread that waits
                built.append(error)

        builder = threading.Thread(target=build, name="builder", daemon=True)
        builder.start()
        builder.join()
        if isinstance(built[0], Exception):
            raise built[0]
        return built[0]


def _step_back() -> None:
    """Lower the priority of this thread; those that it has started by now keep theirs (Linux has
    one for each thread)."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
