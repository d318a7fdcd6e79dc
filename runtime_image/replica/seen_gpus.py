"""The GPUs that a replica sees in its container, for a manager that has no agent on their host.

There the engine chooses which GPU a container gets, and others may use it as well. This module is
also a program: it reads the GPUs in a process of its own, as a driver may hang for ever, and as a
sidecar may have no second thread (`server/processes.py`).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from runtime_image.contract.control import ReplicaRecord, SeenGpu
from runtime_image.contract.gpus import NoDriver, Reading

READ_S: Final = 5.0
"""Max seconds for a reading. A driver without persistence takes seconds to begin."""
KILL_S: Final = 1.0
GPUS_MAX: Final = 64
"""Max GPUs of a message."""
PROGRAM: Final = (sys.executable, "-I", "-m", "runtime_image.replica.seen_gpus")


def read_gpus() -> list[SeenGpu] | None:
    """Return the GPUs that this process sees, None if it can read none: the container has no
    driver, or the image no bindings of it. Blocks as long as the driver does."""
    try:
        from runtime_image.gpus.nvml import Nvml  # pynvml is not in every image
    except ImportError:
        return None
    nvml = Nvml()
    try:
        nvml.open()
        return [seen_of(gpu) for gpu in nvml.read().gpus[:GPUS_MAX]]
    except NoDriver:
        return None
    finally:
        nvml.close()


def seen_of(gpu: Reading) -> SeenGpu:
    """Return what a message says of a GPU."""
    seen: SeenGpu = {"uuid": gpu.uuid}
    if gpu.total_mib is not None:
        seen["total_mib"] = gpu.total_mib - (gpu.reserved_mib or 0.0)
    if gpu.used_mib is not None:
        seen["used_mib"] = gpu.used_mib
    return seen


class SeenGpus:
    """Reads the GPUs of a replica; the first time while that imports its libraries."""

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._program = program
        self._first: list[SeenGpu] | None = None
        self._running = self._begin()

    def first(self, limit_s: float = READ_S) -> list[SeenGpu] | None:
        """Return the GPUs before the model is loaded, None if they cannot be read. The first call
        waits for the reading, `limit_s` seconds at most."""
        running, self._running = self._running, None
        if running is not None:
            self._first = _result(running, limit_s)
        return self._first

    def now(self, limit_s: float = READ_S) -> list[SeenGpu] | None:
        """Return the GPUs as they are now, None if they cannot be read, or could not before."""
        running = self._begin() if self._first is not None else None
        return _result(running, limit_s) if running is not None else None

    def _begin(self) -> subprocess.Popen[bytes] | None:
        with contextlib.suppress(OSError):
            return subprocess.Popen(
                self._program,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return None


def _result(running: subprocess.Popen[bytes], limit_s: float) -> list[SeenGpu] | None:
    try:
        output, _ = running.communicate(timeout=limit_s)
        found: list[SeenGpu] | None = json.loads(output)
    except subprocess.TimeoutExpired:
        running.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the driver may not let it go
            running.communicate(timeout=KILL_S)
        return None
    except ValueError:  # it has failed
        return None
    return found


def seen_gpus(record: ReplicaRecord) -> SeenGpus | None:
    """Begin to read the GPUs of a replica that dials in; None for one on a CPU slot."""
    return None if record.device_kind == "cpu" else SeenGpus()


if __name__ == "__main__":
    print(json.dumps(read_gpus()))  # noqa: T201 - its result
