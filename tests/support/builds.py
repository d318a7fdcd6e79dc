"""Builds with results from a script, beside a real pool manager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from pool_manager.builds import Built, Fetched, RunningBuild
from pool_manager.core.state import Device, PoolSpec
from pool_manager.manager import Manager
from pool_manager.ports import Binding
from pool_manager.reports import Occupancy
from pool_manager.subscribers import Subscribers
from registry.builds import DeviceType, Target
from registry.compilation import Compiled
from registry.errors import FnError
from registry.model.bundles import BundleFile
from runtime_image.contract.compiled import (
    BuildDescribed,
    CompiledFile,
    CompiledModel,
    OutputParity,
    UpgradeResult,
)
from runtime_image.contract.model import ModelSpec

LOCAL_CPU: Final = DeviceType("local", "")
"""The CPU slots of this machine."""


def built(binding: Binding, key: str = "k1", *files: BundleFile, differs: float = 0.0) -> Built:
    """Return what a build of `binding` would report."""
    assert isinstance(binding.spec, ModelSpec)
    order = binding.spec.build
    assert order is not None
    named = tuple(
        CompiledFile(one.path.removeprefix(".compiled/"), one.size, one.sha256) for one in files
    )
    model = CompiledModel(key, order.compiler, "context", named, order.ranges, order.keeps_ordinary)
    parity = OutputParity(
        output="y", largest_difference=differs, relative_difference=differs, cosine=1.0
    )
    described = BuildDescribed(
        why_not="",
        parity=[parity],
        samples=9,
        build_s=2.5,
        ordinary_ms={"1": 2.0, "8": 8.0},
        compiled_ms={"1": 1.0, "8": 3.0},
        load_ms=4.0,
        memory_mib=30.0,
        timing_key="t1",
    )
    return Built(Fetched(described, model, files), "cpu0")


def compiled_of(built: Built, device: DeviceType = LOCAL_CPU, memory_mib: float = 0.0) -> Compiled:
    """Return what is stored of a build, for a type of device."""
    model = built.compiled
    target = Target(
        "b", "m.onnx", "", "cpu", model.compiler, model.ranges, model.keeps_ordinary, device
    )
    return Compiled(target, model, built.files, memory_mib=memory_mib)


class ScriptedBuilds:
    """A pool manager whose builds end as the test says; all else is the real manager's.

    `asked` has the pools and bindings of the builds that began. A build waits for a device until
    `place`, and runs until `end`. `devices` are free devices instead of the manager's, if there are
    any.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._ends: list[asyncio.Future[Built]] = []
        self._placed = False
        self._refused = Subscribers[[str, DeviceType, str]]()
        self.devices: list[Device] = []
        self.asked: list[tuple[PoolSpec, Binding]] = []
        self.upgraded: list[tuple[str, str]] = []
        self.cancelled = self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def build(self, spec: PoolSpec, binding: Binding) -> Built:
        """Wait for the script's end of this build."""
        self._placed = False
        self.asked.append((spec, binding))
        self._ends.append(asyncio.get_running_loop().create_future())
        try:
            return await self._ends[-1]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def builds(self) -> list[RunningBuild]:
        """Return the running build."""
        if not self._ends or self._ends[-1].done():
            return []
        at = "cpu0" if self._placed else ""
        return [RunningBuild(self.asked[-1][0].key, 0.0, "r1" if at else "", at, at, "")]

    def place(self) -> None:
        """Give the running build a device."""
        self._placed = True

    def end(self, result: Built | FnError) -> None:
        """End the running build."""
        if isinstance(result, FnError):
            self._ends[-1].set_exception(result)
        else:
            self._ends[-1].set_result(result)

    def suitable(self, key: str) -> list[Device]:
        """Return the devices; counted in `looks`."""
        self.looks += 1
        return self.devices or self._manager.suitable(key)

    def occupancies(self) -> list[Occupancy]:
        """Return the devices, which are free."""
        free = [Occupancy(one, "free", "", (), 0.0, None) for one in self.devices]
        return free or self._manager.occupancies()

    async def upgrade(self, key: str, compiled: Compiled) -> dict[str, UpgradeResult]:
        """Answer as one replica that uses the compiled model."""
        self.upgraded.append((key, compiled.model.key))
        return {"r1": UpgradeResult(session="compiled", reason="")}

    def subscribe_not_compiled(
        self, receiver: Callable[[str, DeviceType, str], None]
    ) -> Callable[[], None]:
        """Subscribe to `refuse`."""
        return self._refused.subscribe(receiver)

    def refuse(self, key: str, reason: str, type: DeviceType = LOCAL_CPU) -> None:
        """Report that a replica of the pool does not use its compiled model."""
        self._refused.notify(key, type, reason)
