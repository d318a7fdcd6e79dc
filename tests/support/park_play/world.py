"""A machine, the engines that it starts, and callers, under a virtual clock."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from operator import itemgetter
from random import Random
from typing import Any, Final

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
from pool_manager.core.hosts import HostMemory
from pool_manager.core.ledger import RESERVE_MIB
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, ParkSpec, PoolSpec, State
from registry.exchange import Demand, Load
from registry.model.hosts import LOCAL_HOST
from tests.support.park_play.engine import (
    FAR,
    FULL_MIB,
    GPU_MIB,
    GPUS,
    HOST_MIB,
    LIMIT_S,
    MACHINE_MIB,
    RAM_MIB,
    RESIDUE_MIB,
    SAMPLE_FAULTS,
    SLACK_MIB,
    SLEEP_FAULTS,
    TELLING_FAULTS,
    WAKE_FAULTS,
    WRONG,
    Engine,
    Quiet,
    loaded,
)

DISTURBANCES: Final = (
    "kill",
    "lose a device",
    "devices are back",
    "break the link to a host",
    "the host is back",
    "fnctl park",
    "fnctl unpark",
    "fnctl sleep",
    "restart",
    "restart with other memory",
    "restart, lives told wrong",
    "shut down",
    "redeploy",
    "remove and deploy",
    "min and max",
    "memory is short",
)
ORDER: Final = itemgetter(0, 1)
ANSWERS: Final = (events.ParkAnswered, events.UnparkAnswered, events.Verified, events.NotIdle)


@dataclass
class World:
    """A machine with GPUs on two hosts, the engines on them, and callers. `faults`: the part of
    sleeps and wakes that may go wrong."""

    random: Random
    faults: float
    now: float = 1_000.0
    due: list[tuple[float, int, Any]] = field(default_factory=list)
    engines: dict[str, Engine] = field(default_factory=dict)
    wakes: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    """Faults and disturbances by name."""
    parks: int = 0
    answered: int = 0
    """Calls that a listed replica answered."""
    refused: int = 0
    """Calls to a listed replica whose sidecar opens no exchange."""
    served: set[str] = field(default_factory=set)
    """Functions of which a call was answered."""
    cut_off: bool = False
    ram_mib: float = RAM_MIB

    def __post_init__(self) -> None:
        numbers, self.order, self.seqs = itertools.count(1), itertools.count(), itertools.count(1)
        self.gpus = [Device(f"g{at}", "cuda", GPU_MIB, pci_bus=f"{at}") for at in range(GPUS)]
        self.local = list(self.gpus)
        self.gpus += [
            Device(f"{FAR}/g{at}", "cuda", GPU_MIB, host=FAR, pci_bus=f"{at}") for at in range(2)
        ]
        self.far, self.devices = self.gpus[GPUS:], [one.id for one in self.gpus]
        self.epochs, self.new_id = itertools.count(1), lambda: f"r{next(numbers)}"
        park = ParkSpec(1.0, 0.5, HOST_MIB, RESIDUE_MIB, verify_s=0.2)
        server: dict[str, Any] = {"is_server": True, "load_s": 30.0, "drain_s": 20.0, "park": park}
        server |= {"device_kind": "cuda", "memory_mib": FULL_MIB, "idle_s": 4.0}
        known = {
            **{name: {} for name in "abcd"},
            "half": {"share": 0.5, "memory_mib": FULL_MIB / 2},
            "other": {"share": 0.5, "memory_mib": FULL_MIB / 2},
            "pair": {"count": 2},
            "two": {"count": 2},
            "four": {"count": 4},
            "eight": {"count": 8},
            "plain": {"park": None},
        }
        self.specs = {
            name: PoolSpec(f"default/{name}@1", function=name, **{**server, **changes})
            for name, changes in known.items()
        }
        self.specs["cpu"] = PoolSpec(
            "default/cpu@1",
            function="cpu",
            device_kind="cpu",
            load_s=1.0,
            memory_mib=5_000.0,
            idle_s=9.0,
        )
        self.called: dict[str, bool] = dict.fromkeys(self.specs, False)
        self.restart()

    # Managers

    def restart(self, lying: float = 0.0) -> None:
        """Begin with a new manager, which adopts what runs; this part of it tells a wrong life."""
        self.cut_off = False
        slots = [Device("cpu", "cpu", self.ram_mib, "ram")]
        self.machine = Machine([*self.local, *slots], self.new_id)
        found, self.engines = self.engines, {}
        for spec in self.specs.values():
            self.feed(events.PoolDefined(spec))
        self.feed(events.HostDefined(FAR))
        for id, engine in found.items():
            if not engine.is_alive:
                continue
            self.engines[id] = engine
            engine.is_parked = engine.is_leaving = engine.is_lying = False
            engine.is_adopted, engine.is_found = engine.life is not State.READY, True
            pool = self.machine.pools.get(engine.pool)
            is_able = pool is not None and pool.spec.park is not None
            engine.charged_mib = HOST_MIB if is_able else 0.0
            self.feed(events.Found(id, engine.pool, engine.devices, "serve", engine.host))
        self.feed(self.up())
        self.feed(events.ReplicasListed())
        for id, engine in list(self.engines.items()):
            self.feed(events.Greeted(id, {}, engine.is_loaded))
            if engine.is_loaded and id in self.engines:
                self.hello(id, engine, is_lying=self.chance(lying))
            elif not engine.is_loaded:  # what it had to say may have been lost
                self.later(1.0, loaded(id, engine))

    def hello(self, id: str, engine: Engine, *, is_lying: bool) -> None:
        """Tell the life of a server that is loaded."""
        life = engine.life
        lives = (State.READY, State.PARKING, State.PARKED, State.UNPARKING, State.VERIFYING)
        if is_lying and self.machine.pools[engine.pool].spec.park is not None:
            life = self.random.choice(lives)
            self.injected["lives told wrong"] += life is not engine.life
        engine.is_lying = life is not engine.life
        engine.has_lied = engine.has_lied or engine.is_lying
        engine.is_adopted = life is not State.READY
        self.feed(loaded(id, engine, life))

    def up(self) -> events.HostUp:
        running = (id for id, one in self.engines.items() if one.host == FAR and one.is_alive)
        return events.HostUp(
            FAR, next(self.epochs), tuple(self.far), frozenset(running), memory_mib=RAM_MIB
        )

    def shut_down(self) -> None:
        """Let the manager end everything that it can, and begin anew without it."""
        self.feed(events.Shutdown())
        for _ in range(120):
            if self.machine.is_stopped:
                break
            self.go(1.0)
        assert self.machine.is_stopped
        self.due.clear()
        self.engines = {id: one for id, one in self.engines.items() if one.is_alive}
        self.restart()

    # Chance and time

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def pick(self, faults: tuple[str, ...]) -> str:
        if not self.chance(self.faults):
            return ""
        fault = self.random.choice(faults)
        self.injected[fault] += 1
        return fault

    def later(self, after_s: float, event: Any) -> None:
        self.due.append((self.now + after_s, next(self.order), event))

    def tell_later(self, after_s: float, event: events.Event) -> None:
        """Let a sidecar tell what became of a command, as well as it does."""
        fault = self.pick(TELLING_FAULTS) if self.chance(0.2) else ""
        if fault == "never told":
            return
        self.later(after_s + 2.0 * (fault == "told late"), event)
        if fault == "told twice":
            self.later(after_s + self.random.choice((0.0, 1.0)), event)

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
            case events.Loaded(life=State.READY, has_slept=False):
                engine.charged_mib = 0.0
            case events.Loaded():
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
                self.later(self.random.choice((1.0, 5.0)), loaded(id, self.engines[id]))
            case RecordWake(outcome=outcome):
                self.wakes[outcome] += 1
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
                self.change(id, engine, command)
            case Drain(_, None) | Quiesce():
                engine.is_leaving = isinstance(command, Drain)
                engine.is_closing = False
                self.later(self.random.choice((0.2, 6.0)), events.Lost(id, "exit 0"))
            case Drain():
                refuses = self.chance(0.3)
                event = events.NotIdle(id, 0.0) if refuses else events.Lost(id, "exit 0")
                self.later(0.1, event)
            case Resume():
                self.resume(id, engine)
            case Terminate():
                engine.is_leaving = True
                self.later(0.5, events.Lost(id, "exit 0"))

    def change(self, id: str, engine: Engine, command: Park | Unpark | Verify) -> None:
        """Begin what a command of a park asks for, after the exchanges that are open if it may."""
        if isinstance(command, Park):
            engine.charged_mib = max(engine.charged_mib, HOST_MIB)
        engine.is_parked = engine.is_parked and not isinstance(command, Unpark)
        is_serving = engine.life is State.READY and not engine.is_working
        if isinstance(command, Park) and command.if_idle_s is None and is_serving:
            if not engine.is_closing:
                engine.is_closing = True
                self.later(self.random.choice((0.2, 6.0, 30.0)), Quiet(id))
        else:
            self.live(id, engine, command)

    def resume(self, id: str, engine: Engine) -> None:
        """Take exchanges again; what sleeps tells it again."""
        self.due = [one for one in self.due if one[2] != events.Lost(id, "exit 0")]
        if engine.life is State.READY and not engine.is_working:
            engine.is_closing = False
            self.later(0.1, events.NotIdle(id, 0.0))
        elif not engine.is_working and engine.last is not None:
            self.later(0.1, engine.last)

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
        if engine.is_working or engine.is_closing:
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
        fault = self.pick(SLEEP_FAULTS)
        if not fault and self.chance(self.faults / 4):
            self.later(0.1, events.NotIdle(id, 0.0))
        elif fault == "sleep: dies":
            self.die(id, engine)
        elif fault == "sleep: 500":
            self.tell_later(0.5, events.ParkAnswered(id, "500", 0.5))
        elif fault == "sleep: hung before it":
            self.tell_later(LIMIT_S, events.ParkAnswered(id, "the sample: no answer", 0.0))
        elif fault != "sleep: hangs":
            left_mib = {
                "sleep: frees nothing": engine.full_mib,
                "sleep: frees half": engine.full_mib / 2,
            }
            engine.fall_asleep(left_mib.get(fault, RESIDUE_MIB))
            self.tell_later(1.0, events.ParkAnswered(id, "", 1.0))

    def prove(self, id: str, engine: Engine, residue_mib: float) -> None:
        if engine.held_mib > residue_mib + SLACK_MIB:
            self.later(0.2, events.ParkRefuted(id, f"{engine.held_mib:.0f} MiB are in use"))
        else:
            self.later(0.2, events.ParkProven(id, dict.fromkeys(engine.devices, engine.held_mib)))

    def wake(self, id: str, engine: Engine) -> None:
        fault = self.pick(WAKE_FAULTS)
        if fault == "wake: dies":
            self.die(id, engine)
        elif fault == "wake: 500" or (engine.is_lying and not self.has_room(id, engine)):
            self.tell_later(0.5, events.UnparkAnswered(id, "out of memory", 0.5))
        elif fault == "wake: still asleep":
            self.tell_later(0.5, events.UnparkAnswered(id, "", 0.5))
        elif fault != "wake: hangs":
            engine.is_asleep, engine.held_mib = False, engine.full_mib
            engine.fault = fault if fault in WRONG else ""
            took_s = 50.0 if fault == "wake: 100 x slower" else 0.5
            self.tell_later(took_s, events.UnparkAnswered(id, "", took_s))

    def has_room(self, id: str, engine: Engine) -> bool:
        """Whether its devices have the memory that an engine needs to wake."""
        others = [one for other, one in self.engines.items() if other != id]
        return all(
            engine.full_mib + sum(one.held_mib for one in others if device in one.devices)
            <= GPU_MIB
            for device in engine.devices
        )

    def verify(self, id: str, engine: Engine) -> None:
        fault = self.pick(SAMPLE_FAULTS) if self.chance(0.3) else ""
        if fault == "sample: dies":
            self.die(id, engine)
        elif fault != "sample: hangs":
            problem = "" if engine.serves_right else "other tokens"
            self.tell_later(0.2, events.Verified(id, problem))

    # What must hold after each event

    def compare(self) -> None:
        """Compare ledger and endpoints with the truth."""
        machine = self.machine
        ledger, pools = machine.cluster.ledger, machine.pools
        assert {one.id for one in machine.replicas()} == self.engines.keys()
        held_mib, shares = dict.fromkeys(self.devices, 0.0), dict.fromkeys(self.devices, 0.0)
        in_use_mib = {LOCAL_HOST: 0.0, FAR: 0.0}
        for replica in machine.replicas():
            engine, charge = self.engines[replica.id], ledger.charge_of(replica.id)
            # Of a revision that was removed under an earlier manager only the devices are known.
            is_known = pools[engine.pool].spec.memory_mib > 0.0
            assert charge.host_mib == engine.charged_mib
            assert engine.host_mib <= charge.host_mib or engine.is_lying or not is_known
            if engine.is_parked:
                assert charge.is_parked
                assert charge.memory_mib == engine.held_mib
            else:
                assert charge.devices == engine.devices or engine.is_on_cpu
                assert charge.memory_mib == engine.full_mib >= engine.held_mib or not is_known
            is_sure = is_known and not (engine.is_adopted or engine.is_lying)
            for device in () if engine.is_on_cpu else engine.devices:
                held_mib[device] += engine.held_mib
                shares[device] += charge.share if is_sure else 0.0
            is_planned = is_known and not engine.has_lied
            in_use_mib[engine.host] += engine.in_use_mib if is_planned else 0.0
            if replica.is_listed:
                # Gateways keep their links to one that is drained softly, and open nothing there.
                is_closed = replica.sleeps_after or engine.is_lying or not engine.is_alive
                assert engine.serves_right or is_closed
                assert replica.state in (State.READY, State.DRAINING)
        assert max(held_mib.values()) <= GPU_MIB - RESERVE_MIB
        assert max(shares.values()) <= 1.0
        assert max(in_use_mib.values()) <= RAM_MIB

    def fits(self) -> bool:
        """Whether what is charged fits in the bank of each host."""
        ledger = self.machine.cluster.ledger
        banks = [ledger.host_bank(host) for host in (LOCAL_HOST, FAR)]
        return all(ledger.free_mib(bank, "") >= 0.0 for bank in banks)

    # Time

    def go(self, seconds: float) -> None:
        """Let time pass, with every event at its time, and callers and a tick each second."""
        end_s, tick_s = self.now + seconds, self.now
        while self.now < end_s:
            self.due.sort(key=ORDER)
            if self.due and self.due[0][0] <= tick_s:
                self.now, _, event = self.due.pop(0)
                self.happen(event)
                continue
            self.now = tick_s
            tick_s += 1.0
            self.call()
            self.feed(events.Tick())

    def call(self) -> None:
        """Let each function that is called have a call: a replica that is listed answers it, if its
        sidecar opens an exchange; and report the load."""
        loads = {}
        for name, is_called in self.called.items():
            key = self.specs[name].key
            pool = self.machine.pools.get(key)
            if not is_called or pool is None:
                continue
            loads[key] = Load(0, 1, 0.0) if pool.is_warm else Load(1, 0, 0.0)
            listed = (id for id, one in pool.replicas.items() if one.is_listed)
            for engine in map(self.engines.__getitem__, listed):
                if engine.life is not State.READY or engine.is_working or not engine.is_alive:
                    self.refused += 1
                elif not engine.is_closing:
                    assert engine.serves_right
                    self.answered += 1
                    self.served.add(name)
        demand = Demand("w", next(self.seqs), True, loads, list(loads))
        self.feed(events.DemandReported(demand))

    def happen(self, event: Any) -> None:
        """An event of a process reaches the machine, if the process can still tell it."""
        id = getattr(event, "id", "")
        engine = self.engines.get(id)
        if engine is None:
            return
        if isinstance(event, Quiet):
            self.fall_quiet(id, engine)
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

    def fall_quiet(self, id: str, engine: Engine) -> None:
        if engine.is_closing and engine.is_alive:
            engine.is_closing = False
            self.live(id, engine, Park(id, None))

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
        return replica is None or replica.state not in (State.PROVING, State.PARKED)

    # Disturbances

    def disturb(self) -> None:
        """Something happens from outside."""
        what = self.random.choice(DISTURBANCES)
        self.injected[what] += 1
        ids = sorted(self.engines)
        name = self.random.choice(sorted(self.specs))
        match what:
            case "kill" if ids:
                id = self.random.choice(ids)
                self.die(id, self.engines[id])
            case "lose a device":
                gone = self.chance(0.5)
                self.feed(events.DeviceLost(self.random.choice(self.gpus).id, "Xid 79", gone))
            case "devices are back":
                self.mend()
            case "break the link to a host" if not self.cut_off:
                self.cut_off = True
                self.feed(events.HostUnreachable(FAR, "no route"))
            case "the host is back":
                self.join()
            case "fnctl park":
                self.feed(events.ParkRequested(self.specs[name].key))
            case "fnctl unpark":
                self.feed(events.UnparkRequested(self.specs[name].key))
            case "fnctl sleep":
                self.feed(events.SleepRequested(self.specs[name].key, self.chance(0.5)))
            case "memory is short":
                left_mib = self.random.choice((5_000.0, 12_000.0, MACHINE_MIB))
                host = self.random.choice((LOCAL_HOST, FAR))
                self.feed(events.MemoryRead(host, HostMemory(MACHINE_MIB, left_mib)))
            case _:
                self.administer(what, name)

    def administer(self, what: str, name: str) -> None:
        """An operator restarts the manager, or changes a function."""
        match what:
            case "restart":
                self.restart()
            case "restart with other memory":
                self.ram_mib = self.random.choice((RAM_MIB / 2, RAM_MIB))
                self.restart()
            case "restart, lives told wrong":
                self.restart(lying=0.5)
            case "shut down":
                self.shut_down()
            case "redeploy":
                self.deploy(name)
            case "remove and deploy":
                self.feed(events.PoolRemoved(self.specs[name].key))
                self.go(self.random.choice((0.0, 3.0)))
                self.deploy(name)
            case "min and max":
                least, most = self.random.choice(((0, 1), (0, 2), (1, 1)))
                is_single = self.specs[name].count == 1
                self.specs[name] = replace(
                    self.specs[name], min=least if is_single else 0, max=most if is_single else 1
                )
                self.feed(events.PoolDefined(self.specs[name]))

    def deploy(self, name: str) -> None:
        """Make a new revision of a function, and remove the one before."""
        if name == "cpu":
            return
        before = self.specs[name].key
        stem, _, number = before.partition("@")
        self.specs[name] = replace(self.specs[name], key=f"{stem}@{int(number) + 1}", min=0, max=1)
        self.feed(events.PoolDefined(self.specs[name]))
        self.feed(events.PoolRemoved(before))

    def redeploy_switched_off(self) -> None:
        """Deploy anew what is not parked any more, after two that went wrong."""
        for name, spec in list(self.specs.items()):
            pool = self.machine.pools.get(spec.key)
            if pool is not None and pool.parks.off:
                self.injected["parks off"] += 1
                self.deploy(name)

    def mend(self) -> None:
        for device in self.gpus:
            self.feed(events.DeviceBack(device.id))

    def join(self) -> None:
        """The other host is back: its processes greet again, and say what they had to say."""
        if not self.cut_off:
            return
        self.cut_off = False
        self.feed(self.up())
        for id, engine in list(self.engines.items()):
            if engine.host == FAR and engine.is_alive and not engine.is_leaving:
                self.feed(events.Greeted(id, {}, engine.is_loaded))
                if not engine.is_loaded:
                    self.later(1.0, loaded(id, engine))

    def settle(self) -> None:
        """Mend everything and let it come to rest."""
        self.faults, self.ram_mib = 0.0, RAM_MIB
        self.join()
        self.mend()
        for host in (LOCAL_HOST, FAR):
            self.feed(events.MemoryRead(host, HostMemory(MACHINE_MIB, MACHINE_MIB)))
        for name, spec in self.specs.items():
            self.specs[name] = replace(spec, min=0, max=1)
            self.feed(events.PoolDefined(self.specs[name]))
