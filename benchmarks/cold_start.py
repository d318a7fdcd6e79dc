"""A cold call of digits through the gateway, against the least any process could take for it."""

from __future__ import annotations

import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.measure import interleaved, show, wall_ms
from tests.support.process_server import ServerProcess, server_process

ROUNDS = 15
DIGITS = Path("functions/digits")
BARE = """
import numpy, onnxruntime
session = onnxruntime.InferenceSession("functions/digits/digits.onnx")
session.run(None, {"image": numpy.zeros((1, 8, 8), numpy.float32)})
"""


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder, server_process(Path(folder)) as server:
        server.fnctl_json("deploy", str(DIGITS), "--idle", "0.05")
        cases = {
            "python: import, load, run": bare,
            "cold call through fngate": lambda: cold(server),
            "warm call through fngate": lambda: call(server),
        }
        show(interleaved(cases, ROUNDS), "python: import, load, run", "ms")


def bare() -> float:
    """A process that imports ONNX Runtime, loads the model, runs it once and ends."""
    environment = {"PATH": "/usr/bin:/bin", "ORT_DISABLE_TELEMETRY": "1"}
    return wall_ms([sys.executable, "-I", "-c", BARE], environment)


def cold(server: ServerProcess) -> float:
    """A call when no replica is left."""
    while server.replica_pids():
        time.sleep(0.05)
    return call(server)


def call(server: ServerProcess) -> float:
    """One scan as JSON, in milliseconds at the client."""
    body = b'{"inputs": {"image": [' + str([[0.5] * 8] * 8).encode() + b"]}}"
    headers = {"Content-Type": "application/json", **server.headers}
    request = urllib.request.Request(f"{server.url}/fn/digits", body, headers)
    began = time.perf_counter()
    with urllib.request.urlopen(request) as response:
        response.read()
    return (time.perf_counter() - began) * 1e3
