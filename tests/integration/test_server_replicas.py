"""Real sidecars under the launcher and the process driver: served, drained, adopted, and nothing of
their servers left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pool_manager.core import events
from pool_manager.drivers.marked import await_ends
from pool_manager.drivers.process import ProcessDriver
from runtime_image.contract.server import Network, ServerSpec
from runtime_image.proc import read_stat
from runtime_image.server import reaper
from tests.support.peers import ListeningManager, delivering, published
from tests.support.replicas import Stage, binding, pool_settings
from tests.support.sidecars import Proxy, Sidecar

ID = "aaaa0001"
SERVER = f"{sys.executable} -m http.server --bind 127.0.0.1 $PORT"
STRAY = "setsid sleep 1000 </dev/null >/dev/null 2>&1 &"
"""Starts a process in a session of its own."""
SPEC = ServerSpec(
    "digits@1", ("/bin/sh", "-c", f"{STRAY} exec {SERVER}"), start_s=60.0, concurrency=4
)

pytestmark = pytest.mark.slow


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    (tmp_path / "hello.txt").write_text("hello\n")
    with pool_settings(orphan_s=30.0) as settings:
        driver = ProcessDriver(settings.run_dir, server_path=os.defpath)
        made = Stage(settings, driver, tmp_path)
        yield made
        await made.close()


async def pids(stage: Stage) -> frozenset[int]:
    """Return the pids of the replica: sidecar, server, stray and perhaps a reaper."""
    found = await stage.driver.processes.pids(ID)
    assert found is not None
    return found


def name(pid: int) -> str:
    """Return the name of a process's program."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def running(those: frozenset[int]) -> list[int]:
    """Return those of the processes that run; zombies do not count."""
    stats = {pid: read_stat(f"/proc/{pid}") for pid in those}
    return [pid for pid, stat in stats.items() if stat is not None and not stat.is_zombie]


async def test_a_server_is_reached_drained_and_gone(stage: Stage) -> None:
    """A gateway gets connections to the server; a drain waits for the exchange that is open, may be
    revoked, and leaves nothing behind."""
    loaded = await stage.ready(ID, binding(SPEC))
    there = await pids(stage)
    assert loaded.limit == 4
    assert len([pid for pid in there if name(pid) != reaper.NAME]) == 3
    async with AsyncExitStack() as stack:
        delivery = await stack.enter_async_context(delivering(ListeningManager()))
        path = stage.launcher.folders.data_socket(ID)
        delivery.receive_endpoints(published(Sidecar(path).endpoint(id=ID, limit=4)))
        proxy = Proxy()
        call = proxy.call()
        delivery.submit_exchange(call)
        connection = await proxy.connection()
        connection.write(b"GET /hello.txt HTTP/1.0\r\n\r\n")
        answer = b""
        while not answer.endswith(b"hello\n"):
            answer += await proxy.received.get()

        control = stage.launcher.control(ID)
        assert control is not None
        control.drain(1.0)
        assert await stage.next(events.NotIdle) == events.NotIdle(ID, 0.0)
        control.quiesce()
        control.resume()
        assert await stage.next(events.NotIdle) == events.NotIdle(ID, 0.0)
        control.quiesce()
        delivery.end_exchange(call, kept=False)
        assert await stage.exit(ID) == "exited with code 0"

    assert running(there) == []


NETWORKS = pytest.mark.parametrize("network", ["none", "egress"])
"""With namespaces, if this machine permits them, and without."""


@NETWORKS
async def test_a_killed_sidecar_leaves_nothing_after_its_release(
    stage: Stage, network: Network
) -> None:
    """What outlives a killed sidecar is ended by the release of the replica."""
    await stage.ready(ID, binding(replace(SPEC, network=network)))
    there = await pids(stage)
    sidecar = stage.driver._groups[ID].pid  # type: ignore[attr-defined]
    os.kill(sidecar, signal.SIGKILL)
    await stage.exit(ID)

    await stage.release(ID)

    assert running(there) == []


@NETWORKS
async def test_a_sidecar_killed_while_no_manager_runs_leaves_nothing(
    stage: Stage, network: Network
) -> None:
    """The next manager's driver ends what is left of its server."""
    await stage.ready(ID, binding(replace(SPEC, network=network)))
    sidecar = stage.driver._groups[ID].pid  # type: ignore[attr-defined]
    ends = [os.pidfd_open(pid) for pid in await pids(stage)]
    stage.launcher._close_control(ID)
    await stage.driver.close()
    os.kill(sidecar, signal.SIGKILL)
    await asyncio.to_thread(os.waitpid, sidecar, 0)
    later = ProcessDriver(stage.settings.run_dir, server_path=os.defpath)

    assert await later.list() == set()

    await_ends(ends, 30.0)
    for fd in ends:
        os.close(fd)
    await later.close()


async def test_a_release_ends_what_hides(stage: Stage) -> None:
    """Without namespaces, too: a process without a marker is below the sidecar until then."""
    hidden = "setsid env -i sleep 1000 </dev/null >/dev/null 2>&1 &"
    command = ("/bin/sh", "-c", f"{hidden} exec {SERVER}")
    await stage.ready(ID, binding(replace(SPEC, command=command, network="egress")))
    there = await pids(stage)
    assert "sleep" in {name(pid) for pid in there}

    await stage.release(ID)

    assert running(there) == []


async def test_a_later_manager_adopts_a_sidecar(stage: Stage, tmp_path: Path) -> None:
    """A sidecar greets a restarted manager with its server ready, and takes exchanges on."""
    await stage.ready(ID, binding(SPEC))
    there = await pids(stage)
    record = stage.launcher.folders.read_records()[ID]
    assert record is not None
    stage.launcher._close_control(ID)
    await stage.driver.close()
    later = Stage(
        stage.settings, ProcessDriver(stage.settings.run_dir, server_path=os.defpath), tmp_path
    )
    assert await later.driver.list() == {ID}

    later.launcher.adopt(record, "digits")

    greeted = await asyncio.wait_for(later.next(events.Greeted), 30)
    loaded = await later.next(events.Loaded)
    assert (greeted.loaded, loaded.limit) == (True, 4)
    control = later.launcher.control(ID)
    assert control is not None
    control.resume()
    assert isinstance(await later.next(events.NotIdle), events.NotIdle)
    assert await pids(later) == there
    await later.release(ID)
    assert running(there) == []
    await later.close()
