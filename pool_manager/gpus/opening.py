"""Finds the GPUs when the server starts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import structlog

from pool_manager.driver import Driver
from pool_manager.gpus import inventory
from pool_manager.gpus.absent import NoGpus
from pool_manager.gpus.calls import BlockingCalls, Unanswered
from pool_manager.gpus.host import CALL_S, HostGpus
from pool_manager.gpus.nvml import NoDriver, Nvml
from pool_manager.gpus.reading import Snapshot
from pool_manager.ports import Gpus
from registry.errors import BadRequest
from runtime_image.contract.control import ReplicaRecord

log = structlog.get_logger()

DRIVER = "the NVIDIA driver"
START_S = 30.0
"""How long the driver may take to begin: without persistence mode it wakes every GPU."""


async def open_gpus(
    setting: str, driver: Driver, records: Mapping[str, ReplicaRecord | None]
) -> Gpus:
    """The GPUs that `setting` (FN_GPUS) names.

    `records` are those of the replicas that an earlier manager may have left running: what they
    have is not foreign. With "all" a host without a driver is one without GPUs, and one whose
    driver cannot be used says so (`silence`). Raises BadRequest where GPUs are named that are not
    there, EngineDown where the replicas' driver does not answer.
    """
    if setting == inventory.NONE:
        return NoGpus()
    nvml, calls = Nvml(), BlockingCalls(DRIVER, START_S)
    try:
        snapshot = await calls.run(_begin, nvml)
        tenants = await _tenants(driver, records)
        chosen = inventory.choose(setting, snapshot)
    except (NoDriver, Unanswered) as error:
        return _without(setting, error)
    except BaseException:
        with contextlib.suppress(Unanswered):
            await calls.run(nvml.close)
        raise
    finally:
        calls.close()
    foreign = {gpu.uuid: inventory.foreign_mib(gpu, tenants.get(gpu.uuid, {})) for gpu in chosen}
    for gpu in chosen:
        log.info("a GPU", uuid=gpu.uuid, name=gpu.name, foreign_mib=round(foreign[gpu.uuid]))
    return HostGpus(nvml, BlockingCalls(DRIVER, CALL_S), snapshot, foreign)


def _without(setting: str, error: NoDriver | Unanswered) -> Gpus:
    if setting != inventory.ALL:
        raise BadRequest(f"gpus: expected all, none or GPUs that are there: {error}") from error
    if isinstance(error, NoDriver) and error.is_absent:
        return NoGpus()
    log.error("no GPU is used", reason=str(error))
    return NoGpus(str(error))


def _begin(nvml: Nvml) -> Snapshot:
    nvml.open()
    return nvml.read()


async def _tenants(
    driver: Driver, records: Mapping[str, ReplicaRecord | None]
) -> dict[str, dict[str, frozenset[int] | None]]:
    """The pids of the replicas that run, by device and id."""
    found: dict[str, dict[str, frozenset[int] | None]] = {}
    for id in await driver.list():
        if (record := records.get(id)) and record.device:
            found.setdefault(record.device, {})[id] = await driver.pids(id)
    return found
