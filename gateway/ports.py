"""Interfaces that the gateway depends on; `admin/compose.py` provides the implementations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gateway.oip.statistics import RevisionStatistics
from registry.exchange import Expected
from registry.usage import UsageRow

if TYPE_CHECKING:
    from registry.catalog import Deployed


class Pools(Protocol):
    """The pool manager, reached by serialised messages only (`registry.exchange`)."""

    def receive_demand(self, data: bytes) -> None:
        """Process a serialised Demand."""

    def worker_lost(self, worker: str) -> None:
        """Forget the demand of gateway process `worker`: it holds no requests any more."""


class CallHistory(Protocol):
    """History of cold starts and arrivals, and usage of models."""

    def expected(self, pool: str) -> Expected:
        """Return the expected duration of a revision's next cold start."""

    def arrived(self, namespace: str, name: str, count: int = 1) -> None:
        """Count requests for a function that arrived within about a second."""

    def used(self, row: UsageRow) -> None:
        """Add the usage of one call to its row."""


class ModelControl(Protocol):
    """Models that clients make resident and let go, where the pool manager is. A request without an
    answer of it, because the process of the manager is gone, raises ServerAway."""

    async def load(self, deployed: Deployed, wait_s: float) -> None:
        """Return once a replica of a revision is resident, which wakes it; at most `wait_s` later.

        All that wait for one revision cause one start. A cancelled wait ends alone. Raises
        FunctionFailing with the reason of a start that failed, NoRoom after `wait_s`, QueueFull if
        too many wait, ShuttingDown, or Unknown if the revision was removed meanwhile.
        """

    async def unload(self, deployed: Deployed) -> None:
        """Ask the replicas of all revisions of a function to stop as soon as they are idle; return
        at once. The next call wakes the function again. Those of `min` stay."""


class ModelStatistics(Protocol):
    """Statistics of revisions, over all gateway processes and replicas of the server."""

    async def statistics(self, pools: Sequence[str]) -> list[RevisionStatistics]:
        """Return the statistics of these revisions (`Revision.key`), in this order.

        An unknown one has zeros. Takes at most 5 s. Raises ServerAway or QueueFull.
        """


class NoStatistics(ModelStatistics):
    """Statistics of a gateway without a server around it: all zeros."""

    async def statistics(self, pools: Sequence[str]) -> list[RevisionStatistics]:
        """Implement `ModelStatistics.statistics`."""
        return [RevisionStatistics(pool) for pool in pools]
