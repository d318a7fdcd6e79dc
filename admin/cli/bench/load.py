"""Plan and result of one load, and the tally of its calls. Pure: times are arguments, in seconds of
one monotonic clock.

A load is closed (each connection sends its next call after the answer to the last one) or, with a
`rate`, open (calls start at planned times). A call counts if its start is within the window, which
opens after the warm-up. The latency of an open load's call begins at its planned start, so that a
stalled server delays no measurement (coordinated omission: Gil Tene, "How NOT to Measure Latency").
"""

from __future__ import annotations

import random
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from admin.cli.bench.points import Limits

CODES_MAX: Final = 64
"""Max kinds of errors that are counted apart; later ones count as OTHER."""
OTHER: Final = "other"
OK: Final = 200
MISTAKES: Final = 400
_CODE: Final = re.compile(rb'"code":\s*"([a-z0-9_]{1,64})"')
_OURS: Final = b"urn:fngate:problem:"
"""Beginning of the type of a problem document of fngate."""


def is_expected(status: int, wanted: int) -> bool:
    """Return whether an answer is the expected one; `wanted` 0 is any from 200 to 399."""
    return status == wanted if wanted else OK <= status < MISTAKES


def kind_of(status: int, *parts: bytes) -> str:
    """Return the name of an unexpected answer: its status, and fngate's code if one of these parts
    of the answer has it."""
    for part in parts:
        if status >= MISTAKES and _OURS in part and (found := _CODE.search(part)):
            return f"{status} {found[1].decode()}"
    return str(status)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One load."""

    connections: int
    """Connections, each with one call at a time."""
    limits: Limits
    rate: float = 0.0
    """Calls per second, 0 for a closed load."""
    is_poisson: bool = True
    """Exponential gaps between the planned starts, instead of equal ones."""
    seed: int = 0
    """Seed of these gaps."""
    status: int = 0
    """The expected status, 0 for any from 200 to 399."""
    is_head: bool = False
    """The answer has no body."""
    is_detailed: bool = False
    """The result has every call's end."""


def gaps(plan: LoadPlan) -> Iterator[float]:
    """Yield the seconds between planned starts of an open load, without end."""
    chance = random.Random(plan.seed)  # noqa: S311 - gaps between calls
    while True:
        yield chance.expovariate(plan.rate) if plan.is_poisson else 1 / plan.rate


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of a load.

    `taken_s`: latencies of the counted calls with the expected status. `ended_s`: their ends from
    the window's opening on, if the plan is detailed. `window_s`: length of the window; `in_window`:
    expected answers within it, also to calls of the warm-up. `elapsed_s`: from the window's opening
    to the end of the last counted call. `errors`: counted calls without the expected answer, by
    kind. `cut`: counted calls without an end when the load was stopped. `unsent`: planned calls of
    an open load that were never sent. `busy` and `starved`: share of the time in which this
    process computed, or waited for a processor. `stopped`: why the load ended early, "" if it did
    not.
    """

    taken_s: array[float]
    ended_s: array[float]
    window_s: float
    in_window: int
    elapsed_s: float
    errors: dict[str, int]
    warmup_errors: int = 0
    cut: int = 0
    unsent: int = 0
    busy: float = 0.0
    starved: float = 0.0
    stopped: str = ""

    @property
    def failed(self) -> int:
        """Counted calls without the expected answer."""
        return sum(self.errors.values())


@dataclass(slots=True)
class Tally:
    """Counts of one load whose warm-up began at `began_s`."""

    plan: LoadPlan
    began_s: float
    opens_s: float = 0.0
    closes_s: float = 0.0
    counted: int = 0
    """Counted calls that were started."""
    in_window: int = 0
    warmup_errors: int = 0
    last_s: float = 0.0
    taken_s: array[float] = field(default_factory=lambda: array("d"))
    ended_s: array[float] = field(default_factory=lambda: array("d"))
    errors: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.opens_s = self.last_s = self.began_s + self.plan.limits.warmup_s
        self.closes_s = self.opens_s + self.plan.limits.seconds

    def starts(self, start_s: float) -> bool:
        """Record the start of a call; return whether it counts."""
        if start_s < self.opens_s:
            return False
        self.counted += 1
        if self.counted >= self.plan.limits.calls_max:
            self.close(start_s)
        return True

    def is_open(self, now_s: float) -> bool:
        """Return whether further calls start at `now_s`."""
        return now_s < self.closes_s

    def close(self, now_s: float) -> None:
        """End the window at `now_s`, unless it ended before."""
        self.closes_s = min(self.closes_s, max(now_s, self.opens_s))

    def answered(self, start_s: float, now_s: float, *, is_counted: bool) -> None:
        """Record an expected answer."""
        self.in_window += self.opens_s <= now_s <= self.closes_s
        if is_counted:
            self.taken_s.append(now_s - start_s)
            if self.plan.is_detailed:
                self.ended_s.append(now_s - self.opens_s)
            self.last_s = max(self.last_s, now_s)

    def failed(self, kind: str, now_s: float, *, is_counted: bool) -> None:
        """Record a call that ended otherwise; `kind` is a status with its code, or a failure."""
        if not is_counted:
            self.warmup_errors += 1
            return
        self.last_s = max(self.last_s, now_s)
        is_known = kind in self.errors or len(self.errors) < CODES_MAX
        self.errors[kind if is_known else OTHER] += 1

    def result(
        self, *, unsent: int = 0, busy: float = 0.0, starved: float = 0.0, stopped: str = ""
    ) -> LoadResult:
        """Return the result."""
        return LoadResult(
            self.taken_s,
            self.ended_s,
            window_s=self.closes_s - self.opens_s,
            in_window=self.in_window,
            elapsed_s=self.last_s - self.opens_s,
            errors=dict(self.errors),
            warmup_errors=self.warmup_errors,
            cut=self.counted - len(self.taken_s) - sum(self.errors.values()),
            unsent=unsent,
            busy=busy,
            starved=starved,
            stopped=stopped,
        )
