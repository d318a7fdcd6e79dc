"""Fake GPUs behind the real pynvml: a stand-in for the driver's library.

The library is compiled once and loaded before pynvml asks for it; from then on the loader returns
it for `libnvidia-ml.so.1`. It reads one small file at every call, so a running server sees what a
test changes. Other processes find it through LD_LIBRARY_PATH, and the file through FN_STANDIN_NVML.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("standin.c")
CUDA = Path(__file__).with_name("cuda.c")
"""Source of the stand-in for CUDA's driver library."""
LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NO_DRIVER = 9
FUNCTION_NOT_FOUND = 13
WRONG_VERSION = 18


def compiler() -> str:
    """Return the C compiler. Without one the test is skipped, or fails in CI."""
    found = shutil.which("gcc")
    if found is None and os.environ.get("FN_CI"):
        pytest.fail("gcc is missing: it compiles the stand-in for libnvidia-ml.so.1")
    if found is None:
        pytest.skip("gcc is missing: it compiles the stand-in for libnvidia-ml.so.1")
    return found


def build(folder: Path, source: Path = SOURCE, library: str = LIBRARY) -> Path:
    """Compile a stand-in, by default NVML's, into an existing folder."""
    path = folder / library
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{library}"]
    subprocess.run([compiler(), *flags, "-o", path, source, "-lpthread", "-ldl"], check=True)
    return path


def locks(folder: Path) -> dict[str, int]:
    """Return the pid of the process that holds each file of a folder alone by flock(2), by the
    file's name, as the kernel lists it (proc_locks(5)): a process in a namespace of its own knows
    another pid."""
    pids = {}
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if (words[1], words[3]) == ("FLOCK", "WRITE"):
            pids[words[5].rpartition(":")[2]] = int(words[4])
    found = {}
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # it has just got another name, or was removed
            found[file.name] = pids.get(str(file.stat().st_ino), 0)
    return {name: pid for name, pid in found.items() if pid}


@functools.cache
def load() -> ctypes.CDLL:
    """Load the library into this process, for the process's lifetime."""
    with tempfile.TemporaryDirectory(prefix="fn-nvml-") as folder:
        return ctypes.CDLL(str(build(Path(folder))))


def use(file: Path | None) -> None:
    """Make this process's driver follow `file`; None = no driver."""
    load().standin_use(str(file or "").encode())


@dataclass
class Gpu:
    """A GPU, or with a `parent` a MIG slice. Memory in MiB; `other_mib` is used by no listed
    process. `senses` are sensors and counters by name, in the driver's units."""

    uuid: str
    total_mib: int = 24_000
    reserved_mib: int = 0
    other_mib: int = 0
    name: str = "NVIDIA Stand-in"
    capability: tuple[int, int] = (9, 0)
    parent: str = ""
    instance: int = 0
    is_lost: bool = False
    senses: dict[str, int] = field(default_factory=dict)


@dataclass
class Board:
    """State of the stand-in. Every change applies from the next call on."""

    file: Path
    gpus: dict[str, Gpu] = field(default_factory=dict)
    processes: dict[tuple[str, int], int] = field(default_factory=dict)
    xids: list[tuple[str, int, int]] = field(default_factory=list)
    links: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    holders: Path | None = None
    """Folder in which processes tell themselves what they hold (`tests.support.sleepy_engine`)."""
    init: int = 0
    hangs: bool = False

    def add(self, *gpus: Gpu) -> None:
        """Add GPUs or slices."""
        self.gpus |= {gpu.uuid: gpu for gpu in gpus}
        self.write()

    def remove(self, uuid: str) -> Gpu:
        """Remove a GPU from the driver's list."""
        gone = self.gpus.pop(uuid)
        self.write()
        return gone

    def lose(self, uuid: str) -> None:
        """Keep a GPU in the list but make every query of it fail."""
        self.gpus[uuid].is_lost = True
        self.write()

    def find(self, uuid: str) -> None:
        """Let a lost GPU answer again, in a new session."""
        self.gpus[uuid].is_lost = False
        self.write()

    def claim(self, uuid: str, pid: int, mib: int | None) -> None:
        """Give a process memory on a GPU; None = the driver does not report the amount."""
        self.processes[uuid, pid] = -1 if mib is None else mib
        self.write()

    def end(self, pid: int) -> None:
        """Free everything that a process holds."""
        self.processes = {key: mib for key, mib in self.processes.items() if key[1] != pid}
        self.write()

    def report(self, uuid: str, xid: int, instance: int = -1) -> None:
        """Report an Xid error: of the whole GPU, or of the MIG instance `instance`."""
        self.xids.append((uuid, xid, instance))
        self.write()

    def answer(self, call: str, code: int) -> None:
        """Make a call return `code` every time; 0 restores the normal result."""
        self.answers[call] = code
        self.write()

    def hang(self, hangs: bool = True) -> None:
        """Make every call block; False ends this."""
        self.hangs = hangs
        self.write()

    def sense(self, uuid: str, **values: int) -> None:
        """Set sensors and counters of a GPU, such as `energy_mj`; others stay as they are."""
        self.gpus[uuid].senses |= values
        self.write()

    def link(self, first: str, second: str, level: int, *, nvlink: int = 5, peer: int = 0) -> None:
        """Connect two GPUs: NVML's topology level, and its statuses of NVLink and of peer access (0
        OK, 1 not supported by the chipset, 5 not supported)."""
        self.links[first, second] = (level, nvlink, peer)
        self.write()

    def used_mib(self, uuid: str) -> int:
        """Return the memory in use on a GPU."""
        listed = [max(0, mib) for (at, _), mib in self.processes.items() if at == uuid]
        return self.gpus[uuid].other_mib + sum(listed)

    def write(self) -> None:
        """Write the whole state to the file atomically."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text("\n".join([*self._lines(), ""]))
        fresh.rename(self.file)

    def _lines(self) -> list[str]:
        lines = [f"init {self.init}", *(f"answer {c} {n}" for c, n in self.answers.items() if n)]
        parents = {gpu.parent for gpu in self.gpus.values()}
        for gpu in self.gpus.values():
            if gpu.parent:
                sizes = f"{gpu.total_mib} {gpu.other_mib} {gpu.instance}"
                lines.append(f"slice {gpu.parent} {gpu.uuid} {sizes} {gpu.name}")
                continue
            sizes = f"{gpu.total_mib} {gpu.reserved_mib} {gpu.other_mib}"
            flags = f"{int(gpu.uuid in parents)} {int(gpu.is_lost)}"
            kind = "{} {}".format(*gpu.capability)
            lines.append(f"gpu {gpu.uuid} {sizes} {kind} {flags} {gpu.name}")
        lines += [f"proc {uuid} {pid} {mib}" for (uuid, pid), mib in self.processes.items()]
        lines += [f"holders {self.holders}"] if self.holders else []
        lines += [f"xid {uuid} {xid} {instance}" for uuid, xid, instance in self.xids]
        for pair, values in self.links.items():
            lines.append(" ".join(map(str, ("link", *pair, *values))))
        for gpu in self.gpus.values():
            lines += [f"sense {gpu.uuid} {name} {value}" for name, value in gpu.senses.items()]
        return [*lines, "hang"] if self.hangs else lines
