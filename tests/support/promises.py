"""What the pool machine promises, whatever happens; held against every event it is fed."""

from __future__ import annotations

from collections import Counter

from hypothesis.stateful import RuleBasedStateMachine, invariant

from pool_manager.core import events
from pool_manager.core.commands import (
    Bind,
    Command,
    Drain,
    EndTrial,
    KeepColdStart,
    Launch,
    Note,
    Publish,
    Release,
    Terminate,
)
from pool_manager.core.machine import ADOPTION_S, Machine
from pool_manager.core.state import TRANSITIONS, PoolSpec, Replica, State
from registry.exchange import PoolEndpoints


def after(state: State) -> set[State]:
    """The states that the table leads to from `state`, in any number of steps."""
    found, todo = {state}, [state]
    while todo:
        new = set(TRANSITIONS[todo.pop()].values()) - found
        found |= new
        todo += new
    return found


class Promises(RuleBasedStateMachine):
    """A machine, and a second book of what it was told and what it commanded.

    Whoever inherits sets `machine`, keeps `specs` (pools that are wanted), `where` (replica to
    device, from its launch to its release) and `list_read_s`, and passes every event to `feed`.
    """

    machine: Machine

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.specs: dict[str, PoolSpec] = {}
        self.where: dict[str, str] = {}
        self.ever: set[str] = set()
        self.known: set[str] = set()
        self.shown: dict[str, PoolEndpoints] = {}
        self.list_read_s: float | None = None

    def adopted(self, id: str, key: str, device: str) -> None:
        """From now on this replica is there."""
        self.where[id] = device
        self.ever.add(id)
        self.known.add(key)

    def spec(self, spec: PoolSpec) -> PoolSpec:
        """From now on this pool is wanted."""
        self.specs[spec.key] = spec
        self.known.add(spec.key)
        return spec

    def feed(self, event: events.Event) -> None:
        """Have the event handled and hold everything against the promises."""
        self.event = event
        self.before = {r.id: r.state for r in self.machine.replicas()}
        self.late = {r.id for r in self.machine.replicas() if r.kill_at_s <= self.now}
        if isinstance(event, events.Released) and self.before.get(event.id) == "releasing":
            del self.where[event.id]
        commands = self.machine.handle(event, self.now)
        for command in commands:
            self.check(command)
        self.check_starts(commands)
        self.check_stops(commands)
        self.check_steps()
        self.check_published(commands)

    def check(self, command: Command) -> None:
        match command:
            case Launch():
                self.check_launch(command)
            case Bind(id, pool):
                assert self.replica(id).pool == pool
            case Drain():
                self.check_drain(command)
            case Terminate(id, _):
                assert self.before[id] == "draining"
                assert id in self.late
            case Release(id, _):
                self.check_release(id)
            case EndTrial(key):
                assert key in self.known
                self.specs.pop(key, None)
            case Note(key) | KeepColdStart(key):
                assert key in self.known

    def check_launch(self, launch: Launch) -> None:
        """A new replica for a pool that is wanted, on a device that is free."""
        assert launch.id not in self.ever, "an id was given twice"
        assert launch.device not in self.where.values(), "two replicas on one device"
        assert self.list_read_s is not None, "started on a half-known world"
        assert launch.pool in self.specs
        assert not self.machine.stopping
        self.adopted(launch.id, launch.pool, launch.device)

    def check_drain(self, drain: Drain) -> None:
        """For good only what nobody wants any more; else one without load may refuse."""
        key = self.replica(drain.id).pool
        if drain.if_idle_s is None:
            assert key not in self.specs or self.machine.stopping
        else:
            load = self.machine.host.demand.load(key)
            assert load.queued + load.in_flight == 0, "a busy replica was asked to go"

    def check_release(self, id: str) -> None:
        """Only what ended, is overdue, is a trial, or has no model and no use is released."""
        replica = self.replica(id)
        ended = isinstance(self.event, events.Lost) and self.event.id == id
        unwanted = replica.pool not in self.specs or self.machine.stopping
        idle = unwanted and self.before.get(id, State.STARTING) == "starting"
        assert ended or id in self.late or replica.role == "trial" or idle

    def check_starts(self, commands: list[Command]) -> None:
        """One at once from zero, never more than `max`, never during a back-off."""
        for key, count in Counter(c.pool for c in commands if isinstance(c, Launch)).items():
            pool, spec = self.machine.pools[key], self.specs[key]
            assert pool.count() <= (1 if spec.role == "trial" else spec.max)
            assert pool.is_warm or count <= max(1, spec.min)
            assert self.now >= pool.retry_at_s

    def check_stops(self, commands: list[Command]) -> None:
        """Should all who are asked say yes, the floor is still there."""
        for command in commands:
            if isinstance(command, Drain) and command.if_idle_s is not None:
                pool = self.machine.pools[self.replica(command.id).pool]
                assert pool.staying() >= pool.spec.min

    def check_steps(self) -> None:
        """Every record is where the table allows; only a release makes one disappear."""
        now = {r.id: r.state for r in self.machine.replicas()}
        for id, state in self.before.items():
            assert now.get(id, State.STOPPED) in after(state)
            assert id in now or self.event == events.Released(id)

    def check_published(self, commands: list[Command]) -> None:
        """What gateways were last told of a pool is how it looks."""
        for command in commands:
            if isinstance(command, Publish):
                for key in command.keys:
                    self.shown.pop(key, None)
                    if key in self.machine.pools:
                        self.shown[key] = self.machine.endpoints(key, self.now)
        looks = {key: self.machine.endpoints(key, self.now) for key in self.machine.pools}
        if isinstance(self.event, events.Tick):
            assert looks == self.shown
        assert looks.keys() == self.shown.keys()

    def check_progress(self) -> None:
        """After a tick, what is wanted is there unless something stands in its way."""
        if self.list_read_s is None or self.machine.stopping:
            return
        if self.machine.host.demand.is_empty and self.now - self.list_read_s < ADOPTION_S:
            return
        for key, spec in self.specs.items():
            pool = self.machine.pools[key]
            free = [
                device
                for device in self.machine.devices.values()
                if device.id not in self.where.values() and spec.device_kind in ("any", device.kind)
            ]
            waits = self.now < pool.retry_at_s
            assert waits or not free or pool.count() >= pool.wanted

    def replica(self, id: str) -> Replica:
        replica = self.machine.replica(id)
        assert replica is not None, f"a command for the unknown replica {id}"
        return replica

    @invariant()
    def devices_hold_one_replica_each(self) -> None:
        """A device is taken from the launch until everything of the replica is gone."""
        recorded = {r.id: r.device for r in self.machine.replicas()}
        assert recorded == self.where
        assert len(set(recorded.values())) == len(recorded)

    @invariant()
    def wanted_is_within_bounds(self) -> None:
        """No pool ever wants less than its `min` or more than its `max`."""
        for key, spec in self.specs.items():
            least, most = (1, 1) if spec.role == "trial" else (spec.min, spec.max)
            assert least <= self.machine.pools[key].wanted <= most
