"""The agent of a host: started once, adopted by a later server, started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from typing import Final

import structlog

from pool_manager.drivers.docker.driver import DockerDriver
from pool_manager.drivers.docker.spec import ALL_GPUS, CONTROL_TARGET
from pool_manager.hosts.agent import AGENT_ID, AgentReports
from pool_manager.hosts.control import HostControl
from pool_manager.hosts.folders import HostFolders
from pool_manager.settings import PoolSettings
from registry.errors import DriverError, EngineDown
from registry.tasks import Tasks
from runtime_image.contract.agent import ENGINE
from runtime_image.contract.control import CONTROL_SOCKET, ReplicaRecord, record_from
from runtime_image.contract.link import VERSION

log = structlog.get_logger()

AGAIN_S: Final = (1.0, 60.0)
"""Shortest and longest pause between the end of an agent and the next start."""
STEADY_S: Final = 60.0
"""Seconds of life after which an agent's end is followed by the shortest pause."""
RECORD_MAX: Final = 64 * 1024


class AgentKeeper:
    """Keeps one agent on a host, and has its reports.

    The record of the agent is kept on this machine, so that a later server can adopt it.
    """

    def __init__(  # noqa: PLR0913 - what an agent is made from
        self,
        host: str,
        control: HostControl,
        record_file: Path,
        pool: PoolSettings,
        reports: AgentReports,
        tasks: Tasks,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._host = host
        self._control = control
        self._file = record_file
        self._pool = pool
        self._tasks = tasks
        self._clock = clock
        self._changed = changed
        self.reports = reports
        self._why = "its agent was not started yet"
        self._blindness = ""
        self._place: tuple[DockerDriver, HostFolders, bool] | None = None
        self._token = ""
        self._pause_s = AGAIN_S[0]
        self._starting = asyncio.Lock()
        self._begun_s = 0.0
        self._restarting: asyncio.Task[None] | None = None

    @property
    def reason(self) -> str:
        """Why there are no reports, or none of GPUs that the host has; "" while there are."""
        if self.reports.is_fresh:
            return self._blindness
        return self._blindness or self._why or "its agent does not report"

    async def ensure(
        self, driver: DockerDriver, folders: HostFolders, *, is_running: bool, has_gpus: bool
    ) -> None:
        """Adopt the agent if it runs and this server has its record; else start one. What prevents
        that is stated by `reason`, and it is tried again. Raises EngineDown."""
        self._place = driver, folders, has_gpus
        record = await asyncio.to_thread(self._read)
        if is_running and record is not None:
            self._receive(record)
            self._why = ""
            return
        if not await self._start():
            self._restart_soon(self._why, is_steady=False)

    async def _start(self) -> bool:
        """Start an agent in place of one that may be there; False if that failed."""
        is_started = True
        async with self._starting:
            if self._place is None:
                return True  # ended meanwhile
            driver, folders, has_gpus = self._place
            try:
                await self._remove(driver, folders)
                await self._launch(driver, folders, has_gpus=has_gpus)
            except EngineDown:
                raise
            except (DriverError, OSError) as error:
                is_started = False
                self._why = f"its agent cannot be started: {error}"
                log.warning("an agent cannot be started", host=self._host, reason=self._why)
        self._changed()
        return is_started

    async def _launch(self, driver: DockerDriver, folders: HostFolders, *, has_gpus: bool) -> None:
        record = agent_record(self._host, self._pool, has_gpus=has_gpus)
        data = json.dumps(asdict(record)).encode()
        self._begun_s = self._clock()
        await asyncio.to_thread(self._write, data)
        await folders.create(AGENT_ID, data)
        self._receive(record)
        self._why = self._blindness = ""
        try:
            await driver.start(record, Path(), Path(os.devnull))
        except EngineDown:
            raise
        except DriverError as error:
            if not has_gpus:
                raise
            await self._remove(driver, folders)
            await self._launch(driver, folders, has_gpus=False)
            self._blindness = f"its agent cannot see the GPUs: {error.message}"

    async def _remove(self, driver: DockerDriver, folders: HostFolders) -> None:
        await driver.release(AGENT_ID)
        await folders.remove(AGENT_ID)

    def _receive(self, record: ReplicaRecord) -> None:
        if record.token != self._token:
            self._token = record.token
            connections = self._control.register(AGENT_ID, record.token, is_agent=True)
            self.reports.open(record.token, connections, self._tasks, self._pool.ping_s)

    def exited(self, how: str) -> None:
        """Handle the end of a container of the agent: unless another one runs, one is started after
        a pause."""
        log.info("an agent's container has ended", host=self._host, how=how)
        is_steady = self._clock() - self._begun_s > STEADY_S
        self._restart_soon(f"its agent {how}", is_steady=is_steady)

    def _restart_soon(self, why: str, *, is_steady: bool) -> None:
        if self._place is None or (self._restarting and not self._restarting.done()):
            return
        self._pause_s = AGAIN_S[0] if is_steady else min(2 * self._pause_s, AGAIN_S[1])
        self._restarting = self._tasks.spawn("agent", self._restart(why))

    async def _restart(self, why: str) -> None:
        """Start an agent unless one runs; again after a growing pause while that fails, also if the
        engine is away: its connection may stand, so that no join would see to it."""
        while True:
            await asyncio.sleep(self._pause_s)
            if self._place is None:
                return
            driver, _, _ = self._place
            with contextlib.suppress(DriverError):
                # The end that was reported may be that of the one before.
                if await self._runs(driver):
                    return
                if self._why != why:
                    self._why = why
                    log.warning("an agent has ended", host=self._host, how=why)
                    self._changed()
                if await self._start():
                    return
            self._pause_s = min(2 * self._pause_s, AGAIN_S[1])

    async def _runs(self, driver: DockerDriver) -> bool:
        async with self._starting:  # what is being started is not in the list yet
            return AGENT_ID in await driver.list()

    async def end(self) -> None:
        """End the agent. Raises DriverError."""
        place, self._place = self._place, None
        if place is not None:
            driver, folders, _ = place
            async with self._starting:
                await self._remove(driver, folders)
        self._file.unlink(missing_ok=True)

    def close(self) -> None:
        """Receive no more reports."""
        self.reports.close()

    def _read(self) -> ReplicaRecord | None:
        """Return the agent's record if it can be adopted. Blocking."""
        try:
            with self._file.open("rb") as file:
                record = record_from(json.loads(file.read(RECORD_MAX)))
        except (OSError, ValueError, TypeError):
            return None
        return record if record.link == VERSION and record.host == self._host else None

    def _write(self, data: bytes) -> None:
        """Replace the agent's record. Blocking."""
        fresh = self._file.with_name(f"{self._file.name}.new")
        fresh.touch(mode=0o600)
        fresh.write_bytes(data)
        fresh.rename(self._file)


def agent_record(host: str, pool: PoolSettings, *, has_gpus: bool) -> ReplicaRecord:
    """Return the record of an agent, with a new token."""
    return ReplicaRecord(
        id=AGENT_ID,
        token=token_hex(32),
        role="standby",
        namespace="",
        bound="",
        model_dir="",
        devices=(f"{host}/{ALL_GPUS}",) if has_gpus else (),
        device_kind="cuda" if has_gpus else "cpu",
        engine=ENGINE,
        threads=1,
        orphan_s=pool.orphan_s,
        memory_mib=0,
        launched_s=0.0,
        link=VERSION,
        host=host,
        control=f"{CONTROL_TARGET}/{CONTROL_SOCKET}",
    )
