"""CPU time per warm request (JSON, one 8x8 scan), against an aiohttp server that does nothing."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.measure import cpu_s, interleaved, show
from tests.support.process_server import server_process

ROUNDS = 5
SECONDS = 2.0
CONNECTIONS = 64
BODY = b'{"inputs": {"image": [' + str([[0.5] * 8] * 8).encode() + b"]}}"


def main() -> None:
    """Print CPU microseconds per request of each server process, and requests per second."""
    with tempfile.TemporaryDirectory() as folder, server_process(Path(folder)) as server:
        server.fnctl_json("deploy", "functions/digits")
        port = urlsplit(server.url).port or 0
        load(port, 0.2)
        [replica] = server.replica_pids("serve")
        assert server.process is not None
        gateway = server.process.pid
        rates: dict[str, list[float]] = {"hello": [], "fngate": []}
        with hello() as (hello_pid, hello_port):
            replica_us: list[float] = []

            def reference() -> float:
                return per_request(hello_port, [hello_pid], rates["hello"])[0]

            def measured() -> float:
                us = per_request(port, [gateway, replica], rates["fngate"])
                replica_us.append(us[1])
                return us[0]

            taken = interleaved({"aiohttp hello": reference, "fngate gateway": measured}, ROUNDS)
        taken["fngate replica (decode, batch, run, encode)"] = replica_us
        show(taken, "aiohttp hello", "us of CPU")
        print()
        show(rates, "hello", "answers per second")


def per_request(port: int, pids: list[int], rates: list[float]) -> list[float]:
    """CPU microseconds per answer of each process while it is called."""
    before = [cpu_s(pid) for pid in pids]
    count = load(port, SECONDS)
    rates.append(count / SECONDS)
    return [(cpu_s(pid) - was) / count * 1e6 for pid, was in zip(pids, before, strict=True)]


def load(port: int, seconds: float) -> int:
    """Call for so long; the number of answers."""
    head = (
        "POST /fn/digits HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load", str(port), str(CONNECTIONS), str(seconds)],
        input=head.encode() + BODY,
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(done.stdout)


@contextmanager
def hello() -> Iterator[tuple[int, int]]:
    """The reference server's pid and port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hello", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
