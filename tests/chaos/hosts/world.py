"""The hosts of a run: a local engine, and other hosts in a server's list."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError

from pool_manager.drivers.docker import spec
from registry.model.hosts import LOCAL_HOST
from tests.chaos.containers.engine_room import happened
from tests.chaos.hosts.functions import SEEN
from tests.support.fleet.fleet import Fleet, open_fleet
from tests.support.fleet.host import WORKER, Host, Plan, stand_in_runtime
from tests.support.own_engine import OwnEngine

AGENT = "agent"
"""Replica id of a host's agent."""
ANSWER_S = 60.0
Placement = set[tuple[str, str]]
"""Host and id of replicas."""


@dataclass
class World:
    """The local engine and the other hosts."""

    local: OwnEngine
    fleet: Fleet

    @property
    def hosts(self) -> list[Host]:
        """Return the other hosts."""
        return self.fleet.hosts

    def containers(self) -> list[tuple[str, dict[str, Any]]]:
        """Return host and listing of all containers of the running hosts."""
        urls = {LOCAL_HOST: self.local.url}
        urls |= {one.name: one.engine_url for one in self.hosts if one.is_running}
        found = []
        for name, url in urls.items():
            with api(url) as client:
                found += [(name, listed) for listed in client.containers(all=True)]
        return found

    def replicas(self) -> Placement:
        """Return where containers of replicas are, in any state, but not agents and holders."""
        ids = [(name, one["Labels"].get(spec.REPLICA, "")) for name, one in self.containers()]
        return {(name, id) for name, id in ids if id not in ("", AGENT)}

    def left(self) -> list[str]:
        """Return all containers and files of the product, but not the cache of files."""
        there = [f"{name}: {one['Names']} {one['State']}" for name, one in self.containers()]
        files = [f"{one.name}: {path}" for one in self.hosts for path in one.files()]
        return [*there, *(line for line in files if not is_cached(line.partition(": ")[2]))]


def is_cached(path: str) -> bool:
    """Return whether a path below ~/.fngate is of the cache of files, which stays."""
    return Path(path).parts[1:2] == ("files",)


def kill(url: str, replica: str) -> bool:
    """Kill a replica's container by its engine; return whether it ran."""
    with api(url) as client:
        label = f"{spec.REPLICA}={replica}"
        killed = [
            happened(lambda one=one: client.kill(one["Id"]))
            for one in client.containers(filters={"label": label})
        ]
    return any(killed)


@contextlib.contextmanager
def api(url: str) -> Iterator[docker.APIClient]:
    """Open a client of an engine."""
    client = docker.APIClient(base_url=url, version="1.41", timeout=ANSWER_S)
    try:
        yield client
    finally:
        client.close()


def running(url: str) -> list[str]:
    """Return the replica ids of an engine's running containers; none while it is away."""
    with contextlib.suppress(APIError, OSError), api(url) as client:
        ids = {one["Labels"].get(spec.REPLICA, "") for one in client.containers()}
        return sorted(ids - {"", AGENT})
    return []


@contextlib.contextmanager
def open_world(folder: Path, notes: Path, image: str) -> Iterator[World]:
    """Run a local engine and two hosts, of root and of another user, all with an image."""
    tools = folder / "tools"
    tools.mkdir(parents=True)
    folders = {notes: SEEN}
    runtime = stand_in_runtime(tools, {"folders": {str(notes): SEEN}})
    plans = [Plan(is_relayed=True, folders=folders, user=user) for user in ("root", WORKER)]
    with OwnEngine(*runtime) as local, open_fleet(*plans, images=(image,)) as fleet:
        local.load(image)
        yield World(local, fleet)
