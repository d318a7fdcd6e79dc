"""Compiled models of one manager: builds, upgrades of replicas, and reports of unused ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pool_manager.builds import SUFFIX, Built, PendingBuilds, RunningBuild
from pool_manager.core import commands, events
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec
from pool_manager.ports import Binding
from pool_manager.replicas.launcher import Launcher
from pool_manager.replicas.upgrades import Upgrades
from pool_manager.subscribers import Subscribers
from registry.builds import DeviceType
from registry.compilation import Compiled
from registry.tasks import Tasks
from runtime_image.contract.compiled import UpgradeResult

COMMANDS: Final = (commands.EndBuild, commands.RecordNotCompiled)
"""Commands that `CompiledModels.execute` carries out."""


class CompiledModels:
    """Part of a manager, which documents these methods."""

    def __init__(
        self,
        machine: Machine,
        launcher: Launcher,
        bindings: Mapping[str, Binding],
        tasks: Tasks,
        wall: Callable[[], float],
    ) -> None:
        """`bindings` are by pool key; `wall` returns Unix seconds."""
        self._machine = machine
        self._bindings = bindings
        self._builds = PendingBuilds(wall)
        self._upgrades = Upgrades(machine, launcher, tasks)
        self.not_compiled = Subscribers[[str, DeviceType, str]]()
        """Notified with a pool's key, the type of device, and the reason."""

    async def build(
        self,
        spec: PoolSpec,
        define: Callable[[PoolSpec], None],
        remove: Callable[[str], None],
    ) -> Built:
        """Compile the model of a revision; `define` and `remove` are for the build's pool."""
        key = f"{spec.key}{SUFFIX}"
        asked = replace(spec, key=key, role="build", function="", min=0, max=1)
        return await self._builds.wait(spec.key, lambda: define(asked), remove)

    def builds(self) -> list[RunningBuild]:
        """Return every build that runs or waits for a device."""
        return self._builds.running(self._machine.pools)

    async def upgrade(self, key: str, compiled: Compiled) -> dict[str, UpgradeResult]:
        """Give the ready replicas of a pool on devices of the target's type a compiled model;
        return the outcome by replica id."""
        there = [one for one in self._machine.replicas() if one.pool == key]
        ids = [one.id for one in there if self._type(one.devices) == compiled.target.device]
        return await self._upgrades.upgrade(ids, compiled)

    def suitable(self, key: str) -> list[Device]:
        """Return the devices that replicas of a pool may ever be on, none for an unknown pool."""
        pool = self._machine.pools.get(key)
        return self._machine.cluster.suitable(pool) if pool is not None else []

    def _type(self, devices: tuple[str, ...]) -> DeviceType | None:
        known = self._machine.first_device(devices)
        return known.type if known is not None else None

    def execute(self, command: Any) -> None:
        """Carry out one of COMMANDS."""
        if isinstance(command, commands.EndBuild):
            self._builds.end(command)
        elif (found := self._type((command.device,))) is not None:
            self.not_compiled.notify(command.key, found, command.reason)

    def observe(self, event: events.Event) -> None:
        """Follow an event that the machine has handled: a replica that became ready may be
        upgraded."""
        if isinstance(event, events.Loaded):
            replica = self._machine.replica(event.id)
            binding = self._bindings.get(replica.pool) if replica is not None else None
            found = self._type(replica.devices) if replica is not None else None
            if binding is not None and found is not None and found in binding.variants:
                self._upgrades.on_loaded(replica, binding.variants[found])

    def close(self) -> None:
        """Fail every build."""
        self._builds.close()
