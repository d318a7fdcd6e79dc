"""Which sessions a prepared model is worth. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from runtime_image.contract.model import SessionPlan

START_GAIN_MS: Final = 1.0
START_GAIN: Final = 0.1
"""A quick session must answer first by this much, and by this share, sooner than the model as it
is: files that save less are not worth their place."""
FAST_GAIN: Final = 0.05
"""A fast session must save this share of the CPU time of the quick one, or it is not built."""
NEARLY: Final = 1.05
"""Sessions whose CPU time differs by less are the same: which is sooner there decides."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to make a session, measured: load and first run in milliseconds, and CPU time per
    run in milliseconds by rows."""

    plan: SessionPlan
    load_ms: float
    first_ms: float
    cpu_ms: dict[int, float]

    @property
    def start_ms(self) -> float:
        """Until its first answer."""
        return self.load_ms + self.first_ms


@dataclass(frozen=True, slots=True)
class Choice:
    """The session that answers first, and the one that takes over, if any does."""

    quick: Candidate
    fast: Candidate | None = None


def choose(
    original: Candidate, prepared: Sequence[Candidate], *, has_room_for_two: bool
) -> Choice | str:
    """The choice, or why the model is better left as it is.

    `has_room_for_two`: both sessions together are within the function's memory cap.
    """
    quick = min(prepared, key=lambda one: one.start_ms)
    needed_ms = max(START_GAIN_MS, START_GAIN * original.start_ms)
    if original.start_ms - quick.start_ms < needed_ms:
        return (
            f"it answers after {original.start_ms:.1f} ms as it is, prepared after"
            f" {quick.start_ms:.1f} ms"
        )
    return Choice(quick, _fast([original, *prepared], quick) if has_room_for_two else None)


def _fast(candidates: Sequence[Candidate], quick: Candidate) -> Candidate | None:
    cost = {id(one): _relative_cost(one, quick) for one in candidates if one is not quick}
    least = min(cost.values(), default=1.0)
    if least > 1 - FAST_GAIN:
        return None
    near = [one for one in candidates if cost.get(id(one), 2.0) <= least * NEARLY]
    return min(near, key=lambda one: one.start_ms)


def _relative_cost(one: Candidate, quick: Candidate) -> float:
    """CPU time per run against the quick session's, as the mean over the sizes of runs."""
    shares = [one.cpu_ms[rows] / max(ms, 1e-6) for rows, ms in quick.cpu_ms.items()]
    return sum(shares) / len(shares)
