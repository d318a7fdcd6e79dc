"""Replicas as processes: what the contract of all drivers does not say."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pool_manager.drivers import process as processes
from pool_manager.drivers.process import ProcessDriver
from pool_manager.drivers.process_groups import ProcessGroup
from pool_manager.ports import ServerContainer
from registry.errors import DriverError
from runtime_image.contract.control import CONTROL_SOCKET, ReplicaRecord
from runtime_image.contract.link import VERSION
from tests.support import leaks

ID = "aaaa0001"

pytestmark = pytest.mark.slow


class Rig:
    """A driver and one run folder in which the process waits for a welcome that never comes."""

    def __init__(self, root: Path) -> None:
        self.run_dir = root / ID
        self.run_dir.mkdir()
        self.log = root / "log"
        self.driver = ProcessDriver(root)
        self.exits: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.driver.exits.subscribe(lambda id, end: self.exits.put_nowait((id, end.how)))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.run_dir / CONTROL_SOCKET))
        self._listener.listen()
        self._listener.setblocking(False)
        self._link: socket.socket | None = None

    async def start(self, *, is_whole: bool = True, **changes: Any) -> int:
        """Launch; the pid of a process that has come as far as its greeting."""
        record = self.record = self.make(**changes)
        if is_whole:
            write(self.run_dir, record)
        before = leaks.processes().keys()
        await self.driver.start(record, self.run_dir, self.log)
        [pid] = leaks.processes().keys() - before
        if is_whole:
            self._link, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        return pid

    def make(self, **changes: Any) -> ReplicaRecord:
        return ReplicaRecord(
            **{
                **{"id": ID, "token": "secret", "role": "serve", "namespace": "default"},
                **{"bound": "default/digits@1", "model_dir": "", "devices": ("cpu:0",)},
                **{"device_kind": "cpu", "engine": "python", "threads": 3, "orphan_s": 1.0},
                **{"memory_mib": 0, "launched_s": 0.0, "link": VERSION, **changes},
            }
        )

    async def close(self) -> None:
        await self.driver.release(ID)
        await self.driver.close()
        self._listener.close()
        if self._link is not None:
            self._link.close()


def about(pid: int, what: str) -> bytes:
    return Path(f"/proc/{pid}/{what}").read_bytes()


def write(run_dir: Path, record: ReplicaRecord) -> None:
    (run_dir / "replica.json").write_text(json.dumps(asdict(record)))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with TemporaryDirectory(prefix="fn-") as root:
        made = Rig(Path(root))
        yield made
        await made.close()


async def test_a_server_in_a_container_needs_another_driver(rig: Rig) -> None:
    """An image cannot run as a process."""
    with pytest.raises(DriverError, match="needs the driver docker"):
        await rig.driver.start(rig.make(), rig.run_dir, rig.log, ServerContainer("sha256:1"))


async def test_a_replica_has_a_group_and_an_environment_of_its_own(rig: Rig) -> None:
    """A replica has its own session and does not inherit this process's environment."""
    pid = await rig.start()
    environment = about(pid, "environ").split(b"\0")

    assert os.getpgid(pid) == os.getsid(pid) == pid
    assert {entry.partition(b"=")[0] for entry in environment if entry} == {
        b"HOME",
        b"LANG",
        b"PATH",
        b"OMP_NUM_THREADS",
        b"ORT_DISABLE_TELEMETRY",
    }
    assert b"OMP_NUM_THREADS=3" in environment


async def test_the_memory_cap_is_on_private_memory(rig: Rig) -> None:
    """The cap limits private memory but not mapped weights."""
    pid = await rig.start(memory_mib=512)
    limits = about(pid, "limits").decode().splitlines()
    values = {line[:26].strip(): line[26:].split()[:2] for line in limits}

    assert values["Max data size"] == [str(512 * 2**20)] * 2
    assert values["Max address space"] == ["unlimited"] * 2


async def test_a_cap_may_come_later(rig: Rig) -> None:
    """A cap set later is permanent; no cap changes nothing."""
    pid = await rig.start()

    await rig.driver.limit(rig.record)
    before = resource.prlimit(pid, resource.RLIMIT_DATA)
    await rig.driver.limit(replace(rig.record, memory_mib=256))
    after = resource.prlimit(pid, resource.RLIMIT_DATA)

    assert before == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert after == (256 * 2**20, 256 * 2**20)


async def test_a_cap_that_is_refused_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused memory cap raises with the system's reason."""

    def refuse(pid: int, memory_mib: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    await rig.start()
    monkeypatch.setattr(processes, "_cap", refuse)

    with pytest.raises(DriverError, match="not permitted"):
        await rig.driver.limit(rig.record)


async def test_an_end_is_told_with_its_code(rig: Rig) -> None:
    """A process without a record exits by itself; the exit code is reported and the log has the
    reason."""
    await rig.start(is_whole=False)

    assert await rig.exits.get() == (ID, "exited with code 1")
    assert "replica.json" in rig.log.read_text()


async def test_a_replica_listed_while_it_is_launched_is_watched_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`list` finds a process before `start` has it: one pidfd is kept, and the exit code told."""
    launched, listed = threading.Event(), threading.Event()
    launch = processes._launch

    def slowly(*arguments: Any) -> ProcessGroup:
        group = launch(*arguments)
        launched.set()
        assert listed.wait(20.0)
        return group

    monkeypatch.setattr(processes, "_launch", slowly)
    before = _pidfds()
    starting = asyncio.create_task(rig.start())
    await asyncio.to_thread(launched.wait, 20.0)
    found = await rig.driver.list()
    listed.set()
    os.kill(await starting, signal.SIGKILL)

    assert found == {ID}
    assert await rig.exits.get() == (ID, "was killed by SIGKILL")
    assert len(_pidfds() - before) == 1


def _pidfds() -> set[str]:
    """Return the numbers of this process's pidfds."""
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            if str(one.readlink()) == "anon_inode:[pidfd]":
                found.add(one.name)
    return found


@pytest.mark.parametrize(
    ("act", "how"), [("terminate", "was killed by SIGTERM"), ("release", "was killed by SIGKILL")]
)
async def test_an_asked_for_end_is_told(rig: Rig, act: str, how: str) -> None:
    """TERM and KILL end a process that waits for the answer to its HELLO; the signal is
    reported."""
    await rig.start()

    await getattr(rig.driver, act)(ID)

    assert await rig.exits.get() == (ID, how)
    assert rig.exits.empty()


async def test_a_group_that_survives_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that does not end in time raises DriverError; the release can be retried."""
    await rig.start()

    with monkeypatch.context() as unkillable:
        unkillable.setattr(processes, "GONE_S", 0.0)
        unkillable.setattr(ProcessGroup, "is_running", lambda _group: True)
        with pytest.raises(DriverError, match=r"process group \d+ survives KILL"):
            await rig.driver.release(ID)

    await rig.driver.release(ID)
    assert await rig.driver.list() == set()


async def test_no_stranger_gets_the_number_before_the_group_is_killed(rig: Rig) -> None:
    """The exit of the leader is reported while its zombie reserves the pid, so that the KILL of the
    release cannot hit another group; the release reaps the zombie."""
    pid = await rig.start(is_whole=False)
    await rig.exits.get()

    assert about(pid, "stat").rpartition(b") ")[2].startswith(b"Z")
    await rig.driver.release(ID)

    with pytest.raises(FileNotFoundError):
        about(pid, "stat")


async def test_an_exhausted_server_starts_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a descriptor for its pidfd, a new process is killed; if /proc cannot be read, no
    running replica counts as gone."""

    def exhausted(*_: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(os, "pidfd_open", exhausted)
        with pytest.raises(DriverError, match="Too many open files"):
            await rig.driver.start(rig.make(), rig.run_dir, rig.log)
        full.setattr(os, "scandir", exhausted)
        with pytest.raises(DriverError, match=r"list running replicas: .*Too many"):
            await rig.driver.list()

    assert await rig.driver.list() == set()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (None, "exited"),
        (0, "exited with code 0"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_ends_are_told_in_words(code: int | None, text: str) -> None:
    """Exits are described by code or signal name; an adopted process has neither."""
    assert processes.describe_exit(code) == text
