"""Interfaces that the gateway depends on; `admin/compose.py` provides the implementations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.oip.statistics import RevisionStatistics
from registry.exchange import Expected
from registry.usage import UsageRow


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

    def arrived(self, namespace: str, name: str) -> None:
        """Count one request for a function."""

    def used(self, row: UsageRow) -> None:
        """Add the usage of one call to its row."""


class ModelStatistics(Protocol):
    """Statistics of revisions, over all gateway processes and replicas of the server."""

    async def statistics(self, pools: Sequence[str]) -> list[RevisionStatistics]:
        """Return the statistics of these revisions (`Revision.key`), in this order.

        An unknown one has zeros. Takes at most 5 s. Raises SupervisorAway or QueueFull.
        """


class NoStatistics(ModelStatistics):
    """Statistics of a gateway without a server around it: all zeros."""

    async def statistics(self, pools: Sequence[str]) -> list[RevisionStatistics]:
        """Implement `ModelStatistics.statistics`."""
        return [RevisionStatistics(pool) for pool in pools]
