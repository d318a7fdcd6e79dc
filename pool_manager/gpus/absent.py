"""`Gpus` of a host without usable GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pool_manager.core.state import Device
from pool_manager.ports import GpuView


class NoGpus:
    """Null implementation of `Gpus`. `silence` is the reason why the driver is unusable, "" if the
    host is expected to have no GPUs."""

    def __init__(self, silence: str = "") -> None:
        self.silence = silence

    def devices(self) -> list[Device]:
        """Return an empty list."""
        return []

    def view(self, device: str) -> GpuView | None:  # noqa: ARG002 - no device is a GPU
        """Return None."""
        return None

    def visible(self, devices: Sequence[str]) -> str:
        """Return the devices by their ids."""
        return ",".join(devices)

    def start(self, emit: Callable[[Any], None]) -> None:
        """Do nothing."""

    def used_mib(self, device: str) -> float | None:  # noqa: ARG002 - no device is a GPU
        """Return None."""
        return None

    async def taken_mib(
        self,
        device: str,  # noqa: ARG002 - no device is a GPU
        pids: frozenset[int] | None,  # noqa: ARG002
        before_mib: float | None,  # noqa: ARG002
        *,
        is_alone: bool,  # noqa: ARG002
    ) -> float | None:
        """Return None."""
        return None

    async def held_mib(self, device: str, pids: frozenset[int]) -> float | None:  # noqa: ARG002
        """Return None."""
        return None

    async def prove_free(
        self, device: str, pids: frozenset[int] | None, others_mib: Callable[[], float]
    ) -> None:
        """Return at once."""

    async def close(self) -> None:
        """Do nothing."""
