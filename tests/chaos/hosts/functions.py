"""Functions that run on several hosts: models, a handler that counts its runs, and a server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos.containers.calling import Clients
from tests.chaos.containers.exchanges import LIMITS, Exchanges, Sent
from tests.chaos.containers.fault_times import FaultTimes
from tests.chaos.subjects import HANDLER, MODEL, WIDE, Subject
from tests.support import models
from tests.support.caller import Answer, Caller
from tests.support.doses import amount
from tests.support.raw_http import Got

SEEN = "/seen"
"""Folder in all containers, in which handlers and servers note what they have run."""
ROWS = 200
"""Rows of the largest requests, 200 KiB: they go by the connection for bodies."""
RETRY = '[limits]\nretry = "always"\n'
PREDICT = """
import os, threading

def predict(inputs, ctx):
    file = os.open("/seen/NAME", os.O_WRONLY | os.O_APPEND)
    os.write(file, b"%d\\n" % int(inputs["x"][0][0]))
    os.close(file)
    threading.Event().wait(0.01)
    return {{"y": inputs["x"] * {scale} + {offset}}}
"""
SERVER = (
    """
schema = 1
name = "{name}"

[server]
image = "{image}"
command = ["--port", "8000", "--name", "{name}", "--seen", "/seen/{name}"]
port = 8000
ready = "/ready"
start_s = 60
stop_grace_s = 1

"""
    + LIMITS
    + """min = 1
max = 2
"""
)
SERVERS = {"first": "auto", "second": "never"}
"""Server functions and their `retry`."""
BAD_GATEWAY = 502
LOST = ("replica_died", "upstream_failed")


@dataclass(frozen=True)
class Placed(Subject):
    """A function on up to three hosts."""

    rows: int = 0

    async def deploy(self, caller: Caller, folder: Path, idle_s: float) -> dict[str, Any]:
        """Build and deploy the function; return the operation's result."""
        scaling = {"min": 2, "max": 2}
        settings = {"idle_s": idle_s, "batching": self.batching}
        if self.handler:
            source = self.predict.format(scale=self.scale, offset=self.offset)
            files = {"handler.py": source.replace("NAME", self.name).encode()}
            manifest = HANDLER.format(**settings).replace(RETRY, "")
            return await caller.deploy(files, name=self.name, manifest=manifest, **scaling)
        width = WIDE if self.wide else models.WIDTH
        model = models.affine(folder, self.scale, self.offset, width=width, loops=self.loops)
        manifest = MODEL.format(**settings)
        return await caller.deploy(model, name=self.name, manifest=manifest, **scaling)

    def _input(self, number: int) -> models.Weights:
        if not self.rows:
            return super()._input(number)
        row = np.arange(number, number + self.rows * WIDE, dtype=np.float32)
        return row.reshape(self.rows, WIDE)


COUNTED = Placed("counted", 5, 7, 2, handler=True, batching="off", predict=PREDICT)
SUBJECTS: tuple[Subject, ...] = (
    Placed("inline", 2, 3, 5),
    Placed("batch", 7, 11, 5, loops=amount(20, 100)),
    COUNTED,
    Placed("wide", 11, 13, 3, wide=True, rows=ROWS),
)


class HostClients(Clients):
    """Callers of models and of the handler, under faults of hosts.

    A model answers always, but a gateway that shuts down accepts no call. A call of the handler
    that was cut off in its run may be refused: it is counted, and never sent again.
    """

    fault_times: FaultTimes

    def repeats(self, subject: Subject) -> bool:
        """Return whether a request that was cut off is sent again."""
        return subject is not COUNTED

    def refused(self, who: str, subject: Subject, answer: Answer, began_s: float) -> None:
        """Judge an answer that is not 200."""
        code = answer.json().get("code")
        if code == "shutting_down" and not self.fault_times.is_steady_since(began_s):
            return  # it came in the moment of the restart, and was not accepted
        is_lost = answer.status == BAD_GATEWAY and code in LOST
        if subject is not COUNTED or not is_lost or self.fault_times.is_calm_since(began_s):
            super().refused(who, subject, answer, began_s)


class HostExchanges(Exchanges):
    """Clients of servers, under faults of hosts.

    A server that may still run on a host that cannot be reached has no successor elsewhere until
    the host counts as gone; a call that waits for longer than its budget is refused.
    """

    def _refused(self, sent: Sent, got: Got, who: str, began_s: float) -> None:
        is_fenced = got.code == "wait_budget_over" and b"may still run there" in got.body
        if is_fenced and not self.fault_times.is_calm_since(began_s):
            self.counts["waited for a host"] += 1
        else:
            super()._refused(sent, got, who, began_s)


async def deploy_server(caller: Caller, name: str, image: str) -> None:
    """Deploy one of SERVERS."""
    manifest = SERVER.format(name=name, image=image, retry=SERVERS[name])
    body = {"files": [], "manifest": manifest, "overrides": {}, "trust": True, "breaking": True}
    answer = await caller.admin("POST", f"/functions/{name}/revisions", body)
    assert answer.status < 300, answer.body
    operation = (await caller.ended(answer.json())).json()
    assert operation["state"] == "done", operation


def make_notes(folder: Path) -> Path:
    """Create the folder for SEEN, with a file for each function that any user may write."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    for name in (COUNTED.name, *SERVERS):
        (folder / name).touch()
        (folder / name).chmod(0o666)
    return folder


def run_twice(folder: Path) -> list[int]:
    """Return the numbers of requests that the handler has run more than once."""
    counts = Counter(map(int, (folder / COUNTED.name).read_text().split()))
    return sorted(number for number, count in counts.items() if count > 1)
