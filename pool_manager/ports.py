"""Ports: interfaces that the pool manager needs; `admin/compose.py` supplies implementations."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pool_manager.core.events import DeviceBack, DeviceLost
from pool_manager.core.state import Device
from registry.builds import DeviceType
from registry.bundles.paths import extended
from registry.compilation import Compiled
from registry.errors import Unknown
from registry.model.bundles import Bundle, BundleFile
from registry.model.devices import DeviceModel, Use
from registry.model.history import ColdStart, StateInterval
from registry.model.profiles import Golden
from registry.model.servers import Mount
from runtime_image.contract.control import Hello
from runtime_image.contract.enrolment import Certificate
from runtime_image.contract.gpus import Reading
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.server import PORT_DEFAULT, Network, ServerSpec


@dataclass(frozen=True, slots=True)
class ServerContainer:
    """The container of a server that is apart from its sidecar; fields as in `ServerSettings`.

    `image` is the engine's id of a pinned image; `reference` is its name in the manifest, `digest`
    what a registry has it by, "" for an image that was built here. `port` is that of the server;
    `concurrency` is the number of exchanges at once. `has_files`: the function has files, which the
    server sees. `secrets` are values by variable, used as they are: they are read at each start,
    for the driver alone.
    """

    image: str
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    network: Network = "none"
    user: str = ""
    capabilities: tuple[str, ...] = ()
    writable: dict[str, int] = field(default_factory=dict)
    shm_mib: int = 64
    stop_signal: str = ""
    stop_grace_s: float = 10.0
    mounts: tuple[Mount, ...] = ()
    port: int = PORT_DEFAULT
    concurrency: int = 32
    has_files: bool = False
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    reference: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class PythonRun:
    """What a start beside Python packages needs: the name of their environment, and the settings of
    our server; None if it runs a command."""

    environment: str
    settings: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Binding:
    """Everything that replicas of one revision, or a trial, need to load the model or to run the
    server.

    `memory_mib` is the configured memory cap, 0 for the default. `measured_mib` is what the trial
    took, 0 before the trial. `optimised` are files without which a replica does not start: the
    model that is served instead of the bundle's. `prepared` and `compiled` are optional: a model is
    loaded without them if one of the group is not stored. `compiled` are those of
    `ModelSpec.compiled`; for a build the timing cache of an earlier one, if any. `variants` are
    compiled models by the type of device, of which a replica gets one (`on`). Paths begin with the
    folders of the contract: `.optimised/`, `.prepared/`, `.compiled/`. `container` is set if the
    server is apart, `python` if it has Python packages. `secrets` maps the server's variables to
    names of secrets. `golden` is a server's golden sample, which replicas on devices of its type
    get (`on`).
    """

    spec: ModelSpec | ServerSpec
    bundle: Bundle
    namespace: str
    name: str
    number: int
    memory_mib: int = 0
    measured_mib: float = 0.0
    prepared: tuple[BundleFile, ...] = ()
    optimised: tuple[BundleFile, ...] = ()
    container: ServerContainer | None = None
    python: PythonRun | None = None
    secrets: dict[str, str] = field(default_factory=dict)
    compiled: tuple[BundleFile, ...] = ()
    variants: Mapping[DeviceType, Compiled] = field(default_factory=dict)
    golden: Golden | None = None
    park_mib: float = 0.0
    """MiB of host memory that a server takes besides while it sleeps, 0 for one that does not."""
    preemptible: bool = False
    """Whether other users of a cluster may take the place of its replicas; without effect on hosts
    that this server alone gives work."""

    def on(self, device: Device | None) -> Binding:
        """Return what a replica on a device gets: with the compiled model for its type, if any, or
        with the golden sample learnt on its type."""
        golden = self.golden
        if golden and device and device.type == golden.device and isinstance(self.spec, ServerSpec):
            return replace(self, spec=replace(self.spec, golden=golden.sample))
        found = self.variants.get(device.type) if device is not None else None
        if found is None or not isinstance(self.spec, ModelSpec):
            return self
        model, files = found.served
        return replace(self, spec=replace(self.spec, compiled=model), compiled=files)

    @property
    def required(self) -> Bundle:
        """The files without which a replica does not start."""
        return extended(self.bundle, self.optimised)


class Secrets(Protocol):
    """Store of secrets, as replicas need it."""

    async def values(self, names: Collection[str]) -> dict[str, str]:
        """Return the present values of secrets by name. Raises FnError that names the missing
        ones."""


class NoSecrets:
    """Store without secrets."""

    async def values(self, names: Collection[str]) -> dict[str, str]:
        """Return {} for no names. Raises Unknown for any other."""
        if names:
            raise Unknown(f"no secret {' and '.join(sorted(names))}")
        return {}


class Bundles(Protocol):
    """Store of model files and of the prepared files of trials."""

    async def materialise(
        self, bundle: Bundle, target: Path, prepared: Collection[BundleFile] = ()
    ) -> None:
        """Hard-link the bundle's files into `target`, and the prepared files if all of them are
        stored. Raises FnError and then leaves nothing behind."""

    async def add(self, files: Collection[BundleFile], target: Path) -> None:
        """Hard-link further files into `target`, replacing those of the same paths. Raises FnError,
        and then none of these paths is left."""

    def path(self, sha256: str) -> Path:
        """Return where the file with this content is, or would be."""

    async def keep(self, size: int, parts: AsyncIterator[bytes | bytearray]) -> str:
        """Store a file of exactly `size` bytes; return its sha256. Raises FnError, or what `parts`
        raises, and then stores nothing."""


class Recorder(Protocol):
    """Recorder of history. Its methods never block and never raise."""

    def cold_start(self, record: ColdStart) -> None:
        """Record a cold start."""

    def state_interval(self, record: StateInterval) -> None:
        """Record how long a pool was in a state."""

    def use(self, record: Use) -> None:
        """Record device-seconds and joules of replicas."""

    def device_model(self, record: DeviceModel) -> None:
        """Record what a device is."""


class ControlConnections(Protocol):
    """Connections of one replica to its manager, as they arrive."""

    redials: bool
    """Whether a connection may break while the replica lives on, which then dials again, as after
    PINGs that it misses. Otherwise the first connection is the only one."""

    async def accept(self) -> tuple[socket.socket, Hello | None]:
        """Return the next connection, non-blocking, and its HELLO, None if that has yet to be
        read. A cancelled call loses no connection."""

    async def wait_up(self) -> bool:
        """Return once the replica's host can be reached: whether it was at once."""

    def renewal(self) -> Certificate | None:
        """Return the certificate that the replica is to use for its connections from now on, None
        if none is due."""

    def close(self) -> None:
        """Accept nothing more."""


class Charges(NamedTuple):
    """The ledger's charges on a device: MiB of one replica, number of other replicas, their MiB."""

    own_mib: float
    others: int
    others_mib: float


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU or MIG slice for display, with its memory in MiB as last read from the driver.

    `foreign_mib` is memory of other programs. `utilization` is the share of the driver's last
    sample period (at most a second) in which anything ran. None: the driver does not report it.
    `reading` is the whole of what was last read, without the values of a moment while the GPU is
    gone or the driver is silent. `part` is the part of its GPU that a slice is, by
    memory. `xids` counts the GPU's errors since the server's start by XID, the last one last.
    """

    name: str | None
    index: str
    capability: str | None
    driver: str | None
    total_mib: float | None
    used_mib: float | None
    foreign_mib: float
    utilization: float | None = None
    reading: Reading | None = field(default=None, repr=False, compare=False)
    part: float = 1.0
    xids: Mapping[int, int] = field(default_factory=dict)


class Gpus(Protocol):
    """The GPUs of one host. Methods ignore other devices."""

    def devices(self) -> list[Device]:
        """Return the GPUs that replicas may be placed on."""

    @property
    def silence(self) -> str:
        """Reason why the driver does not answer, "" while it does."""

    def start(self, emit: Callable[[DeviceLost | DeviceBack], None]) -> None:
        """Start polling; `emit` is called in the event loop's thread."""

    def view(self, device: str) -> GpuView | None:
        """Return a GPU as last polled, None for any other device."""

    def used_mib(self, device: str) -> float | None:
        """Return the MiB in use on a device as last polled, None if unknown."""

    async def taken_mib(
        self, device: str, pids: frozenset[int] | None, before_mib: float | None, *, is_alone: bool
    ) -> float | None:
        """Return the MiB that a replica with these processes takes of a device, None if unknown.
        `before_mib` were in use before it."""

    async def held_mib(self, device: str, pids: frozenset[int]) -> float | None:
        """Return the MiB that the driver reports of these processes on a device, None if it does
        not report them."""

    async def prove_free(
        self, device: str, pids: frozenset[int] | None, others_mib: Callable[[], float]
    ) -> None:
        """Return once a device shows no memory of these processes. Raises DriverError that says
        what is left, or why that is unknown."""

    def visible(self, devices: Sequence[str]) -> str:
        """Return the value of CUDA_VISIBLE_DEVICES for a process on these devices, which expects
        the order PCI_BUS_ID."""

    async def close(self) -> None:
        """Stop polling."""


GpuViews = Callable[[Device], GpuView | None]
"""Returns a GPU of any host as last polled, None for any other device."""
