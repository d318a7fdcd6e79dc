"""GPUs for tests, seen through the real pynvml: a stand-in for the driver's library.

The library is compiled once and loaded before pynvml asks for it; from then on the loader gives
it to whoever wants `libnvidia-ml.so.1`. It reads one small file at every call, so a running server
sees what a test changes. Other processes get it by LD_LIBRARY_PATH, and the file by
FN_STANDIN_NVML.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("standin.c")
LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NO_DRIVER = 9
FUNCTION_NOT_FOUND = 13
WRONG_VERSION = 18


def compiler() -> str:
    """The C compiler. Skips the test where there is none, and fails it in CI."""
    found = shutil.which("gcc")
    if found is None and os.environ.get("FN_CI"):
        pytest.fail("gcc is missing: it compiles the stand-in for libnvidia-ml.so.1")
    if found is None:
        pytest.skip("gcc is missing: it compiles the stand-in for libnvidia-ml.so.1")
    return found


def build(folder: Path) -> Path:
    """The library, compiled into a folder that exists."""
    path = folder / LIBRARY
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run([compiler(), *flags, "-o", path, SOURCE, "-lpthread"], check=True)
    return path


@functools.cache
def load() -> ctypes.CDLL:
    """The library in this process, for as long as that lives."""
    with tempfile.TemporaryDirectory(prefix="fn-nvml-") as folder:
        return ctypes.CDLL(str(build(Path(folder))))


def use(file: Path | None) -> None:
    """Have this process's driver be as `file` says; None for no driver."""
    load().standin_use(str(file or "").encode())


@dataclass
class Gpu:
    """A GPU or, with a `parent`, a MIG slice. MiB; nobody listed has the `other_mib`."""

    uuid: str
    total_mib: int = 24_000
    reserved_mib: int = 0
    other_mib: int = 0
    name: str = "NVIDIA Stand-in"
    capability: tuple[int, int] = (9, 0)
    parent: str = ""
    instance: int = 0
    is_lost: bool = False


@dataclass
class Board:
    """What the stand-in says; every change is there for the next call."""

    file: Path
    gpus: dict[str, Gpu] = field(default_factory=dict)
    processes: dict[tuple[str, int], int] = field(default_factory=dict)
    xids: list[tuple[str, int, int]] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    init: int = 0
    hangs: bool = False

    def add(self, *gpus: Gpu) -> None:
        """GPUs, or slices of them, more."""
        self.gpus |= {gpu.uuid: gpu for gpu in gpus}
        self.write()

    def remove(self, uuid: str) -> Gpu:
        """The driver lists it no longer."""
        gone = self.gpus.pop(uuid)
        self.write()
        return gone

    def lose(self, uuid: str) -> None:
        """It is listed still and answers nothing."""
        self.gpus[uuid].is_lost = True
        self.write()

    def find(self, uuid: str) -> None:
        """It answers again, in a session that begins now."""
        self.gpus[uuid].is_lost = False
        self.write()

    def claim(self, uuid: str, pid: int, mib: int | None) -> None:
        """A process has so much of it; None where the driver does not tell."""
        self.processes[uuid, pid] = -1 if mib is None else mib
        self.write()

    def end(self, pid: int) -> None:
        """A process has given everything back."""
        self.processes = {key: mib for key, mib in self.processes.items() if key[1] != pid}
        self.write()

    def report(self, uuid: str, xid: int, instance: int = -1) -> None:
        """The driver reports an error, of the whole GPU unless `instance` says of which part."""
        self.xids.append((uuid, xid, instance))
        self.write()

    def answer(self, call: str, code: int) -> None:
        """That call always answers `code`; 0 for what is right."""
        self.answers[call] = code
        self.write()

    def hang(self, hangs: bool = True) -> None:
        """Every call waits, until it is said that none does."""
        self.hangs = hangs
        self.write()

    def used_mib(self, uuid: str) -> int:
        """What is in use on a GPU."""
        listed = [max(0, mib) for (at, _), mib in self.processes.items() if at == uuid]
        return self.gpus[uuid].other_mib + sum(listed)

    def write(self) -> None:
        """Put it all in the file, at once."""
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
        lines += [f"xid {uuid} {xid} {instance}" for uuid, xid, instance in self.xids]
        return [*lines, "hang"] if self.hangs else lines
