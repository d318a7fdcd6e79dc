"""CPU time of watching a server: `python -m benchmarks.watched [--streams 1000] [--rounds 6]`.

A real sidecar watches a server that sends one event a second on each stream. Readings are switched
off and on in turns in the same process, so the difference is theirs alone: TCP_INFO and FIONREAD of
each stream, and the message. The manager's part is the CPU time of parsing one reading and judging
it. The result is a share of a core, at one reading a second.
"""

from __future__ import annotations

import argparse
import json
import selectors
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.measuring.processes import cpu_ns
from pool_manager.core.health.liveness import Silences, Watch
from pool_manager.replicas.messages import parse_health
from runtime_image.contract.health import READ_S
from runtime_image.contract.link import Kind
from runtime_image.contract.server import ServerSpec
from tests.support.sidecar_process import Gateway, Sidecar, sidecar

UPSTREAM: Final = Path(__file__).parent / "references" / "upstream.py"
PERIOD_MS: Final = 1000
"""Between two events of a stream."""
SWITCH: Final = """
import signal
import runtime_image.server.health as it

read, switch = it.HealthMonitor._read, [True]

def flip(*_):
    switch[0] = not switch[0]

def reading(monitor, **more):
    if switch[0]:
        read(monitor, **more)

it.HealthMonitor._read = reading
signal.signal(signal.SIGUSR2, flip)
"""
"""Runs before the sidecar: SIGUSR2 switches its readings off, and on again."""
JUDGED: Final = 20_000
"""Readings whose judging is timed."""


@contextmanager
def _read_always(gateway: Gateway, count: int) -> Iterator[None]:
    """Open streams, and read what comes on them."""
    ready, ends = selectors.DefaultSelector(), threading.Event()
    for id in range(1, count + 1):
        sock = gateway.open(id)
        sock.sendall(f"GET /sse?n=1000000&ms={PERIOD_MS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        ready.register(sock, selectors.EVENT_READ)

    def read() -> None:
        while not ends.is_set():
            for key, _ in ready.select(0.2):
                key.fileobj.recv(65536)  # type: ignore[union-attr]

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        ends.set()
        reader.join()
        ready.close()


def _cores(web: Sidecar, seconds: float) -> float:
    """Return the cores that the sidecar uses meanwhile. Its frames are read by `_hear`."""
    pid, began_s, before = web.process.pid, time.monotonic(), cpu_ns(web.process.pid)
    threading.Event().wait(seconds)
    return (cpu_ns(pid) - before) / 1e9 / (time.monotonic() - began_s)


@contextmanager
def _hear(web: Sidecar) -> Iterator[list[bytes]]:
    """Read the readings that come; the last one is the only one kept."""
    last: list[bytes] = [b""]
    ends = threading.Event()

    def hear() -> None:
        while not ends.is_set():
            try:
                frame = web.control.next()
            except (OSError, EOFError):
                continue
            if frame.kind is Kind.HEALTH:
                last[0] = bytes(frame.body)

    web.control.sock.settimeout(1.0)
    hearing = threading.Thread(target=hear)
    hearing.start()
    try:
        yield last
    finally:
        ends.set()
        hearing.join()


def _judging(body: bytes) -> float:
    """Return the cores that one reading a second takes in the manager."""
    silences, watch = Silences(), Watch(0.0)
    began_ns = time.thread_time_ns()
    for number in range(JUDGED):
        said = json.loads(body)
        said["moved"] += number
        watch.read(parse_health("r", said).reading, number * READ_S, silences)
    return (time.thread_time_ns() - began_ns) / 1e9 / JUDGED / READ_S


def main() -> None:
    """Measure, and print the shares."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watched", description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each half of a round")
    given = parser.parse_args()
    command = (sys.executable, str(UPSTREAM), "${PORT}")
    spec = ServerSpec("web@1", command=command, ready="/small", concurrency=2 * given.streams)
    more = []
    with sidecar(spec, preamble=SWITCH) as web:
        web.ready()
        web.watch()
        gateway = web.gateway()
        with _hear(web) as last, _read_always(gateway, given.streams):
            for number in range(given.rounds):
                with_readings = _cores(web, given.seconds)
                web.process.send_signal(signal.SIGUSR2)
                without = _cores(web, given.seconds)
                web.process.send_signal(signal.SIGUSR2)
                more.append(with_readings - without)
                print(f"round {number}: {with_readings:.3%} {without:.3%}", flush=True)
        judging = [_judging(last[0]) for _ in range(given.rounds)]
    said = json.loads(last[0])
    for name, found in (("reading", more), ("judging", judging)):
        low, mid, high = min(found), statistics.median(found), max(found)
        print(f"{name}, {said['open']} streams: {mid:.3%} of a core ({low:.3%} to {high:.3%})")


if __name__ == "__main__":
    main()
