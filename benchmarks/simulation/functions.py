"""Who is called: popularity, times and memory of every function, drawn from the seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, inf
from random import Random

from benchmarks.simulation.arrivals import ARRIVALS
from benchmarks.simulation.settings import Settings
from pool_manager.core.state import PoolSpec

SERVICE_SPREAD = 1.0
"""Sigma of the log-normal service times over functions, where `Settings.spread` is 1."""
LOAD_SPREAD = 1.2
LOAD_MIN_S, LOAD_MAX_S = 0.2, 30.0
JITTER = 0.2
"""Single runs and loads differ from their function's usual time by up to this part."""


@dataclass(slots=True)
class Function:
    """One function, and what is known of it that no decision may see.

    `next_s` is when it will be called next and `took_s` how long that run will take. Arrivals and
    loads are drawn from two streams, so that no decision changes who calls when.
    """

    key: str
    rate: float
    service_s: float
    load_s: float
    memory_mib: float
    calls: Iterator[float]
    draws: Random
    loads: Random
    next_s: float = inf
    took_s: float = 0.0

    def advance(self) -> float:
        """Draw the next call; when it comes."""
        self.next_s = next(self.calls)
        self.took_s = self.service_s * self.draws.uniform(1 - JITTER, 1 + JITTER)
        return self.next_s

    def draw_pause_s(self, mean_s: float) -> float:
        """How long a caller who was answered thinks, exponential around `mean_s`; 0 for not."""
        return self.draws.expovariate(1 / mean_s) if mean_s else 0.0

    def draw_load_s(self) -> float:
        """How long this load takes."""
        return self.load_s * self.loads.uniform(1 - JITTER, 1 + JITTER)

    def spec(self, settings: Settings) -> PoolSpec:
        """What the pool manager is told."""
        return PoolSpec(
            self.key,
            max=settings.max,
            idle_s=settings.idle_s,
            device_kind=settings.device_kind,
            target=2 * settings.batch,
            load_s=self.load_s,
            function=self.key,
            share=settings.share,
            memory_mib=self.memory_mib,
        )


def population(settings: Settings) -> list[Function]:
    """Every function of a run, the most popular first."""
    weights = [rank**-settings.zipf for rank in range(1, settings.functions + 1)]
    per_weight = settings.rate / sum(weights)
    return [_function(n, weight * per_weight, settings) for n, weight in enumerate(weights)]


def _function(number: int, rate: float, settings: Settings) -> Function:
    spread = settings.spread
    draws = Random(f"{settings.seed}/{number}/calls")
    shape = Random(f"{settings.seed}/{number}/shape")
    arrivals = ARRIVALS[settings.arrivals]
    load_s = settings.load_s * exp(spread * shape.gauss(0.0, LOAD_SPREAD))
    return Function(
        key=f"default/f{number}@1",
        rate=rate,
        service_s=min(10 * settings.service_s, settings.service_s * _factor(shape, spread)),
        load_s=min(LOAD_MAX_S, max(LOAD_MIN_S, load_s)),
        memory_mib=min(settings.device_mib / 2, settings.memory_mib * _factor(shape, spread)),
        calls=arrivals(rate, draws),
        draws=draws,
        loads=Random(f"{settings.seed}/{number}/loads"),
    )


def _factor(shape: Random, spread: float) -> float:
    return exp(spread * shape.gauss(0.0, SERVICE_SPREAD))
