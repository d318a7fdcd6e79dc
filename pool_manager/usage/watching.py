"""Has the meter see every change of a replica, and what it adds up kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pool_manager.core.machine import Machine
from pool_manager.core.state import Replica, State
from pool_manager.ports import Binding, Recorder
from pool_manager.usage.meter import Meter, Owner, Stage

KEEP_S: Final = 10.0
"""Seconds between two handings to the recorder: what a crash may lose."""
NOBODY: Final = Owner("", "", 0)

STAGES: Final[dict[State, Stage]] = {
    State.STARTING: "waking",
    State.STANDBY: "waking",
    State.LOADING: "waking",
    State.READY: "up",
    State.DRAINING: "up",
}
"""A replica that is being released runs nothing more and serves nobody: it is counted no longer."""


class UseWatch:
    """Looks at a replica whenever something happened to it. `clock` is monotonic, `wall` Unix
    seconds; `bindings` is its owner's."""

    def __init__(
        self,
        machine: Machine,
        bindings: Mapping[str, Binding],
        recorder: Recorder,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._machine = machine
        self._bindings = bindings
        self._recorder = recorder
        self._clock = clock
        self._wall = wall
        self._meter = Meter(wall() - clock())
        self._kept_s = clock()

    def look(self, about: object) -> None:
        """An event or a command; if it is about a replica, that is looked at."""
        id = getattr(about, "id", None)
        if not isinstance(id, str):
            return
        now, replica = self._clock(), self._machine.replica(id)
        stage = STAGES.get(replica.state) if replica is not None else None
        if replica is None or stage is None:
            self._meter.end(id, now)
            return
        if replica.role == "standby":
            stage = "waking" if replica.state is State.STARTING else "standby"
        is_new = not self._meter.knows(id)
        self._meter.see(id, self._owner(replica), replica.device, stage, now)
        if is_new and replica.adopted:
            self._meter.adopt(id)

    def hear(self, id: str, busy_ms: int) -> None:
        """A replica says for how long its model has run."""
        self._meter.hear(id, busy_ms, self._clock())

    def tick(self) -> None:
        """Look at every replica, for a standby can be given away without a word to it, and every
        ten seconds hand over what was added up."""
        for replica in self._machine.replicas():
            self.look(replica)
        if self._clock() - self._kept_s >= KEEP_S:
            self.keep()

    def keep(self) -> None:
        """Hand over what was added up so far."""
        self._kept_s = now = self._clock()
        for record in self._meter.take(now):
            self._recorder.use(record)
        # Clocks are set: only what comes after is counted by the new time.
        self._meter.offset_s = self._wall() - now

    def busy(self, device: str) -> float | None:
        """As `Meter.busy`."""
        return self._meter.busy(device)

    def _owner(self, replica: Replica) -> Owner:
        """A trial is its function's, which has no revision of it yet: number 0."""
        if replica.role == "standby":
            return NOBODY
        if binding := self._bindings.get(replica.pool):
            return Owner(binding.namespace, binding.name, binding.number)
        # Adopted, and its revision is gone: the pool's key says whose it was.
        namespace, _, ref = replica.pool.partition("/")
        return Owner(namespace, ref.partition("@")[0], 0)
