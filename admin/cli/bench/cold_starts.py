"""Cold starts of a benchmark: puts the function to sleep, then calls it, several times."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from admin import documents as d
from admin.cli.answers import read_receipt
from admin.cli.bench.figures import Latency, latency, latency_json
from admin.cli.bench.load import is_expected, kind_of
from admin.cli.bench.payloads import Request
from admin.client import routes
from admin.client.client import Client
from admin.client.transport import Unreachable
from admin.text import number
from registry.errors import Conflict

POLL_S: Final = 0.05
SLEEP_MAX_S: Final = 60.0
"""Max seconds until the replicas have stopped."""
SETTLE_MAX_S: Final = 10.0
"""Max seconds until standbys that start have started."""
WAIT_MIN_S: Final = 0.001
TIMEOUT: Final = "timeout"


@dataclass(slots=True)
class ColdStarts:
    """Measured cold starts. `taken_ms`: from the call to its answer, on a new connection;
    `phases_ms`: of each, as stated in its answer. `warm`: calls that were answered without a cold
    start, because another caller had woken the function. `errors` by kind."""

    taken_ms: list[float] = field(default_factory=list)
    phases_ms: list[dict[str, float]] = field(default_factory=list)
    warm: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def latency(self) -> Latency:
        """Quantiles of the whole durations."""
        return latency(self.taken_ms)

    def phases(self) -> dict[str, float]:
        """Return the median of each phase in ms; of several phases they need not add up."""
        names = dict.fromkeys(name for one in self.phases_ms for name in one)
        return {
            name: statistics.median(one.get(name, 0.0) for one in self.phases_ms) for name in names
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "count": len(self.taken_ms),
            "latency_ms": latency_json(self.latency),
            "taken_ms": [round(ms, 3) for ms in self.taken_ms],
            "phases_ms": {name: round(ms, 3) for name, ms in self.phases().items()},
            "not_cold": self.warm,
            "errors": dict(self.errors),
        }


def check_alone(function: d.functions.FunctionRow, *, force: bool) -> None:
    """Raise Conflict if the function cannot sleep, or if, without `force`, others call it."""
    name, least = function.name, function.min
    if least:
        raise _conflict(
            f"{name} keeps {least} replicas (min), so that it has no cold starts",
            f"fnctl scale {name} --min 0",
        )
    open_calls, rate = function.in_flight + function.held, function.rate or 0
    if force or not (open_calls or rate):
        return
    seen = (
        f"open calls: {open_calls}" if open_calls else f"{number(rate)} calls/s in the last minute"
    )
    raise _conflict(
        f"{name} is in use ({seen}), and would be put to sleep",
        "wait until it is idle, or give --force",
    )


class ColdRuns:
    """Repeats cold starts of one function into `found`. `clock` and `pause` are of seconds."""

    def __init__(
        self,
        client: Client,
        ref: str,
        request: Request,
        timeout_s: float,
        clock: Callable[[], float] = time.perf_counter,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client, self._ref, self._request = client, ref, request
        self._timeout_s = timeout_s
        self._clock, self._pause = clock, pause
        self.found = ColdStarts()

    def once(self, left_s: float = math.inf) -> None:
        """Put the function to sleep, call it, record the cold start; record nothing if that takes
        longer than `left_s`. Raises ApiError, Conflict or Unreachable."""
        until_s = self._clock() + left_s
        if not self._go_cold(left_s):
            return
        request, found = self._request, self.found
        began_s = self._clock()
        timeout_s = min(self._timeout_s, max(WAIT_MIN_S, until_s - began_s))
        try:
            reply = self._client.send(
                request.method, request.path, request.headers, request.body, timeout_s
            )
        except Unreachable as error:
            if not is_timeout(error):
                raise
            if timeout_s == self._timeout_s:
                found.errors[TIMEOUT] += 1
            return
        taken_ms = (self._clock() - began_s) * 1e3
        if not is_expected(reply.status, request.status):
            found.errors[kind_of(reply.status, reply.body)] += 1
            return
        receipt = read_receipt(reply.headers.get("Server-Timing", ""))
        if not receipt.cold:
            found.warm += 1
            return
        found.taken_ms.append(taken_ms)
        found.phases_ms.append(receipt.phases)

    def _go_cold(self, left_s: float) -> bool:
        """Return once no replica of the function is left, and no standby is just starting: True, or
        False after `left_s`. Raises Conflict.

        The request is repeated, because a replica that was just called is not known to be idle.
        """
        name = self._ref.partition("@")[0]
        began_s = self._clock()
        while True:
            replicas = self._client.items(routes.REPLICAS).value
            own = [one for one in replicas if one.function == name]
            waited_s = self._clock() - began_s
            if not own:
                starting = [
                    one for one in replicas if one.role == "standby" and one.state == "starting"
                ]
                if not starting or waited_s > SETTLE_MAX_S:
                    return True
            if waited_s > left_s:
                return False
            if own and waited_s > SLEEP_MAX_S:
                states = ", ".join(sorted({one.state for one in own}))
                raise _conflict(
                    f"{name} did not fall asleep within {SLEEP_MAX_S:g} s: {states}",
                    f"fnctl why {name}",
                )
            if any(one.state == "ready" for one in own):
                self._client.submit(routes.SLEEP, name, body=d.requests.SleepRequest())
            self._pause(POLL_S)


def is_timeout(error: Unreachable) -> bool:
    """Return whether a request was sent, and its answer did not come in time."""
    return isinstance(error.__cause__, TimeoutError)


def _conflict(text: str, hint: str) -> Conflict:
    error = Conflict(text)
    error.add_note(hint)
    return error
