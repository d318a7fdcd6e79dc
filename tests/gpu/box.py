"""A server with the process driver on this machine's GPU, for the checks."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.gpu.machine import Machine
from tests.support.process_server import ServerProcess, server_process

CALL_S = 120.0
POLL_S = 0.05
FNCTL = "from admin.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Reply:
    """Outputs of one call, and the durations in its Server-Timing header in milliseconds."""

    outputs: dict[str, Any]
    timing: dict[str, float]
    seconds: float


class Box:
    """A running server. `folder` holds the functions' bundles."""

    def __init__(self, machine: Machine, server: ServerProcess, folder: Path) -> None:
        self.machine = machine
        self.server = server
        self.folder = folder
        self._port = urlsplit(server.url).port or 0

    def deploy(self, bundle: Path) -> str:
        """Deploy a folder with --trust unless it is deployed; return the function's name.

        Returns once the trial's device is free again: until then a call would evict other replicas.
        """
        known = {item["name"] for item in self.items("functions")}
        if bundle.name not in known:
            self.server.fnctl_json("deploy", str(bundle), "--trust")
            self.until(lambda: not self._trials(), f"the trial of {bundle.name} is released")
        return bundle.name

    def _trials(self) -> list[dict[str, Any]]:
        return [item for item in self.items("replicas") if item["role"] == "trial"]

    def call(self, name: str, x: Any = None) -> Reply:
        """Call a function with the input `x`. Raises RuntimeError unless the status is 200."""
        return self.post(name, json.dumps({"inputs": {"x": x or {}}}).encode())

    def post(self, name: str, body: bytes, kind: str = "application/json") -> Reply:
        """Call with a body of any content type. An answer that is not JSON has no outputs."""
        began = time.monotonic()
        response, answer = self._send("POST", f"/fn/{name}", body, kind)
        if response.status != 200:
            raise RuntimeError(f"{name}: expected 200, got {response.status} {answer[:500]!r}")
        timing = _timing(response.getheader("Server-Timing") or "")
        return Reply(json.loads(answer)["outputs"], timing, time.monotonic() - began)

    def complete(self, name: str, prompt: str) -> tuple[str, float]:
        """Have a model complete a text; return what it said, and the seconds. Raises RuntimeError
        unless the status is 200."""
        began = time.monotonic()
        body = json.dumps({"model": name, "prompt": prompt}).encode()
        response, answer = self._send("POST", "/v1/completions", body)
        if response.status != 200:
            raise RuntimeError(f"{name}: expected 200, got {response.status} {answer[:500]!r}")
        return json.loads(answer)["choices"][0]["text"], time.monotonic() - began

    def _send(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request of an administrator; return the answer and its body."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=CALL_S)
        more = {} if body is None else {"Content-Type": kind, "Accept": "application/json"}
        try:
            connection.request(method, path, body, {**self.server.headers, **more})
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def items(self, path: str) -> list[dict[str, Any]]:
        """Return a list from the admin API."""
        return list(self.ask("GET", path)["items"])

    def ask(self, method: str, path: str) -> Any:
        """Send an admin API request. Raises RuntimeError on an error."""
        response, answer = self._send(method, f"/admin/v1/{path}")
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status} {answer[:500]!r}")
        return json.loads(answer)

    def function(self, name: str) -> dict[str, Any]:
        """Return the admin API's document of a function."""
        return dict(self.ask("GET", f"functions/{name}"))

    def text(self, path: str) -> str:
        """Return the text at a path of the server, such as /metrics."""
        return self._send("GET", path)[1].decode()

    def device(self) -> dict[str, Any]:
        """Return the admin API's view of the GPU."""
        return next(item for item in self.items("devices") if item["id"] == self.machine.gpu.uuid)

    def replicas(self, name: str = "", state: str = "ready") -> list[dict[str, Any]]:
        """Return the replicas in a state, of one function or ("") of all."""
        return [
            item
            for item in self.items("replicas")
            if item["state"] == state and (not name or item["function"] == name)
        ]

    def pid(self, name: str) -> int:
        """Return the pid of a function's only ready replica."""
        [replica] = self.replicas(name)
        return self.server.replica_processes()[replica["id"]]

    def sleep_all(self) -> None:
        """Scale every function to zero; return once all replicas are released."""
        for name in [item["name"] for item in self.items("functions")]:
            self.send_to_zero(name)
        self.until(lambda: self.device()["state"] == "free", "the GPU is free")

    def send_to_zero(self, name: str) -> None:
        """Request sleep until no replica of the function serves; a recently called one refuses."""

        def is_gone() -> bool:
            if not self.replicas(name):
                return True
            self.ask("POST", f"functions/{name}/sleep")
            return False

        self.until(is_gone, f"{name} goes to zero")

    def until(self, is_so: Callable[[], bool], what: str, seconds: float = 40.0) -> float:
        """Wait for a state that other processes bring about; return the seconds waited.

        Raises TimeoutError.
        """
        began = time.monotonic()
        while not is_so():
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"after {seconds:.0f} s still not: {what}; {self.device()}")
            time.sleep(POLL_S)
        return time.monotonic() - began

    def until_used(self, most_mib: float, seconds: float = 20.0) -> float:
        """Wait until NVML reports at most `most_mib` in use; return the seconds waited."""
        what = f"at most {most_mib:.0f} MiB in use by NVML"
        return self.until(lambda: self.machine.used_mib() <= most_mib, what, seconds)


def _timing(header: str) -> dict[str, float]:
    """Return the durations in a Server-Timing header by metric name (W3C Server Timing)."""
    found = {}
    for metric in header.split(", "):
        name, *parameters = metric.split(";")
        for parameter in parameters:
            if parameter.startswith("dur="):
                found[name] = float(parameter.removeprefix("dur="))
    return found


@contextmanager
def running(machine: Machine, folder: Path, cards: int, **environment: str) -> Iterator[Box]:
    """Run a new server on the first `cards` GPUs only; every replica is gone afterwards."""
    program = (str(machine.python), "-c", FNCTL)
    settings = {
        "FN_GPUS": ",".join(gpu.uuid for gpu in machine.gpus[:cards]),
        "FN_STANDBYS": "0",
        "FN_DCGM_METRICS": "1",
        **environment,
    }
    folder.mkdir(parents=True)
    with server_process(
        folder / "data", environment=settings, program=program, client=program
    ) as server:
        yield Box(machine, server, folder / "bundles")
