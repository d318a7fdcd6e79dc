"""Populations of functions that differ in what they need: replicas on several devices, single
servers, single models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from admin.advice.load_model import Arrival, Function, ServerShape
from benchmarks.simulation.arrivals import poisson
from benchmarks.simulation.functions import CONCURRENCY, STREAM_MAX_S
from benchmarks.simulation.settings import Settings
from pool_manager.core.state import ParkSpec

WAIT_S: Final = 600.0
"""Wait budget of the callers of servers, in seconds; those of models have `Settings.wait_s`."""
MEMORY_MIB: Final = 4096.0
"""Memory of a replica on each of its devices."""
SLEEP_S: Final = 1.0
VERIFY_S: Final = 0.25
"""Seconds of a sleep, and of a golden sample."""
JITTER: Final = 1 / 3
"""Max relative deviation of single runs and loads."""


@dataclass(frozen=True, slots=True)
class Group:
    """Equal functions of a mix. Times are virtual seconds."""

    name: str
    """Shown in the table."""
    number: int
    """How many functions there are."""
    load_s: float
    """Usual time of a load."""
    run_s: float
    """Usual time of a run, of an exchange for servers."""
    every_s: float = 0.0
    """Mean time between two calls of one function, which come independently; 0 for none."""
    callers: int = 0
    """Callers of each function who call again as soon as they are answered."""
    count: int = 1
    """Devices of one replica."""
    is_server: bool = True
    """Whether they are servers."""


def _calm(slower: float) -> tuple[Group, ...]:
    """Return functions of all kinds; the time between their calls is multiplied by `slower`."""
    return (
        Group("gang of 8", 1, 120.0, 22.5, 240.0 * slower, count=8),
        Group("gang of 4", 1, 70.0, 22.5, 160.0 * slower, count=4),
        Group("gang of 2", 2, 40.0, 22.5, 120.0 * slower, count=2),
        Group("single servers", 4, 25.0, 22.5, 80.0 * slower),
        Group("single models", 6, 4.0, 0.5, 15.0 * slower, is_server=False),
    )


MIXES: Final[dict[str, tuple[Group, ...]]] = {
    "light": _calm(8.0),
    "heavy": _calm(1.0),
    "busy-singles": (
        *_calm(1.0)[:3],
        Group("single servers", 10, 25.0, 22.5, callers=2),
    ),
}
"""Mixes by name. In "busy-singles", ten single servers are always called."""


def mixed(settings: Settings) -> tuple[list[Function], dict[str, str]]:
    """Return the functions of a mix, and the group of each by its key."""
    functions, groups = [], {}
    for group in MIXES[settings.mix]:
        for number in range(group.number):
            function = _function(group, number, settings)
            functions.append(function)
            groups[function.key] = group.name
    return functions, groups


def _function(group: Group, number: int, settings: Settings) -> Function:
    seed = settings.seed
    key = f"default/{group.name.replace(' ', '-')}-{number}@1"
    calls = Random(f"{seed}/{key}/calls")
    function = Function(
        key=key,
        service_s=group.run_s,
        load_s=group.load_s,
        memory_mib=MEMORY_MIB,
        calls=_arrivals(group, calls),
        draws=calls,
        loads=Random(f"{seed}/{key}/loads"),
        jitter=JITTER,
        count=group.count,
        closed=group.callers,
    )
    if group.is_server:
        function.server = ServerShape(CONCURRENCY, STREAM_MAX_S, WAIT_S)
        if settings.wake_part:
            function.park = ParkSpec(
                SLEEP_S,
                settings.wake_part * group.load_s,
                MEMORY_MIB * group.count,
                settings.residue_mib,
                verify_s=VERIFY_S,
            )
    return function


def _arrivals(group: Group, draws: Random) -> Iterator[Arrival]:
    return map(Arrival, poisson(1 / group.every_s, draws)) if group.every_s else iter(())
