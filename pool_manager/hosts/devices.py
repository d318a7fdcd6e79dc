"""The devices of a host: CPU slots as its engine counts them, GPUs as its agent reports them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from pool_manager.calls import BlockingCalls, Unanswered
from pool_manager.core.events import DeviceBack, DeviceLost
from pool_manager.core.state import Device
from pool_manager.devices import cpu_slots
from pool_manager.drivers.docker.driver import DockerDriver
from pool_manager.gpus import memory
from pool_manager.gpus.absent import NoGpus
from pool_manager.gpus.monitor import CALL_S, GpuMonitor
from pool_manager.gpus.occupancy import foreign_memory, tenants_of
from pool_manager.hosts.agent import AgentReports, RemoteNvml, gpus_of
from pool_manager.hosts.engine import RemoteEngine
from pool_manager.ports import Gpus
from registry.errors import BadRequest, DriverError, EngineDown
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.gpus import NoDriver, Reading

log = structlog.get_logger()

FIRST_REPORT_S: Final = 15.0
"""Time limit of an agent's first report, which its start takes."""


class HostDevices:
    """Finds the devices of one host. `emit` gets the events of its GPUs."""

    def __init__(
        self,
        host: str,
        reports: AgentReports,
        emit: Callable[[DeviceLost | DeviceBack], None],
    ) -> None:
        self._host = host
        self._reports = reports
        self.gpus: Gpus = NoGpus()
        """Those that were found; their monitor stays over breaks of the connection."""
        self._is_found = False
        self._emit = emit
        self._is_silent = False
        self.why_none = ""
        """Why no GPU is used although the host has some."""

    def all(self, memory_mib: float, slots: int, records: Iterable[ReplicaRecord]) -> list[Device]:
        """Return the devices of the host, GPUs first. Until its agent has reported, GPUs are those
        of replicas that run there, which would be ended without them."""
        if self._is_found:
            gpus = self.gpus.devices()
        else:
            on_gpus = (one for one in records if one.device_kind != "cpu")
            used = {device for one in on_gpus for device in one.devices}
            gpus = [Device(id, "cuda", host=self._host) for id in sorted(used)]
        return [*gpus, *cpu_slots(slots, memory_mib, self._host)]

    async def find(
        self,
        setting: str,
        engine: RemoteEngine,
        records: Mapping[str, ReplicaRecord],
        running: Collection[str],
        *,
        is_patient: bool,
    ) -> bool:
        """Find the GPUs that `setting` allows, unless they are known, and poll them from then on.

        Return True if that has to wait: for a report, or for an image that is missing on the host
        and is sent only if the caller `is_patient`. `why_none` is the reason why there are none.
        Raises EngineDown.
        """
        if self._is_found or engine.driver is None:
            return False
        try:
            chosen = await self._choose(setting)
            if not chosen:
                return self._is_silent
            if not is_patient and not await engine.has_runtime("cuda"):
                return True
            await engine.driver.add_image("cuda", await engine.provide_runtime("cuda"))
            await self._monitor(chosen, engine.driver, records, running)
        except EngineDown:
            raise
        except DriverError as error:
            self.why_none = error.message
            log.warning("GPUs cannot be used", host=self._host, reason=error.message)
        return False

    async def _choose(self, setting: str) -> list[Reading]:
        """Return the GPUs that may be used, by the next report. States in `why_none` why there are
        none."""
        self.why_none, self._is_silent = "", False
        try:
            report = await self._reports.next(FIRST_REPORT_S)
            return memory.choose(setting, gpus_of(report))
        except TimeoutError:
            self.why_none, self._is_silent = "its agent does not report", True
        except NoDriver as error:
            self.why_none = str(error)
        except BadRequest as error:
            self.why_none = error.message
        return []

    async def _monitor(
        self,
        chosen: Collection[Reading],
        driver: DockerDriver,
        records: Mapping[str, ReplicaRecord],
        running: Collection[str],
    ) -> None:
        """Poll the chosen GPUs from now on. What other programs have in use there is measured
        now."""
        tenants = await tenants_of(driver.processes, running, records)
        foreign = foreign_memory(chosen, tenants, self._host)
        report = self._reports.last
        assert report is not None
        nvml = RemoteNvml(self._host, self._reports)
        calls = BlockingCalls(f"the agent of host {self._host}", limit_s=CALL_S)
        self.gpus = GpuMonitor(nvml, calls, gpus_of(report), foreign, self._host)
        self._is_found = True
        self.gpus.start(self._emit)

    async def close(self) -> None:
        """Stop to poll the GPUs, and forget them."""
        gpus, self.gpus, self._is_found = self.gpus, NoGpus(), False
        with contextlib.suppress(Unanswered, DriverError, asyncio.TimeoutError):
            await gpus.close()
