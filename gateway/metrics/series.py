"""What is counted for one function."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.metrics.counting import Distribution, Number

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LABELS = ("namespace", "function")
SENDS = (1, 2, 3, 4, 6, 12)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(slots=True)
class Series:
    """One function's children. Binding them costs more than using them: each is bound once."""

    labels: tuple[str, str]
    duration: Distribution
    queue: Distribution
    sends: Distribution
    rows: Distribution
    outcomes: dict[tuple[str, str], Number] = field(default_factory=dict)
