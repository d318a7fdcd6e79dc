"""Keeps the reasons, states and receipts of pools."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pool_manager.core.commands import KeepColdStart
from pool_manager.ports import Binding, Recorder
from registry.exchange import PoolEndpoints
from registry.model import ColdStart, StateInterval


class Decision(NamedTuple):
    """Something that was decided, in words, at `at_s` (Unix seconds)."""

    at_s: float
    text: str


class Journal:
    """Decisions stay in memory, newest `kept` per pool; receipts and states go to the recorder.

    `wall` gives Unix seconds.
    """

    def __init__(self, recorder: Recorder, wall: Callable[[], float], kept: int) -> None:
        self._recorder = recorder
        self._wall = wall
        self._kept = kept
        self._decisions: dict[str, deque[Decision]] = {}
        self._states: dict[str, tuple[str, str, float]] = {}
        self.on_decision: Callable[[str, Decision], None] = lambda _key, _decision: None

    def note(self, key: str, text: str) -> None:
        """Keep a decision."""
        decision = Decision(self._wall(), text)
        self._decisions.setdefault(key, deque(maxlen=self._kept)).append(decision)
        self.on_decision(key, decision)

    def decisions(self, key: str) -> list[Decision]:
        """What was decided for a pool, oldest first."""
        return list(self._decisions.get(key, ()))

    def forget(self, key: str) -> None:
        """The pool is gone."""
        self._decisions.pop(key, None)
        self._states.pop(key, None)

    def state(self, key: str, shown: PoolEndpoints, binding: Binding) -> None:
        """A pool looks like this now; an interval ends when its state changes."""
        now = self._wall()
        before = self._states.get(key)
        if before is not None and before[0] == shown.state:
            return
        self._states[key] = (shown.state, shown.reason, now)
        if before is not None:
            state, reason, since = before
            self._recorder.state_interval(
                StateInterval(
                    binding.namespace, binding.name, binding.number, state, reason, since, now
                )
            )

    def since_s(self, key: str) -> float:
        """Unix seconds since when a pool is in its state; now if it never had one."""
        return self._states[key][2] if key in self._states else self._wall()

    def cold_start(self, kept: KeepColdStart, binding: Binding, device_kind: str) -> None:
        """Keep a receipt."""
        self._recorder.cold_start(
            ColdStart(
                binding.namespace,
                binding.name,
                binding.number,
                kept.id,
                device_kind,
                self._wall() - kept.ago_s,
                round(kept.total_ms, 3),
                kept.phases,
                kept.outcome,
            )
        )
