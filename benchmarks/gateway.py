"""A running fngate server to measure, called with a key like any other client."""

from __future__ import annotations

import http.client
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.loading.call import Call
from benchmarks.measuring.processes import family, pin
from benchmarks.measuring.setting import Setting
from benchmarks.models.subjects import Subject
from benchmarks.references.engines import Task, task
from runtime_image.contract.model import SessionPlan
from tests.support.process_server import FNCTL, ServerProcess, server_process

WAIT_S = 120.0
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(64 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(512 * 2**20),
}
"""For servers that read large bodies, fngate and references: keep buffers instead of remapping."""


class Gateway:
    """A running server, with a key for invoking."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.port = urlsplit(server.url).port or 0
        self.key = str(server.fnctl_json("key", "add", "--scope", "invoke")["secret"])

    def deploy(self, subject: Subject, *options: str) -> None:
        """Deploy as a user would. For a folder, its manifest names the function."""
        words = () if subject.path.is_dir() else ("--name", subject.name)
        self.server.fnctl_json("deploy", str(subject.path), *words, *options)

    def call(self, subject: Subject) -> Call:
        """Return the call of the function, with the key."""
        headers = {**subject.headers, "Authorization": f"Bearer {self.key}"}
        return Call(self.port, f"/fn/{subject.name}", subject.body, headers)

    def call_ms(self, subject: Subject) -> float:
        """Make one call over an open connection; return the milliseconds to its last byte."""
        call = self.call(subject)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.connect()
        headers = {"Content-Type": "application/json", **call.headers}
        began = time.perf_counter()
        connection.request("POST", call.path, call.body, headers)
        response = connection.getresponse()
        answer = response.read()
        taken_ms = (time.perf_counter() - began) * 1e3
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{call.path}: expected 200, got {response.status} {answer[:300]!r}")
        return taken_ms

    def cold_call_ms(self, subject: Subject, standbys: int) -> float:
        """Make one call when only `standbys` standbys are left, all of them waiting."""
        self.go_cold(standbys)
        return self.call_ms(subject)

    def go_cold(self, standbys: int) -> None:
        """Stop every serving replica; return when only `standbys` standbys are left.

        The request is repeated, because a replica that was just called is not known to be idle and
        stays. Raises TimeoutError.
        """
        self.await_states(["standby"] * standbys, sending_home=True)

    def await_states(self, wanted: list[str], sending_home: bool = False) -> None:
        """Wait until the replicas have these states. Raises TimeoutError."""
        until_s = time.monotonic() + WAIT_S
        while True:
            replicas = self.replicas()
            if sorted(item["state"] for item in replicas) == sorted(wanted):
                return
            if time.monotonic() > until_s:
                raise TimeoutError(f"replicas: expected states {wanted}, got {replicas}")
            for item in replicas if sending_home else ():
                if item["state"] == "ready":
                    self.ask("POST", f"functions/{function_of(item['pool'])}/sleep")
            time.sleep(0.05)

    def replicas(self) -> list[dict[str, Any]]:
        """Return the replicas as the admin API shows them."""
        return list(self.ask("GET", "replicas")["items"])

    def ask(self, method: str, path: str) -> Any:
        """Send a request to the admin API and return its JSON."""
        url = f"{self.server.url}/admin/v1/{path}"
        request = urllib.request.Request(url, headers=self.server.headers, method=method)
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return json.load(response)

    @property
    def pids(self) -> list[int]:
        """Processes of the server except replicas; includes gateway workers, if any."""
        assert self.server.process is not None
        replicas = set(self.server.replica_pids())
        return [pid for pid in family(self.server.process.pid) if pid not in replicas]

    def replica_id(self, subject: Subject) -> str:
        """Return the id of the function's only ready replica. Raises RuntimeError."""
        found = [
            str(item["id"])
            for item in self.replicas()
            if item["state"] == "ready" and function_of(item["pool"]) == subject.name
        ]
        if len(found) != 1:
            raise RuntimeError(f"{subject.name}: expected one ready replica, got {len(found)}")
        return found[0]

    def replica_pid(self, subject: Subject) -> int:
        """Return the process id of the function's only ready replica."""
        return self.server.replica_processes()[self.replica_id(subject)]

    def pin(self, setting: Setting) -> None:
        """Pin the server to its core and replicas to the others. Call this after the warm-up:
        processes started later inherit the server's core."""
        measured, others = setting.cores
        pin(self.pids, measured)
        pin(self.server.replica_pids(), others)

    def revision(self, subject: Subject) -> dict[str, Any]:
        """Return the revision with the traffic, as in `fnctl show --json`."""
        shown = self.server.fnctl_json("show", subject.name)
        return next(item for item in shown["revisions"] if item["traffic"])

    def first_session(self, subject: Subject, folder: Path) -> Task:
        """Return the session that a replica loads before its first answer. The model files are
        linked into `folder` while a replica is warm, because they are removed with it."""
        plan = quick_plan(self.revision(subject).get("profile"))
        if plan is None:
            return task(subject)
        folders = self.server.data.rglob(self.replica_id(subject))
        [root] = (path for path in folders if (path / plan.file).is_file())
        own = folder / f"{subject.name}-prepared"
        for path in root.rglob("*"):
            if path.is_file():
                target = own / path.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    os.link(path, target)
        return task(subject, own, plan)


def function_of(pool: str) -> str:
    """Return the function's name in a pool key: "digits" for "default/digits@1"."""
    return pool.partition("/")[2].rpartition("@")[0]


def quick_plan(profile: Any) -> SessionPlan | None:
    """Return the plan of a prepared first session, found anywhere in a profile; None without
    one."""
    if not isinstance(profile, dict):
        return None
    quick = profile.get("quick")
    if isinstance(quick, dict) and "file" in quick:
        known = {name: quick[name] for name in ("file", "optimise", "prepack") if name in quick}
        return SessionPlan(**known)
    return next(filter(None, map(quick_plan, profile.values())), None)


@contextmanager
def gateway(
    *options: str,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = (FNCTL,),
    client: Sequence[str] = (FNCTL,),
) -> Iterator[Gateway]:
    """Run a new server with a temporary data folder. `program` replaces fnctl for the server,
    `client` for all other commands."""
    with tempfile.TemporaryDirectory(prefix="fn-") as data:
        running = server_process(
            Path(data), *options, environment=environment, program=program, client=client
        )
        with running as server:
            yield Gateway(server)
