"""One simulated replica: starts, loads, runs what it is sent in batches, drains, ends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gateway.dispatch.call import Call


@dataclass(slots=True, eq=False)
class Ask(Call):
    """A call whose run will take `service_s`, and that stands for `weight` requests."""

    service_s: float = 0.0
    weight: int = 1


@dataclass(slots=True, eq=False)
class Process:
    """What the replica's process knows. Times are virtual seconds.

    `running` is the batch that runs, `waiting` what was accepted behind it. `ready_s` is when the
    model was loaded, `left_s` when it stopped taking work, both infinite until then.
    """

    id: str
    pool: str
    phases: dict[str, float]
    launched_s: float
    batch: int = 1
    running: list[Ask] = field(default_factory=list)
    waiting: deque[Ask] = field(default_factory=deque)
    last_end_s: float = 0.0
    ready_s: float = float("inf")
    left_s: float = float("inf")
    busy_s: float = 0.0
    has_run: bool = False
    draining: bool = False
    dead: bool = False

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits."""
        return not self.running and not self.waiting

    def begin(self) -> float:
        """Take the next batch; how long it will run."""
        while self.waiting and len(self.running) < self.batch:
            self.running.append(self.waiting.popleft())
        return max(ask.service_s for ask in self.running)

    def finish(self, now: float) -> list[Ask]:
        """The batch is done."""
        done, self.running = self.running, []
        self.last_end_s = now
        self.has_run = True
        return done
