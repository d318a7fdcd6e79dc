"""Adoption of the replicas of an earlier manager by a starting one."""

from __future__ import annotations

from typing import TypeGuard

import structlog

from pool_manager.core import events
from pool_manager.driver import Driver
from pool_manager.replicas.launcher import Launcher
from pool_manager.replicas.relay import Emit
from registry.errors import DriverError, EngineDown
from registry.model.hosts import LOCAL_HOST
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import SPOKEN

log = structlog.get_logger()


async def adopt_all(driver: Driver, launcher: Launcher, emit: Emit) -> None:
    """Adopt each replica that runs, has a record and speaks a link version that this server speaks,
    too; release the others.

    Raises EngineDown, or DriverError if the running replicas cannot be listed.
    """
    running = await driver.list()
    found = launcher.folders.read_records()
    for id in found.keys() | running:
        record = found.get(id)
        if record is not None and record.host != LOCAL_HOST:
            _adopt_there(id, record, launcher, emit)
        elif id in running and _is_spoken_to(record):
            _adopt(id, record, launcher, emit)
        else:
            await _clear_away(id, driver, launcher)
    launcher.folders.remove_stale_models(running)
    if found:
        adopted = [id for id, one in found.items() if id in running and _is_spoken_to(one)]
        log.info("what an earlier server left", adopted=sorted(adopted))


def _adopt_there(id: str, record: ReplicaRecord, launcher: Launcher, emit: Emit) -> None:
    """Adopt a replica on another host, which says later whether it runs. Without a record it is
    ended there when its host is up."""
    if _is_spoken_to(record) and launcher.has_host(record.host):
        _adopt(id, record, launcher, emit)
    else:
        launcher.folders.remove(id)


def _is_spoken_to(record: ReplicaRecord | None) -> TypeGuard[ReplicaRecord]:
    return record is not None and record.link in SPOKEN


async def _clear_away(id: str, driver: Driver, launcher: Launcher) -> None:
    """Release a replica that has exited, has no record, or speaks an older link version and so may
    serve by older rules. Its callers are held until another replica has started. If the release
    fails, the next server retries it. Raises EngineDown."""
    log.info("an earlier replica is cleared away", replica=id)
    try:
        await driver.release(id)
    except EngineDown:
        raise
    except DriverError as error:
        log.error("an earlier replica is left as it is", replica=id, reason=error.message)
        # As long as the folder exists, no new replica gets this id.
        launcher.folders.run_dir(id).mkdir(mode=0o700, exist_ok=True)
        return
    launcher.folders.remove(id)


def _adopt(id: str, record: ReplicaRecord, launcher: Launcher, emit: Emit) -> None:
    name = record.bound.partition("/")[2].partition("@")[0]
    launcher.adopt(record, name)
    emit(events.Found(id, record.bound, record.devices, record.role, record.host))
