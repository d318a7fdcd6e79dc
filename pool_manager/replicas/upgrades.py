"""Upgrades: gives replicas that serve already a compiled model, whose files are linked before."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import structlog

from pool_manager.core.machine import Machine
from pool_manager.core.state import Replica
from pool_manager.replicas.launcher import Launcher
from registry.compilation import Compiled
from registry.errors import FnError
from registry.tasks import Tasks
from runtime_image.contract.compiled import UpgradeResult

log = structlog.get_logger()

UPGRADE_S: Final = 300.0
"""Max seconds in which a replica loads a compiled model beside the one that it serves with."""
FETCHED_BYTES_PER_S: Final = 10e6
"""Slowest network on which a replica that fetches the model's files is waited for."""


class Upgrades:
    """Upgrades of one manager's replicas. Event loop thread only."""

    def __init__(self, machine: Machine, launcher: Launcher, tasks: Tasks) -> None:
        self._machine = machine
        self._launcher = launcher
        self._tasks = tasks
        self.limit_s = UPGRADE_S

    async def upgrade(self, among: Collection[str], compiled: Compiled) -> dict[str, UpgradeResult]:
        """Upgrade those of some replicas that are ready, at once; return the outcome by id."""
        there = [one for one in self._machine.replicas() if one.id in among and one.role == "serve"]
        ids = [one.id for one in there if one.is_ready]
        async with asyncio.TaskGroup() as group:
            work = {id: group.create_task(self._upgrade(id, compiled)) for id in ids}
        return {id: task.result() for id, task in work.items()}

    def on_loaded(self, replica: Replica | None, compiled: Compiled) -> None:
        """Upgrade a replica that has become ready without the compiled model of its revision and
        without a reason: it was bound before the compiled model was stored."""
        if replica is None or replica.role != "serve" or not replica.is_ready:
            return
        if replica.session not in ("", "none", "compiled") and not replica.not_compiled:
            self._tasks.spawn(f"upgrade {replica.id}", self._upgrade(replica.id, compiled))

    async def _upgrade(self, id: str, compiled: Compiled) -> UpgradeResult:
        cluster = self._machine.cluster
        if reason := cluster.begin_upgrade(id):
            log.info("a replica is not upgraded", replica=id, reason=reason)
            return UpgradeResult(session="", reason=reason)
        model, files = compiled.served
        limit_s = self.limit_s
        try:
            to_fetch = await self._launcher.add_files(id, files)
            control = self._launcher.control(id)
            if control is None:
                return UpgradeResult(session="", reason="it has ended")
            limit_s += sum(one["size"] for one in to_fetch) / FETCHED_BYTES_PER_S
            async with asyncio.timeout(limit_s):
                return await control.upgrade(model, to_fetch)
        except TimeoutError:
            reason = f"it did not answer within {limit_s:.0f} s"
        except (FnError, OSError) as error:
            reason = str(error)
        finally:
            cluster.end_upgrade(id)
        log.warning("a replica is not upgraded", replica=id, reason=reason)
        return UpgradeResult(session="", reason=reason)
