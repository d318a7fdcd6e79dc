"""A host whose GPUs are not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pool_manager.core.state import Device
from pool_manager.ports import GpuView


class NoGpus:
    """No GPU: nothing is seen, measured or proved. `silence` says why there is none, where that
    is not as it should be."""

    def __init__(self, silence: str = "") -> None:
        self.silence = silence

    def devices(self) -> list[Device]:
        """None."""
        return []

    def view(self, device: str) -> GpuView | None:  # noqa: ARG002 - no device is a GPU
        """None for every device."""
        return None

    def start(self, emit: Callable[[Any], None]) -> None:
        """There is nothing to watch."""

    def used_mib(self, device: str) -> float | None:  # noqa: ARG002 - no device is a GPU
        """None for every device."""
        return None

    async def taken_mib(
        self,
        device: str,  # noqa: ARG002 - no device is a GPU
        pids: frozenset[int] | None,  # noqa: ARG002
        before_mib: float | None,  # noqa: ARG002
        *,
        is_alone: bool,  # noqa: ARG002
    ) -> float | None:
        """None for every device."""
        return None

    async def prove_free(
        self, device: str, pids: frozenset[int] | None, others_mib: Callable[[], float]
    ) -> None:
        """There is nothing to prove."""

    async def close(self) -> None:
        """There is nothing to end."""
