"""What runs on an engine for one server, seen and touched past the server."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError

from pool_manager.drivers.docker import spec
from tests.support import freezing
from tests.support.own_engine import OwnEngine

ANSWER_S = 60.0


@dataclass(frozen=True)
class Running:
    """A replica's container that runs. `began`: the engine's word for when; another start would
    change it."""

    container: str
    began: str
    pid: int


class EngineRoom:
    """The containers of the server over the data folder `data`. All of it blocks."""

    def __init__(self, engine: OwnEngine, data: Path) -> None:
        self.engine = engine
        self._label = f"{spec.OWNER}={spec.owner_name(data.resolve())}"
        self.client = docker.APIClient(base_url=engine.url, version="1.41", timeout=ANSWER_S)

    def replicas(self) -> dict[str, Running]:
        """Those that run or are paused, by the replica's id."""
        found = {}
        for listed in self._listed():
            id = listed["Labels"].get(spec.REPLICA, "")
            if id and listed["State"] in ("running", "paused"):
                with contextlib.suppress(APIError):
                    state = self.client.inspect_container(listed["Id"])["State"]
                    found[id] = Running(listed["Id"], state["StartedAt"], state["Pid"])
        return found

    def holders(self) -> list[str]:
        """Containers of networks made ahead."""
        return [one["Id"] for one in self._listed() if spec.HOLDER in one["Labels"]]

    def remove_holders(self) -> list[str]:
        """Take all of those away; which they were."""
        return [
            container
            for container in self.holders()
            if happened(functools.partial(self.client.remove_container, container, force=True))
        ]

    def left(self) -> list[str]:
        """Whatever of this server is on the engine, in any state."""
        return [f"{one['Names']} {one['State']}" for one in self._listed()]

    def _listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.containers(
            all=True, filters={"label": [self._label]}
        )
        return found

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """dockerd takes calls and answers none."""
        with freezing.frozen(self.engine.pid):
            yield

    def freeze_for(self, seconds: float) -> None:
        """As `frozen`, for so long from now on."""
        pid = self.engine.pid
        freezing.freeze(pid)
        threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()

    def close(self) -> None:
        """End the client."""
        self.client.close()


def happened(act: Callable[[], object]) -> bool:
    """Do something to a container; whether it was still there to have it done."""
    try:
        act()
    except (APIError, ProcessLookupError):
        return False
    return True
