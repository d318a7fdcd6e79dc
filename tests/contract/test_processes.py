"""What only processes do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from admin.cli.doctor import machine
from admin.cli.doctor.machine import Check
from pool_manager.drivers.process import ProcessDriver
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from tests.support.scenes import JSON_RULES, Engine, Scenes, a_record

pytestmark = pytest.mark.slow


@pytest.fixture
async def processes(settings: PoolSettings, bundle: Path) -> AsyncIterator[Scenes]:
    made = Scenes("process", settings, bundle, Engine())
    yield made
    await made.close()


async def test_a_broken_interpreter_is_an_error(settings: PoolSettings, tmp_path: Path) -> None:
    """A Python that does not exist makes the start fail with its path."""
    driver = ProcessDriver(settings.run_dir, python="/nonexistent/python")

    with pytest.raises(DriverError, match="/nonexistent/python"):
        await driver.start(a_record(), tmp_path, tmp_path / "log")


async def test_a_log_keeps_its_bound(processes: Scenes) -> None:
    """A log that has grown is cut to its tail, from the start of a line."""
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
    """A process that a handler started is gone with its replica."""
    stage = await processes.ready("aaaa0001", handler="forks.py", inputs=JSON_RULES)
    [log] = stage.launcher.folders.logs("digits")
    grandchild = int(log.read_text())
    assert runs(grandchild)

    await stage.release("aaaa0001")

    assert not runs(grandchild)


async def test_a_replica_and_its_children_are_filtered(processes: Scenes) -> None:
    """Each has the filter of system calls and gains no privileges, with no engine to see to it;
    and doctor can tell."""
    stage = await processes.ready("aaaa0001", handler="forks.py", inputs=JSON_RULES)
    pids = await stage.driver.pids("aaaa0001")
    assert pids is not None

    assert all({"NoNewPrivs:\t1", "Seccomp:\t2"} <= status(pid) for pid in pids)
    found = machine.system_calls(machine.of_processes(stage.settings.run_dir))
    assert found == [Check("ok", "replica filter", "Seccomp: 2 in 1 running replica")]


def status(pid: int) -> set[str]:
    """What the kernel says of a process, line by line."""
    return {*Path(f"/proc/{pid}/status").read_text().splitlines()}


def runs(pid: int) -> bool:
    """Whether a process is there and more than the remains that its parent has to wait for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


async def test_the_processes_of_a_replica_are_known(processes: Scenes) -> None:
    """Those it started itself, too; once it is released there are none."""
    stage = await processes.ready("aaaa0001", handler="forks.py", inputs=JSON_RULES)
    [log] = stage.launcher.folders.logs("digits")
    pids = await stage.driver.pids("aaaa0001")

    assert pids is not None
    assert int(log.read_text()) in pids
    assert len(pids) == 2
    await stage.release("aaaa0001")
    assert await stage.driver.pids("aaaa0001") == frozenset()
