"""Ports: what the pool manager needs from others; `admin/compose.py` plugs it in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from pool_manager.core.events import DeviceBack, DeviceLost
from pool_manager.core.state import Device
from registry.model import Bundle, BundleFile, ColdStart, StateInterval, Use
from runtime_image.contract.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Binding:
    """All that a replica of one revision, or a trial, is given. `memory_mib` is its cap, 0 for the
    default; `measured_mib` what its trial took, 0 before it. `prepared` are files that lie beside
    those of the bundle and that it can do without."""

    spec: ModelSpec
    bundle: Bundle
    namespace: str
    name: str
    number: int
    memory_mib: int = 0
    measured_mib: float = 0.0
    prepared: tuple[BundleFile, ...] = ()


class Bundles(Protocol):
    """Where model files come from, and where a trial's prepared files are stored."""

    async def materialise(
        self, bundle: Bundle, target: Path, prepared: Collection[BundleFile] = ()
    ) -> None:
        """Hard-link the bundle's files into `target`, and what was prepared beside them if all of
        it is there. Raises FnError, leaving nothing."""

    async def keep(self, size: int, parts: AsyncIterator[bytes | bytearray]) -> str:
        """Keep a file of exactly `size` bytes; its sha256. Raises FnError, or what `parts` raises,
        and then nothing is kept."""


class Recorder(Protocol):
    """Where history is recorded."""

    def cold_start(self, record: ColdStart) -> None:
        """Record a cold start; never blocks, never raises."""

    def state_interval(self, record: StateInterval) -> None:
        """Record how long a pool was in a state; never blocks, never raises."""

    def use(self, record: Use) -> None:
        """Record device-seconds of replicas; never blocks, never raises."""


class Charges(NamedTuple):
    """A device in the ledger, in MiB: what one replica is charged, how many others there are, and
    what they are charged."""

    own_mib: float
    others: int
    others_mib: float


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU or MIG slice for display, with its memory as the driver sees it now, MiB.

    `utilization` is the share of the driver's last sample period, at most a second, in which
    anything ran. None where the driver does not tell.
    """

    name: str | None
    index: str
    capability: str | None
    driver: str | None
    total_mib: float | None
    used_mib: float | None
    foreign_mib: float
    utilization: float | None = None


class Gpus(Protocol):
    """The GPUs of this host; other devices are ignored."""

    def devices(self) -> list[Device]:
        """The GPUs that replicas may be placed on."""

    def view(self, device: str) -> GpuView | None:
        """A GPU as last polled, None for any other device."""

    @property
    def silence(self) -> str:
        """Why the driver does not answer, "" while it does."""

    def start(self, emit: Callable[[DeviceLost | DeviceBack], None]) -> None:
        """Begin to poll; `emit` is called in the loop's thread."""

    def used_mib(self, device: str) -> float | None:
        """MiB in use on a device as last polled."""

    async def taken_mib(
        self, device: str, pids: frozenset[int] | None, before_mib: float | None, *, is_alone: bool
    ) -> float | None:
        """MiB that these processes have on a device, None where that is unknown."""

    async def prove_free(
        self, device: str, pids: frozenset[int] | None, others_mib: Callable[[], float]
    ) -> None:
        """Return once a device shows no memory of these processes. Raises DriverError with what
        is left, or why that is unknown."""

    async def close(self) -> None:
        """Stop polling."""
