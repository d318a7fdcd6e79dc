"""What a virtual world is like."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """One run. Times are virtual seconds, memory is MiB.

    `min`, `max` and `idle_s` are every function's scaling, `wait_s` how long callers agree to be
    held, `batch` how many requests a run takes. `closed` is the number of callers per function who
    ask again once they are answered, after a pause of `think_s` on average; 0 for arrivals of their
    own accord. `start_s`: from a launch to the greeting. `share` is the part of a device that a
    replica needs. For `end_s` after the last caller came, what is held is answered or given up.
    `skip`: jump over seconds in which nothing can happen.
    """

    devices: int = 4
    hours: float = 24.0
    closed: int = 0
    think_s: float = 0.0
    idle_s: float = 300.0
    wait_s: float = 55.0
    min: int = 0
    max: int = 2
    batch: int = 1
    start_s: float = 0.5
    release_s: float = 0.2
    share: float = 1.0
    device_mib: float = 80_000.0
    device_kind: str = "cuda"
    standbys: int = 0
    end_s: float = 120.0
    skip: bool = True

    @property
    def horizon_s(self) -> float:
        """When the last caller comes."""
        return self.hours * HOUR_S
