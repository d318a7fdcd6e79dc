"""Fake driver: replicas as tasks of this process, with real links and sockets but no models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

from pool_manager.driver import EngineLosses, Exit, Exits, Processes
from pool_manager.images import Images
from pool_manager.ports import ServerContainer
from registry.errors import DriverError, EngineDown
from registry.model.hosts import Ability
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord
from tests.support.fake_driver.replica import FakeReplica
from tests.support.fake_driver.service import Phase, Script, Sleep

__all__ = ["BEHAVES", "FakeDriver", "Script"]

BEHAVES: Final = Script()
"""Script without delays and faults."""


class FakeProcesses:
    """`Processes` of replicas that have none of their own. `runs(id)` returns whether one runs, or
    raises EngineDown."""

    has_other_users = False

    def __init__(self, runs: Callable[[str], bool]) -> None:
        self._runs = runs

    async def pids(self, id: str) -> frozenset[int] | None:
        """Return None for a live replica: it has no process of its own."""
        return None if self._runs(id) else frozenset()

    async def used_mib(self, id: str) -> float | None:
        """Return None: sidecars measure their servers."""
        return None


class FakeDriver:
    """Runs each replica as a task. All replicas follow one script and end with the driver.

    While `away` is set to a reason, its engine does not answer; running replicas continue.
    """

    kind = "fake"
    is_contained = False
    images: Images | None = None

    def __init__(self, script: Script = BEHAVES, *, sleep: Sleep = asyncio.sleep) -> None:
        """`sleep` is awaited for every delay of the script."""
        self.exits, self.engine_losses = Exits(), EngineLosses()
        self._script = script
        self._sleep = sleep
        self._crashes_left = script.crash_count if script.crash_at else 0
        self._tasks = Tasks("fake driver")
        self._replicas: dict[str, tuple[FakeReplica, asyncio.Task[None]]] = {}
        self._logs: dict[str, TextIO] = {}
        self.away = ""
        self.processes: Processes = FakeProcesses(self._runs)

    @property
    def abilities(self) -> frozenset[Ability]:
        """Images if it has some, and what runs beside the server unless it has containers."""
        images = {Ability.IMAGE} if self.images is not None else set()
        beside = set() if self.is_contained else {Ability.COMMAND, Ability.PACKAGES}
        return frozenset(images | beside)

    def model_path(self, model_dir: Path) -> str:
        """Return the folder itself."""
        return str(model_dir)

    async def save_log(self, id: str, log: Path) -> None:
        """Do nothing: fake replicas write to their logs themselves."""

    async def start(
        self,
        record: ReplicaRecord,
        run_dir: Path,
        log: Path,
        server: ServerContainer | None = None,
    ) -> None:
        """Launch a replica; its log gets one line at the start and one at the end. The server of an
        image is scripted as any other, and its image is named in the log.

        Like a process, it continues to write to a log that is renamed.
        """
        self._reach()
        id = record.id
        try:
            self._logs[id] = log.open("a", buffering=1)
        except OSError as error:
            raise DriverError(f"cannot start a replica: {error}") from error
        self._note(id, f"starts for {record.bound}" if record.bound else "starts as a standby")
        if server is not None:
            self._note(id, f"has a server of the image {server.image}")
        replica = FakeReplica(record, run_dir, self._script, self._crashes, self._sleep)
        live = self._live(id, replica)
        self._replicas[id] = (replica, self._tasks.spawn(f"replica {id}", live))

    async def limit(self, record: ReplicaRecord) -> None:
        """Write the cap to the log: a fake replica needs almost no memory."""
        self._reach()
        if record.id not in self._replicas:
            raise DriverError(f"cannot limit {record.id}: it does not run")
        self._note(record.id, f"may have {record.memory_mib or 'any'} MiB")

    async def list(self) -> set[str]:
        """Return the ids of the live replicas; there are none to adopt."""
        self._reach()
        return set(self._replicas)

    async def terminate(self, id: str) -> None:
        """Act like TERM for a process."""
        self._reach()
        if id in self._replicas:
            self._replicas[id][0].terminate()

    async def release(self, id: str) -> None:
        """Act like KILL for a process; return when nothing of the replica is left."""
        self._reach()
        if id not in self._replicas:
            return
        _, task = self._replicas[id]
        task.cancel()
        await asyncio.wait([task])
        self._replicas.pop(id, None)

    async def close(self) -> None:
        """End every replica: unlike processes, tasks cannot outlive their owner."""
        await self._tasks.close()
        self._replicas.clear()

    async def _live(self, id: str, replica: FakeReplica) -> None:
        how = "was killed"
        try:
            how = await replica.live()
        finally:
            self._replicas.pop(id, None)
            self._note(id, how)
            self._logs.pop(id).close()
            self.exits.notify(id, Exit(how))

    def _reach(self) -> None:
        if self.away:
            raise EngineDown(self.away)

    def _runs(self, id: str) -> bool:
        self._reach()
        return id in self._replicas

    def _note(self, id: str, text: str) -> None:
        with contextlib.suppress(OSError):
            self._logs[id].write(f"fake replica {id} {text}\n")

    def _crashes(self, phase: Phase) -> bool:
        if phase != self._script.crash_at or not self._crashes_left:
            return False
        self._crashes_left -= 1
        return True
