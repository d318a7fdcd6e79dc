"""Property tests of the start queue: order and bound hold for any sequence of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pool_manager.core.start_queue import HOLD_S, Rank, StartPriority, StartQueue

picks = st.integers(0, 20)
ranks = st.sampled_from(Rank)
since = st.sampled_from([1.0, 2.0, 3.0, 4.0])
AT_ONCE = 2


class Line(RuleBasedStateMachine):
    """Starts that are enqueued, change rank, are admitted, end or hang."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.starts = StartQueue(AT_ONCE)
        self.turns: dict[str, StartPriority] = {}
        self.line: list[str] = []
        self.running: dict[str, float] = {}

    @rule(rank=ranks, since_s=since)
    def ask(self, rank: Rank, since_s: float) -> None:
        """Enqueue one more start."""
        id = f"r{len(self.turns)}"
        self.turns[id] = StartPriority(rank, since_s)
        self.line.append(id)
        self.starts.enqueue(id)
        self.begin()

    @rule(pick=picks, rank=ranks)
    def change(self, pick: int, rank: Rank) -> None:
        """Change the rank of a queued start, as when a call begins or ceases to wait for it."""
        if self.line:
            id = self.line[pick % len(self.line)]
            self.turns[id] = self.turns[id]._replace(rank=rank)
            self.begin()

    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        """Remove a queued or running start."""
        there = [*self.line, *self.running]
        if there:
            id = there[pick % len(there)]
            self.starts.remove(id)
            self.running.pop(id, None)
            if id in self.line:
                self.line.remove(id)
            self.begin()

    @rule(step_s=st.sampled_from([0.1, 0.6, HOLD_S]))
    def time(self, step_s: float) -> None:
        """Pass time; a start that takes too long no longer counts."""
        self.now += step_s
        self.running = {id: end_s for id, end_s in self.running.items() if end_s > self.now}
        self.begin()

    def begin(self) -> None:
        """Check that no start is admitted before a more urgent one, or an equally urgent older
        one."""
        for id in self.starts.admit(self.turns.__getitem__, self.now):
            assert self.turns[id] == min(self.turns[other] for other in self.line)
            self.line.remove(id)
            if self.turns[id].rank is not Rank.SHORT:
                self.running[id] = self.now + HOLD_S

    @invariant()
    def starts_are_bounded_and_never_stuck(self) -> None:
        """The number of running starts is bounded; no start is queued while there is room; a queued
        start has a time at which there will be room."""
        assert len(self.running) <= AT_ONCE
        if self.line:
            assert len(self.running) == AT_ONCE
            assert self.starts.due_s() == min(self.running.values())
            assert all(self.turns[id].rank is not Rank.SHORT for id in self.line)


TestLine = Line.TestCase
TestLine.__doc__ = "No mishap changes the order of starts or their bound."
TestLine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
