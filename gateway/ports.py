"""What the gateway needs from others; `admin/compose.py` plugs it in."""

from __future__ import annotations

from typing import Protocol

from registry.exchange import Expected


class Pools(Protocol):
    """The pool manager, by serialised messages only (`registry.exchange`)."""

    def receive_demand(self, data: bytes) -> None:
        """Take in a Demand."""

    def worker_lost(self, worker: str) -> None:
        """The gateway process `worker` holds no requests any more."""


class CallHistory(Protocol):
    """Earlier cold starts, and a count of arrivals."""

    def expected(self, pool: str) -> Expected:
        """How long the next cold start of a revision is expected to take."""

    def arrived(self, namespace: str, name: str) -> None:
        """Count one request for a function."""
