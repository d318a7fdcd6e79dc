"""Sidecars as processes: their environment and limits, and what their servers leave behind."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pool_manager.drivers import process as processes
from pool_manager.drivers.process import SERVER_NOFILE_MAX, ProcessDriver
from registry.errors import DriverError
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION
from runtime_image.contract.server import ENGINE, MARKER
from runtime_image.proc import read_stat

ID = "aaaa0001"
PATH = f"/opt/tools/bin:{os.defpath}"
SIDECAR = """#!/bin/sh
began="$(eval echo \\${$#})/began"
setsid sh -c 'echo $$ >"$1"; while :; do sleep 1000; done' - "$began" &
while :; do sleep 1000; done
"""
"""Stand-in for a sidecar: starts a process in a session of its own, and writes its pid."""

pytestmark = pytest.mark.slow


class Rig:
    """A driver whose replicas are stand-ins for sidecars."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.script = root / "python"
        self.script.write_text(SIDECAR)
        self.script.chmod(0o700)
        self.driver = self.make_driver()
        self.exits: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.driver.exits.subscribe(lambda id, end: self.exits.put_nowait((id, end.how)))

    def make_driver(self) -> ProcessDriver:
        return ProcessDriver(self.root, python=str(self.script), server_path=PATH)

    async def start(self, id: str = ID, **changes: Any) -> tuple[int, int]:
        """Start a sidecar; return its pid and that of the process in the other session."""
        run_dir = self.root / id
        run_dir.mkdir()
        os.mkfifo(run_dir / "began")
        await self.driver.start(record(id, **changes), run_dir, self.root / f"{id}.log")
        pid = await asyncio.to_thread((run_dir / "began").read_text)
        return self.driver._groups[id].pid, int(pid)


def record(id: str, **changes: Any) -> ReplicaRecord:
    return ReplicaRecord(
        **{
            **{"id": id, "token": "secret", "role": "serve", "namespace": "default"},
            **{"bound": "default/web@1", "model_dir": "", "devices": ("cpu:0",)},
            **{"device_kind": "cpu", "engine": ENGINE, "threads": 3, "orphan_s": 1.0},
            **{"memory_mib": 512, "launched_s": 0.0, "link": VERSION, **changes},
        }
    )


def environ(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def foreign_process(run_dir: Path) -> subprocess.Popen[bytes]:
    """Return a process of another data folder's server."""
    return subprocess.Popen(["sleep", "1000"], env={MARKER: str(run_dir), "PATH": os.defpath})


def is_running(pid: int) -> bool:
    """Whether a process runs; zombies do not count."""
    stat = read_stat(f"/proc/{pid}")
    return stat is not None and not stat.is_zombie


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with TemporaryDirectory(prefix="fn-") as root:
        made = Rig(Path(root))
        yield made
        for id in list(made.driver._groups):
            await made.driver.release(id)
        await made.driver.close()


async def test_a_server_has_the_configured_path_and_the_marker(rig: Rig) -> None:
    """Sidecars get FN_SERVER_PATH and the marker of their replica; models get neither."""
    environment = environ((await rig.start())[0])
    model, stray = await rig.start("aaaa0002", engine="python")
    models = environ(model)
    os.killpg(stray, 9)

    assert f"PATH={PATH}".encode() in environment
    assert f"{MARKER}={rig.root / ID}".encode() in environment
    assert f"PATH={os.defpath}".encode() in models
    assert not any(entry.startswith(MARKER.encode()) for entry in models)


async def test_several_gpus_are_named_by_their_numbers(rig: Rig) -> None:
    """In the order of their PCI addresses, as the monitor of the GPUs names them; one GPU is named
    alone and numbered as CUDA likes."""
    asked: list[tuple[str, ...]] = []

    def visible(devices: Sequence[str]) -> str:
        asked.append(tuple(devices))
        return "0,2" if len(devices) > 1 else devices[0]

    rig.driver = ProcessDriver(rig.root, python=str(rig.script), visible=visible)
    several = environ((await rig.start(devices=("GPU-a", "GPU-c"), device_kind="cuda"))[0])
    one = environ((await rig.start("aaaa0002", devices=("GPU-b",), device_kind="cuda"))[0])
    none = environ((await rig.start("aaaa0003"))[0])

    assert asked == [("GPU-a", "GPU-c"), ("GPU-b",)]
    assert {b"CUDA_VISIBLE_DEVICES=0,2", b"CUDA_DEVICE_ORDER=PCI_BUS_ID"} <= set(several)
    assert b"CUDA_VISIBLE_DEVICES=GPU-b" in one
    assert not any(entry.startswith(b"CUDA_DEVICE_ORDER") for entry in (*one, *none))
    assert not any(entry.startswith(b"CUDA") for entry in none)


async def test_a_sidecar_has_limits_of_its_own(rig: Rig) -> None:
    """The memory cap is not set per process, neither at the start nor later, and a sidecar may hold
    two descriptors per exchange."""
    pid, _ = await rig.start()
    await rig.driver.limit(record(ID))

    assert resource.prlimit(pid, resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
    files, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert files == min(SERVER_NOFILE_MAX, most)


async def test_processes_outside_of_the_group_belong_to_the_replica(rig: Rig) -> None:
    """The pids of a replica include what its server started in other sessions."""
    sidecar, stray = await rig.start()

    pids = await rig.driver.processes.pids(ID)

    assert pids is not None
    assert {sidecar, stray} <= pids
    assert await rig.driver.processes.pids("aaaa0009") == frozenset()


async def test_release_ends_processes_outside_of_the_group(rig: Rig) -> None:
    """After a release nothing of the server is left, not even in other sessions."""
    sidecar, stray = await rig.start()
    _, other = await rig.start("aaaa0002")

    await rig.driver.release(ID)

    assert not is_running(sidecar)
    assert not is_running(stray)
    assert is_running(other)
    assert await rig.exits.get() == (ID, "was killed by SIGKILL")


async def test_release_ends_what_a_dead_sidecar_left(rig: Rig) -> None:
    """A sidecar that died does not leave its server's processes behind."""
    sidecar, stray = await rig.start()
    os.kill(sidecar, 9)
    await rig.exits.get()
    assert is_running(stray)

    await rig.driver.release(ID)

    assert not is_running(stray)


async def test_survivors_keep_the_replica(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release fails as long as a process of the server survives, and works when tried again."""
    _, stray = await rig.start()

    def survive(*_: Any) -> None:
        raise DriverError(f"processes of a server survive KILL: {stray}")

    with monkeypatch.context() as unkillable:
        unkillable.setattr(processes, "end_marked", survive)
        with pytest.raises(DriverError, match="survive KILL"):
            await rig.driver.release(ID)
    assert ID in rig.driver._groups

    await rig.driver.release(ID)

    assert not is_running(stray)
    assert ID not in rig.driver._groups


async def test_an_unreadable_proc_proves_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """If /proc cannot be read, a release fails and no pids are reported."""
    await rig.start()

    def exhausted(*_: Any) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(processes, "end_marked", exhausted)
        full.setattr(processes, "marked", exhausted)
        with pytest.raises(DriverError, match="cannot verify that aaaa0001 has ended"):
            await rig.driver.release(ID)
        with pytest.raises(DriverError, match="cannot list the processes"):
            await rig.driver.processes.pids(ID)


async def test_a_restarted_server_adopts_sidecars_and_ends_orphans(rig: Rig) -> None:
    """A new driver adopts running sidecars with all their processes, and ends the processes of
    servers whose sidecar is gone; those of other data folders stay."""
    dead, orphan = await rig.start()
    alive, stray = await rig.start("aaaa0002")
    os.kill(dead, 9)
    await rig.exits.get()
    foreign = foreign_process(rig.root / "elsewhere" / ID)
    later = rig.make_driver()
    try:
        assert await later.list() == {"aaaa0002"}

        assert not is_running(orphan)
        assert is_running(alive)
        assert is_running(stray)
        assert foreign.poll() is None
        await later.release("aaaa0002")
        assert not is_running(stray)
    finally:
        foreign.kill()
        foreign.wait()
        await later.close()


async def test_orphans_of_an_unlisted_replica_end_at_its_release(rig: Rig) -> None:
    """The release of a replica whose sidecar an earlier server has lost ends its processes."""
    dead, orphan = await rig.start()
    os.kill(dead, 9)
    await rig.exits.get()
    later = rig.make_driver()

    await later.release(ID)

    assert not is_running(orphan)
    await later.close()
