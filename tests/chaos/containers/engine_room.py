"""Direct access to one server's containers on the engine, bypassing the server."""

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


@contextlib.contextmanager
def engine_with(image: str, given: OwnEngine | None = None) -> Iterator[OwnEngine]:
    """Yield an engine with an image of the shared engine: `given`, which has it, or a new one."""
    if given is not None:
        yield given
        return
    with OwnEngine() as engine:
        engine.load(image)
        yield engine


@dataclass(frozen=True)
class Running:
    """A running replica container. `began`: StartedAt reported by the engine; a restart changes
    it."""

    container: str
    began: str
    pid: int


class EngineRoom:
    """Containers of the server with data folder `data`. All methods block."""

    def __init__(self, engine: OwnEngine, data: Path) -> None:
        self.engine = engine
        self._label = f"{spec.OWNER}={spec.owner_name(data.resolve())}"
        self.client = docker.APIClient(base_url=engine.url, version="1.41", timeout=ANSWER_S)

    def replicas(self) -> dict[str, Running]:
        """Return the running or paused replica containers by replica id."""
        found = {}
        for listed in self._listed():
            id = listed["Labels"].get(spec.REPLICA, "")
            if id and listed["State"] in ("running", "paused"):
                with contextlib.suppress(APIError):
                    state = self.client.inspect_container(listed["Id"])["State"]
                    found[id] = Running(listed["Id"], state["StartedAt"], state["Pid"])
        return found

    def parts(self) -> dict[str, dict[str, Running]]:
        """Return the running or paused containers of server functions by replica id and part."""
        found: dict[str, dict[str, Running]] = {}
        for listed in self._listed():
            part, id = listed["Labels"].get(spec.PART, ""), listed["Labels"].get(spec.REPLICA, "")
            if part in (spec.SIDECAR, spec.SERVER) and listed["State"] in ("running", "paused"):
                with contextlib.suppress(APIError):
                    state = self.client.inspect_container(listed["Id"])["State"]
                    running = Running(listed["Id"], state["StartedAt"], state["Pid"])
                    found.setdefault(id, {})[part] = running
        return found

    def holders(self) -> list[str]:
        """Return the ids of the holder containers of prepared networks."""
        return [one["Id"] for one in self._listed() if spec.HOLDER in one["Labels"]]

    def remove_holders(self) -> list[str]:
        """Remove all holder containers; return the ids of those removed."""
        return [
            container
            for container in self.holders()
            if happened(functools.partial(self.client.remove_container, container, force=True))
        ]

    def left(self) -> list[str]:
        """Return every container of this server, in any state."""
        return [f"{one['Names']} {one['State']}" for one in self._listed()]

    def _listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.containers(
            all=True, filters={"label": [self._label]}
        )
        return found

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop dockerd (SIGSTOP): it accepts requests and answers none."""
        with freezing.frozen(self.engine.pid):
            yield

    def freeze_for(self, seconds: float) -> None:
        """Stop dockerd as `frozen` does and resume it after `seconds`, without blocking."""
        pid = self.engine.pid
        freezing.freeze(pid)
        threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()

    def close(self) -> None:
        """Close the client."""
        self.client.close()


def happened(act: Callable[[], object]) -> bool:
    """Run an action on a container; return False if the container was already gone."""
    try:
        act()
    except (APIError, ProcessLookupError):
        return False
    return True
