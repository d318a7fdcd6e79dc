"""Functions of a whole fngate server: cold calls, and the first chunk of streams."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from benchmarks.function_calls import programs
from benchmarks.function_calls.servers import POLL_S, answer_of, is_whole, request_of
from benchmarks.gateway import Gateway, gateway
from benchmarks.measuring.processes import pin
from tests.support.package_index import package_index
from tests.support.process_server import FNCTL

DEPLOY_S: Final = 900.0
TORCH: Final = """
import torch

def load(ctx):
    return torch.nn.Linear(64, 64).eval()

def predict(name: str, *, ctx):
    with torch.no_grad():
        return {"text": f"Hello, {name}", "sum": float(ctx.state(torch.ones(1, 64)).sum())}
"""
TORCH_ALONE: Final = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
if len(sys.argv) > 2:
    model = torch.nn.Linear(64, 64).eval()
    with torch.no_grad():
        print({"text": "Hello, Ada", "sum": float(model(torch.ones(1, 64)).sum())})
"""
STREAMS: Final = {
    "def": "def predict(name: str):\n    yield 'Hello, ' + name\n    yield 'Bye'",
    "async def": "async def predict(name: str):\n    yield 'Hello, ' + name\n    yield 'Bye'",
}
UNARY: Final = {
    "def": "def predict(name: str):\n    return {'text': 'Hello, ' + name}",
    "async def": "async def predict(name: str):\n    return {'text': 'Hello, ' + name}",
}
MANIFEST: Final = 'schema = 1\nname = "{name}"\n\n[python]\n\n[sample]\nname = "Ada"\n'


def function(folder: Path, name: str, handler: str, needs: str = "") -> Path:
    """Write the folder of a function of this name."""
    path = folder / name
    path.mkdir()
    (path / "function.toml").write_text(MANIFEST.format(name=name))
    (path / "handler.py").write_text(handler)
    (path / "requirements.txt").write_text(needs)
    return path


@contextmanager
def served(folder: Path, config: str = "") -> Iterator[Gateway]:
    """Run a server. `config`: a uv.toml; without one it finds only what this process has."""
    with package_index() as index:
        index.add_installed("msgspec")
        file = config or str(index.config(folder))
        with gateway("--cpu-slots", "8", environment={"FN_UV_CONFIG": file}) as running:
            yield running


def deploy(running: Gateway, path: Path) -> None:
    """Deploy a function. Packages may have to be loaded, and compiled, before."""
    where = {"FN_URL": running.server.url, "FN_DATA": str(running.server.data)}
    command = [FNCTL, "deploy", str(path), "--trust"]
    subprocess.run(
        command,
        env={**os.environ, **where},
        timeout=DEPLOY_S,
        check=True,
        capture_output=True,
    )


def cold_ms(running: Gateway, name: str) -> float:
    """Return the milliseconds of a call that starts the function's process."""
    while any(f"/{name}@" in one["pool"] for one in running.replicas()):
        with suppress(OSError):  # it is not known to be idle yet
            running.ask("POST", f"functions/{name}/sleep")
        time.sleep(0.05)
    caller = Caller(running.port, f"/fn/{name}", running.key)
    try:
        return caller.whole_us() / 1e3
    finally:
        caller.close()


def torch_folder(running: Gateway) -> Path:
    """Return the folder of packages that has torch."""
    found = (running.server.data / "environments").glob("[!.]*/**/torch/__init__.py")
    return next(found).parent.parent


def alone_ms(script: Path, packages: Path, *words: str) -> float:
    """Return the milliseconds of a process that imports torch from there."""
    began_s = time.perf_counter()
    # Not that of a virtual environment: torch imports NumPy where it finds one.
    command = [sys._base_executable, "-I", str(script), str(packages), *words]  # type: ignore[attr-defined]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began_s) * 1e3


@contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """Keep this process, which is the client, on these cores."""
    before = os.sched_getaffinity(0)
    pin([os.getpid()], cores)
    try:
        yield
    finally:
        pin([os.getpid()], before)


@contextmanager
def runner(folder: Path, name: str, handler: str, cores: set[int]) -> Iterator[int]:
    """Run the runner alone on these cores; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    (folder / f"{name}.py").write_text(handler)
    (folder / f"{name}.json").write_text(f'{{"handler": "{name}.py"}}')
    program = Path(__file__).parents[2] / "python_runner"
    words = ["-I", "-u", str(program), f"{name}.json", f"127.0.0.1:{port}"]
    process = subprocess.Popen([sys.executable, *words], cwd=folder)
    try:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(POLL_S)
        pin([process.pid], cores)
        yield port
    finally:
        process.kill()
        process.wait()


class Caller:
    """A client with one connection to a function."""

    def __init__(self, port: int, path: str, key: str = "") -> None:
        self._end = socket.create_connection(("127.0.0.1", port))
        fields = {"Authorization": f"Bearer {key}"} if key else {}
        self._request = request_of(path, programs.BODY, fields)

    def whole_us(self) -> float:
        """Make a call; return the microseconds until its answer has come."""
        began_s = time.perf_counter()
        self._end.sendall(self._request)
        answer_of(self._end)
        return (time.perf_counter() - began_s) * 1e6

    def first_us(self) -> float:
        """Make a call; return the microseconds until the first event has come. Reads on to the
        end."""
        began_s = time.perf_counter()
        self._end.sendall(self._request)
        answer = b""
        while programs.GREETING not in answer:
            answer += self._end.recv(65536)
        took_s = time.perf_counter() - began_s
        while not is_whole(answer):
            answer += self._end.recv(65536)
        return took_s * 1e6

    def close(self) -> None:
        """Close the connection."""
        self._end.close()


def first_chunk_us(unary: Caller, stream: Caller, calls: int) -> tuple[float, float]:
    """Return the medians of unary calls, and of the time to the first chunk of streams, in
    turns."""
    whole, first = [], []
    for _ in range(calls):
        whole.append(unary.whole_us())
        first.append(stream.first_us())
    return statistics.median(whole), statistics.median(first)


def load_average() -> float:
    """Return how busy this machine is."""
    return os.getloadavg()[0]
