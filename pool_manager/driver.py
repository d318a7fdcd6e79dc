"""The interface of drivers, which start and stop replicas, and of the processes of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from pool_manager.images import Images
from pool_manager.ports import ServerContainer
from pool_manager.subscribers import Subscribers
from registry.model.hosts import Ability
from runtime_image.contract.control import ReplicaRecord


class Exit(NamedTuple):
    """How a replica has ended, by itself or by others."""

    how: str
    """Description, as "exited with code 1"."""
    is_eviction: bool = False
    """Whether its engine has taken its place for something else: nothing is wrong with it."""


Exits = Subscribers[[str, Exit]]
"""Subscribers that are notified once per replica, in the event loop's thread, with its id and its
exit."""
EngineLosses = Subscribers[[str]]
"""Subscribers that are notified in the event loop's thread, with the reason, when the engine behind
a driver stops answering."""
MEMORY_KILL = "ran out of memory"
"""Prefix of the description of an exit if the kernel killed the replica at its memory cap."""


class Processes(Protocol):
    """The processes of a host's replicas, as seen from outside: by them the memory of a device is
    attributed, and proven free. Methods raise DriverError, EngineDown."""

    has_other_users: bool
    """Whether they run as users other than this process's, so that their files must be readable for
    others."""

    async def pids(self, id: str) -> frozenset[int] | None:
        """Return the pids of a replica's processes on its host, None if they are unknown; empty if
        the replica is gone. Those of a server are included."""

    async def used_mib(self, id: str) -> float | None:
        """Return the MiB of memory that the server of a sidecar takes if it is apart, None for any
        other replica, which measures itself, and if they are unknown."""


class DriverFacts(Protocol):
    """What deploys must know of a driver."""

    kind: str
    """Its name in settings and messages."""
    is_contained: bool
    """Whether code of functions runs in containers: without the server's rights, and without the
    programs of this machine."""
    abilities: frozenset[Ability]
    """What its replicas can run beside models."""
    images: Images | None
    """Images that servers may run, None under a driver that runs none."""


class Driver(DriverFacts, Protocol):
    """Starts and stops replicas; independent of pools.

    Methods raise only `registry.errors.DriverError`, with the reason. Its subclass `EngineDown`
    means that the engine does not answer at all: no function is at fault, and the manager waits
    until the engine is back.
    """

    exits: Exits
    engine_losses: EngineLosses
    processes: Processes
    """Those of its replicas, for the facts of the host that it runs them on."""

    def model_path(self, model_dir: Path) -> str:
        """Return the path at which a replica sees its model folder, this process's `model_dir`."""

    async def start(
        self,
        record: ReplicaRecord,
        run_dir: Path,
        log: Path,
        server: ServerContainer | None = None,
    ) -> None:
        """Launch the replica whose record is in `run_dir` and whose files are in its model folder;
        with `server`, also the container of the server beside its sidecar.

        Its output is written to `log`, at the latest by `save_log`.
        """

    async def list(self) -> set[str]:
        """Return the ids of all running replicas. Replicas of an earlier manager are adopted, and
        its incomplete starts are removed."""

    async def limit(self, record: ReplicaRecord) -> None:
        """Apply the limits of the replica's present binding; may be called repeatedly.

        The replica may receive its model once this returns: its memory is limited from then on, and
        soon to the requested cap. Raises DriverError also if the replica does not run.
        """

    async def save_log(self, id: str, log: Path) -> None:
        """Write all kept output of the replica to `log`, of its server if that is apart. Does
        nothing if the replica is gone."""

    async def terminate(self, id: str) -> None:
        """Send TERM to the replica's process group, or to the sidecar of a server that is apart.
        Does nothing if the replica is gone."""

    async def release(self, id: str) -> None:
        """Kill what is left of the process group and prove it gone. Does nothing if it is gone. A
        server that is apart gets its stop signal and `stop_grace_s` first."""

    async def close(self) -> None:
        """Free the driver's own resources. Replicas are not touched."""
