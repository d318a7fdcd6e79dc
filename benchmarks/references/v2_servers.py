"""Servers of the Open Inference Protocol as processes, each with functions/digits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.processes import family
from benchmarks.references import mlserver as mlservers
from benchmarks.references import pytriton as pytritons
from benchmarks.references.servers import Reference, ending, free_port, saying_port

START_S = 120.0
END_S = 30.0
POLL_S = 0.2
READY = "/v2/models/digits/ready"


@dataclass(frozen=True, slots=True)
class Pair:
    """A running server on two ports; 0: it has none."""

    rest: int
    grpc: int
    pid: int

    @property
    def pids(self) -> list[int]:
        """Process ids of the server."""
        return family(self.pid)


@contextmanager
def bare(kind: str, model: Path) -> Iterator[Reference]:
    """Run the least that a server of this kind needs: "rest" or "grpc"."""
    words = ["-m", "benchmarks.references.bare_v2", kind, str(model)]
    with saying_port([sys.executable, *words], {}) as server:
        yield server


@contextmanager
def mlserver(model: Path, *, workers: int) -> Iterator[Pair]:
    """Run MLServer; see `mlserver.command`. Raises RuntimeError without it."""
    with tempfile.TemporaryDirectory(prefix="fn-mlserver-") as name:
        rest, grpc = free_port(), free_port()
        command = mlservers.command(Path(name), model, rest, grpc, workers=workers)
        with _logged(command, Path(name)) as process, ending(process):
            _await_ready(process, rest, Path(name))
            yield Pair(rest, grpc, process.pid)


@contextmanager
def pytriton(model: Path) -> Iterator[Pair]:
    """Run PyTriton. Raises RuntimeError without it."""
    with tempfile.TemporaryDirectory(prefix="fn-pytriton-") as name:
        rest, grpc, metrics = free_port(), free_port(), free_port()
        command = pytritons.command(model, rest, grpc, metrics)
        with _logged(command, Path(name)) as process:
            try:
                _await_ready(process, rest, Path(name))
                yield Pair(rest, grpc, process.pid)
            finally:
                _end_all(process)


@contextmanager
def _logged(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        yield subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ})


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """End a process with its children: Triton's binary goes on after the death of its parent."""
    pids = family(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _await_ready(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    """Wait until the model is ready. Raises RuntimeError with the end of the log."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{READY}", timeout=5):
                return
        except OSError:
            time.sleep(POLL_S)
    log = (folder / "log").read_text(errors="replace")[-500:]
    raise RuntimeError(f"expected the model to be ready within {START_S:.0f} s: {log}")
