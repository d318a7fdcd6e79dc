"""Parks under faults: a random history is played against a model of what engines really do."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool_manager.core import events
from pool_manager.core.commands import (
    Command,
    Drain,
    Launch,
    Park,
    ProvePark,
    Quiesce,
    RecordWake,
    Release,
    Resume,
    Terminate,
    Unpark,
    Verify,
)
from pool_manager.core.ledger import RESERVE_MIB
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, ParkSpec, PoolSpec, State
from registry.exchange import Demand, Load

FULL_MIB, RESIDUE_MIB, HOST_MIB, SLACK_MIB = 8_000.0, 500.0, 6_000.0, 256.0
GPU_MIB, RAM_MIB = 10_000.0, 20_000.0
FAR = "far"

SLEEPS = (
    "right",
    "right",
    "right",
    "refuses",
    "500",
    "hangs",
    "dies",
    "frees nothing",
    "frees half",
)
WAKES = ("right", "right", "right", "500", "hangs", "dies", "still asleep", "gibberish", "late")
SAMPLES = ("answered", "answered", "answered", "hangs", "dies")

DISTURBANCES = ("kill", "lose", "back", "break", "join", "ask", "sleep", "restart")
ANSWERS = (events.ParkAnswered, events.UnparkAnswered, events.Verified, events.NotIdle)


@dataclass
class Engine:
    """What really is in one process, and what the machine may charge for it."""

    pool: str
    devices: tuple[str, ...]
    host: str
    full_mib: float
    held_mib: float
    host_mib: float = 0.0
    is_alive: bool = True
    is_loaded: bool = False
    is_asleep: bool = False
    is_wrong: bool = False
    is_parked: bool = False
    """Whether the machine was told a proof, and has not waked it since."""
    charged_mib: float = 0.0
    """What it is charged of host memory."""
    has_slept: bool = False
    is_leaving: bool = False
    """Whether its end was commanded, or told to the machine."""
    life: State = State.READY
    """What its sidecar says in HELLO."""
    is_working: bool = False
    """Whether a command of a park is being carried out."""
    last: events.Event | None = None
    """What became of the last one."""
    is_found: bool = False
    """Whether this manager found it, and does not know yet whether it sleeps."""
    is_adopted: bool = False
    """Whether it slept when this manager found it, and is not proved yet."""

    @property
    def in_use_mib(self) -> float:
        """What it has of the memory of its host."""
        return self.held_mib if self.pool == "default/cpu@1" else self.host_mib

    def fall_asleep(self, left_mib: float) -> None:
        self.held_mib, self.is_asleep = left_mib, True
        self.host_mib = HOST_MIB


@dataclass
class World:
    """A machine with GPUs on two hosts, the engines on them, and callers. `faults`: the part of
    sleeps and wakes that may go wrong."""

    random: Random
    faults: float
    now: float = 1_000.0
    due: list[tuple[float, int, events.Event]] = field(default_factory=list)
    engines: dict[str, Engine] = field(default_factory=dict)
    wakes: dict[str, int] = field(default_factory=dict)
    parks: int = 0
    served: set[str] = field(default_factory=set)
    cut_off: bool = False

    def __post_init__(self) -> None:
        numbers, self.order, self.seqs = itertools.count(1), itertools.count(), itertools.count(1)
        self.gpus = [Device(f"g{at}", "cuda", GPU_MIB, pci_bus=f"{at}") for at in range(2)]
        self.gpus += [Device(f"{FAR}/g0", "cuda", GPU_MIB, host=FAR)]
        slots = [Device("cpu", "cpu", RAM_MIB, "ram")]
        far_slots = [Device(f"{FAR}/cpu", "cpu", RAM_MIB, f"{FAR}/ram", FAR)]
        self.far = (self.gpus[2], *far_slots)
        self.epochs = itertools.count(1)
        self.local, self.new_id = [*self.gpus[:2], *slots], lambda: f"r{next(numbers)}"
        park = ParkSpec(1.0, 0.5, HOST_MIB, RESIDUE_MIB, verify_s=0.2)
        server: dict[str, Any] = {"is_server": True, "load_s": 60.0, "drain_s": 20.0, "park": park}
        server |= {"device_kind": "cuda", "memory_mib": FULL_MIB, "idle_s": 20.0}
        self.specs = [
            *(PoolSpec(f"default/{name}@1", **server) for name in "abc"),
            PoolSpec("default/wide@1", count=2, **server),
            PoolSpec("default/plain@1", **{**server, "park": None}),
            PoolSpec(
                "default/cpu@1", device_kind="cpu", load_s=1.0, memory_mib=5_000.0, idle_s=9.0
            ),
        ]
        self.called: dict[str, bool] = dict.fromkeys([spec.key for spec in self.specs], False)
        self.restart()

    def restart(self) -> None:
        """Begin with a new manager, which adopts what runs."""
        self.cut_off = False
        self.machine = Machine(self.local, self.new_id)
        found, self.engines = self.engines, {}
        for spec in self.specs:
            self.feed(events.PoolDefined(spec))
        self.feed(events.HostDefined(FAR))
        for id, engine in found.items():
            if not engine.is_alive:
                continue
            self.engines[id] = engine
            engine.is_parked = engine.is_leaving = engine.has_slept = False
            engine.is_adopted, engine.is_found = engine.life is not State.READY, True
            engine.charged_mib = HOST_MIB if self.machine.pools[engine.pool].spec.park else 0.0
            self.feed(events.Found(id, engine.pool, engine.devices, "serve", engine.host))
        self.feed(self.up())
        self.feed(events.ReplicasListed())
        for id, engine in list(self.engines.items()):
            self.feed(events.Greeted(id, {}, engine.is_loaded))
            if engine.is_loaded and id in self.engines:
                self.feed(loaded(id, engine.full_mib, engine.life))
            elif not engine.is_loaded:  # what it had to say may have been lost
                self.later(1.0, loaded(id, engine.full_mib))

    def up(self) -> events.HostUp:
        running = (id for id, one in self.engines.items() if one.host == FAR and one.is_alive)
        return events.HostUp(FAR, next(self.epochs), self.far, frozenset(running))

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def pick(self, kinds: tuple[str, ...]) -> str:
        return self.random.choice(kinds) if self.chance(self.faults) else kinds[0]

    def later(self, after_s: float, event: events.Event) -> None:
        self.due.append((self.now + after_s, next(self.order), event))

    def feed(self, event: events.Event) -> None:
        """Tell the machine something, carry out what it commands, and compare."""
        self.told(event)
        for command in self.machine.handle(event, self.now):
            self.obey(command)
        self.compare()

    # The truth

    def told(self, event: events.Event) -> None:
        """Note what the machine knows after an event, as far as it may use it."""
        engine = self.engines.get(getattr(event, "id", ""))
        if engine is None or engine.is_leaving:
            return
        engine.is_found = engine.is_found and not isinstance(event, events.Loaded)
        match event:
            case events.Loaded(life=State.READY) if engine.charged_mib and not engine.has_slept:
                engine.charged_mib = engine.host_mib = 0.0  # what it kept of a park is not known
            case events.Loaded(life=life) if life is not State.READY:
                engine.has_slept = True
            case events.ParkAnswered(problem=""):
                engine.has_slept = True
            case events.ParkProven():
                engine.is_parked, engine.is_adopted = True, False
            case events.NotIdle() if not engine.has_slept:
                engine.charged_mib = 0.0

    def obey(self, command: Command) -> None:
        """Carry out a command: begin and end processes, count wakes."""
        engine = self.engines.get(getattr(command, "id", ""))
        match command:
            case Launch(id, pool, devices, _, _, host):
                mib = self.machine.pools[pool].memory_mib
                self.engines[id] = Engine(pool, devices, host, mib, mib)
                self.later(0.5, events.Greeted(id, {"start": 500.0}))
                self.later(self.random.choice((1.0, 5.0)), loaded(id, mib))
            case RecordWake(outcome=outcome):
                self.wakes[outcome] = self.wakes.get(outcome, 0) + 1
            case Release(id):
                if engine is not None:
                    engine.is_leaving = True
                self.later(0.3, events.Released(id))
            case _ if engine is not None and not (engine.host == FAR and self.cut_off):
                self.tell(getattr(command, "id", ""), engine, command)

    def tell(self, id: str, engine: Engine, command: Command) -> None:
        """Let a process do what it is told, or what a fault makes of it."""
        match command:
            case ProvePark(_, residue_mib):
                self.prove(id, engine, residue_mib)
            case Park() | Unpark() | Verify():
                if isinstance(command, Park):
                    engine.charged_mib = max(engine.charged_mib, HOST_MIB)
                if isinstance(command, Unpark):
                    engine.is_parked = False
                self.live(id, engine, command)
            case Drain(_, None) | Quiesce():
                engine.is_leaving = isinstance(command, Drain)
                self.later(self.random.choice((0.2, 6.0)), events.Lost(id, "exit 0"))
            case Drain():
                refuses = self.chance(0.3)
                event = events.NotIdle(id, 0.0) if refuses else events.Lost(id, "exit 0")
                self.later(0.1, event)
            case Resume():
                self.due = [one for one in self.due if one[2] != events.Lost(id, "exit 0")]
                self.later(0.1, events.NotIdle(id, 0.0))
            case Terminate():
                self.later(0.5, events.Lost(id, "exit 0"))

    def die(self, id: str, engine: Engine) -> None:
        engine.is_alive = False
        self.later(0.2, events.Lost(id, "signal 9"))

    def live(self, id: str, engine: Engine, command: Park | Unpark | Verify) -> None:
        """Carry out a command of a park, once; say again what became of the last one."""
        before, during, work = {
            Park: (State.READY, State.PARKING, self.park),
            Unpark: (State.PARKED, State.UNPARKING, self.wake),
            Verify: (State.VERIFYING, State.VERIFYING, self.verify),
        }[type(command)]
        if engine.is_working:
            return
        if engine.life is not before or getattr(engine.last, "problem", ""):
            if engine.last is not None:
                self.later(0.1, engine.last)
            return
        engine.is_working, engine.life = True, during
        work(id, engine)

    def worked(self, engine: Engine, event: events.Event) -> None:
        """A sidecar has carried out a command, and tells it."""
        engine.is_working, engine.last = False, event
        match event:
            case events.NotIdle():
                engine.life, engine.last = State.READY, None
            case events.ParkAnswered(problem=""):
                engine.life = State.PARKED
            case events.UnparkAnswered(problem=""):
                engine.life = State.VERIFYING
            case events.Verified(problem=""):
                engine.life = State.READY

    def park(self, id: str, engine: Engine) -> None:
        fault = self.pick(SLEEPS)
        if fault == "refuses":
            self.later(0.1, events.NotIdle(id, 0.0))
        elif fault == "dies":
            self.die(id, engine)
        elif fault == "500":
            self.later(0.5, events.ParkAnswered(id, "500", 0.5))
        elif fault != "hangs":
            left = {"frees nothing": engine.full_mib, "frees half": engine.full_mib / 2}
            engine.fall_asleep(left.get(fault, RESIDUE_MIB))
            self.later(1.0, events.ParkAnswered(id, "", 1.0))

    def prove(self, id: str, engine: Engine, residue_mib: float) -> None:
        if engine.held_mib > residue_mib + SLACK_MIB:
            self.later(0.2, events.ParkRefuted(id, f"{engine.held_mib:.0f} MiB are in use"))
        else:
            self.later(0.2, events.ParkProven(id, dict.fromkeys(engine.devices, engine.held_mib)))

    def wake(self, id: str, engine: Engine) -> None:
        fault = self.pick(WAKES)
        if fault == "dies":
            self.die(id, engine)
        elif fault == "500":
            self.later(0.5, events.UnparkAnswered(id, "out of memory", 0.5))
        elif fault == "still asleep":
            self.later(0.5, events.UnparkAnswered(id, "", 0.5))
        elif fault != "hangs":
            engine.is_asleep, engine.held_mib = False, engine.full_mib
            engine.is_wrong = fault == "gibberish"
            took_s = 25.0 if fault == "late" else 0.5
            self.later(took_s, events.UnparkAnswered(id, "", took_s))

    def verify(self, id: str, engine: Engine) -> None:
        fault = self.pick(SAMPLES)
        if fault == "dies":
            self.die(id, engine)
        elif fault != "hangs":
            is_right = not (engine.is_asleep or engine.is_wrong)
            self.later(0.2, events.Verified(id, "" if is_right else "other tokens"))

    # What must hold after each event

    def compare(self) -> None:
        ledger, machine = self.machine.cluster.ledger, self.machine
        there = {one.id for one in machine.replicas()}
        assert there == self.engines.keys()
        for id, engine in self.engines.items():
            charge = ledger.charge_of(id)
            assert charge.host_mib == engine.charged_mib
            assert engine.host_mib <= charge.host_mib
            if engine.is_parked:
                assert charge.is_parked
                assert charge.memory_mib == engine.held_mib
            else:
                assert charge.devices == engine.devices or engine.pool == "default/cpu@1"
                assert engine.held_mib <= charge.memory_mib
        for device in self.gpus:
            held = [one.held_mib for one in self.engines.values() if device.id in one.devices]
            assert sum(held) <= GPU_MIB - RESERVE_MIB
            known = ledger.on(device.id) if device.id in ledger.devices else []
            known = [id for id in known if not self.engines[id].is_adopted]
            assert sum(ledger.charge_of(id).share for id in known) <= 1.0
        for bank in ("ram", f"{FAR}/ram"):
            held_by = ledger.in_bank(bank)
            sure = [id for id in held_by if not self.engines[id].is_found]
            assert sum(ledger.charge_of(id).mib_in(bank) for id in sure) <= RAM_MIB - RESERVE_MIB
            assert sum(self.engines[id].in_use_mib for id in held_by) <= RAM_MIB - RESERVE_MIB
        for key in machine.pools:
            for endpoint in machine.endpoints(key, self.now).replicas:
                engine = self.engines[endpoint.id]
                assert not engine.is_asleep
                assert not engine.is_wrong
                assert machine.cluster.find(endpoint.id).state in (State.READY, State.DRAINING)

    # Time

    def go(self, seconds: float) -> None:
        """Let time pass, with every event at its time, and callers and a tick each second."""
        end_s, tick_s = self.now + seconds, self.now
        while self.now < end_s:
            self.due.sort()
            if self.due and self.due[0][0] <= tick_s:
                self.now, _, event = self.due.pop(0)
                self.happen(event)
                continue
            self.now = tick_s
            tick_s += 1.0
            loads = {}
            for key, is_called in self.called.items():
                is_warm = self.machine.pools[key].is_warm
                if is_called:
                    loads[key] = Load(0, 1, 0.0) if is_warm else Load(1, 0, 0.0)
                if is_called and is_warm:
                    self.served.add(key)
            demand = Demand("w", next(self.seqs), True, loads, list(loads))
            self.feed(events.DemandReported(demand))
            self.feed(events.Tick())

    def happen(self, event: events.Event) -> None:
        """An event of a process reaches the machine, if the process can still tell it."""
        id = getattr(event, "id", "")
        engine = self.engines.get(id)
        if engine is None:
            return
        if isinstance(event, ANSWERS) and engine.is_working and engine.is_alive:
            self.worked(engine, event)
        if engine.host == FAR and self.cut_off:
            return  # what it told is lost; it is told again when the host is back
        if isinstance(event, events.Released):
            if self.machine.replica(id).state is State.RELEASING:
                del self.engines[id]
        elif isinstance(event, events.Lost):
            engine.is_alive, engine.is_leaving = False, True
        elif not engine.is_alive:
            return
        elif isinstance(event, events.Loaded):
            engine.is_loaded = True
        self.feed_if(event, engine)

    def feed_if(self, event: events.Event, engine: Engine) -> None:
        if isinstance(event, events.ParkProven) and self.is_crossed(event.id):
            # The proof crossed the end, or the wake, of the replica.
            is_parked = engine.is_parked
            leaving, engine.is_leaving = engine.is_leaving, True
            self.feed(event)
            engine.is_parked, engine.is_leaving = is_parked, leaving
            return
        if isinstance(event, events.ParkProven):
            self.parks += 1
        self.feed(event)

    def is_crossed(self, id: str) -> bool:
        replica = self.machine.replica(id)
        return replica is None or replica.state not in (State.PARKING, State.PARKED)

    def disturb(self) -> None:
        """Something happens from outside."""
        what = self.random.choice(DISTURBANCES)
        ids = sorted(self.engines)
        if what == "kill" and ids:
            id = self.random.choice(ids)
            self.die(id, self.engines[id])
        elif what == "lose":
            gone = self.random.choice((True, False))
            self.feed(events.DeviceLost(self.random.choice(self.gpus).id, "Xid 79", gone))
        elif what == "back":
            for device in self.gpus:
                self.feed(events.DeviceBack(device.id))
        elif what == "break" and not self.cut_off:
            self.cut_off = True
            self.feed(events.HostUnreachable(FAR, "no route"))
        elif what == "join":
            self.join()
        elif what == "restart":
            self.restart()
        elif what == "ask":
            kind = self.random.choice((events.ParkRequested, events.UnparkRequested))
            self.feed(kind(self.random.choice(self.specs).key))
        elif what == "sleep":
            force = self.random.choice((True, False))
            self.feed(events.SleepRequested(self.random.choice(self.specs).key, force))

    def join(self) -> None:
        """The other host is back: its processes greet again, and say what they had to say."""
        if not self.cut_off:
            return
        self.cut_off = False
        self.feed(self.up())
        for id, engine in list(self.engines.items()):
            if engine.host != FAR:
                continue
            if engine.is_alive and not engine.is_leaving:
                self.feed(events.Greeted(id, {}, engine.is_loaded))
                if not engine.is_loaded:
                    self.later(1.0, loaded(id, engine.full_mib))

    def settle(self) -> None:
        """Mend everything and let it come to rest."""
        self.faults = 0.0
        self.join()
        for device in self.gpus:
            self.feed(events.DeviceBack(device.id))


def loaded(id: str, memory_mib: float, life: State = State.READY) -> events.Loaded:
    return events.Loaded(id, 4, True, memory_mib, {"load": 60_000.0}, life=life)


def play(seed: int, faults: float, rounds: int = 40) -> World:
    """Play a history of `rounds` times 10 s, then callers of each pool until all were served."""
    world = World(Random(seed), faults)
    keys = [spec.key for spec in world.specs]
    for _ in range(rounds):
        for key in keys:
            world.called[key] = world.chance(0.25)
        if world.chance(faults):
            world.disturb()
        world.go(world.random.choice((3.0, 10.0, 40.0)))
    world.settle()
    world.served.clear()
    for key in keys:
        world.called = dict.fromkeys(keys, False) | {key: True}
        world.go(120.0)
    return world


@given(st.integers(0, 2**32), st.sampled_from((0.2, 0.5, 0.9)))
@settings(max_examples=15, deadline=None)
def test_an_unproven_engine_serves_nobody(seed: int, faults: float) -> None:
    """Whatever sleeps, wakes, dies or is cut off: only a verified engine is listed, what is charged
    is what is in use at most, no device is given twice, and each pool is served in the end."""
    world = play(seed, faults)

    assert world.served == {spec.key for spec in world.specs}


@pytest.mark.parametrize("seed", range(3))
def test_without_faults_servers_are_parked_and_woken(seed: int) -> None:
    """The same history without faults parks servers, and each wake is right."""
    world = play(seed, 0.0)

    assert world.parks >= 3
    assert world.wakes.keys() == {"right"}
