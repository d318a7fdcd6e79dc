"""Adopts the replicas of an earlier manager at startup."""

from __future__ import annotations

from typing import TypeGuard

import structlog

from pool_manager.core import events
from pool_manager.fleet import Fleet
from pool_manager.host import ReplicaHost
from pool_manager.replicas.launcher import Launcher
from pool_manager.replicas.relay import Emit
from registry.errors import DriverError, EngineDown
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import SPOKEN

log = structlog.get_logger()


async def adopt_all(fleet: Fleet, launcher: Launcher, emit: Emit) -> None:
    """Adopt each replica that runs, has a record and speaks a link version that this server speaks,
    too; release the others. Those of a host that will say what runs are adopted until it does, and
    it ends what has no record here.

    Raises EngineDown, or DriverError if the running replicas cannot be listed.
    """
    left = {host.name: await host.left() for host in fleet}
    owners = {id: fleet.get(name) for name, ids in left.items() for id in ids or ()}
    found = launcher.folders.read_records()
    for id in found.keys() | owners.keys():
        record = found.get(id)
        host = owners.get(id) or (fleet.find(record.host) if record is not None else fleet.first)
        running = left[host.name] if host is not None else None
        if host is not None and _is_spoken_to(record) and (running is None or id in running):
            _adopt(id, record, launcher, emit)
        elif host is not None and running is not None:
            await _clear_away(id, host, launcher)
        else:
            launcher.folders.remove(id)
    launcher.folders.remove_stale_models(set(owners))
    if found:
        adopted = [id for id, one in found.items() if id in owners and _is_spoken_to(one)]
        log.info("what an earlier server left", adopted=sorted(adopted))


def _is_spoken_to(record: ReplicaRecord | None) -> TypeGuard[ReplicaRecord]:
    return record is not None and record.link in SPOKEN


async def _clear_away(id: str, host: ReplicaHost, launcher: Launcher) -> None:
    """Release a replica that has exited, has no record, or speaks an older link version and so may
    serve by older rules. Its callers are held until another replica has started. If the release
    fails, the next server retries it. Raises EngineDown."""
    log.info("an earlier replica is cleared away", replica=id)
    try:
        await host.driver.release(id)
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
