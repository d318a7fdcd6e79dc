"""What every engine offers to the runner."""

from __future__ import annotations

from typing import Any, Protocol

from runtime_image.contract.signature import Signature


class Stopped(Exception):
    """A run ended early because `Engine.stop` was called on its ticket."""


class Engine(Protocol):
    """One loaded model. `run` is called from one thread at a time, `stop` from another."""

    signature: Signature

    def ticket(self) -> Any:
        """A handle for one run, by which it can be stopped."""

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        """Outputs by name. Raises Stopped after `stop(ticket)`, anything else on failure."""

    def stop(self, ticket: Any) -> None:
        """Ask the run with this ticket to end; harmless when it already has."""
