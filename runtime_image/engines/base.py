"""The interface of an engine, as the runner uses it."""

from __future__ import annotations

from typing import Any, Protocol

from runtime_image.contract.control import SessionName
from runtime_image.contract.signature import Signature
from runtime_image.engines.upgrade import SessionUpgrade


class Stopped(Exception):
    """A run ended early because `Engine.stop` was called on its ticket."""


class Engine(Protocol):
    """One loaded model. `run` is called from one thread at a time, `stop` from another."""

    signature: Signature

    @property
    def session(self) -> SessionName:
        """The session of its model that runs."""

    @property
    def upgrade(self) -> SessionUpgrade | None:
        """Makes the engine faster once it serves, when the replica starts it; None where nothing
        is to be gained."""

    def ticket(self) -> Any:
        """A handle for one run, to stop it by."""

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        """Outputs by name. Raises Stopped after `stop(ticket)`, anything else on failure."""

    def stop(self, ticket: Any) -> None:
        """End the run with this ticket early; no effect on one that has ended."""
