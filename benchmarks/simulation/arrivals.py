"""Call times of a function: endless increasing virtual seconds, drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import pi, sin
from random import Random

DAY_S = 86_400.0
ON_S = 120.0
"""Mean length of a busy period in seconds."""
DUTY = 0.05
"""Busy share of the time."""
TAIL = 1.5
"""Pareto exponent of periods: the mean exists, the variance does not."""
SWING = 0.9
"""Amplitude of the daily rate, relative to its mean."""
PHASE_S = 3 * 3600.0
"""Max shift of a function's peak time, in seconds."""


def poisson(rate: float, draws: Random) -> Iterator[float]:
    """Independent calls at a constant `rate` per second."""
    now = 0.0
    while True:
        now += draws.expovariate(rate)
        yield now


def bursty(rate: float, draws: Random) -> Iterator[float]:
    """Calls in busy periods: on and off for Pareto-distributed times, Poisson while on."""
    on_rate = rate / DUTY
    now = -draws.random() * _spell(ON_S / DUTY, draws)
    while True:
        end = now + _spell(ON_S, draws)
        now += draws.expovariate(on_rate)
        while now < end:
            if now >= 0.0:
                yield now
            now += draws.expovariate(on_rate)
        now = end + _spell(ON_S * (1 / DUTY - 1), draws)


def diurnal(rate: float, draws: Random) -> Iterator[float]:
    """Calls with a sinusoidal rate over the day, by thinning."""
    phase_s = draws.uniform(-PHASE_S, PHASE_S)
    highest = rate * (1 + SWING)
    now = 0.0
    while True:
        now += draws.expovariate(highest)
        usual = rate * (1 + SWING * sin(2 * pi * (now + phase_s) / DAY_S))
        if draws.random() * highest < usual:
            yield now


def _spell(mean_s: float, draws: Random) -> float:
    return mean_s * (TAIL - 1) / TAIL * draws.paretovariate(TAIL)


ARRIVALS: dict[str, Callable[[float, Random], Iterator[float]]] = {
    "poisson": poisson,
    "bursty": bursty,
    "diurnal": diurnal,
}
