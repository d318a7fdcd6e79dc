"""Reference servers as processes: aiohttp, aiohttp with the engine, proxies before a server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.processes import family, pin
from benchmarks.models.subjects import Subject
from benchmarks.references import haproxy as haproxies
from benchmarks.references import litellm as litellms
from benchmarks.references import nginx as proxy

START_S = 10.0
END_S = 10.0
LITELLM_START_S = 120.0


@dataclass(frozen=True, slots=True)
class Reference:
    """A running server."""

    port: int
    pid: int

    @property
    def pids(self) -> list[int]:
        """Process ids of the server."""
        return family(self.pid)

    def pin(self, cores: Set[int]) -> None:
        """Pin the server to these cores."""
        pin(self.pids, cores)


@contextmanager
def hello(
    path: str, *, answer: int = 100, environment: Mapping[str, str] | None = None
) -> Iterator[Reference]:
    """Run aiohttp that reads bodies and answers `answer` bytes."""
    words = ["-m", "benchmarks.hello", "0", "--path", path, "--answer", str(answer)]
    with saying_port([sys.executable, *words], environment or {}) as server:
        yield server


@contextmanager
def engine_server(subject: Subject) -> Iterator[Reference]:
    """Run aiohttp that runs the model in its own process."""
    words = ["-m", "benchmarks.references.engine_server"]
    path = f"/fn/{subject.name}"
    with saying_port([sys.executable, *words, str(subject.model), path], {}) as server:
        yield server


@contextmanager
def upstream() -> Iterator[Reference]:
    """Run the server that is called through proxies."""
    with saying_port([sys.executable, "-m", "benchmarks.references.upstream", "0"], {}) as server:
        yield server


@contextmanager
def chat_upstream() -> Iterator[Reference]:
    """Run the server of chat completions that is called through proxies."""
    words = ["-m", "benchmarks.references.chat_upstream", "0"]
    with saying_port([sys.executable, *words], {}) as server:
        yield server


@contextmanager
def aiohttp_proxy(upstream: int) -> Iterator[Reference]:
    """Run a proxy of aiohttp in front of a server on port `upstream`."""
    words = ["-m", "benchmarks.references.aiohttp_proxy", "0", str(upstream)]
    with saying_port([sys.executable, *words], {}) as server:
        yield server


@contextmanager
def bare_proxy(upstream: int) -> Iterator[Reference]:
    """Run a copier of bytes in Python in front of a server on port `upstream`."""
    words = ["-m", "benchmarks.references.bare_proxy", "0", str(upstream)]
    with saying_port([sys.executable, *words], {}) as server:
        yield server


@contextmanager
def nginx(
    upstream: int, *, streams: bool = False, idle_s: float = proxy.IDLE_S
) -> Iterator[Reference]:
    """Run nginx in front of a server on port `upstream`; see `nginx.configuration`."""
    with tempfile.TemporaryDirectory(prefix="fn-nginx-") as name:
        port = free_port()
        command = proxy.command(Path(name), port, upstream, streams=streams, idle_s=idle_s)
        process = subprocess.Popen(command)
        with ending(process):
            awaited(process, port, processes=2)
            yield Reference(port, process.pid)


@contextmanager
def haproxy(upstream: int, *, idle_s: float = haproxies.IDLE_S) -> Iterator[Reference]:
    """Run HAProxy in front of a server on port `upstream`; see `haproxy.configuration`."""
    with tempfile.TemporaryDirectory(prefix="fn-haproxy-") as name:
        port = free_port()
        command = haproxies.command(Path(name), port, upstream, idle_s)
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        with ending(process):
            awaited(process, port, processes=1)
            yield Reference(port, process.pid)


@contextmanager
def litellm(upstream: int, model: str) -> Iterator[Reference]:
    """Run LiteLLM's proxy in front of a server on port `upstream`. Raises RuntimeError without
    it."""
    with tempfile.TemporaryDirectory(prefix="fn-litellm-") as name:
        port = free_port()
        command = litellms.command(Path(name), port, upstream, model)
        # It must not ask the internet for prices of models.
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        with (Path(name) / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=name)
        with ending(process):
            awaited(process, port, processes=1, start_s=LITELLM_START_S)
            yield Reference(port, process.pid)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def saying_port(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Reference]:
    """Run a server that prints its port."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, **environment}, text=True
    )
    with ending(process):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.strip().isdecimal():
            raise RuntimeError(f"{command[2]}: expected its port, got {line!r}")
        yield Reference(int(line), process.pid)


@contextmanager
def ending(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process with the block, by SIGTERM, and by SIGKILL if it goes on."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def awaited(
    process: subprocess.Popen[bytes], port: int, processes: int, start_s: float = START_S
) -> None:
    """Wait until a server accepts connections and has all its processes. The master of nginx opens
    the port first; a list of its processes taken at that time would lack the worker."""
    until_s = time.monotonic() + start_s
    while time.monotonic() < until_s and process.poll() is None:
        if len(family(process.pid)) >= processes and _accepts(port):
            return
        time.sleep(0.01)
    program = process.args[0] if isinstance(process.args, list) else process.args
    raise RuntimeError(f"{program!s}: expected it on port {port} within {start_s:.0f} s")


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True
