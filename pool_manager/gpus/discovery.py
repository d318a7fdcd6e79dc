"""Discovery of the GPUs at the server's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from pool_manager.calls import BlockingCalls, Unanswered
from pool_manager.core.state import Device
from pool_manager.driver import Driver
from pool_manager.gpus import memory
from pool_manager.gpus.absent import NoGpus
from pool_manager.gpus.monitor import CALL_S, GpuMonitor
from pool_manager.gpus.occupancy import foreign_memory, tenants_of
from pool_manager.ports import Gpus
from registry.errors import BadRequest
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.gpus import NoDriver, Reading, Snapshot
from runtime_image.gpus.nvml import Nvml

log = structlog.get_logger()

DRIVER = "the NVIDIA driver"
START_S = 30.0
"""Time limit of the driver's initialisation: without persistence mode it wakes every GPU."""


UNSEEN = Snapshot(None, ())


@dataclass(frozen=True, slots=True)
class FoundGpus:
    """The chosen GPUs and the open NVML session, before their foreign memory is known.

    Without a session there are no GPUs. `silence` is the reason if the driver should be usable.
    """

    nvml: Nvml | None = None
    snapshot: Snapshot = UNSEEN
    chosen: tuple[Reading, ...] = ()
    silence: str = ""

    def devices(self) -> list[Device]:
        """Return the GPUs as devices, with all of their memory."""
        return [memory.device(gpu, 0.0, self.snapshot) for gpu in self.chosen]


async def find_gpus(setting: str) -> FoundGpus:
    """Find the GPUs that `setting` (FN_GPUS) names.

    With "all", a host without a driver has no GPUs, and an unusable driver is reported in
    `silence`. Raises BadRequest if a named GPU does not exist or no driver is usable.
    """
    if setting == memory.NONE:
        return FoundGpus()
    nvml, calls = Nvml(), BlockingCalls(DRIVER, limit_s=START_S)
    try:
        snapshot = await calls.run(_begin, nvml)
        return FoundGpus(nvml, snapshot, tuple(memory.choose(setting, snapshot)))
    except (NoDriver, Unanswered) as error:
        return FoundGpus(silence=_why_none(setting, error))
    except BadRequest:
        await calls.run(nvml.close)
        raise
    finally:
        calls.close()


def _why_none(setting: str, error: NoDriver | Unanswered) -> str:
    if setting != memory.ALL:
        raise BadRequest(f"gpus: expected all, none or GPUs of this host: {error}") from error
    if isinstance(error, NoDriver) and error.is_absent:
        return ""
    log.error("no GPU is used", reason=str(error))
    return str(error)


async def open_gpus(
    found: FoundGpus, driver: Driver, records: Mapping[str, ReplicaRecord | None]
) -> Gpus:
    """Return the found GPUs with their foreign memory measured, ready to be polled.

    `records` are those of replicas that an earlier manager may have left running: their memory is
    not foreign. Raises EngineDown if the replicas' driver does not answer.
    """
    if found.nvml is None:
        return NoGpus(found.silence)
    tenants = await tenants_of(driver.processes, await driver.list(), records)
    calls = BlockingCalls(DRIVER, limit_s=CALL_S)
    foreign = foreign_memory(await _as_they_are_now(found, found.nvml, calls), tenants)
    for gpu in found.chosen:
        log.info("a GPU", uuid=gpu.uuid, name=gpu.name, foreign_mib=round(foreign[gpu.uuid]))
    return GpuMonitor(found.nvml, calls, found.snapshot, foreign)


async def _as_they_are_now(found: FoundGpus, nvml: Nvml, calls: BlockingCalls) -> list[Reading]:
    """Read the chosen GPUs again, since memory of a replica that has ended meanwhile must not count
    as foreign. Return the first reading if the driver does not answer."""
    try:
        snapshot = await calls.run(nvml.read)
    except (NoDriver, Unanswered):
        snapshot = UNSEEN
    return [snapshot.find(gpu.uuid) or gpu for gpu in found.chosen]


def _begin(nvml: Nvml) -> Snapshot:
    nvml.open()
    return nvml.read()
