"""Property tests of the pool machine: any order of events keeps its promises.

A world of processes, gateways and a clock feeds the machine; every command and every record is
checked against the promises after every event.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from pool_manager.core import events
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec, Role, State
from registry.exchange import Demand, Load
from registry.model.hosts import LOCAL_HOST
from tests.support.book import Book, charged, host_of
from tests.support.doses import amount
from tests.support.promises import Promises, Sleepless

GANG = "default/g@1"
"""A function whose replicas take two GPUs each."""
KEYS = ["default/a@1", "default/a@2", "default/b@1", "default/c@1", "default/e@1", GANG]
KINDS = ["any", "any", "any", "cuda", "cuda", "cuda"]
SERVERS = {"default/b@1", "default/e@1", GANG}
HANDLERS = {"default/a@1", "default/a@2"}
DRAIN_S = 20.0
TRIAL = "default/d@1"
WORKERS = ["w1", "w2"]
DEVICES = [
    Device("cpu0", "cpu", 2_000, "ram"),
    Device("cpu1", "cpu", 2_000, "ram"),
    Device("GPU-1", "cuda", 2_500),
    Device("GPU-2", "cuda"),
    Device("GPU-3", "cuda", 4_000),
]
NOWHERE = "GPU-9"
FAR = {
    "far": [
        Device("far/cpu0", "cpu", 2_000, "far/ram", "far"),
        Device("far/cpu1", "cpu", 2_000, "far/ram", "far"),
        Device("far/GPU-1", "cuda", 2_500, host="far"),
    ],
    "off": [Device("off/GPU-1", "cuda", 4_000, host="off", is_exclusive=True)],
}
ENDINGS_MAX = 40
"""Steps of 5 s within which a shut-down host must have no replica left."""

COMING = [State.STARTING, State.STANDBY, State.LOADING]
UNENDING = list(State)

keys = st.sampled_from(KEYS)
picks = st.integers(0, 5)
load = st.builds(Load, st.integers(0, 9), st.integers(0, 3), st.sampled_from([0.0, 0.5]))
loads = st.one_of(
    st.just({}),
    st.builds(lambda key, one: {key: one}, keys, load),
    st.dictionaries(st.sampled_from([*KEYS, "default/unknown@1"]), load, max_size=4),
)
devices = st.lists(st.sampled_from(DEVICES), min_size=1, max_size=4, unique=True)
places = st.sampled_from(
    [*(device.id for device in (*DEVICES, *itertools.chain(*FAR.values()))), NOWHERE]
)
hosts = st.sampled_from([*FAR])
roles = st.sampled_from(["serve", "trial", "standby"])
memories = st.sampled_from([0.0, 80.0, 700.0, 1_600.0])
shares = st.sampled_from([1.0, 0.5, 0.4])


class World(Promises):
    """Surroundings of the machine: driver, devices, gateways and clock."""

    def __init__(self) -> None:
        super().__init__()
        self.seqs, self.olds = itertools.count(1), itertools.count(1)
        self.said: dict[str, dict[str, Load]] = {}
        self.missed: set[str] = set()

    @initialize(
        there=devices,
        standbys=st.tuples(st.integers(0, 2), st.integers(0, 2)),
        found=st.lists(st.tuples(keys, roles, places), max_size=3, unique_by=lambda one: one[2]),
        is_open=st.sampled_from([True, True, False]),
        up=st.sampled_from([[], ["far"], ["far", "off"]]),
        is_handler=st.booleans(),
    )
    def build(
        self,
        there: list[Device],
        standbys: tuple[int, int],
        found: list[tuple[str, Role, str]],
        is_open: bool,
        up: list[str],
        is_handler: bool,
    ) -> None:
        """Create hosts with some devices; an earlier manager may have left replicas on them."""
        self.handlers = HANDLERS if is_handler else set()
        self.standbys, self.gpu_standbys = standbys
        self.book = Book({device.id: device for device in there})
        ids, twins = itertools.count(1), itertools.count(1)
        self.machine = Machine(there, lambda: f"r{next(ids)}", *standbys)
        self.twin = Sleepless(there, lambda: f"r{next(twins)}", *standbys)
        for key in KEYS[:3]:
            self.define(key, 0, 2, 10.0, 1.0, 0.0)
        for host in up:
            self.feed(events.HostDefined(host))
        for key, role, device in found:
            self.find(key, role, device)
        for host in up:
            self.connect(host)
        if is_open:
            self.read_list()

    @precondition(lambda self: not self.is_list_read)
    @rule(key=keys, role=roles, device=places)
    def find(self, key: str, role: Role, device: str) -> None:
        """The driver lists a replica of an earlier manager; its device may be gone."""
        id, host = f"old{next(self.olds)}", host_of(device)
        if role == "standby":
            where = () if "cpu" in device else (device,)
            self.book.stand_by(id, where, host)
            self.feed(events.Found(id, "", where, role, host))
            return
        if self.book.shares(device):
            return
        self.known.add(key)
        self.book.place(id, self.specs.get(key, PoolSpec(key, role=role)), (device,))
        self.feed(events.Found(id, key, (device,), role, host))

    # Events

    @rule(
        key=keys,
        least=st.sampled_from([0, 0, 1, 2]),
        more=st.integers(0, 2),
        idle_s=st.sampled_from([0, 5]),
        share=shares,
        memory_mib=memories,
        batches=st.sampled_from([True, True, False]),
    )
    def define(
        self,
        key: str,
        least: int,
        more: int,
        idle_s: float,
        share: float,
        memory_mib: float,
        batches: bool = True,
    ) -> None:
        """A function is deployed or its settings change."""
        spec = PoolSpec(
            key,
            least,
            max(1, least + more),
            idle_s,
            KINDS[KEYS.index(key)],
            function=key.partition("@")[0],
            share=1.0 if key == GANG else share,
            count=2 if key == GANG else 1,
            memory_mib=memory_mib,
            batches=batches,
            is_server=key in SERVERS,
            load_s=12.0 if key in SERVERS else 0.0,
            start_s=40.0,
            drain_s=DRAIN_S,
            stop_grace_s=5.0,
            may_rerun=key not in self.handlers,
        )
        self.feed(events.PoolDefined(self.spec(spec)))

    @rule(key=st.sampled_from([*KEYS, TRIAL]))
    def remove(self, key: str) -> None:
        """A function is removed or a deploy is cancelled, whether it exists or not."""
        self.specs.pop(key, None)
        self.feed(events.PoolRemoved(key))
        assert key not in self.asked

    @rule(
        kind=st.sampled_from(["any", "cuda"]),
        count=st.sampled_from([1, 1, 2]),
        memory_mib=memories,
        is_server=st.booleans(),
        evicts=st.booleans(),
    )
    def try_out(
        self, kind: str, count: int, memory_mib: float, is_server: bool, evicts: bool
    ) -> None:
        """A deploy requests a trial; the devices of a running trial never change."""
        if known := self.specs.get(TRIAL):
            kind, count, is_server = known.device_kind, known.count, known.is_server
        spec = PoolSpec(
            TRIAL,
            role="trial",
            device_kind=kind,
            count=count,
            evicts=evicts,
            memory_mib=memory_mib,
            is_server=is_server,
            drain_s=DRAIN_S,
            stop_grace_s=5.0,
        )
        self.feed(events.PoolDefined(self.spec(spec)))

    @rule(key=st.sampled_from([*KEYS, "default/unknown@1"]), beside=st.booleans())
    def warm(self, key: str, beside: bool) -> None:
        """A caller requests a warm pool."""
        self.feed(events.WarmRequested(key, beside))
        assert key in self.specs or key not in self.asked

    @rule(key=keys)
    def stop_warming(self, key: str) -> None:
        """The caller cancels the request."""
        self.feed(events.WarmCancelled(key))

    @rule(key=st.sampled_from([*KEYS, "default/unknown@1"]), force=st.booleans())
    def sleep(self, key: str, force: bool) -> None:
        """A caller requests that a pool sleeps."""
        self.feed(events.SleepRequested(key, force))

    @rule(key=st.sampled_from([*KEYS, "default/unknown@1"]))
    def unload(self, key: str) -> None:
        """A client unloads a pool."""
        self.feed(events.UnloadRequested(key))

    @rule(key=st.sampled_from([*KEYS, "default/unknown@1"]))
    def remove_cause(self, key: str) -> None:
        """An operator removes what a pool's starts may have failed for."""
        self.feed(events.CauseRemoved(key))

    @rule(worker=st.sampled_from(WORKERS), wants=loads, full=st.sampled_from([True, True, False]))
    def demand(self, worker: str, wants: dict[str, Load], full: bool) -> None:
        """A gateway worker reports its demand."""
        self.hear(worker, wants, full=full)

    def hear(self, worker: str, wants: dict[str, Load], *, full: bool = True) -> None:
        self.said[worker] = wants if full else self.said.get(worker, {}) | wants
        self.feed(events.DemandReported(Demand(worker, next(self.seqs), full, wants)))

    @rule(key=keys, one=load)
    def turn_to(self, key: str, one: Load) -> None:
        """All clients call one function, which is brought up; the others are idle."""
        for worker in WORKERS:
            self.hear(worker, {key: one})
        for pick in range(len(self.book.entries)):
            self.bring_up(pick, 80.0)

    @rule(seconds=st.sampled_from([1, 7, 20]), others=loads, is_up=st.booleans())
    def call_for_two(self, seconds: int, others: dict[str, Load], is_up: bool) -> None:
        """The function on two GPUs is called for some time, beside others."""
        if GANG not in self.specs:
            self.define(GANG, 0, 1, 5.0, 1.0, 0.0)
        for worker in WORKERS:
            self.hear(worker, others | {GANG: Load(2, 0, 0.5)})
        self.wait(seconds)
        if is_up:
            self.clear([State.DRAINING, State.RELEASING])
            for pick in range(len(self.book.entries)):
                self.bring_up(pick, 80.0)

    @rule(worker=st.sampled_from(WORKERS))
    def lose_worker(self, worker: str) -> None:
        """A gateway worker dies."""
        self.said.pop(worker, None)
        self.feed(events.WorkerLost(worker))

    @precondition(lambda self: not self.is_list_read)
    @rule()
    def read_list(self) -> None:
        """The driver's list is complete."""
        self.is_list_read = True
        self.feed(events.ReplicasListed())

    @rule(host=st.sampled_from([LOCAL_HOST, LOCAL_HOST, *FAR]))
    def lose_engine(self, host: str) -> None:
        """The driver's engine does not answer."""
        self.feed(events.EngineLost("no answer", host))

    @precondition(lambda self: any(one.is_engine_down for one in self.links.hosts.values()))
    @rule(pick=picks)
    def find_engine(self, pick: int) -> None:
        """The engine answers again; a replica may have ended meanwhile."""
        down = sorted(name for name, one in self.links.hosts.items() if one.is_engine_down)
        gone = self.some(pick, State.READY, State.LOADING, State.DRAINING)
        host = down[pick % len(down)]
        self.feed(events.EngineBack(frozenset(self.book.on_host(host) - set(gone)), host))

    # Other hosts

    @rule(host=st.sampled_from([LOCAL_HOST, *FAR]), is_draining=st.booleans())
    def define_host(self, host: str, is_draining: bool) -> None:
        """A host is added, drained or opened again."""
        self.feed(events.HostDefined(host, is_draining=is_draining))

    @rule(
        host=hosts,
        missing=st.sets(picks, max_size=2),
        is_smaller=st.sampled_from([False, False, True]),
    )
    def bring_host(self, host: str, missing: set[int], is_smaller: bool) -> None:
        """The manager connects to a host. Some of its replicas have ended, a device may lack."""
        if host in self.links.hosts:
            self.connect(host, missing, is_smaller=is_smaller)

    def connect(
        self, host: str, missing: Collection[int] = (), *, is_smaller: bool = False
    ) -> None:
        """Connect to a host, on which all replicas run but those at the positions `missing`."""
        there = sorted(self.book.on_host(host))
        running = frozenset(id for at, id in enumerate(there) if at not in missing)
        epoch = self.links.hosts[host].epoch + 1
        devices = tuple(FAR[host][: -1 if is_smaller else None])
        for device in FAR[host]:
            self.book.devices.pop(device.id, None)
            if device not in devices:
                self.cordoned.pop(device.id, None)
                self.barred.pop(device.id, None)
        self.book.devices |= {one.id: one for one in devices}
        self.feed(events.HostUp(host, epoch, devices, running, rtt_s=0.001))

    @rule(host=hosts)
    def lose_host(self, host: str) -> None:
        """The connection to a host breaks."""
        self.feed(events.HostUnreachable(host, "no answer"))

    @rule(host=hosts, silence_s=st.sampled_from([2.0, 20.0, 80.0]), missing=st.sets(picks))
    def cut_host_off(self, host: str, silence_s: float, missing: set[int]) -> None:
        """A host cannot be reached for some time; some of its replicas end meanwhile."""
        if host not in self.links.hosts:
            return
        self.lose_host(host)
        for _ in range(4):
            self.pass_time(silence_s / 4, True)
        if host in self.links.hosts:
            self.connect(host, missing)
            self.greet_again(0, everybody=True)

    @rule(host=hosts, pick=st.sampled_from(["up", "down"]))
    def replay(self, host: str, pick: str) -> None:
        """An event of an earlier connection arrives late: it changes nothing."""
        link = self.links.hosts.get(host)
        if link is None or not link.epoch:
            return
        before = [(one.id, one.state, one.contact) for one in self.machine.replicas()]
        late: events.Event = events.HostUp(host, link.epoch, (), frozenset())
        if pick == "down":
            late = events.HostUnreachable(host, "late", link.epoch - 1)
            if link.epoch == 1:
                return
        self.feed(late)
        assert before == [(one.id, one.state, one.contact) for one in self.machine.replicas()]

    @rule(host=hosts, is_forced=st.booleans())
    def remove_host(self, host: str, is_forced: bool) -> None:
        """An operator removes a host."""
        self.feed(events.HostRemoved(host, is_forced))

    @rule(pick=picks, loaded=st.booleans(), everybody=st.booleans())
    def greet_again(self, pick: int, loaded: bool = False, everybody: bool = False) -> None:
        """Replicas of other hosts connect again, perhaps before their host counts as up."""
        far = sorted(one.id for one in self.machine.replicas() if one.host != LOCAL_HOST)
        for id in far if everybody else far[pick : pick + 1]:
            self.feed(events.Greeted(id, {"start": 3.0}, loaded))

    @rule(device=places, is_gone=st.booleans())
    def lose_device(self, device: str, is_gone: bool) -> None:
        """A device fails or needs a reset, also one that the host does not have."""
        self.feed(events.DeviceLost(device, "XID 79", is_gone))

    @precondition(lambda self: self.book.entries)
    @rule(
        pick=picks,
        states=st.sampled_from([COMING, [State.LOADING], [State.READY], [State.DRAINING]]),
        is_gone=st.booleans(),
    )
    def lose_device_under(self, pick: int, states: list[State], is_gone: bool) -> None:
        """A device fails while a replica is on it."""
        for id in self.some(pick, *states):
            self.feed(events.DeviceLost(self.replica(id).first_device, "XID 48", is_gone))

    @precondition(lambda self: self.cordoned)
    @rule(pick=picks)
    def find_device(self, pick: int) -> None:
        """A device is usable again, also one that the host does not have."""
        lost = sorted([*self.cordoned, NOWHERE])
        self.feed(events.DeviceBack(lost[pick % len(lost)]))

    @precondition(lambda self: self.some(0, State.STARTING))
    @rule(pick=picks, loaded=st.booleans())
    def greet(self, pick: int, loaded: bool) -> None:
        """A process connects."""
        for id in self.some(pick, State.STARTING):
            self.feed(events.Greeted(id, {"start": 3.0}, loaded))

    @precondition(lambda self: self.some(0, State.STARTING, State.LOADING))
    @rule(pick=picks, memory_mib=memories)
    def load(self, pick: int, memory_mib: float) -> None:
        """A replica loads its model."""
        self.bring_up(pick, memory_mib)

    def bring_up(self, pick: int, memory_mib: float) -> None:
        for id in self.some(pick, State.STARTING, State.LOADING):
            self.feed(events.Greeted(id, {"start": 3.0}))
            if self.state(id) is State.LOADING:
                self.feed(events.Loaded(id, 4, True, memory_mib, {"load": 5.0}, {"load_ms": 5.0}))
                self.feed(events.FirstRun(id, 1.0))

    @precondition(lambda self: self.some(0, State.READY))
    @rule(pick=picks)
    def refute(self, pick: int) -> None:
        """A replica reports that rows of its requests mix."""
        for id in self.some(pick, State.READY):
            self.feed(events.BatchingRefuted(id, "rows are lost"))

    @precondition(lambda self: self.some(0, State.DRAINING))
    @rule(pick=picks, idle_s=st.sampled_from([0.0, 3.0]))
    def refuse(self, pick: int, idle_s: float) -> None:
        """A draining replica reports that it was used."""
        for id in self.some(pick, State.DRAINING):
            self.feed(events.NotIdle(id, idle_s))

    @precondition(lambda self: self.book.entries)
    @rule(
        pick=picks,
        states=st.sampled_from([UNENDING, [State.LOADING], [State.DRAINING], [State.STANDBY]]),
        is_its_fault=st.sampled_from([True, True, False]),
    )
    def end(self, pick: int, states: list[State], is_its_fault: bool) -> None:
        """A process exits, crashes, hangs, or refuses its model."""
        for id in self.some(pick, *states):
            self.feed(events.Lost(id, "exit 1", ("last line",), "load", is_its_fault))

    @precondition(lambda self: self.book.entries)
    @rule(
        pick=picks,
        states=st.sampled_from([COMING, [State.STARTING], [State.READY], [State.DRAINING]]),
        refused_s=st.sampled_from([0.5, 30.0, 1e6]),
        is_eviction=st.booleans(),
        times=st.sampled_from([1, 1, 3, 12]),
    )
    def turn_away(
        self, pick: int, states: list[State], refused_s: float, is_eviction: bool, times: int
    ) -> None:
        """The engine of a host has no place for replicas, or takes it back."""
        for _ in range(times):
            for id in self.some(pick, *states):
                lost = events.Lost(id, "0/3 nodes", (), "", False, "it was evicted", False)
                self.feed(replace(lost, refused_s=refused_s, is_eviction=is_eviction))

    @precondition(lambda self: self.some(0, *COMING))
    @rule(pick=picks, text=st.sampled_from(["", "pulls the image", "makes a sandbox"]))
    def work_on(self, pick: int, text: str) -> None:
        """The engine of a host reports what it does for a start."""
        for id in self.some(pick, *COMING):
            self.feed(events.Starting(id, text))

    @rule(states=st.sampled_from([COMING, [State.READY], [State.DRAINING], [State.RELEASING]]))
    def clear(self, states: list[State]) -> None:
        """All processes in some states end and are released at once."""
        for replica in self.machine.replicas():
            if replica.state in states:
                self.feed(events.Lost(replica.id, "exit 1"))
                self.feed(events.Released(replica.id))

    @precondition(lambda self: self.some(0, State.RELEASING))
    @rule(pick=picks, works=st.booleans())
    def release(self, pick: int, works: bool) -> None:
        """The remains of a process are released, or cannot be."""
        for id in self.some(pick, State.RELEASING):
            self.feed(events.Released(id) if works else events.NotReleased(id, "stuck"))

    @precondition(lambda self: self.book.entries)
    @rule(pick=picks, number=st.integers(0, 7))
    def cross(self, pick: int, number: int) -> None:
        """An event arrives that does not match the replica's state."""
        id = next(iter(self.some(pick, *(set(State) - {State.RELEASING}))), "nobody")
        news: list[events.Event] = [
            events.Greeted(id, {}),
            events.NotIdle(id, 1.0),
            events.Released(id),
            events.FirstRun(id, 1.0),
            events.Lost("nobody", "exit 1"),
            events.Lost("nobody", "0/3 nodes", refused_s=30.0),
            events.Starting(id, "late"),
            events.BatchingRefuted(id, "rows are lost"),
        ]
        self.feed(news[number])

    @rule(step_s=st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0, 30.0, 60.0, 400.0]), alive=st.booleans())
    def pass_time(self, step_s: float, alive: bool) -> None:
        """Time passes; gateways that are alive keep reporting."""
        self.now += step_s
        self.go_on(alive=alive)

    @rule(seconds=st.integers(5, 15))
    def wait(self, seconds: int) -> None:
        """Some seconds pass in which gateways only repeat their reports."""
        for _ in range(seconds):
            self.now += 1.0
            self.go_on(alive=True)

    def go_on(self, *, alive: bool) -> None:
        if alive:
            for worker, wants in self.said.items():
                self.feed(events.DemandReported(Demand(worker, next(self.seqs), True, wants)))
        # A device released by a later pool of a tick is seen by an earlier pool at the next tick.
        self.feed(events.Tick())
        self.feed(events.Tick())
        self.check_progress()

    def teardown(self) -> None:
        """After a shutdown no replica is left once releases work, whatever the processes do."""
        if not hasattr(self, "machine"):
            return
        self.check_ledger()
        self.feed(events.Shutdown())
        self.end_all()
        assert self.machine.is_stopped
        for host in FAR:
            if host in self.links.hosts and not self.links.is_up(host):
                self.connect(host)
        self.end_all()
        assert self.machine.replicas() == []
        assert self.book.entries == {}
        assert self.asked == set()
        assert self.machine.cluster.ledger.reservations == {}

    def end_all(self) -> None:
        """Time passes until all replicas that can be ended have ended."""
        for _ in range(ENDINGS_MAX):
            self.now += 5.0
            self.feed(events.Tick())
            for one in self.machine.replicas():
                if one.state is State.RELEASING and one.is_reachable:
                    self.feed(events.Released(one.id))
                    break

    def check_ledger(self) -> None:
        """When all hosts are back and all their replicas have greeted, what is charged is what
        runs, and all of it is known."""
        for host in FAR:
            if host in self.links.hosts and not self.links.is_up(host):
                self.connect(host)
        self.greet_again(0, everybody=True)
        for one in self.machine.replicas():
            assert not one.is_unknown
        ids = {one.id for one in self.machine.replicas()}
        everywhere = (*DEVICES, *itertools.chain(*FAR.values()))
        assert charged(self.machine.cluster.ledger, everywhere) == ids == self.book.entries.keys()

    def some(self, pick: int, *states: State) -> list[str]:
        """Return one replica in one of `states`, if there is any."""
        ids = sorted(r.id for r in self.machine.replicas() if r.state in states)
        return [ids[pick % len(ids)]] if ids else []

    def state(self, id: str) -> State:
        """Return the state of an existing replica."""
        return self.replica(id).state


TestWorld = World.TestCase
TestWorld.__doc__ = "No history of events makes the machine break a promise."
TestWorld.settings = settings(
    max_examples=amount(100, 200),
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
)
