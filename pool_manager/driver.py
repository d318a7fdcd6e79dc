"""What a driver must be able to do."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pool_manager.subscribers import Subscribers
from runtime_image.contract.control import ReplicaRecord

Exits = Subscribers[[str, str]]
"""Notified once per replica, in the loop's thread, with its id and how it ended."""
EngineLosses = Subscribers[[str]]
"""Notified in the loop's thread with the reason when the engine behind a driver has gone away."""
MEMORY_KILL = "ran out of memory"
"""Begins the description of an exit where the kernel killed the replica for its memory cap."""


class Driver(Protocol):
    """Starts and stops replicas; knows nothing of pools.

    Every method raises `registry.errors.DriverError` with the reason, and no other error of the
    system below: `EngineDown` where that does not answer at all, which counts against no function
    and is waited out.
    """

    kind: str
    exits: Exits
    engine_losses: EngineLosses
    has_other_users: bool
    """Whether replicas run as other users than this process, which must be able to read what they
    are given."""

    def model_path(self, model_dir: Path) -> str:
        """Where a replica finds its model folder, which is `model_dir` to this process."""

    async def start(self, record: ReplicaRecord, run_dir: Path, log: Path) -> None:
        """Launch the replica whose record lies in `run_dir`.

        Its output goes to `log`, at the latest with `save_log`.
        """

    async def list(self) -> set[str]:
        """Ids of all replicas that run, also those an earlier manager started; adopts them.

        What such a manager left half made is removed.
        """

    async def limit(self, record: ReplicaRecord) -> None:
        """Apply the limits of what the replica is bound to now; a second time does no harm.

        It may be given its model when this returns: what it then takes is limited, and soon to
        what was asked for. Also an error: the replica does not run.
        """

    async def pids(self, id: str) -> frozenset[int] | None:
        """The processes of a replica by their numbers on this host, None where they cannot be
        told; empty when it is gone."""

    async def save_log(self, id: str, log: Path) -> None:
        """Have in `log` all that the replica has written, as far as it is kept; harmless when it
        is gone."""

    async def terminate(self, id: str) -> None:
        """Ask the replica's group to end (TERM); harmless when it is gone."""

    async def release(self, id: str) -> None:
        """End what is left of the group and prove it gone; harmless when it is."""

    async def close(self) -> None:
        """Give back what the driver itself holds; replicas are not touched."""
