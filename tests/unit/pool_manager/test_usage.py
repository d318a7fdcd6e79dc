"""Device-seconds of replicas."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool_manager.attribution import Attributed
from pool_manager.core import events
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec, State
from pool_manager.gpus.absent import NoGpus
from pool_manager.ports import GpuView
from pool_manager.usage import (
    FLUSH_S,
    FUNCTIONS_MAX,
    STAGES,
    HeldTotals,
    Owner,
    Stage,
    UsageMeter,
    UsageMonitor,
)
from registry.exchange import Demand, Load
from registry.model.devices import DeviceModel, Use
from registry.model.history import ColdStart, StateInterval
from registry.model.hosts import LOCAL_HOST
from runtime_image.contract.gpus import Reading, Telemetry
from runtime_image.contract.link import BUSY_MASK
from tests.support.replicas import KEY, binding
from tests.unit.pool_manager.core.park.test_parks import sleeper

DIGITS = Owner("default", "digits", 3)
OFFSET_S = 6000.0


def use(minute_s: int, waking_s: float, idle_s: float, busy_s: float) -> Use:
    return Use(*DIGITS, "cuda:0", minute_s, waking_s, idle_s, busy_s)


def up(meter: UsageMeter, id: str = "r1", now: float = 0.0) -> None:
    meter.set_stage(id, DIGITS, ("cuda:0",), "up", now)


def test_a_life_is_counted_by_stage() -> None:
    """Starting counts as waking; from READY on, reported runs are busy and the rest is idle."""
    meter = UsageMeter(OFFSET_S)
    meter.set_stage("r1", DIGITS, ("cuda:0",), "waking", 1.0)
    up(meter, now=3.0)
    meter.report_busy("r1", 500, 8.0)
    meter.report_busy("r1", 2500, 13.0)
    meter.end("r1", 15.0)

    assert meter.take(20.0) == [use(6000, 2.0, 9.5, 2.5)]
    assert meter.take(30.0) == []
    assert not meter.knows("r1")


def test_a_replica_on_several_devices_is_counted_on_each() -> None:
    """Its seconds, its runs and its share of being busy are those of each of its devices."""
    meter = UsageMeter(OFFSET_S)
    meter.set_stage("r1", DIGITS, ("g1", "g2"), "up", 0.0)
    meter.report_busy("r1", 1_000, 4.0)

    assert (meter.busy("g1"), meter.busy("g2"), meter.busy("g3")) == (0.25, 0.25, 0.0)
    assert meter.take(4.0) == [Use(*DIGITS, id, 6000, 0.0, 3.0, 1.0) for id in ("g1", "g2")]


def test_seconds_go_to_the_minutes_they_were_in() -> None:
    """A span over the end of a minute is divided, and its busy part evenly."""
    meter = UsageMeter(OFFSET_S)
    up(meter, now=50.0)
    meter.report_busy("r1", 10_000, 70.0)

    assert meter.take(70.0) == [use(6000, 0.0, 5.0, 5.0), use(6060, 0.0, 5.0, 5.0)]


def test_a_replica_is_believed_up_to_the_time_that_passed() -> None:
    """Reported busy time never exceeds the elapsed time, neither by a lie nor by a count that went
    back."""
    meter = UsageMeter(OFFSET_S)
    up(meter)
    meter.report_busy("r1", 2_000_000_000, 5.0)
    meter.report_busy("r1", 1, 10.0)
    meter.report_busy("r1", 900, 10.0)

    assert meter.take(10.0) == [use(6000, 0.0, 5.0, 5.0)]


def test_a_count_that_goes_back_a_little_is_no_run() -> None:
    """A count that goes back slightly (read while a run ended) counts as no run, not as 49 days."""
    meter = UsageMeter(OFFSET_S)
    up(meter)
    meter.report_busy("r1", 1000, 5.0)
    meter.report_busy("r1", 998, 10.0)

    assert meter.take(10.0) == [use(6000, 0.0, 9.0, 1.0)]


def test_the_count_may_wrap() -> None:
    """The 32-bit count may wrap after 49 days of runs."""
    meter = UsageMeter(OFFSET_S)
    up(meter)
    meter.report_busy("r1", BUSY_MASK - 999, 5.0)
    meter.take(5.0)
    meter.report_busy("r1", 1000, 10.0)

    assert meter.take(10.0) == [use(6000, 0.0, 3.0, 2.0)]


def test_what_an_adopted_replica_ran_before_is_not_counted() -> None:
    """An adopted replica's first PONG is the base, and the second counts."""
    meter = UsageMeter(OFFSET_S)
    meter.set_stage("r1", DIGITS, ("cuda:0",), "waking", 0.0)
    meter.adopt("r1")
    up(meter, now=1.0)
    meter.report_busy("r1", 40_000, 2.0)
    before = meter.busy("cuda:0")
    meter.report_busy("r1", 41_000, 4.0)

    assert before is None
    assert meter.take(4.0) == [use(6000, 1.0, 2.0, 1.0)]
    assert meter.busy("cuda:0") == 0.5


def test_busy_now_is_the_mean_of_the_last_seconds() -> None:
    """The share is 0 without replicas, unknown before a PONG, then the sum over all replicas, over
    five seconds or the time between two PONGs."""
    meter = UsageMeter(OFFSET_S)
    empty = meter.busy("cuda:0")
    up(meter)
    silent = meter.busy("cuda:0")
    for second in range(1, 21):
        meter.report_busy("r1", second * 1000 if second <= 10 else 10_000, float(second))
    after = meter.busy("cuda:0")
    up(meter, "r2", 20.0)
    meter.report_busy("r2", 2500, 25.0)

    assert (empty, silent, after) == (0.0, None, 0.0)
    assert meter.busy("cuda:0") == 0.5
    assert meter.busy("cuda:1") == 0.0


def test_standbys_are_idle_and_nobodys() -> None:
    """A standby's seconds on a GPU are idle and have no owner; one for the CPU has no device and
    does not count."""
    meter = UsageMeter(OFFSET_S)
    nobody = Owner("", "", 0)
    meter.set_stage("s1", nobody, ("cuda:0",), "standby", 0.0)
    meter.set_stage("s2", nobody, (), "standby", 0.0)
    first = meter.take(2.0)
    meter.set_stage("s1", DIGITS, ("cuda:0",), "waking", 3.0)
    meter.report_busy("s1", 100, 4.0)

    assert first == [Use(*nobody, "cuda:0", 6000, 0.0, 2.0, 0.0)]
    assert meter.take(4.0) == [
        Use(*nobody, "cuda:0", 6000, 0.0, 1.0, 0.0),
        use(6000, 1.0, 0.0, 0.0),
    ]


def test_nobody_speaks_for_a_replica_that_is_gone() -> None:
    """A PONG after the end is not counted."""
    meter = UsageMeter(OFFSET_S)
    meter.end("r1", 1.0)
    meter.report_busy("r1", 100, 2.0)

    assert meter.take(3.0) == []


STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 200.0),
        st.sampled_from(["waking", "up", "standby", "hear", "adopt", "end", "take"]),
        st.integers(0, BUSY_MASK),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_second_is_counted_once(steps: list[tuple[float, str, int]]) -> None:
    """Whatever the order of events, no part is negative and the sum is the lifetime of the
    replica."""
    meter, now, began_s, there_s = UsageMeter(OFFSET_S), 0.0, None, 0.0
    kept: list[Use] = []
    stages: dict[str, Stage] = {"waking": "waking", "up": "up", "standby": "standby"}
    for pause_s, what, number in [*steps, (1.0, "end", 0)]:
        now += pause_s
        if what in stages:
            meter.set_stage("r1", DIGITS, ("cuda:0",), stages[what], now)
            began_s = now if began_s is None else began_s
        elif what == "hear":
            meter.report_busy("r1", number, now)
        elif what == "adopt" and began_s is not None:
            meter.adopt("r1")
        elif what == "end":
            there_s += now - began_s if began_s is not None else 0.0
            began_s = None
            meter.end("r1", now)
        kept += meter.take(now) if what == "take" else []
        assert 0.0 <= (meter.busy("cuda:0") or 0.0) <= 1.0
    kept += meter.take(now)

    parts = [part for one in kept for part in (one.waking_s, one.idle_s, one.busy_s)]
    assert all(part >= 0.0 for part in parts)
    assert abs(sum(parts) - there_s) < 1e-6


UNIX_S = 6000.0
"""At second 0 of the rig's clock."""


class Records:
    """Keeps the use."""

    def __init__(self) -> None:
        self.use_kept: list[Use] = []
        self.models: list[DeviceModel] = []

    def cold_start(self, record: ColdStart) -> None:
        """Ignore the record."""

    def state_interval(self, record: StateInterval) -> None:
        """Ignore the record."""

    def use(self, record: Use) -> None:
        self.use_kept.append(record)

    def device_model(self, record: DeviceModel) -> None:
        self.models.append(record)


class OneGpu(NoGpus):
    """A GPU whose energy counter is set by the test, None for a driver without one."""

    def __init__(self) -> None:
        super().__init__()
        self.energy_mj: int | None = None

    def view(self, device: str) -> GpuView | None:
        reading = Reading(device, "0", telemetry=Telemetry(energy_mj=self.energy_mj))
        return GpuView("NVIDIA A", "0", None, None, None, None, 0.0, reading=reading)


GPU = Device("cuda:0", "cuda", 80_000.0)


class Rig:
    """A machine with one device, its events fed by hand, as the manager feeds them."""

    def __init__(self, gpu_standbys: int = 0, device: Device = GPU) -> None:
        self.now, self.jump_s = 0.0, 0.0
        self.gpus = OneGpu()
        numbers = itertools.count(1)
        self.machine = Machine([device], lambda: f"r{next(numbers)}", 0, gpu_standbys)
        self.records = Records()
        self.bindings = {KEY: binding()}
        self.watch = UsageMonitor(
            self.machine,
            self.bindings,
            self.records,
            (lambda: self.now, lambda: UNIX_S + self.now + self.jump_s),
            lambda device: self.gpus.view(device.id),
        )

    def feed(self, event: events.Event, after_s: float = 0.0) -> list[str]:
        """Ids that the commands name."""
        self.now += after_s
        commands = self.machine.handle(event, self.now)
        self.watch.observe(event)
        for command in commands:
            self.watch.observe(command)
        return [command.id for command in commands if hasattr(command, "id")]

    def begin(self) -> None:
        self.feed(events.PoolDefined(PoolSpec(KEY, idle_s=60.0)))
        self.feed(events.ReplicasListed())
        self.ask()

    def ask(self) -> None:
        load = {KEY: Load(1, 0, 0.0)}
        self.feed(events.DemandReported(Demand("w", 1, True, load)))

    def kept(self) -> dict[str, Any]:
        """Return the records since the last call, by name: number and seconds."""
        self.watch.flush()
        kept, self.records.use_kept = self.records.use_kept, []
        return {
            one.name: (one.number, round(one.waking_s, 3), round(one.idle_s, 3), one.busy_s)
            for one in kept
            if one.waking_s + one.idle_s + one.busy_s
        }

    def held(self) -> dict[str, tuple[float, float]]:
        """Return device-seconds and joules since the last call, by name."""
        self.watch.flush(is_last=True)
        kept, self.records.use_kept = self.records.use_kept, []
        found: dict[str, tuple[float, float]] = {}
        for one in kept:
            held_s, joules = found.get(one.name, (0.0, 0.0))
            found[one.name] = round(held_s + one.held_s, 6), round(joules + one.joules, 6)
        return found

    def pass_s(self, seconds: float, watts: float) -> None:
        """Let the time pass while the GPU takes so much power."""
        self.now += seconds
        if self.gpus.energy_mj is not None:
            self.gpus.energy_mj += round(seconds * watts * 1000)
        self.watch.tick()


LOADED = events.Loaded("r1", 2, True, 100.0, {})


def test_a_life_from_launch_to_release() -> None:
    """Starting and loading are waking, reported runs are busy, a release is not counted."""
    rig = Rig()
    rig.begin()
    rig.feed(events.Greeted("r1", {}), 2.0)
    rig.feed(LOADED, 1.0)
    rig.now += 5.0
    rig.watch.on_pong("r1", 1500)
    busy = rig.watch.busy("cuda:0")
    rig.feed(events.Lost("r1", "exit 0"), 1.0)
    rig.feed(events.Released("r1"), 4.0)

    assert busy == 0.3
    assert rig.kept() == {"digits": (1, 3.0, 4.5, 1.5)}
    assert rig.watch.busy("cuda:0") == 0.0


def test_a_replica_that_is_kept_holds_no_cpu_slot() -> None:
    """It takes memory; its seconds without a call are those of nobody."""
    rig = Rig(device=Device("cpu:0", "cpu", 8_000.0))
    rig.begin()
    rig.feed(events.Greeted("r1", {}), 2.0)
    rig.feed(LOADED, 1.0)
    rig.feed(events.DemandReported(Demand("w", 2, True, {})), 4.0)
    rig.watch.tick()
    rig.pass_s(10.0, 0.0)

    assert rig.held() == {"digits": (7.0, 0.0), "": (10.0, 0.0)}


def test_a_standby_is_nobodys_until_it_is_given_away() -> None:
    """A standby's seconds have no owner until it is assigned, also if it is assigned while it
    starts, without a command."""
    rig = Rig(gpu_standbys=1)
    rig.feed(events.PoolDefined(PoolSpec(KEY, idle_s=60.0)))
    rig.feed(events.ReplicasListed())
    rig.feed(events.DemandReported(Demand("w", 1, True, {})))
    rig.now += 2.0
    rig.ask()
    rig.watch.tick()
    rig.now += 1.0

    assert rig.kept() == {"": (0, 2.0, 0.0, 0.0), "digits": (1, 1.0, 0.0, 0.0)}


def test_what_is_adopted_counts_from_then_on() -> None:
    """Earlier runs of an adopted replica are not counted; without a binding its owner is taken from
    the pool's key."""
    rig = Rig()
    rig.feed(events.PoolDefined(PoolSpec(KEY)))
    rig.feed(events.PoolDefined(PoolSpec("default/gone@4")))
    rig.feed(events.Found("r1", KEY, ("cuda:0",)))
    rig.feed(events.Found("r2", "default/gone@4", ("cuda:0",)))
    rig.feed(events.ReplicasListed())
    rig.feed(events.Greeted("r1", {}, loaded=True), 0.5)
    rig.feed(LOADED)
    rig.now += 2.0
    rig.watch.on_pong("r1", 4_000_000_000)
    rig.now += 2.0
    rig.watch.on_pong("r1", 4_000_000_500)

    assert rig.kept() == {"digits": (1, 0.5, 3.5, 0.5), "gone": (0, 4.5, 0.0, 0.0)}


def test_it_is_handed_over_every_ten_seconds() -> None:
    """Sums are flushed every ten seconds; a change of the wall clock affects only later seconds."""
    rig = Rig()
    rig.begin()
    rig.now += FLUSH_S - 1
    rig.watch.tick()
    before = list(rig.records.use_kept)
    rig.jump_s = 3600.0
    rig.now += 1
    rig.watch.tick()
    rig.now += FLUSH_S
    rig.watch.tick()

    assert before == []
    minutes = [one.minute_s for one in rig.records.use_kept if one.name == "digits"]
    assert minutes == [6000, 9600]


def test_what_is_about_no_replica_is_nothing() -> None:
    """Events about pools do not affect the usage."""
    rig = Rig()
    rig.feed(events.Tick(), 1.0)
    rig.watch.observe(object())

    assert rig.kept() == {}


def test_energy_belongs_to_the_holder_of_the_gpu() -> None:
    """The first sample is the base. Idle or busy, a replica has the energy of its GPU; unheld
    energy has no owner, also while a release is not proved."""
    rig = Rig()
    rig.gpus.energy_mj = 5_000_000
    rig.watch.tick()
    rig.pass_s(10.0, 50.0)
    rig.begin()
    rig.feed(events.Greeted("r1", {}))
    rig.feed(LOADED)
    rig.pass_s(20.0, 300.0)
    rig.watch.on_pong("r1", 15_000)
    rig.feed(events.Lost("r1", "exit 0"))
    rig.pass_s(5.0, 60.0)

    assert rig.held() == {"": (15.0, 800.0), "digits": (20.0, 6000.0)}
    assert rig.kept() == {}
    assert sorted(one[1:] for one in rig.watch.totals()) == [
        ("_idle", "cuda", 15.0, 800.0),
        ("digits", "cuda", 20.0, 6000.0),
    ]


def test_the_time_of_a_standby_belongs_to_no_function() -> None:
    """Time and energy of a standby have no owner until it is assigned."""
    rig = Rig(gpu_standbys=1)
    rig.gpus.energy_mj = 0
    rig.feed(events.PoolDefined(PoolSpec(KEY, idle_s=60.0)))
    rig.feed(events.ReplicasListed())
    rig.feed(events.DemandReported(Demand("w", 1, True, {})))
    rig.watch.tick()
    rig.pass_s(2.0, 100.0)
    rig.ask()
    rig.watch.tick()
    rig.pass_s(1.0, 100.0)

    assert rig.held() == {"": (2.0, 200.0), "digits": (1.0, 100.0)}


def test_a_gpu_without_a_counter_has_seconds_alone() -> None:
    """Nothing is estimated for a driver that reports no energy."""
    rig = Rig()
    rig.begin()
    rig.pass_s(4.0, 100.0)

    assert rig.held() == {"digits": (4.0, 0.0)}


def test_devices_are_described_once_an_hour() -> None:
    """What a device is goes to the recorder when it is first seen, and once an hour."""
    rig = Rig()
    for _ in range(3):
        rig.watch.flush()
    rig.jump_s = 3600.0
    rig.watch.flush()

    assert [(one.name, one.kind, one.model) for one in rig.records.models] == [
        ("cuda:0", "cuda", "NVIDIA A")
    ] * 2


def test_a_gpu_that_went_before_the_end_is_not_described() -> None:
    """As when its host is removed, and the server stops before the next tick."""
    rig = Rig()
    rig.machine.cluster.ledger.remove_devices([GPU.id])

    rig.watch.flush(is_last=True)

    assert rig.records.models == []


def test_idle_time_is_stored_once_a_minute() -> None:
    """A server without calls stores little; its totals are always those of the last flush."""
    rig = Rig()
    stored, totals = [], []
    for _ in range(12):
        rig.pass_s(10.0, 0.0)
        stored.append([(one.minute_s, one.held_s) for one in rig.records.use_kept])
        totals.append([one.held_s for one in rig.watch.totals()])

    assert stored[4:6] == [[], [(6000, 60.0)]]
    assert stored[10:] == [[(6000, 60.0)], [(6000, 60.0), (6060, 60.0)]]
    assert totals == [[10.0 * number] for number in range(1, 13)]


def test_a_removed_device_keeps_its_time() -> None:
    """Devices of a host that goes are counted until then."""
    rig = Rig()
    rig.feed(events.PoolDefined(PoolSpec(KEY)))
    rig.machine.devices["gpu2/cpu:0"] = Device("gpu2/cpu:0", "cpu", host="gpu2")
    rig.watch.tick()
    rig.now += 3.0
    del rig.machine.devices["gpu2/cpu:0"]
    rig.watch.tick()
    rig.now += 3.0

    rig.watch.flush(is_last=True)
    by_device = [(one.device, one.held_s) for one in rig.records.use_kept]
    assert sorted(by_device) == [("cuda:0", 6.0), ("gpu2/cpu:0", 3.0)]
    assert {one.kind: one.held_s for one in rig.watch.totals()} == {"cuda": 6.0, "cpu": 3.0}


def test_totals_are_of_a_limited_number_of_functions() -> None:
    """Further functions are added up, and none is lost."""
    totals = HeldTotals()
    for number in range(FUNCTIONS_MAX + 5):
        owner = Owner("default", f"f{number}", 1)
        totals.add(Attributed(owner, "cpu:0", 0, 2.0, 0.0), "cpu")
    found = totals.list()

    assert len(found) == FUNCTIONS_MAX + 1
    assert found[-1] == ("default", "_others", "cpu", 10.0, 0.0)


def test_totals_of_a_removed_function_go_to_the_others() -> None:
    """Its name begins at 0 again, and the sum of all stays."""
    totals = HeldTotals()
    for name in ("gone", "stays"):
        totals.add(Attributed(Owner("default", name, 1), "cpu:0", 0, 2.0, 0.5), "cpu")
    totals.keep({("default", "stays")})
    totals.add(Attributed(Owner("default", "gone", 1), "cpu:0", 0, 1.0, 0.0), "cpu")

    assert sorted(totals.list()) == [
        ("default", "_others", "cpu", 2.0, 0.5),
        ("default", "gone", "cpu", 1.0, 0.0),
        ("default", "stays", "cpu", 2.0, 0.5),
    ]


MOMENTS = st.lists(
    st.tuples(
        st.sampled_from(["pass", "call", "load", "pong", "lose", "release", "flush", "forget"]),
        st.integers(0, 90),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(moments=MOMENTS, standbys=st.integers(0, 1))
def test_functions_and_idle_time_add_up_to_the_device(
    moments: list[tuple[str, int]], standbys: int
) -> None:
    """Whatever replicas do, stored seconds and joules, and the totals of all functions, add up to
    the time and the counter of the GPU."""
    rig = Rig(standbys)
    rig.gpus.energy_mj = 1_000_000
    rig.feed(events.PoolDefined(PoolSpec(KEY, idle_s=60.0)))
    rig.feed(events.ReplicasListed())
    rig.watch.tick()
    for kind, number in moments:
        ids = [one.id for one in rig.machine.replicas()]
        id = ids[number % len(ids)] if ids else "r1"
        match kind:
            case "pass":
                rig.pass_s(number / 7, 300.0)
            case "call":
                rig.ask()
            case "load":
                rig.feed(events.Greeted(id, {}))
                rig.feed(replace(LOADED, id=id))
            case "pong":
                rig.watch.on_pong(id, 1000 * number)
            case "lose":
                rig.feed(events.Lost(id, "exit 1"), number / 9)
            case "release":
                rig.feed(events.Released(id))
            case "forget":
                rig.bindings.clear()
                rig.watch.totals()
            case _:
                rig.watch.flush()
    rig.pass_s(0.0, 0.0)
    rig.watch.flush(is_last=True)

    counted = (rig.gpus.energy_mj - 1_000_000) / 1000
    for found in (rig.records.use_kept, rig.watch.totals()):
        assert sum(one.held_s for one in found) == pytest.approx(rig.now, abs=1e-6)
        assert sum(one.joules for one in found) == pytest.approx(counted, abs=1e-6)
    assert all(one.held_s >= 0 and one.joules >= 0 for one in rig.records.use_kept)


def test_every_state_of_a_replica_has_a_stage() -> None:
    """But for those in which it only ends."""
    assert set(State) - STAGES.keys() == {State.RELEASING, State.STOPPED}


def seconds(rig: Rig) -> dict[str, tuple[float, float, float, float]]:
    """Return the waking, idle, busy and held seconds since the last call, by name."""
    rig.watch.flush(is_last=True)
    kept, rig.records.use_kept = rig.records.use_kept, []
    sums: dict[str, list[float]] = {}
    for one in kept:
        mine = sums.setdefault(one.name, [0.0] * 4)
        for at, part in enumerate((one.waking_s, one.idle_s, one.busy_s, one.held_s)):
            mine[at] += part
    return {name: (a, b, c, d) for name, (a, b, c, d) in sums.items()}


def test_a_parked_replica_uses_no_device() -> None:
    """Until it is proved to sleep, it is idle and holds its GPU; from its wake on it is waking.
    While it sleeps nobody holds the GPU, whatever it keeps of it."""
    rig = Rig()
    rig.feed(events.PoolDefined(sleeper(KEY, idle_s=20.0)))
    rig.machine.handle(events.HostDefined(LOCAL_HOST), rig.now)
    rig.machine.cluster.ledger.set_host_memory(LOCAL_HOST, 64_000.0)
    rig.feed(events.ReplicasListed())
    rig.ask()
    rig.feed(events.Greeted("r1", {}))
    rig.feed(events.Loaded("r1", 4, True, 8_000.0, {"load": 60_000.0}))
    rig.feed(events.DemandReported(Demand("w", 2, True, {})))
    rig.watch.on_pong("r1", 0)
    assert rig.feed(events.Tick(), 20.0) == ["r1"]
    rig.feed(events.ParkAnswered("r1", "", 1.0), 1.0)
    rig.feed(events.ParkProven("r1", {GPU.id: 500.0}))
    assert seconds(rig) == {"digits": (0.0, 21.0, 0.0, 21.0)}

    rig.now += 1_000.0
    assert rig.watch.busy(GPU.id) == 0.0
    assert seconds(rig) == {"": (0.0, 0.0, 0.0, 1_000.0)}

    rig.feed(events.DemandReported(Demand("w", 3, True, {KEY: Load(1, 0, 0.0)})))
    rig.feed(events.UnparkAnswered("r1", "", 2.0), 2.0)
    rig.feed(events.Verified("r1", ""), 1.0)
    rig.watch.on_pong("r1", 0)
    rig.now += 10.0
    rig.watch.on_pong("r1", 4_000)
    assert rig.watch.busy(GPU.id) == pytest.approx(0.4)
    assert seconds(rig) == {"digits": (3.0, 6.0, 4.0, 13.0)}
