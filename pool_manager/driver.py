"""What a driver must be able to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from runtime_image.contract.control import ReplicaRecord

OnExit = Callable[[str, str], None]
"""Called with a replica's id and how it ended, in the loop's thread, once."""


class Driver(Protocol):
    """Starts and stops replicas; knows nothing of pools.

    Every method raises `registry.errors.DriverError` with the reason, and no other error of the
    system below: `EngineDown` where that does not answer at all, which is nobody's fault and is
    waited out.
    """

    kind: str
    on_exit: OnExit

    async def start(self, record: ReplicaRecord, run_dir: Path, log: Path) -> None:
        """Launch the replica whose record lies in `run_dir`; its output goes to `log`."""

    async def list(self) -> set[str]:
        """Ids of all replicas that run, also those an earlier manager started; adopts them."""

    async def limit(self, record: ReplicaRecord) -> None:
        """Apply the limits of what the replica is bound to now (its memory cap).

        For a standby, which starts without any; a cap is never raised. Also an error: the replica
        does not run.
        """

    async def pids(self, id: str) -> frozenset[int] | None:
        """The processes of a replica by their numbers on this host, None where they cannot be
        told; empty when it is gone."""

    async def terminate(self, id: str) -> None:
        """Ask the replica's group to end (TERM); harmless when it is gone."""

    async def release(self, id: str) -> None:
        """End what is left of the group and prove it gone; harmless when it is."""

    async def close(self) -> None:
        """Give back what the driver itself holds; replicas are not touched."""
