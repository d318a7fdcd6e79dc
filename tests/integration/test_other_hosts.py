"""Replicas on another host: a real sshd, a real engine, its own disk and power switch."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import struct
import tarfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from pool_manager.hosts.folders import HostFolders
from pool_manager.hosts.view import HostView
from runtime_image.contract.link import VERSION, Kind
from runtime_image.link.frames import pack
from tests.support import models
from tests.support.engine import connected
from tests.support.fleet.fleet import open_fleet
from tests.support.fleet.host import WORKER, Plan
from tests.support.fleet.host import Host as Machine
from tests.support.leaks import Leaks
from tests.support.other_hosts import HOST, KEY, House, Killed, Place, house
from tests.support.replicas import pool_settings

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(180)]

MANY = 10_000
"""Files that a replica puts into its data folder."""
LOST_S = 8.0


@pytest.fixture(scope="module")
def machine(engine: str) -> Iterator[Machine]:  # noqa: ARG001 - it sends the image
    """A host that has no image yet."""
    with open_fleet(Plan(user=WORKER, is_relayed=True)) as fleet:
        yield fleet.first
        assert fleet.left() == []


@pytest.fixture
def restarts(leaks: Leaks) -> None:
    """Accept new processes and pipes of the host, which outlives the test."""
    for text in ("nsenter", "unshare", "python", "pipe:"):
        leaks.exclude(text, reason="of a host, which outlives the test")


@pytest.fixture
def place(machine: Machine, engine: str, runtime_image: str, tmp_path: Path) -> Place:
    """Where manager and host are."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    models.add_one(folder)
    return Place(
        str(folder),
        machine.address,
        machine.host_key,
        str(machine.identity),
        engine,
        runtime_image,
    )


def names(machine: Machine) -> dict[str, str]:
    """Return the ids of the running containers by name."""
    listed = machine.containers()
    return {one["Names"][0]: one["Id"] for one in listed if one["State"] == "running"}


def kept(machine: Machine) -> set[str]:
    """Return the kinds of files that are on the host."""
    return {Path(path).parts[1] for path in machine.files()}


async def test_a_function_runs_on_another_host(machine: Machine, place: Place) -> None:
    """The host gets the runtime image, a replica answers calls there, scales to zero, and leaves
    nothing but files."""
    with pool_settings() as settings:
        async with house(settings, place, idle_s=1.0) as one:
            up = one.view
            assert up.transferred_bytes > 50 * 2**20
            assert up.cpu_slots == 2
            assert up.engine_version
            id = await one.until_ready()
            assert await one.answers()
            [endpoint] = one.last.pools[KEY].replicas
            assert endpoint.host == HOST
            assert endpoint.path.startswith(f"{machine.home}/.fngate/")
            assert endpoint.path.endswith(f"/data/{id}/data.sock")
            assert len(endpoint.greeting) == 64
            assert one.last.hosts[HOST].address == machine.address
            mode = await asyncio.to_thread(
                machine.run, "stat", "-c", "%a", str(Path(endpoint.path).parent)
            )
            assert mode == "711\n"

            await one.until(lambda: not one.replicas)
            assert one.view.cached_files == 1
            assert kept(machine) == {"files", "control", "run"}
            assert [name for name in names(machine) if "agent" not in name] == []
        assert machine.containers() == []
        assert kept(machine) == {"files", "control"}


async def test_a_later_manager_adopts_what_runs_there(machine: Machine, place: Place) -> None:
    """A manager that is killed leaves replicas and agent; the next one has them, and starts
    none."""
    with pool_settings() as settings:
        first = await Killed.start(settings.run_dir.parent, place)
        try:
            id = await first.replica()
        finally:
            await first.kill()
        before = names(machine)
        assert len(before) == 2
        async with house(settings, place) as one:
            assert [replica.id for replica in one.replicas] == [id]
            assert await one.answers()
            assert names(machine) == before
        assert machine.containers() == []


@pytest.mark.usefixtures("restarts")
async def test_a_host_is_cut_off_and_loses_its_power(machine: Machine, place: Place) -> None:
    """Replicas of a host that comes back in time are known again and none was started; those of a
    host that was gone are ended, and their function starts there anew."""
    with pool_settings(host_lost_s=LOST_S) as settings:
        async with house(settings, place) as one:
            id = await one.until_ready()
            before = names(machine)
            await asyncio.to_thread(machine.link.cut)
            await one.until(lambda: one.view.state == "unreachable")
            assert one.last.pools[KEY].replicas == []
            assert [replica.id for replica in one.replicas] == [id]
            await asyncio.to_thread(machine.link.heal)
            await one.until(lambda: one.view.state == "up" and one.last.pools[KEY].replicas)
            assert await one.answers()
            assert names(machine) == before

            await asyncio.to_thread(machine.stop)
            await one.until(lambda: one.view.state == "gone")
            assert one.last.pools[KEY].replicas == []
            await asyncio.to_thread(machine.start)
            await one.until(lambda: one.view.state == "up" and not one.replicas)
            assert id not in str(machine.containers())
            assert await one.until_ready() != id
            assert await one.answers()
        assert machine.containers() == []


@pytest.mark.usefixtures("restarts")
async def test_the_engine_of_a_host_dies(machine: Machine, place: Place) -> None:
    """Replicas serve on without their engine and nothing is started; the host is used again when
    its engine is back."""
    with pool_settings() as settings:
        async with house(settings, place, max=2) as one:
            await one.until_ready()
            before = names(machine)
            await asyncio.to_thread(machine.dockerd.kill)
            one.manager.sleep(KEY)
            await one.until(lambda: one.view.reason)
            assert one.view.state == "up"
            await asyncio.to_thread(machine.dockerd.start)
            await one.until(lambda: not one.view.reason)
            await one.until(lambda: not one.replicas)
            await one.until_ready()
            assert names(machine) != before
