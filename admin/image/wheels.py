"""Wheels of an image, downloaded on this machine with its pip settings, proxies and CAs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import IO, Final

from admin.image.context import (
    DISK_FULL,
    PACKAGE,
    TAIL_LINES,
    disk_full,
    image_error,
    source_file,
)
from runtime_image.lock import FILE as LOCK
from runtime_image.lock import NotLocked, locked

DOWNLOAD_S: Final = 3600.0
TENSORRT_WHEEL: Final = "tensorrt_cu13_libs"
"""Name of the wheel with TensorRT's libraries for CUDA 13, the CUDA of onnxruntime-gpu."""
MANYLINUX: Final = {"x86_64": (5, ("1", "2010", "2014")), "aarch64": (17, ("2014",))}
"""By machine: the oldest glibc 2.N that wheels support, and the legacy platform names by year (PEP
600)."""
_TOLD: Final = re.compile(
    r"^\s*(?:Downloading|Processing) (?:\S+/)?(\S+\.whl)( \([\d.]+ [kMG]B\))?"
)

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Platform:
    """Platform of a base image: its Python and glibc as (major, minor), and its machine."""

    python: tuple[int, int]
    machine: str
    glibc: tuple[int, int]

    def tags(self) -> list[str]:
        """Return the platform tags of compatible wheels, newest first. Raises ImageError."""
        if self.machine not in MANYLINUX or self.glibc[0] != 2:
            raise image_error(
                f"there are no wheels of ONNX Runtime for {self.machine} with"
                f" {_libc(self.glibc)}; expected x86_64 or aarch64 with glibc",
                todo="fnctl image build --base python:3.11-slim",
            )
        first, names = MANYLINUX[self.machine]
        numbered = [
            f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc[1], first - 1, -1)
        ]
        return [*numbered, *(f"manylinux{name}_{self.machine}" for name in names)]


def requirements(kind: str, checkout: Path) -> str:
    """Return what an image of `kind` has, with hashes, and pip, which the base may lack. Raises
    ImageError if a checkout's lock has it not."""
    names = (checkout / PACKAGE / "requirements" / f"{kind}.txt").read_text("utf-8").split()
    try:
        return locked([*names, "pip"], source_file(checkout, LOCK).read_text("utf-8"))
    except NotLocked as error:
        raise image_error(str(error)) from error


def download_commands(
    kind: str, platform: Platform, listed: Path, folder: Path, tensorrt: str = ""
) -> list[list[str]]:
    """Return the command lines that download the wheels of an image to `folder`: those that the
    file `listed` has with hashes, and TensorRT of a major version, which no lock has."""
    major, minor = platform.python
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps"),
        *("--dest", str(folder), "--only-binary", ":all:"),
        *("--python-version", f"{major}.{minor}", "--implementation", "cp"),
        *(word for tag in platform.tags() for word in ("--platform", tag)),
        *("--progress-bar", "off", "--no-input", "--disable-pip-version-check"),
    ]
    commands = [[*command, "--require-hashes", "--requirement", str(listed)]]
    if tensorrt and kind == "gpu":
        commands.append([*command, f"{TENSORRT_WHEEL.replace('_', '-')}~={tensorrt}.0"])
    return commands


def download(command: list[str], report: Report) -> None:
    """Run pip; `report` receives every wheel. Raises ImageError with the last lines of output."""
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with _running(command) as process:
        assert process.stdout is not None
        for line in _lines(process.stdout):
            tail.append(line)
            if found := _TOLD.match(line):
                report(f"{found[1]}{found[2] or ''}")
    if process.returncode:
        raise _failure(list(tail))


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process, stderr joined to stdout; kill it after DOWNLOAD_S or if the block fails."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        timer = Timer(DOWNLOAD_S, process.kill)
        timer.start()
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()


def _lines(output: IO[str]) -> Iterator[str]:
    for line in output:
        if text := line.rstrip():
            yield text[:500]


def _failure(tail: list[str]) -> Exception:
    said = "\n".join(tail)
    if DISK_FULL in said.lower():
        return disk_full(tail[-1], "TMPDIR=DIR fnctl image build  with free space in DIR")
    if TENSORRT_WHEEL in said.lower().replace("-", "_"):
        return image_error(
            "pip could not download TensorRT; its last lines:",
            tail=tail,
            todo="give its wheels with --wheels DIR, an image that has it with --base IMAGE,"
            "  or NVIDIA's index with PIP_EXTRA_INDEX_URL",
        )
    if "No module named pip" in said:
        return image_error(
            f"{sys.executable} has no pip to download wheels with",
            todo=f"{sys.executable} -m ensurepip  or give --wheelhouse DIR",
        )
    return image_error(
        "pip could not download the wheels; its last lines:",
        tail=tail,
        todo="set an index, proxy or CA for pip (PIP_INDEX_URL, HTTPS_PROXY, PIP_CERT),"
        "  or give --wheelhouse DIR",
    )


def _libc(glibc: tuple[int, int]) -> str:
    return f"glibc {glibc[0]}.{glibc[1]}" if glibc[0] else "a libc other than glibc"
