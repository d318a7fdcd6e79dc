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
    """Where model files come from, and where those go that a trial has made."""

    async def materialise(
        self, bundle: Bundle, target: Path, prepared: Collection[BundleFile] = ()
    ) -> None:
        """Hard-link the bundle's files into `target`, and what was prepared beside them if all of
        it is there. Raises FnError, leaving nothing."""

    async def keep(self, size: int, parts: AsyncIterator[bytes | bytearray]) -> str:
        """Keep a file of exactly `size` bytes; its sha256. Raises FnError, or what `parts` raises,
        and then nothing is kept."""


class Recorder(Protocol):
    """Where the past is kept."""

    def cold_start(self, record: ColdStart) -> None:
        """Keep a cold start's receipt; never blocks, never raises."""

    def state_interval(self, record: StateInterval) -> None:
        """Keep how long a pool was in a state; never blocks, never raises."""

    def use(self, record: Use) -> None:
        """Keep what replicas had of a device; never blocks, never raises."""


class Charges(NamedTuple):
    """What the ledger says of a device: what one replica is charged, how many others there are
    and what they are charged. MiB."""

    own_mib: float
    others: int
    others_mib: float


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU or MIG slice for whoever looks at it: what it is, and its memory as the driver sees
    it now, MiB. `utilization` is the share of the driver's last sample period, at most a second,
    in which anything ran on it. None is what the driver does not tell."""

    name: str | None
    index: str
    capability: str | None
    driver: str | None
    total_mib: float | None
    used_mib: float | None
    foreign_mib: float
    utilization: float | None = None


class Gpus(Protocol):
    """The GPUs of this host. Devices that are none of them are nobody's business here."""

    def devices(self) -> list[Device]:
        """Those that replicas may be put on."""

    def view(self, device: str) -> GpuView | None:
        """One of them as it was last seen, None for any other device."""

    @property
    def silence(self) -> str:
        """Why the driver cannot be asked at present, "" while it answers."""

    def start(self, emit: Callable[[DeviceLost | DeviceBack], None]) -> None:
        """Watch over them from now on; `emit` is called in the loop's thread."""

    def used_mib(self, device: str) -> float | None:
        """What a device had in use when it was last seen."""

    async def taken_mib(
        self, device: str, pids: frozenset[int] | None, before_mib: float | None, *, is_alone: bool
    ) -> float | None:
        """What these processes have of a device, None where that cannot be told."""

    async def prove_free(
        self, device: str, pids: frozenset[int] | None, others_mib: Callable[[], float]
    ) -> None:
        """Return once nothing of these processes is left on a device. Raises DriverError with
        what is, or why that cannot be told."""

    async def close(self) -> None:
        """Watch no longer."""
