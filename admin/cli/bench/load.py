"""Plan and result of one load, and the tally of its calls. Pure: times are arguments, in seconds of
one monotonic clock.

A load is closed (each connection sends its next call after the answer to the last one) or, with a
`rate`, open (calls start at planned times). A call counts if its start is within the window, which
opens after the warm-up. The latency of an open load's call begins at its planned start, so that a
stalled server delays no measurement (coordinated omission: Gil Tene, "How NOT to Measure Latency").
"""

from __future__ import annotations

import base64
import json
import math
import random
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

CODES_MAX: Final = 64
"""Max kinds of errors that are counted apart; later ones count as OTHER."""
OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One load, for one process.

    `each` above 0: the load ends after that many calls of each connection, not after `seconds`.
    `calls_max` limits the counted calls. `rate` in calls per second, 0 for a closed load;
    `is_poisson`: exponential gaps instead of equal ones. `status`: the expected one, 0 for any from
    200 to 399. `socket_fd`: the descriptor from which connected sockets are received, -1 to connect
    to `host`. `is_detailed`: the result has every call's end.
    """

    host: str
    port: int
    connections: int
    seconds: float
    warmup_s: float = 0.0
    each: int = 0
    calls_max: int = 1_000_000
    timeout_s: float = 30.0
    rate: float = 0.0
    is_poisson: bool = True
    seed: int = 0
    status: int = 0
    is_secure: bool = False
    is_head: bool = False
    is_detailed: bool = False
    socket_fd: int = -1

    def split(self, processes: int) -> list[LoadPlan]:
        """Share the load among at most `processes` processes; each has a connection at least."""
        count = max(1, min(processes, self.connections, self.calls_max))
        return [
            replace(
                self,
                connections=_share(self.connections, count, index),
                calls_max=_share(self.calls_max, count, index),
                rate=self.rate / count,
                seed=self.seed + index,
            )
            for index in range(count)
        ]

    def encode(self, request: bytes) -> bytes:
        """Encode plan and request for the process; `decode` is the inverse."""
        return json.dumps({**asdict(self), "bytes": len(request)}).encode() + b"\n" + request


def gaps(plan: LoadPlan) -> Iterator[float]:
    """Yield the seconds between planned starts of an open load, without end."""
    chance = random.Random(plan.seed)  # noqa: S311 - gaps between calls
    while True:
        yield chance.expovariate(plan.rate) if plan.is_poisson else 1 / plan.rate


def decode(line: bytes) -> tuple[LoadPlan, int]:
    """Return the plan of an encoded plan's first line, and the bytes of the request behind it."""
    data = json.loads(line)
    count = int(data.pop("bytes"))
    return LoadPlan(**data), count


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of a load, of one process or of several.

    `taken_s`: latencies of the counted calls with the expected status. `ended_s`: their ends from
    the window's opening on, if the plan is detailed. `window_s`: length of the window; `in_window`:
    expected answers within it, also to calls of the warm-up. `elapsed_s`: from the window's opening
    to the end of the last counted call. `errors`: counted calls without the expected answer, by
    kind. `cut`: counted calls without an end when the load was stopped. `unsent`: planned calls of
    an open load that were never sent. `busy` and `starved`: largest share of the time in which a
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

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; `from_json` is the inverse."""
        names = [name for name in self.__slots__ if not name.endswith(("taken_s", "ended_s"))]
        packed = {
            name: base64.b64encode(getattr(self, name).tobytes()).decode()
            for name in ("taken_s", "ended_s")
        }
        return {**{name: getattr(self, name) for name in names}, **packed}


def from_json(data: dict[str, Any]) -> LoadResult:
    """Rebuild a result from `LoadResult.to_json`."""
    unpacked = {}
    for name in ("taken_s", "ended_s"):
        unpacked[name] = array("d", base64.b64decode(data[name]))
    return LoadResult(**{**data, **unpacked})


def merge(results: Sequence[LoadResult]) -> LoadResult:
    """Return the result of processes that ran side by side."""
    taken, ended, errors = array("d"), array("d"), Counter[str]()
    for one in results:
        taken.extend(one.taken_s)
        ended.extend(one.ended_s)
        errors.update(one.errors)
    return LoadResult(
        taken,
        ended,
        window_s=max(one.window_s for one in results),
        in_window=sum(one.in_window for one in results),
        elapsed_s=max(one.elapsed_s for one in results),
        errors=dict(errors),
        warmup_errors=sum(one.warmup_errors for one in results),
        cut=sum(one.cut for one in results),
        unsent=sum(one.unsent for one in results),
        busy=max(one.busy for one in results),
        starved=max(one.starved for one in results),
        stopped=next((one.stopped for one in results if one.stopped), ""),
    )


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
        self.opens_s = self.last_s = self.began_s + self.plan.warmup_s
        self.closes_s = math.inf if self.plan.each else self.opens_s + self.plan.seconds

    def starts(self, start_s: float) -> bool:
        """Record the start of a call; return whether it counts."""
        if start_s < self.opens_s:
            return False
        self.counted += 1
        if self.counted >= self.plan.calls_max:
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


def _share(total: int, count: int, index: int) -> int:
    return total // count + (index < total % count)
