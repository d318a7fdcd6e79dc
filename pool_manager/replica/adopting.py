"""What a manager that starts does with the replicas of an earlier one."""

from __future__ import annotations

import structlog

from pool_manager.core import events
from pool_manager.driver import Driver
from pool_manager.replica.control import Feed
from pool_manager.replica.launching import Launcher
from registry.errors import DriverError, EngineDown
from runtime_image.contract.control import ReplicaRecord

log = structlog.get_logger()


async def adopt_all(driver: Driver, launcher: Launcher, feed: Feed) -> None:
    """Listen for whoever runs and has a record, and clear away the others. Raises EngineDown, or
    DriverError where nobody can say what runs."""
    running = await driver.list()
    found = launcher.folders.read_records()
    for id in found.keys() | running:
        record = found.get(id)
        if id in running and record is not None:
            _adopt(id, record, launcher, feed)
        else:
            await _clear_away(id, driver, launcher)
    launcher.folders.remove_stale_models(running)
    if found:
        log.info("what an earlier server left", adopted=sorted(found.keys() & running))


async def _clear_away(id: str, driver: Driver, launcher: Launcher) -> None:
    """What does not run any more, or has no record. One that cannot be got rid of is left to
    the next server: this one can serve without. Raises EngineDown."""
    log.info("an earlier replica is cleared away", replica=id)
    try:
        await driver.release(id)
    except EngineDown:
        raise
    except DriverError as error:
        log.error("an earlier replica is left as it is", replica=id, reason=error.message)
        # While the folder is there, no new replica gets this id.
        launcher.folders.run_dir(id).mkdir(mode=0o700, exist_ok=True)
        return
    launcher.folders.remove(id)


def _adopt(id: str, record: ReplicaRecord, launcher: Launcher, feed: Feed) -> None:
    name = record.bound.partition("/")[2].partition("@")[0]
    launcher.adopt(record, name)
    feed(events.Found(id, record.bound, record.device, record.role))
