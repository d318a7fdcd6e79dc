"""Current request rates and response times of functions. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

RATE_S: Final = 10
WINDOW_S: Final = 60


class ResponseRate(NamedTuple):
    """Requests per second over the last RATE_S, quantiles over the last WINDOW_S (None without
    responses)."""

    rate: float
    p50_ms: float | None
    p95_ms: float | None


NO_RESPONSES: Final = ResponseRate(0.0, None, None)


class _Window:
    """Responses of one function in each of the last seconds, and their sum."""

    __slots__ = ("seconds", "sums")

    def __init__(self, size: int) -> None:
        self.seconds: deque[tuple[int, Sequence[int]]] = deque()
        self.sums = [0] * size

    def add(self, second: int, counts: Sequence[int]) -> None:
        self.seconds.append((second, counts))
        self.sums = [a + b for a, b in zip(self.sums, counts, strict=True)]

    def expire(self, second: int) -> None:
        while self.seconds and self.seconds[0][0] <= second - WINDOW_S:
            _, counts = self.seconds.popleft()
            self.sums = [a - b for a, b in zip(self.sums, counts, strict=True)]


class Rates:
    """Rates over histograms with the same `bounds` in seconds, and one bucket beyond them. `now` is
    in seconds of any clock, but always the same one."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._windows: dict[tuple[str, str], _Window] = {}
        self._counts: deque[tuple[int, int]] = deque()

    def add(self, key: tuple[str, str], counts: Sequence[int], now: float) -> None:
        """Add the responses of about the last second of the function with this (namespace, name):
        one count per bucket."""
        if len(counts) != len(self._bounds) + 1:
            raise ValueError(f"expected {len(self._bounds) + 1} counts, got {len(counts)}")
        self._expire(int(now))
        window = self._windows.pop(key, None) or _Window(len(counts))
        window.expire(int(now))
        window.add(int(now), counts)
        self._windows[key] = window
        self._counts.append((int(now), sum(counts)))

    def rate(self, now: float) -> float:
        """Return the requests per second of all functions."""
        self._expire(int(now))
        return round(sum(count for _, count in self._counts) / RATE_S, 2)

    def _expire(self, second: int) -> None:
        """Drop old seconds. `add` calls it too, as there may be no readers. Windows are ordered by
        their latest responses, oldest first."""
        while self._windows:
            key, window = next(iter(self._windows.items()))
            window.expire(second)
            if window.seconds:
                break
            del self._windows[key]
        while self._counts and self._counts[0][0] <= second - RATE_S:
            self._counts.popleft()

    def active(self, now: float) -> Iterable[tuple[str, str]]:
        """Return the functions with responses within the window."""
        self._expire(int(now))
        return self._windows.keys()

    def response_rate(self, key: tuple[str, str], now: float) -> ResponseRate:
        """Return the rate of one function."""
        window = self._windows.get(key)
        if window is None:
            return NO_RESPONSES
        window.expire(int(now))
        if not window.seconds:
            return NO_RESPONSES
        since = int(now) - RATE_S
        count = sum(sum(counts) for second, counts in window.seconds if second > since)
        return ResponseRate(
            round(count / RATE_S, 2),
            quantile_ms(self._bounds, window.sums, 0.5),
            quantile_ms(self._bounds, window.sums, 0.95),
        )


class FunctionRates(NamedTuple):
    """Rates of answers, and of the first bytes of server functions' answers."""

    answers: Rates
    first_bytes: Rates


def quantile_ms(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """Return the quantile `part` of the counted durations in ms, or None without any. Values are
    interpolated evenly between two bounds; beyond the last bound they count as the last bound."""
    so_far = list(accumulate(counts))
    if not so_far[-1]:
        return None
    wanted = so_far[-1] * part
    at = next(place for place, count in enumerate(so_far) if count >= wanted)
    if at == len(bounds):
        return bounds[-1] * 1e3
    below = bounds[at - 1] if at else 0.0
    inside = (wanted - (so_far[at] - counts[at])) / counts[at]
    return round((below + (bounds[at] - below) * inside) * 1e3, 3)
