"""A cold call of digits through the gateway, against the least any process could take for it."""

from __future__ import annotations

import json
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
    with (
        tempfile.TemporaryDirectory() as first,
        tempfile.TemporaryDirectory() as second,
        server_process(Path(first)) as server,
        server_process(Path(second), environment={"FN_STANDBYS": "0"}) as bare_server,
    ):
        for one in (server, bare_server):
            one.fnctl_json("deploy", str(DIGITS), "--idle", "0.05")
        cases = {
            "python: import, load, run": bare,
            "cold call, no standby": lambda: cold(bare_server, standbys=0),
            "cold call": lambda: cold(server, standbys=1),
            "warm call": lambda: call(server),
        }
        show(interleaved(cases, ROUNDS), "python: import, load, run", "ms")


def bare() -> float:
    """A process that imports ONNX Runtime, loads the model, runs it once and ends."""
    environment = {"PATH": "/usr/bin:/bin", "ORT_DISABLE_TELEMETRY": "1"}
    return wall_ms([sys.executable, "-I", "-c", BARE], environment)


def cold(server: ServerProcess, standbys: int) -> float:
    """A call when no replica is left but so many standbys, and they wait."""
    while states(server) != ["standby"] * standbys:
        time.sleep(0.05)
    return call(server)


def states(server: ServerProcess) -> list[str]:
    """Of every replica."""
    request = urllib.request.Request(f"{server.url}/admin/v1/replicas", headers=server.headers)
    with urllib.request.urlopen(request) as response:
        return [item["state"] for item in json.load(response)["items"]]


def call(server: ServerProcess) -> float:
    """One scan as JSON, in milliseconds at the client."""
    body = b'{"inputs": {"image": [' + str([[0.5] * 8] * 8).encode() + b"]}}"
    headers = {"Content-Type": "application/json", **server.headers}
    request = urllib.request.Request(f"{server.url}/fn/digits", body, headers)
    began = time.perf_counter()
    with urllib.request.urlopen(request) as response:
        response.read()
    return (time.perf_counter() - began) * 1e3
