"""Contract tests of the process driver alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from admin.cli.doctor import machine
from hosts.checks import Check
from pool_manager.drivers.process import ProcessDriver
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from runtime_image.proc import read_stat
from tests.support.scenes import JSON_RULES, Engine, Scenes, a_record

pytestmark = pytest.mark.slow


@pytest.fixture
async def processes(settings: PoolSettings, bundle: Path) -> AsyncIterator[Scenes]:
    made = Scenes("process", settings, bundle, Engine())
    yield made
    await made.close()


async def test_a_broken_interpreter_is_an_error(settings: PoolSettings, tmp_path: Path) -> None:
    """A missing Python interpreter makes the start fail with its path."""
    driver = ProcessDriver(settings.run_dir, python="/nonexistent/python")

    with pytest.raises(DriverError, match="/nonexistent/python"):
        await driver.start(a_record(), tmp_path, tmp_path / "log")


async def test_a_log_keeps_its_bound(processes: Scenes) -> None:
    """A log over its limit is cut to its tail, from the start of a line."""
    stage = await processes.ready("aaaa0001")
    [log] = stage.launcher.folders.logs("digits")
    with log.open("ab") as file:
        file.write(b"0123456789\n" * 20_000)

    await stage.launcher.output.bound()

    assert log.stat().st_blocks * 512 <= stage.settings.log_bytes + 4096
    [(_, kept)] = await stage.launcher.output.kept("digits")
    assert kept.startswith(b"... earlier output was dropped ...\n0123456789\n")
    assert kept.endswith(b"\n0123456789\n")


async def test_release_kills_the_whole_group(processes: Scenes) -> None:
    """A process started by a handler ends with its replica."""
    stage = await processes.ready("aaaa0001", handler="forks.py", inputs=JSON_RULES)
    [log] = stage.launcher.folders.logs("digits")
    grandchild = int(log.read_text())
    assert runs(grandchild)

    await stage.release("aaaa0001")

    assert not runs(grandchild)


async def test_a_replica_and_its_children_are_filtered(processes: Scenes) -> None:
    """Each process has the system call filter and no new privileges without an engine, and doctor
    reports it."""
    stage = await processes.ready("aaaa0001", handler="forks.py", inputs=JSON_RULES)
    pids = await stage.driver.processes.pids("aaaa0001")
    assert pids is not None

    assert all({"NoNewPrivs:\t1", "Seccomp:\t2"} <= status(pid) for pid in pids)
    found = machine.system_calls(machine.replica_pids(stage.settings.run_dir))
    assert found == [Check("ok", "replica filter", "Seccomp: 2 in 1 running replica")]


def status(pid: int) -> set[str]:
    """Return the lines of the process's status file."""
    return {*Path(f"/proc/{pid}/status").read_text().splitlines()}


def runs(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    stat = read_stat(f"/proc/{pid}")
    return stat is not None and not stat.is_zombie


async def test_the_pids_of_a_replica(processes: Scenes) -> None:
    """The pids include the replica's child processes; after the release there are none."""
    stage = await processes.ready("aaaa0001", handler="forks.py", inputs=JSON_RULES)
    [log] = stage.launcher.folders.logs("digits")
    pids = await stage.driver.processes.pids("aaaa0001")

    assert pids is not None
    assert int(log.read_text()) in pids
    assert len(pids) == 2
    await stage.release("aaaa0001")
    assert await stage.driver.processes.pids("aaaa0001") == frozenset()
