"""What the gateway needs from others; `admin/compose.py` plugs it in."""

from __future__ import annotations

from typing import Protocol

from registry.exchange import Expected


class Pools(Protocol):
    """The pool manager, by serialised messages only (`registry.exchange`)."""

    def receive_demand(self, data: bytes) -> None:
        """Take a Demand."""

    def worker_lost(self, worker: str) -> None:
        """This gateway holds nothing any more."""


class CallHistory(Protocol):
    """What is known of earlier cold starts and kept of arrivals."""

    def expected(self, pool: str) -> Expected:
        """What the next cold start of a revision takes."""

    def arrived(self, namespace: str, name: str) -> None:
        """One more request came for this function."""
