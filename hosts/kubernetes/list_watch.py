"""What a reflector does next: list or watch, at once or after a wait. Pure: what happened, `now_s`
and `chance` in, steps out.

1. Without a version it lists; with one it watches from there.
2. A version is forgotten when events may have been missed: it has expired (410), a watch was silent
   or brought a line that cannot be used. An end or a break of a watch loses nothing.
3. The API server is away after two failures in a row, or after one that took AWAY_S: a single
   refused connection is what a rolling update of API servers looks like. It is back with the next
   list or watch that it accepts.
4. Waits grow with each list and watch that ends before STEADY_S: also if the API server accepts
   every watch and ends it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from hosts.back_off import back_off_s

BACK_OFF_S: Final = 0.5
"""Max seconds of the first wait in a row."""
BACK_OFF_MAX_S: Final = 30.0
STEADY_S: Final = 10.0
"""Seconds after which a watch was a good one: the next wait is the first of a row."""
AWAY_S: Final = 5.0
"""Seconds of one failed attempt after which the API server is away."""
RESYNC_S: Final = 5.0
"""Min seconds between the begin of a list and that of the next one that `resync` asked for."""


class Notice(StrEnum):
    """What is told to the owner of a reflector."""

    AWAY = "away"
    BACK = "back"


class Step(NamedTuple):
    """What to do next."""

    wait_s: float
    """Seconds before it."""
    version: str
    """The version to watch from; "" for a list."""


class ListWatch:
    """The state of one reflector. Times are seconds of one clock."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """`chance` returns a number between 0 and 1, by which waits differ."""
        self.version = ""
        """Resource version of what the owner knows; "" if it has to be listed."""
        self.is_away = False
        self._chance = chance
        self._row = 0
        """Failures and short watches in a row."""
        self._failures = 0
        """Failures since the API server last accepted a list or watch."""
        self._wait_s = 0.0
        """Before the next step."""
        self._begun_s = 0.0
        """When the present list or watch began."""
        self._listed_s: float | None = None
        """When the last list began."""
        self._is_watching = False
        """Whether the present step is a watch that was accepted."""

    def next(self) -> Step:
        """Return what to do next."""
        return Step(self._wait_s, self.version)

    def begun(self, now_s: float) -> None:
        """Note that this step begins."""
        self._begun_s, self._is_watching = now_s, False
        if not self.version:
            self._listed_s = now_s

    def listed(self, version: str) -> Notice | None:
        """Note that a list was answered with its version: the watch after it does not wait."""
        self.version, self._wait_s = version, 0.0
        return self._answered()

    def opened(self) -> Notice | None:
        """Note that a watch was accepted."""
        self._is_watching = True
        return self._answered()

    def advanced(self, version: str) -> None:
        """Note the version of an event; "" if it has none."""
        self.version = version or self.version

    def outdated(self) -> None:
        """Note that events may have been missed."""
        self.version = ""

    def interrupted(self) -> None:
        """Note that a watch was given up for a list that somebody asked for: it does not wait."""
        self.version, self._wait_s = "", 0.0

    def ended(self, now_s: float) -> None:
        """Note the end of a watch that was accepted: the API server's, or a break."""
        if now_s - self._begun_s >= STEADY_S:
            self._row, self._wait_s = 0, 0.0
        else:
            self._back_off()

    def failed(self, now_s: float) -> Notice | None:
        """Note the failure of the present step. That of an accepted watch is its end."""
        if self._is_watching:
            self.ended(now_s)
            return None
        self._back_off()
        self._failures += 1
        is_away = self._failures >= 2 or now_s - self._begun_s >= AWAY_S
        if self.is_away or not is_away:
            return None
        self.is_away = True
        return Notice.AWAY

    def resync_s(self, now_s: float) -> float:
        """Return when a list may begin that somebody asks for."""
        return now_s if self._listed_s is None else max(now_s, self._listed_s + RESYNC_S)

    def _answered(self) -> Notice | None:
        self._failures = 0
        if not self.is_away:
            return None
        self.is_away = False
        return Notice.BACK

    def _back_off(self) -> None:
        self._wait_s = back_off_s(BACK_OFF_S, BACK_OFF_MAX_S, self._row, self._chance())
        self._row += 1
