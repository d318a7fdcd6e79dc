"""A whole benchmark: cold starts, then a load for each point, with partial results when stopped."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from admin.cli.bench.cold_starts import ColdRuns, ColdStarts, is_timeout
from admin.cli.bench.figures import Figures, figures
from admin.cli.bench.generator import AWAY, INTERRUPTED, TOTAL, run_load
from admin.cli.bench.load import LoadPlan, is_expected, kind_of
from admin.cli.bench.payloads import Request
from admin.cli.bench.points import Limits, Point
from admin.client.client import Client
from admin.client.transport import ApiError, Unreachable, check
from registry.errors import FnError

LEFT_MIN_S: Final = 0.001
"""Min seconds of a wait: 0 would mean not to wait at all."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the load is made. `rate` 0: a closed load."""

    limits: Limits
    rate: float = 0.0
    is_poisson: bool = True
    cold: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a running benchmark: `what` is measured, `share` of all of it, calls so far."""

    what: str
    share: float
    answers: int = 0
    errors: int = 0


Show = Callable[[Progress], None]


@dataclass(slots=True)
class Outcome:
    """Measured figures. `stopped`: why the benchmark is not complete, "" if it is. `is_away`: the
    server did not answer any more; `is_refused`: a later first call, or a cold start, was
    refused."""

    cold: ColdStarts | None = None
    points: list[tuple[Point, Figures]] = field(default_factory=list)
    stopped: str = ""
    is_away: bool = False
    is_refused: bool = False

    @property
    def has_figures(self) -> bool:
        """Whether anything was measured."""
        return bool(self.points or (self.cold and self.cold.taken_ms))

    @property
    def is_failed(self) -> bool:
        """Whether a measurement was refused, has no expected answer, or there is none at all."""
        cold = self.cold
        without = bool(cold and cold.errors and not cold.taken_ms)
        without = without or bool(self.stopped and not self.has_figures)
        return (
            self.is_refused
            or without
            or any(
                not one.answers and one.result.failed and not one.result.stopped
                for _, one in self.points
            )
        )


class Benchmark:
    """Measures the function `ref` with the requests by batch."""

    def __init__(
        self,
        client: Client,
        ref: str,
        requests: Mapping[int, Request],
        options: Options,
        show: Show,
    ) -> None:
        self._client, self._ref, self._requests = client, ref, requests
        self._options, self._show = options, show
        self._until_s = time.monotonic() + options.limits.total_s
        self.outcome = Outcome()

    def run(self, points: Sequence[Point]) -> Outcome:
        """Measure cold starts and points in order. Ctrl-C, the total limit, a refusal and a server
        that goes away end it with the figures so far.

        Raises ApiError, Conflict or Unreachable if that is nothing.
        """
        outcome = self.outcome
        try:
            self._measure_cold()
            for index, point in enumerate(points):
                if outcome.stopped:
                    break
                self._measure_point(point, index / len(points), 1 / len(points))
        except KeyboardInterrupt:
            outcome.stopped = INTERRUPTED
        except (ApiError, FnError, Unreachable) as error:
            if not outcome.has_figures:
                raise
            outcome.stopped, outcome.is_away = str(error), isinstance(error, Unreachable)
            outcome.is_refused = not outcome.is_away
        return outcome

    def _measure_cold(self) -> None:
        count = self._options.cold
        if not count:
            return
        request = next(iter(self._requests.values()))
        runs = ColdRuns(self._client, self._ref, request, self._options.limits.timeout_s)
        self.outcome.cold = runs.found
        for number in range(count):
            if self._is_late():
                return
            self._show(Progress(f"cold start {number + 1} of {count}", number / count, number))
            runs.once(self._left_s())

    def _measure_point(self, point: Point, begun: float, share: float) -> None:
        if self._is_late():
            return
        limits = self._options.limits
        request = self._requests[point.batch]
        batch = f"batch {point.batch}, " if point.batch else ""
        what = f"{batch}c={point.concurrency}"
        self._show(Progress(what, begun))
        if not self._warm(request):
            return
        length_s = limits.warmup_s + limits.seconds

        def report(passed_s: float, answers: int, errors: int) -> None:
            done = begun + share * min(passed_s / length_s, 1.0)
            self._show(Progress(what, done, answers, errors))

        endpoint = self._client.endpoint
        result = run_load(
            endpoint,
            self._plan(point, request),
            endpoint.encode(request.method, request.path, request.headers, request.body),
            report=report,
            until_s=self._until_s,
        )
        if result.taken_s or result.errors or not result.stopped:
            self.outcome.points.append((point, figures(result, request.rows, point.concurrency)))
        self.outcome.stopped = result.stopped
        self.outcome.is_away = result.stopped.startswith(AWAY)

    def _plan(self, point: Point, request: Request) -> LoadPlan:
        options = self._options
        return LoadPlan(
            point.concurrency,
            options.limits,
            rate=options.rate,
            is_poisson=options.is_poisson,
            status=request.status,
            is_head=request.method == "HEAD",
        )

    def _warm(self, request: Request) -> bool:
        """Wake the function by one call, whose refusal ends the benchmark; return False if the
        total limit came first. Raises ApiError or Unreachable."""
        timeout_s = min(self._options.limits.timeout_s, self._left_s())
        try:
            reply = self._client.send(
                request.method, request.path, request.headers, request.body, timeout_s
            )
        except Unreachable as error:
            if not is_timeout(error):
                raise
            if self._is_late():
                return False
            late = ApiError(0, {"title": f"The first call got no answer within {timeout_s:g} s"})
            late.add_note("give a cold start more time: --timeout")
            raise late from error
        if is_expected(reply.status, request.status):
            return True
        check(reply)
        title = f"{request.form} answers {kind_of(reply.status, reply.body)}"
        raise ApiError(
            reply.status, {"title": title, "detail": f"expected {request.status or 200}"}
        )

    def _left_s(self) -> float:
        """Return the seconds until the total limit, at least LEFT_MIN_S."""
        return max(LEFT_MIN_S, self._until_s - time.monotonic())

    def _is_late(self) -> bool:
        if time.monotonic() < self._until_s:
            return False
        self.outcome.stopped = TOTAL
        return True


def files_max() -> int:
    """Return how many open files a process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if most != resource.RLIM_INFINITY else 2**31


def raise_files() -> None:
    """Allow this process as many open files as it may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def to_json(ref: str, requests: Mapping[int, Request], options: Options, found: Outcome) -> Any:
    """Return the outcome as plain JSON data."""
    limits = options.limits
    return {
        "function": ref,
        "load": {
            "seconds": limits.seconds,
            "warmup_s": limits.warmup_s,
            "rate": options.rate or None,
            "arrivals": ("poisson" if options.is_poisson else "fixed") if options.rate else None,
            "processes": 1,
        },
        "cold": found.cold.to_json() if found.cold else None,
        "points": [
            {
                "rows": requests[point.batch].rows or None,
                "concurrency": point.concurrency,
                "body": requests[point.batch].form,
                "bytes": len(requests[point.batch].body),
                **one.to_json(),
            }
            for point, one in found.points
        ],
        "partial": found.stopped or None,
    }
