"""Interface between the runner and an engine."""

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
        """Name of the session in use."""

    @property
    def upgrade(self) -> SessionUpgrade | None:
        """A faster session to switch to while the engine serves, started by the replica; None if
        there is none."""

    def ticket(self) -> Any:
        """Return a handle of one run, for `stop`."""

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        """Return outputs by name. Raises Stopped after `stop(ticket)`, any other error on
        failure."""

    def stop(self, ticket: Any) -> None:
        """End the run with this ticket early; no effect if it has ended."""
