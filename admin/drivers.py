"""Which driver a server uses."""

from __future__ import annotations

from collections.abc import Iterable

from admin.settings import Settings
from pool_manager.core.state import Device
from pool_manager.driver import Driver
from pool_manager.drivers.fake import FakeDriver
from pool_manager.drivers.process import ProcessDriver


async def open_driver(settings: Settings, devices: Iterable[Device]) -> Driver:
    """The driver that the settings name, ready for devices of these kinds.

    Raises DriverError where what it drives cannot be used.
    """
    if settings.driver == "fake":
        return FakeDriver()
    section = settings.pool()
    if settings.driver == "process":
        return ProcessDriver(section.run_dir)
    # Other servers need not wait for the engine's library.
    from pool_manager.drivers.docker.driver import DockerDriver, DockerSettings
    from pool_manager.drivers.uids import parse_range

    known = {"cpu": settings.image_cpu, "cuda": settings.image_gpu}
    kinds = {"cpu"} | {device.kind for device in devices}
    return await DockerDriver.open(
        DockerSettings(
            url=settings.docker_host,
            images={kind: known[kind] for kind in sorted(kinds)},
            data=settings.data,
            model_root=section.model_dir,
            log_bytes=section.log_bytes,
            starts_at_once=section.starts_at_once,
            uids=parse_range(settings.replica_uids),
        )
    )
