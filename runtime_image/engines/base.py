"""What every engine offers to the runner."""

from __future__ import annotations

from typing import Any, Protocol

from runtime_image.contract.control import SessionName
from runtime_image.contract.signature import Signature
from runtime_image.engines.upgrade import Improvement


class Stopped(Exception):
    """A run ended early because `Engine.stop` was called on its ticket."""


class Engine(Protocol):
    """One loaded model. `run` is called from one thread at a time, `stop` from another."""

    signature: Signature

    @property
    def session(self) -> SessionName:
        """Which of its model's sessions runs."""

    @property
    def improvement(self) -> Improvement | None:
        """What makes it faster once it serves, for the server to begin; None where there is
        nothing to gain."""

    def ticket(self) -> Any:
        """A handle for one run, by which it can be stopped."""

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        """Outputs by name. Raises Stopped after `stop(ticket)`, anything else on failure."""

    def stop(self, ticket: Any) -> None:
        """Ask the run with this ticket to end; harmless when it already has."""
