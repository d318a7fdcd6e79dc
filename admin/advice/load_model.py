"""Parts of a simulated day: virtual clock, conditions, functions, replicas, figures. Pure."""

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
from pool_manager.core.state import ParkSpec, PoolSpec

HOUR_S = 3600.0
MINUTE_S: Final = 60.0


class Clock:
    """Heap of scheduled actions. Actions of the same time run in the order of scheduling."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()

    def at(self, when_s: float, do: Callable[[Any], None], what: Any) -> None:
        """Schedule `do(what)` at `when_s`."""
        heappush(self._heap, (when_s, next(self._order), do, what))

    def after(self, delay_s: float, do: Callable[[Any], None], what: Any) -> None:
        """Schedule `do(what)` in `delay_s` seconds."""
        self.at(self.now + delay_s, do, what)

    def next_s(self) -> float:
        """Return the time of the next action; infinite if there is none."""
        return self._heap[0][0] if self._heap else inf

    def step(self) -> None:
        """Run the next action."""
        self.now, _, do, what = heappop(self._heap)
        do(what)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Parameters of one run. Times are virtual seconds, memory is MiB.

    `min`, `max` and `idle_s` are every function's scaling, `wait_s` the callers' wait budget,
    `batch` the max requests of a run. `think_s` is the mean pause of callers who call again after
    their answer. `start_s` is from a launch to the first message of the process. `share` is the
    part of a device that a replica needs. For `end_s` after the last caller, held requests are
    answered or expire. `skip`: jump over seconds in which nothing can happen.
    """

    devices: int = 4
    hours: float = 24.0
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
    host_mib: float = 0.0
    """Memory of a host without CPU slots that parked servers may take, 0 for none."""
    standbys: int = 0
    end_s: float = 120.0
    skip: bool = True

    @property
    def horizon_s(self) -> float:
        """Time of the last caller."""
        return self.hours * HOUR_S


class Arrival(NamedTuple):
    """Request that arrives at `when_s`; it represents `weight` requests."""

    when_s: float
    weight: int = 1


class ServerShape(NamedTuple):
    """What distinguishes a server function: exchanges at once, the time that open ones have in a
    drain, and its callers' wait budget, in seconds."""

    concurrency: int
    drain_s: float
    wait_s: float


@dataclass(slots=True)
class Function:
    """One function, with hidden values that no decision may use.

    `next_s` is the time of its next call, `took_s` the duration of that run, and `weight` the
    number of requests that it represents. Single runs and loads deviate from their usual time by up
    to the share `jitter`. Arrivals and loads are drawn from two streams, so that no decision
    changes the arrivals. A server function has a `server`; its runs are exchanges.
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
    server: ServerShape | None = None
    count: int = 1
    """Number of devices of one replica."""
    park: ParkSpec | None = None
    """The times and memory of its parks, None for a function that is not parked."""
    closed: int = 0
    """Number of callers who call again after each answer and a pause; there are no `calls` then."""

    def advance(self) -> float:
        """Draw the next call; return its time, infinite if there is none."""
        self.next_s, self.weight = next(self.calls, Arrival(inf))
        # As long as all requests that it represents: same load, same number in flight.
        usual_s = self.service_s * self.weight
        self.took_s = usual_s * self.draws.uniform(1 - self.jitter, 1 + self.jitter)
        return self.next_s

    def draw_pause_s(self, mean_s: float) -> float:
        """Return a caller's pause after an answer, exponential around `mean_s`; 0 if that is 0."""
        return self.draws.expovariate(1 / mean_s) if mean_s else 0.0

    def draw_load_s(self) -> float:
        """Return the duration of this load."""
        return self.load_s * self.loads.uniform(1 - self.jitter, 1 + self.jitter)

    def spec(self, conditions: Conditions) -> PoolSpec:
        """Return the function's definition for the pool manager."""
        return PoolSpec(
            self.key,
            min=conditions.min,
            max=conditions.max,
            idle_s=conditions.idle_s,
            device_kind=conditions.device_kind,
            target=self.server.concurrency if self.server else 2 * conditions.batch,
            load_s=self.load_s,
            function=self.key,
            share=conditions.share,
            memory_mib=self.memory_mib,
            is_server=self.server is not None,
            drain_s=self.server.drain_s if self.server else 0.0,
            count=self.count,
            park=self.park,
        )


@dataclass(slots=True, eq=False)
class Ask(Call):
    """Call whose run takes `service_s`, and that represents `weight` requests. `of_server`: it is
    an exchange with a server."""

    service_s: float = 0.0
    weight: int = 1
    of_server: bool = False


@dataclass(slots=True, eq=False)
class Process:
    """State of a replica's process. Times are virtual seconds.

    `running` is the current batch, `waiting` the requests accepted behind it. `ready_s` is the time
    when the model was loaded, `left_s` when it stopped taking work, both infinite until then. A
    server runs each of its exchanges by itself; `began_s` is since when any is open.
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
    is_server: bool = False
    began_s: float = 0.0
    sleeps_after: bool = False
    """Whether it sleeps at the end of its drain, and does not exit."""
    rested_s: float = 0.0
    """Time of its parks that are over, from the last exchange on."""
    is_asleep: bool = False
    """Whether its engine sleeps."""

    @property
    def is_idle(self) -> bool:
        """True if nothing runs or waits."""
        return not self.running and not self.waiting

    def begin(self) -> float:
        """Take the next batch; return the duration of its run."""
        while self.waiting and len(self.running) < self.batch:
            self.running.append(self.waiting.popleft())
        return max(ask.service_s for ask in self.running)

    def finish(self, now: float) -> list[Ask]:
        """Finish the batch and return its calls."""
        done, self.running = self.running, []
        self.last_end_s = now
        self.has_run = True
        return done


class Figures:
    """Counts, waits and times of one run, in virtual seconds.

    A request is `held` if no replica was ready on its arrival: its share of cold starts;
    `held_wait_s` is the total wait of these. A start is cold if its function had no other replica.
    A replica that is not ready counts as moving: `loading_s` is the part before it is ready.
    `server_waits_s` are the waits of exchanges, which `waits_s` does not contain; `revoked` counts
    soft swaps that were revoked, `cut` exchanges that a drain ended, `parks` and `wakes` what their
    names say.
    """

    def __init__(self) -> None:
        self.requests = self.answered = self.held = 0
        self.expired = self.refused = self.failed = 0
        self.cold_starts = 0
        self.held_wait_s = 0.0
        self.starts = self.evictions = self.swaps = self.refusals = self.idle_stops = 0
        self.revoked = self.cut = self.parks = self.wakes = 0
        self.ready_s = self.busy_s = self.moving_s = self.loading_s = 0.0
        self.ticks_skipped = 0
        self.waits_s = array("d")
        self.server_waits_s = array("d")
        self.gaps_s: dict[str, float] = {}
        self._served_s: dict[str, float] = {}

    def waited(self, ask: Ask, now: float) -> None:
        """Record the wait of a call that starts to run or expires."""
        if ask.stage is not Stage.ABANDONED:
            (self.server_waits_s if ask.of_server else self.waits_s).append(now - ask.arrived_s)
            if ask.was_held:
                self.held_wait_s += (now - ask.arrived_s) * ask.weight

    def gave_up(self, ask: Ask, now: float) -> None:
        """Record a call that expires."""
        self.expired += ask.weight
        self.waited(ask, now)

    def served(self, pool: str, now: float) -> None:
        """Record a run of this function, and the gap since its last one."""
        gap_s = now - self._served_s.get(pool, 0.0)
        self._served_s[pool] = now
        self.gaps_s[pool] = max(gap_s, self.gaps_s.get(pool, 0.0))

    def gone(self, process: Process, now: float) -> None:
        """Add up the device time of a process that ended, or at the end of the day."""
        if not process.pool:
            return
        left_s = min(process.left_s, now)
        ready_s = max(0.0, left_s - process.ready_s - process.rested_s)
        self.ready_s += ready_s
        self.busy_s += process.busy_s
        self.moving_s += now - process.launched_s - process.rested_s - ready_s
        self.loading_s += min(process.ready_s, now) - process.launched_s


def spread(minutes: Iterable[tuple[int, int]], from_s: float, most: int) -> Iterator[Arrival]:
    """Yield arrivals in seconds after `from_s`, rising. `minutes`: start (Unix seconds, rising) and
    number of requests of each minute.

    Of a minute with more than `most` requests, one is simulated in each `most`-th part and
    represents several: two of them are never further apart than two such parts.
    """
    for minute_s, count in minutes:
        draws = Random(minute_s)  # noqa: S311 - not a secret, and reproducible
        begins_s = minute_s - from_s
        if count <= most:
            for at_s in sorted(draws.uniform(0.0, MINUTE_S) for _ in range(count)):
                yield Arrival(begins_s + at_s)
            continue
        weight, rest = divmod(count, most)
        for n in range(most):
            at_s = (n + draws.random()) * MINUTE_S / most
            yield Arrival(begins_s + at_s, weight + (n < rest))
