"""The parts of a simulated day: virtual clock, conditions, functions, replicas, figures. Pure."""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any, Final, NamedTuple

from gateway.dispatch.call import Call, Stage
from pool_manager.core.state import PoolSpec

HOUR_S = 3600.0
MINUTE_S: Final = 60.0


class Clock:
    """A heap of things to do. What is due at one moment is done in the order it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()

    def at(self, when_s: float, do: Callable[[Any], None], what: Any) -> None:
        """Have `do(what)` done at `when_s`."""
        heappush(self._heap, (when_s, next(self._order), do, what))

    def after(self, delay_s: float, do: Callable[[Any], None], what: Any) -> None:
        """Have `do(what)` done in `delay_s`."""
        self.at(self.now + delay_s, do, what)

    def next_s(self) -> float:
        """When something happens next; infinite where nothing will."""
        return self._heap[0][0] if self._heap else inf

    def step(self) -> None:
        """Do the next thing."""
        self.now, _, do, what = heappop(self._heap)
        do(what)


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


@dataclass(slots=True, eq=False)
class Ask(Call):
    """A call whose run will take `service_s`, and that stands for `weight` requests."""

    service_s: float = 0.0
    weight: int = 1


@dataclass(slots=True, eq=False)
class Process:
    """What the replica's process knows. Times are virtual seconds.

    `running` is the batch that runs, `waiting` what was accepted behind it. `ready_s` is when the
    model was loaded, `left_s` when it stopped taking work, both infinite until then.
    """

    id: str
    pool: str
    phases: dict[str, float]
    launched_s: float
    batch: int = 1
    running: list[Ask] = field(default_factory=list)
    waiting: deque[Ask] = field(default_factory=deque)
    last_end_s: float = 0.0
    ready_s: float = float("inf")
    left_s: float = float("inf")
    busy_s: float = 0.0
    has_run: bool = False
    draining: bool = False
    dead: bool = False

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits."""
        return not self.running and not self.waiting

    def begin(self) -> float:
        """Take the next batch; how long it will run."""
        while self.waiting and len(self.running) < self.batch:
            self.running.append(self.waiting.popleft())
        return max(ask.service_s for ask in self.running)

    def finish(self, now: float) -> list[Ask]:
        """The batch is done."""
        done, self.running = self.running, []
        self.last_end_s = now
        self.has_run = True
        return done


class Figures:
    """Counts, waits and times of one run, in virtual seconds.

    A request is `held` if no replica was there when it came: its cold-start share; `held_wait_s` is
    how long all of these waited. A start is cold if its function had no other replica. A replica is
    moving unless it is ready: `loading_s` is the part of that before, which ends in a loaded model.
    """

    def __init__(self) -> None:
        self.requests = self.answered = self.held = 0
        self.expired = self.refused = self.failed = 0
        self.cold_starts = 0
        self.held_wait_s = 0.0
        self.starts = self.evictions = self.swaps = self.refusals = self.idle_stops = 0
        self.ready_s = self.busy_s = self.moving_s = self.loading_s = 0.0
        self.ticks_skipped = 0
        self.waits_s = array("d")
        self.gaps_s: dict[str, float] = {}
        self._served_s: dict[str, float] = {}

    def waited(self, ask: Ask, now: float) -> None:
        """A call begins to run, or is given up, after so long."""
        if ask.stage is not Stage.ABANDONED:
            self.waits_s.append(now - ask.arrived_s)
            if ask.was_held:
                self.held_wait_s += (now - ask.arrived_s) * ask.weight

    def served(self, pool: str, now: float) -> None:
        """A run of this function begins: how long was there none?"""
        gap_s = now - self._served_s.get(pool, 0.0)
        self._served_s[pool] = now
        self.gaps_s[pool] = max(gap_s, self.gaps_s.get(pool, 0.0))

    def gone(self, process: Process, now: float) -> None:
        """A process ended, or the day did: what it had of its device."""
        if not process.pool:
            return
        left_s = min(process.left_s, now)
        ready_s = max(0.0, left_s - process.ready_s)
        self.ready_s += ready_s
        self.busy_s += process.busy_s
        self.moving_s += now - process.launched_s - ready_s
        self.loading_s += min(process.ready_s, now) - process.launched_s


def spread(minutes: Iterable[tuple[int, int]], from_s: float, most: int) -> Iterator[Arrival]:
    """Arrivals in seconds after `from_s`, rising. `minutes`: when each began (Unix seconds, rising)
    and how many requests came in it.

    Of more than `most` in a minute, one is played in each `most`-th part of it and stands for
    several: two of them are never further apart than two such parts.
    """
    for minute_s, count in minutes:
        draws = Random(minute_s)  # noqa: S311 - no secret, and the same each time
        begins_s = minute_s - from_s
        if count <= most:
            for at_s in sorted(draws.uniform(0.0, MINUTE_S) for _ in range(count)):
                yield Arrival(begins_s + at_s)
            continue
        weight, rest = divmod(count, most)
        for n in range(most):
            at_s = (n + draws.random()) * MINUTE_S / most
            yield Arrival(begins_s + at_s, weight + (n < rest))
