"""A call that wakes a parked server, against its engine's own wake: `python -m benchmarks.parked
[--rounds 50] [--slow 0.2]`.

The engine is the stand-in of the tests; it notes when each request came and was answered. In turns,
a call through the gateway wakes a parked replica, and another process of the same engine is woken
and asked the same by its own calls. What the golden samples take is not counted: from the moment
when the first of them came to the engine until the last was answered. The GPU is NVML's stand-in.
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.measuring.record import Record
from benchmarks.measuring.report import compare
from tests.support.process_server import ServerProcess, server_process
from tests.support.sleepy_engine import running
from tests.support.sleepy_engine.sleepers import Sleepers

NAME: Final = "engine"
BODY: Final = {"model": NAME, "prompt": "tell me of it", "max_tokens": 4}
PATH: Final = "/v1/completions"
MOST_MS: Final = 50.0
"""What a wake by a call may take beyond the engine's own and the samples'."""
MS: Final = "ms"
OWN, CALLED, SAMPLES, MORE = (
    "the engine's own wake and answer",
    "call of a parked function",
    "golden samples",
    "what that call takes besides",
)
PARTS: Final = (
    "until the engine is told to wake",
    "the engine wakes",
    "from then until its state is checked",
    "from there until the first sample",
    SAMPLES,
    "from the last sample until the engine has the call",
    "the engine answers",
    "from there until the caller has the answer",
)


class UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


@dataclass(frozen=True)
class Served:
    """A request that an engine has answered. Monotonic seconds."""

    path: str
    began_s: float
    ended_s: float


def served(file: Path, since_s: float) -> list[Served]:
    """Return the requests that came since a moment, in their order."""
    lines = (line.split() for line in file.read_text().splitlines())
    found = [Served(path, float(began), float(ended)) for path, began, ended in lines]
    return sorted((one for one in found if one.began_s >= since_s), key=lambda one: one.began_s)


def post(connection: HTTPConnection, path: str, body: Any, headers: dict[str, str]) -> None:
    """Send a request, and read the whole answer, which must be right."""
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"POST {path}: expected 200, got {answer.status} {data[:300]!r}")


def own_ms(engine: Path) -> float:
    """Return the milliseconds of a wake and an answer by the engine's own calls."""
    connection = UnixConnection(engine)
    post(connection, "/sleep?level=1", {}, {})
    began_s = time.monotonic()
    post(connection, "/wake_up", {}, {})
    post(connection, PATH, BODY, {})
    took_ms = (time.monotonic() - began_s) * 1e3
    connection.close()
    return took_ms


class Parked:
    """A function whose replica is parked before each call."""

    def __init__(self, server: ServerProcess, requests: Path) -> None:
        self._server = server
        self._requests = requests
        self._connection = HTTPConnection(urlsplit(server.url).netloc)
        self._headers = {**server.headers, "Content-Type": "application/json"}

    def call(self) -> tuple[float, dict[str, float]]:
        """Wait until the replica is parked, and call it; return the milliseconds of the call and of
        its parts."""
        while self._state() != "parked":
            threading.Event().wait(0.05)
        threading.Event().wait(0.2)  # what the park was followed by is over
        began_s = time.monotonic()
        post(self._connection, f"/fn/{NAME}{PATH}", BODY, self._headers)
        ended_s = time.monotonic()
        return (ended_s - began_s) * 1e3, parts(began_s, served(self._requests, began_s), ended_s)

    def warm(self) -> None:
        """Start the replica."""
        post(self._connection, f"/fn/{NAME}{PATH}", BODY, self._headers)

    def _state(self) -> str:
        self._connection.request("GET", "/admin/v1/replicas", headers=self._headers)
        (one,) = json.loads(self._connection.getresponse().read())["items"]
        return str(one["state"])


def parts(began_s: float, requests: list[Served], ended_s: float) -> dict[str, float]:
    """Return the milliseconds of each part of a call, by the engine's notes."""
    wake, check, *samples, call = requests
    if (wake.path, check.path, call.path) != ("/wake_up", "/is_sleeping", PATH) or not samples:
        raise RuntimeError(f"unexpected requests: {requests}")
    moments = (
        *(began_s, wake.began_s, wake.ended_s, check.ended_s),
        *(samples[0].began_s, samples[-1].ended_s, call.began_s, call.ended_s, ended_s),
    )
    took_ms = [(after - before) * 1e3 for before, after in pairwise(moments)]
    return dict(zip(PARTS, took_ms, strict=True))


@contextmanager
def both(folder: Path, slow_s: float) -> Iterator[tuple[Parked, Path]]:
    """Run a server with the function, and the engine alone; yield the first and the socket of the
    second."""
    sleepers, requests = Sleepers(folder, 1), folder / "requests"
    slow = ("--slow", str(slow_s))
    alone = folder / "alone"
    alone.mkdir()
    with (
        server_process(folder / "data", environment=sleepers.environment) as server,
        running(alone, *slow) as engine,
    ):
        # A wake is only worth it if a start takes longer.
        options = ("--load", str(2 * slow_s + 1.0), "--served", str(requests), *slow)
        sleepers.deploy(server, NAME, *options, tables="[scaling]\nidle_s = 0.5")
        parked = Parked(server, requests)
        parked.warm()
        yield parked, engine.socket_path


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parked", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--slow", type=float, default=0.2, help="seconds of the engine's wake")
    given = parser.parse_args()
    record, by_part = Record(), Record()
    with (
        tempfile.TemporaryDirectory(prefix="fn-") as name,
        both(Path(name), given.slow) as (parked, engine),
    ):
        for _ in range(given.rounds):
            alone_ms = own_ms(engine)
            took_ms, found = parked.call()
            more_ms = took_ms - found[SAMPLES] - alone_ms
            for case, ms in ((OWN, alone_ms), (CALLED, took_ms), (SAMPLES, found[SAMPLES])):
                record.add(case, {MS: ms})
            record.add(MORE, {MS: more_ms})
            for part, part_ms in found.items():
                by_part.add(part, {MS: part_ms})
    wanted = {MS: {MORE: f"{MOST_MS:g} at most"}}
    for table in (*compare(record, "", targets=wanted), *compare(by_part, "")):
        print("\n".join(table.lines()), end="\n\n")


if __name__ == "__main__":
    main()
