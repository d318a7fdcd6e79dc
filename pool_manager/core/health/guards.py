"""How often servers of one function may be replaced because they do not answer. Pure.

A judgement may be wrong in a way that its next replica repeats: then replacing helps nobody, and
ends what still runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pool_manager.core.health.liveness import Cause

HUNG: Final = frozenset({Cause.UNREADY, Cause.WRONG, Cause.IDLE, Cause.STUCK})
"""Causes that are inferred from silence. Of a server that refuses connections or answers with
errors only, nothing is lost."""
WAIT_S: Final = 600.0
"""Min seconds between two replacements for such a cause; doubled with each, up to WAIT_MAX_S."""
WAIT_MAX_S: Final = 2400.0
FORGET_S: Final = 7200.0
"""Seconds without a replacement after which the wait is WAIT_S again."""
UNSERVED_MAX: Final = 3
"""Replacements in a row without an answered call, after which a function has no more."""


@dataclass(slots=True)
class _Record:
    last_s: float
    wait_s: float = 0.0
    unserved: int = 0


class Guards:
    """The replacements of all functions. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def obstacle(self, function: str, cause: Cause, now: float) -> str:
        """Return why a server of a function may not be replaced now, "" if it may."""
        record = self._records.get(function)
        if record is None:
            return ""
        if record.unserved >= UNSERVED_MAX:
            return f"the last {record.unserved} that replaced one another have answered no call"
        wait_s = record.last_s + record.wait_s - now
        if cause in HUNG and wait_s > 0:
            return f"another one was replaced {now - record.last_s:.0f} s ago"
        return ""

    def replaced(self, function: str, cause: Cause, now: float) -> None:
        """Record a replacement."""
        record = self._records.setdefault(function, _Record(now))
        record.unserved += 1
        if cause in HUNG:
            is_old = now - record.last_s >= FORGET_S
            doubled_s = 2 * record.wait_s if record.wait_s and not is_old else WAIT_S
            record.wait_s = min(doubled_s, WAIT_MAX_S)
        record.last_s = now

    def served(self, function: str) -> None:
        """Record that a server of a function has sent bytes of an answer."""
        record = self._records.get(function)
        if record is not None:
            record.unserved = 0

    def forget(self, function: str) -> None:
        """Drop a function that has no revision any more."""
        self._records.pop(function, None)
