"""Cold calls of fngate and Ray Serve in turns: `python -m benchmarks.beside_ray RAY_PYTHON`.

RAY_PYTHON is an interpreter with `ray[serve]` and onnxruntime. Two fngate servers, with a standby
and without, and one Ray Serve application run side by side on the CPU. In each round every one of
them is called cold once and warm thirty times, over a new connection each, in changing order.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from tests.support.process_server import ServerProcess, server_process

DIGITS = Path(__file__).parent.parent / "functions" / "digits"
APP = Path(__file__).parent / "references" / "ray_app.py"
BODY = json.dumps({"inputs": {"image": [[[0.0] * 8] * 8]}}).encode()
WARM_CALLS = 30
REST_S = 1.5
"""Between the end of the last replica and the next cold call."""
POLL_S = 0.1
LIMIT_S = 60.0


class Subject(Protocol):
    """A system that can be called and waited for until it is cold."""

    def call(self) -> None:
        """Call the model once. Raises OSError where the answer is no success."""

    def settle(self) -> None:
        """Return when no replica of the model is left."""


def post(url: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Return the answer to one POST over a connection of its own."""
    given = {"Content-Type": "application/json", **headers}
    with urllib.request.urlopen(urllib.request.Request(url, body, given), timeout=LIMIT_S) as reply:
        answer: bytes = reply.read()
    return answer


class Fngate:
    """A server of this project."""

    def __init__(self, server: ServerProcess, *, has_standby: bool) -> None:
        self._server = server
        self._has_standby = has_standby

    def call(self) -> None:
        """Call digits."""
        post(f"{self._server.url}/fn/digits", BODY, self._server.headers)

    def settle(self) -> None:
        """Put digits to sleep; wait for its end and for the next standby."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            post(f"{self._server.url}/admin/v1/functions/digits/sleep", b"", self._server.headers)
            for _ in range(10):
                if self._is_cold():
                    return
                time.sleep(POLL_S)
        raise TimeoutError("digits does not go to sleep")

    def _is_cold(self) -> bool:
        asked = urllib.request.Request(
            f"{self._server.url}/admin/v1/replicas", headers=self._server.headers
        )
        with urllib.request.urlopen(asked, timeout=LIMIT_S) as reply:
            found: list[dict[str, Any]] = json.load(reply)["items"]
        is_ready = any(one["state"] == "standby" for one in found) or not self._has_standby
        return is_ready and not any(one["function"] == "digits" for one in found)


class RayServe:
    """The application of `ray_app`, in a process of another interpreter."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self._url = f"http://127.0.0.1:{port}/"

    def call(self) -> None:
        """Call digits."""
        post(self._url, BODY, {})

    def settle(self) -> None:
        """Wait until the application has no replica."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.expect("cold")

    def expect(self, word: str) -> None:
        """Read the process's output up to the line `word`."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == word:
                return
        raise RuntimeError("Ray Serve has ended")


@contextmanager
def ray_serve(python: str) -> Iterator[RayServe]:
    """Run the application; it has ended after the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [python, str(APP), str(DIGITS / "digits.onnx"), str(port)]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    with process:
        served = RayServe(process, port)
        served.expect("ready")
        yield served


def milliseconds(subject: Subject) -> float:
    """Return the duration of one call in milliseconds."""
    began = time.perf_counter()
    subject.call()
    return (time.perf_counter() - began) * 1000


def measure(subjects: dict[str, Subject], rounds: int) -> None:
    """Print a row per subject: cold calls, warm calls, and the last subject's ratio to it."""
    names = [*subjects]
    cold: dict[str, list[float]] = {name: [] for name in names}
    warm: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            subject = subjects[name]
            subject.settle()
            time.sleep(REST_S)
            first = milliseconds(subject)
            rest = [milliseconds(subject) for _ in range(WARM_CALLS)]
            if number:  # The first round is not counted.
                cold[name].append(first)
                warm[name] += rest
    last = cold[names[-1]]
    print(f"| system | cold call, ms | {names[-1]} to it | warm call, ms |\n|---|---|---|---|")
    for name in names:
        ratios = sorted(a / b for a, b in zip(last, cold[name], strict=True))
        print(
            f"| {name} | {median(cold[name]):.1f} ({min(cold[name]):.1f} to {max(cold[name]):.1f})"
            f" | {median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
            f" | {median(warm[name]):.1f} |"
        )
    print(f"\n{rounds} rounds, load average at the end: {os.getloadavg()[0]:.1f}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside_ray")
    parser.add_argument("python", help="an interpreter with ray[serve] and onnxruntime")
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        subjects: dict[str, Subject] = {}
        for name, standbys in (("fngate, standby", 1), ("fngate, no standby", 0)):
            server = stack.enter_context(
                server_process(folder / str(standbys), environment={"FN_STANDBYS": str(standbys)})
            )
            server.fnctl_json("deploy", str(DIGITS))
            subjects[name] = Fngate(server, has_standby=bool(standbys))
        subjects["Ray Serve"] = stack.enter_context(ray_serve(given.python))
        measure(subjects, given.rounds)


if __name__ == "__main__":
    main()
