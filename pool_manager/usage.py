"""Device-seconds of replicas, from what they are doing and how long they say they ran. Pure.

Has the meter see every change of a replica, and what it adds up kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from pool_manager.core.machine import Machine
from pool_manager.core.state import Replica, State
from pool_manager.ports import Binding, Recorder
from registry.model import Use
from runtime_image.contract.link import BUSY_MASK

MINUTE_S: Final = 60
WINDOW_S: Final = 5.0
"""Over how long "busy now" is a mean; where replicas are asked less often, from one time to the
next."""

BACK_MS: Final = BUSY_MASK // 2
"""Nobody runs for 25 days between two words: the count went back. It does by a little where a run
ended in the very moment in which the replica looked at it."""

Stage = Literal["waking", "up", "standby"]
"""Starting or loading; able to run a model; without a model."""


class Owner(NamedTuple):
    """Whose seconds they are; name "" and number 0 for nobody's."""

    namespace: str
    name: str
    number: int


class _Said(NamedTuple):
    at_s: float
    busy_s: float


@dataclass(slots=True)
class _Account:
    """One replica. Until `settled_s` its seconds are in the sums. `busy_s` is what is believed of
    its runs so far, `said_ms` what it said last, None while that means nothing yet."""

    owner: Owner
    device: str
    stage: Stage
    settled_s: float
    said_ms: int | None
    busy_s: float = 0.0
    said: deque[_Said] = field(default_factory=deque)


class Meter:
    """Adds up seconds per minute, owner and device. `now` is in monotonic seconds.

    Every second between a replica's record and its end is counted once, and none is negative:
    what a replica says it ran is believed up to the time that has passed. An idle second can only
    be told from a busy one by what the replica says, so the seconds of one that is up wait for its
    next word; those after its last word count as idle.
    """

    def __init__(self, offset_s: float) -> None:
        """`offset_s` is the Unix time at monotonic 0; the owner may correct it."""
        self.offset_s = offset_s
        self._accounts: dict[str, _Account] = {}
        self._sums: dict[tuple[Owner, str, int], list[float]] = {}

    def see(self, id: str, owner: Owner, device: str, stage: Stage, now: float) -> None:
        """A replica is in this stage from now on, if it was not already."""
        account = self._accounts.get(id)
        if account is None:
            self._accounts[id] = _Account(owner, device, stage, now, 0)
            return
        if (account.owner, account.device, account.stage) != (owner, device, stage):
            self._settle(account, now, 0.0)
            account.owner, account.device, account.stage = owner, device, stage

    def adopt(self, id: str) -> None:
        """A replica ran under an earlier manager: its first word tells only where it stands."""
        self._accounts[id].said_ms = None

    def hear(self, id: str, said_ms: int, now: float) -> None:
        """A replica says that it ran for so many milliseconds so far, modulo 2**32."""
        account = self._accounts.get(id)
        if account is None or account.stage != "up":
            return
        before_ms, account.said_ms = account.said_ms, said_ms
        more_ms = 0 if before_ms is None else (said_ms - before_ms) & BUSY_MASK
        if more_ms > BACK_MS:
            more_ms = 0
        busy_s = min(more_ms / 1e3, max(0.0, now - account.settled_s))
        if not account.said:
            account.said.append(_Said(account.settled_s, account.busy_s))
        self._settle(account, now, busy_s)
        if before_ms is None:
            account.said.clear()
        account.said.append(_Said(now, account.busy_s))
        while len(account.said) > 2 and account.said[1].at_s <= now - WINDOW_S:
            account.said.popleft()

    def end(self, id: str, now: float) -> None:
        """A replica is gone, or given up."""
        account = self._accounts.pop(id, None)
        if account is not None:
            self._settle(account, now, 0.0)

    def knows(self, id: str) -> bool:
        """Whether a replica is counted."""
        return id in self._accounts

    def busy(self, device: str) -> float | None:
        """Part of the last seconds in which a model ran on a device, 0 to 1; None while nobody
        there has said anything yet."""
        up = [one for one in self._accounts.values() if one.device == device and one.stage == "up"]
        shares = [_share(one.said) for one in up if len(one.said) > 1]
        return None if up and not shares else min(1.0, sum(shares, 0.0))

    def take(self, now: float) -> list[Use]:
        """What has been added up since the last call. Records of one minute add up."""
        for account in self._accounts.values():
            if account.stage != "up":
                self._settle(account, now, 0.0)
        sums, self._sums = self._sums, {}
        return [
            Use(*owner, device, minute, *took) for (owner, device, minute), took in sums.items()
        ]

    def _settle(self, account: _Account, now: float, busy_s: float) -> None:
        """Everything until `now` goes into the sums, `busy_s` of it evenly as busy."""
        from_s, account.settled_s = account.settled_s, max(account.settled_s, now)
        account.busy_s += busy_s
        length_s = account.settled_s - from_s
        if not length_s or not account.device:
            return
        share = min(1.0, busy_s / length_s)
        for minute, seconds in self._minutes(from_s, account.settled_s):
            key = account.owner, account.device, minute
            took = self._sums.setdefault(key, [0.0, 0.0, 0.0])
            if account.stage == "waking":
                took[0] += seconds
            else:
                took[1] += seconds * (1 - share)
                took[2] += seconds * share

    def _minutes(self, from_s: float, to_s: float) -> Iterator[tuple[int, float]]:
        """The minutes (Unix seconds) that a span touches, with its seconds in each."""
        start_s, end_s = from_s + self.offset_s, to_s + self.offset_s
        minute = int(start_s // MINUTE_S) * MINUTE_S
        while minute < end_s:
            seconds = min(end_s, minute + MINUTE_S) - max(start_s, minute)
            if seconds > 0:
                yield minute, seconds
            minute += MINUTE_S


def _share(said: deque[_Said]) -> float:
    first, last = said[0], said[-1]
    passed_s = last.at_s - first.at_s
    return (last.busy_s - first.busy_s) / passed_s if passed_s > 0 else 0.0


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
