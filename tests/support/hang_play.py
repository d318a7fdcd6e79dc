"""A play of servers under a virtual clock, read once a second by the product's own decider.

Kinds of servers that are healthy and silent for long, and the ways in which they hang. Their
counters are metrics in Prometheus' text format, read by the sidecar's own reader.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from pool_manager.core.health.liveness import Reading, Silences, Verdict, Watch
from runtime_image.contract.samples import SampleVerdict
from runtime_image.server.counter import read_counter

METRIC: Final = "engine:steps_total_count"
Gaps = Callable[[random.Random], Iterator[float]]
"""Seconds between the moves of one exchange, the last of which is its end."""


@dataclass(frozen=True)
class Kind:
    """One kind of server. `gap_s`: mean seconds between two arrivals."""

    name: str
    slots: int
    gap_s: float
    gaps: Gaps
    has_counter: bool = False
    is_chunked: bool = True
    """Whether the counter moves while nothing else does."""
    answers_sample: bool | None = None
    """Whether it answers a golden sample while it is silent; None if it has none."""
    is_busy: bool = True
    """Whether its hardware is busy while it works."""
    pause_s: float = 0.0
    """Length of its pauses, such as compilations, once an hour."""
    step_s: float = 900.0


def _stream(first_s: float, length_s: float) -> Gaps:
    def gaps(rng: random.Random) -> Iterator[float]:
        yield rng.uniform(0.05, first_s)
        left_s = rng.expovariate(1 / length_s)
        while left_s > 0:
            gap_s = rng.uniform(0.02, 1.5)
            left_s -= gap_s
            yield gap_s

    return gaps


def _whole(least_s: float, most_s: float) -> Gaps:
    return lambda rng: iter((rng.uniform(least_s, most_s),))


def _feed(rng: random.Random) -> Iterator[float]:
    for _ in range(20):
        yield rng.expovariate(1 / 120.0)


KINDS: Final = (
    Kind("stream", 16, 1.2, _stream(2.0, 15.0), has_counter=True, step_s=120.0),
    Kind("prefill", 8, 40.0, _stream(600.0, 20.0), has_counter=True, step_s=120.0),
    Kind("unstreamed", 16, 3.0, _whole(1.0, 90.0), has_counter=True, step_s=120.0),
    Kind("unchunked", 4, 200.0, _stream(600.0, 20.0), has_counter=True, is_chunked=False),
    Kind("one_slot", 1, 30.0, _whole(10.0, 1500.0), answers_sample=False),
    Kind("pictures", 2, 20.0, _whole(20.0, 60.0), answers_sample=False),
    Kind("compiles", 8, 2.0, _stream(2.0, 10.0), answers_sample=False, pause_s=240.0),
    Kind("long_compiles", 8, 2.0, _stream(2.0, 10.0), answers_sample=False, pause_s=480.0),
    Kind("long_pauses", 8, 2.0, _stream(2.0, 10.0), answers_sample=True, pause_s=480.0),
    Kind("waits", 8, 2.0, _stream(2.0, 10.0), answers_sample=True, is_busy=False, pause_s=480.0),
    Kind("feed", 20, 60.0, _feed, answers_sample=True, is_busy=False),
    Kind("silent_feed", 20, 60.0, _feed, is_busy=False),
    Kind("batch", 1, 300.0, _whole(600.0, 1800.0), answers_sample=False),
)


@dataclass
class Play:
    """One server and its watch."""

    kind: Kind
    rng: random.Random
    now: float = 0.0
    exchanges: int = 0
    silences: Silences = field(default_factory=Silences)
    verdicts: dict[Verdict, int] = field(default_factory=dict)
    _open: list[tuple[float, int, Iterator[float]]] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=count)
    _next_s: float = 0.0
    _paused_until_s: float = 0.0
    _moved: int = 0
    _steps: int = 0
    _counted: float | None = None
    _counted_s: float = 0.0
    is_hung: bool = False
    spins: bool = False
    """Whether the hardware of a hung server is busy."""

    def __post_init__(self) -> None:
        self.watch = Watch(self.now)
        self._reading_s = 0.0

    def second(self) -> Verdict:
        """Let a second pass, or the host sleep for a while; return the verdict of its reading."""
        self.now += 1.0
        if not self.is_hung and self.rng.random() < 1e-4:
            self._sleep(self.rng.uniform(6.0, 90.0))
        may_pause = self.kind.pause_s and self.now > self._paused_until_s
        if may_pause and self.rng.random() < 1 / 3600:
            self._sleep(self.kind.pause_s, is_host=False)
        self._arrive()
        self._move()
        judged = self.watch.read(
            self._reading(),
            self.now,
            self.silences,
            gpu=0.0 if self._is_idle else 0.9,
            step_s=self.kind.step_s,
        )
        if judged.verdict is Verdict.ASK:
            self.watch.sampled(self._sample(), "")
        self.verdicts[judged.verdict] = self.verdicts.get(judged.verdict, 0) + 1
        return judged.verdict

    def until(self, wanted: Verdict, limit_s: float) -> float | None:
        """Play until a verdict; return the seconds until it, None if it does not come in time."""
        began_s = self.now
        while self.now - began_s < limit_s:
            if self.second() is wanted:
                return self.now - began_s
        return None

    @property
    def is_open(self) -> bool:
        """Whether exchanges are open."""
        return bool(self._open)

    @property
    def _is_idle(self) -> bool:
        if self.is_hung:
            return not self.spins
        return not self.kind.is_busy or not self._open

    def _sleep(self, seconds: float, *, is_host: bool = True) -> None:
        """The host sleeps, or the server compiles: nothing moves. Only the host's sleep also stops
        the readings."""
        self._open = [(at_s + seconds, id, gaps) for at_s, id, gaps in self._open]
        heapq.heapify(self._open)
        if is_host:
            self.now += seconds
            self._next_s += seconds
            self._paused_until_s += seconds
        else:
            self._paused_until_s = self.now + seconds

    def _arrive(self) -> None:
        while self._next_s <= self.now:
            self._next_s += self.rng.expovariate(1 / self.kind.gap_s)
            if len(self._open) < self.kind.slots:
                self.exchanges += 1
                gaps = self.kind.gaps(self.rng)
                begin_s = max(self.now, self._paused_until_s)
                heapq.heappush(self._open, (begin_s + next(gaps), next(self._ids), gaps))

    def _move(self) -> None:
        if self.is_hung:
            return
        before = self._moved
        while self._open and self._open[0][0] <= self.now:
            at_s, id, gaps = heapq.heappop(self._open)
            self._moved += 1
            gap_s = next(gaps, None)
            if gap_s is not None:
                heapq.heappush(self._open, (at_s + gap_s, id, gaps))
        if self._moved != before or (self._open and self.kind.is_chunked):
            self._steps += 1

    def _reading(self) -> Reading:
        if self.kind.has_counter and self.now - self._counted_s >= 5.0:
            self._counted_s = self.now
            text = f'# TYPE x counter\n{METRIC}{{a="1"}} {self._steps}\n{METRIC}_created 5e9\n'
            self._counted = read_counter(b"HTTP/1.0 200 OK\r\n\r\n" + text.encode(), METRIC)
        cpu = 0.01 if self._is_idle else 1.0
        return Reading(open=len(self._open), moved=self._moved, counter=self._counted, cpu=cpu)

    def _sample(self) -> SampleVerdict:
        if self.kind.answers_sample is None:
            return SampleVerdict.NONE
        if self.is_hung or not self.kind.answers_sample:
            return SampleVerdict.NO_ANSWER
        return SampleVerdict.RIGHT
