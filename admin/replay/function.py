"""One function of a virtual world: who calls it when, and how long its runs and loads take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random
from typing import NamedTuple

from admin.replay.conditions import Conditions
from pool_manager.core.state import PoolSpec


class Arrival(NamedTuple):
    """A request that comes at `when_s`; it stands for `weight` of them."""

    when_s: float
    weight: int = 1


@dataclass(slots=True)
class Function:
    """One function, and what is known of it that no decision may see.

    `next_s` is when it will be called next, `took_s` how long that run will take and `weight` how
    many requests it stands for. Single runs and loads differ from their usual time by up to the
    part `jitter`. Arrivals and loads are drawn from two streams, so that no decision changes who
    calls when.
    """

    key: str
    service_s: float
    load_s: float
    memory_mib: float
    calls: Iterator[Arrival]
    draws: Random
    loads: Random
    jitter: float = 0.0
    next_s: float = inf
    took_s: float = 0.0
    weight: int = 1

    def advance(self) -> float:
        """Draw the next call; when it comes, infinite where none will."""
        self.next_s, self.weight = next(self.calls, Arrival(inf))
        # As long as all that it stands for: the load is the same, and so is what is in flight.
        usual_s = self.service_s * self.weight
        self.took_s = usual_s * self.draws.uniform(1 - self.jitter, 1 + self.jitter)
        return self.next_s

    def draw_pause_s(self, mean_s: float) -> float:
        """How long a caller who was answered thinks, exponential around `mean_s`; 0 for not."""
        return self.draws.expovariate(1 / mean_s) if mean_s else 0.0

    def draw_load_s(self) -> float:
        """How long this load takes."""
        return self.load_s * self.loads.uniform(1 - self.jitter, 1 + self.jitter)

    def spec(self, conditions: Conditions) -> PoolSpec:
        """What the pool manager is told."""
        return PoolSpec(
            self.key,
            min=conditions.min,
            max=conditions.max,
            idle_s=conditions.idle_s,
            device_kind=conditions.device_kind,
            target=2 * conditions.batch,
            load_s=self.load_s,
            function=self.key,
            share=conditions.share,
            memory_mib=self.memory_mib,
        )
