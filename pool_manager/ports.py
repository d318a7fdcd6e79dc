"""What the pool manager needs from others; `admin/compose.py` plugs it in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from registry.model import Bundle, ColdStart, StateInterval
from runtime_image.contract.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Binding:
    """All that a replica of one revision, or a trial, is given. `memory_mib` is its cap, 0 for the
    default; `measured_mib` what its trial took, 0 before it."""

    spec: ModelSpec
    bundle: Bundle
    namespace: str
    name: str
    number: int
    memory_mib: int = 0
    measured_mib: float = 0.0


class Bundles(Protocol):
    """Where model files come from."""

    async def materialise(self, bundle: Bundle, target: Path) -> None:
        """Hard-link the bundle's files into `target`. Raises FnError, leaving nothing."""


class Recorder(Protocol):
    """Where the past is kept."""

    def cold_start(self, record: ColdStart) -> None:
        """Keep a cold start's receipt; never blocks, never raises."""

    def state_interval(self, record: StateInterval) -> None:
        """Keep how long a pool was in a state; never blocks, never raises."""
