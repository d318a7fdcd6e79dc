"""The limits that containers get while they run."""

from __future__ import annotations

import asyncio

import structlog

from pool_manager.drivers.docker import containers, shape
from pool_manager.drivers.docker.endings import Known
from pool_manager.drivers.docker.engine import Engine, Times
from pool_manager.drivers.docker.failures import is_too_large
from pool_manager.drivers.docker.shape import Owner
from registry.errors import DriverError, EngineDown
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

log = structlog.get_logger()


class Limiter:
    """Gives containers the memory and CPU time of what they serve."""

    def __init__(self, engine: Engine, owner: Owner, tasks: Tasks, times: Times) -> None:
        self._engine = engine
        self._owner = owner
        self._tasks = tasks
        self._times = times

    async def now(self, known: Known, record: ReplicaRecord) -> None:
        """Raises DriverError."""
        name, limits = shape.container_name(record, self._owner), shape.limits(record)
        await self._engine.call(
            "limit a container", lambda c: containers.limit(c, known.id, limits, name)
        )

    def soon(self, known: Known, record: ReplicaRecord) -> None:
        """In the background, after the first answer: setting limits stops everything in a
        container for milliseconds. One that has taken more by then than it may have, or that
        cannot be limited at all, is ended."""
        self._tasks.spawn(f"limit {record.id}", self._soon(known, record))

    async def _soon(self, known: Known, record: ReplicaRecord) -> None:
        await asyncio.sleep(self._times.limit_after_s)
        is_refused = False
        while not known.is_told:
            try:
                if is_refused:
                    await self._engine.call(
                        "end a container", lambda c: containers.kill(c, known.id)
                    )
                else:
                    await self.now(known, record)
            except EngineDown:
                await asyncio.sleep(self._times.limit_retry_s)
            except DriverError as error:
                if is_refused or known.is_told:
                    return  # it has ended, or is being removed
                log.warning("a replica cannot be limited", replica=record.id, reason=error.message)
                known.out_of_memory |= is_too_large(error)
                is_refused = True
            else:
                return
