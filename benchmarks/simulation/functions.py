"""The simulated functions: popularity, times and memory, drawn from the seed."""

from __future__ import annotations

from math import exp
from random import Random

from admin.advice.load_model import Arrival, Function, ServerShape
from benchmarks.simulation.arrivals import ARRIVALS
from benchmarks.simulation.settings import Settings

SERVICE_SPREAD = 1.0
"""Sigma of the functions' log-normal service times for `Settings.spread` 1."""
LOAD_SPREAD = 1.2
LOAD_MIN_S, LOAD_MAX_S = 0.2, 30.0
CONCURRENCY = 8
"""Exchanges at once of a simulated server."""
STREAM_MAX_S = 600.0
"""Longest exchange of a server, and the time that open ones have in a drain."""
STREAM_SPREAD = 0.7
JITTER = 0.2
"""Max relative deviation of single runs and loads from their function's usual time."""


def population(settings: Settings) -> list[Function]:
    """Return all functions of a run, the most popular first."""
    weights = [rank**-settings.zipf for rank in range(1, settings.functions + 1)]
    per_weight = settings.rate / sum(weights)
    made = [_function(n, weight * per_weight, settings) for n, weight in enumerate(weights)]
    if settings.servers:
        for function in made[:: max(1, len(made) // settings.servers)][: settings.servers]:
            _make_server(function, settings)
    return made


def _make_server(function: Function, settings: Settings) -> None:
    """Make a server of a function: slow starts, long exchanges, several at once."""
    shape = Random(f"{settings.seed}/{function.key}/server")
    function.load_s = settings.server_start_s * shape.uniform(2 / 3, 4 / 3)
    function.service_s = min(
        STREAM_MAX_S, settings.stream_s * _factor(shape, min(settings.spread, STREAM_SPREAD))
    )
    wait_s = max(settings.wait_s, 1.5 * function.load_s)
    function.server = ServerShape(CONCURRENCY, STREAM_MAX_S, min(wait_s, 600.0))


def _function(number: int, rate: float, settings: Settings) -> Function:
    spread = settings.spread
    draws = Random(f"{settings.seed}/{number}/calls")
    shape = Random(f"{settings.seed}/{number}/shape")
    calls = iter(()) if settings.closed else ARRIVALS[settings.arrivals](rate, draws)
    load_s = settings.load_s * exp(spread * shape.gauss(0.0, LOAD_SPREAD))
    return Function(
        key=f"default/f{number}@1",
        service_s=min(10 * settings.service_s, settings.service_s * _factor(shape, spread)),
        load_s=min(LOAD_MAX_S, max(LOAD_MIN_S, load_s)),
        memory_mib=min(settings.device_mib / 2, settings.memory_mib * _factor(shape, spread)),
        calls=map(Arrival, calls),
        draws=draws,
        loads=Random(f"{settings.seed}/{number}/loads"),
        jitter=JITTER,
        closed=settings.closed,
    )


def _factor(shape: Random, spread: float) -> float:
    return exp(spread * shape.gauss(0.0, SERVICE_SPREAD))
