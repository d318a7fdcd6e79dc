"""Servers are parked instead of stopped, and woken instead of started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core import events
from pool_manager.core.commands import (
    Command,
    Drain,
    EndWarm,
    Launch,
    Park,
    ProvePark,
    Quiesce,
    RecordWake,
    Release,
    Unpark,
    Verify,
)
from pool_manager.core.health.liveness import Cause
from pool_manager.core.ledger import Charge
from pool_manager.core.park.parks import RETRY_S, implied
from pool_manager.core.pool import forecast
from pool_manager.core.state import UNKNOWN, Device, ParkSpec, PoolSpec, State
from pool_manager.core.supply import PATIENCE
from registry.model.hosts import LOCAL_HOST
from tests.support.play import Play, launched
from tests.unit.pool_manager.core.test_server_pools import A, B, notes, only, server

FULL, RESIDUE, HOST, IDLE_S = 8_000.0, 500.0, 6_000.0, 300.0
PARK = ParkSpec(1.0, 0.5, HOST, RESIDUE, verify_s=0.25)
RAM = Device("cpu", "cpu", 20_000.0, "ram")


def gpus(count: int = 1) -> list[Device]:
    return [Device(f"g{at}", "cuda", 10_000.0, pci_bus=f"{at}") for at in range(count)]


def sleeper(key: str = A, **changes: object) -> PoolSpec:
    """Return the spec of a server on a GPU that is parked."""
    known: dict[str, object] = {"device_kind": "cuda", "memory_mib": FULL, "park": PARK}
    return server(key, **{**known, "load_s": 60.0, "idle_s": IDLE_S, **changes})


class Parked:
    """A play whose servers start in a minute, as they were measured."""

    def __init__(
        self, *specs: PoolSpec, devices: int = 1, ram: tuple[Device, ...] = (RAM,)
    ) -> None:
        self.play = Play(*(specs or (sleeper(),)), devices=[*gpus(devices), *ram])
        self.ledger = self.play.machine.cluster.ledger

    def warm(self, **names: str) -> None:
        """Start replicas, which serve and are idle from then on."""
        for name, id in names.items():
            self.play.demand(**{name: 1})
            self.play.on(events.Greeted(id, {"start": 3.0}))
            self.play.on(events.Loaded(id, 4, True, FULL, {"load": 60_000.0}))
            self.play.demand()

    def idle(self, after_s: float = IDLE_S) -> list[Command]:
        return self.play.tick(after_s)

    def asleep(self, id: str = "r1") -> list[Command]:
        """Let an engine say that it sleeps."""
        return self.play.on(events.ParkAnswered(id, "", 1.0), 1.0)

    def prove(self, id: str = "r1", residue: float = RESIDUE) -> list[Command]:
        devices = self.play.replica(id).devices
        return self.play.on(events.ParkProven(id, dict.fromkeys(devices, residue)))

    def park(self, id: str = "r1") -> None:
        """Let an idle replica be parked."""
        assert only(self.idle(), Park)
        self.asleep(id)
        self.prove(id)
        assert self.play.state(id) is State.PARKED

    def wake(self, id: str = "r1") -> list[Command]:
        """Let a replica that is being woken be awake and right."""
        self.play.on(events.UnparkAnswered(id, "", 0.5), 0.5)
        return self.play.on(events.Verified(id, ""), 0.25)

    def listed(self, name: str = "a") -> list[str]:
        key = f"default/{name}@1"
        return [one.id for one in self.play.machine.endpoints(key, self.play.now).replicas]

    def charge(self, id: str = "r1") -> Charge:
        return self.ledger.charge_of(id)


@pytest.fixture
def parked() -> Parked:
    """One server on one GPU, parked."""
    there = Parked()
    there.warm(a="r1")
    there.park()
    return there


# To sleep


def test_an_idle_server_is_parked_once_its_devices_are_proved_free() -> None:
    """From before the command it is not listed and is charged host memory besides; its device is
    free after the proof, not after the engine's answer."""
    there = Parked()
    there.warm(a="r1")
    assert there.charge() == Charge(("g0",), ("g0",), 1.0, FULL)

    assert there.idle() == [Park("r1", IDLE_S)]

    full = Charge(("g0",), ("g0",), 1.0, FULL, "ram", HOST)
    assert (there.listed(), there.charge()) == ([], full)
    assert there.play.shown("a") == "draining"
    assert there.asleep() == [ProvePark("r1", RESIDUE)]
    assert (there.play.state("r1"), there.charge()) == (State.PROVING, full)
    assert there.asleep() == []
    there.prove(residue=400.0)
    assert there.play.state("r1") is State.PARKED
    assert there.charge() == Charge((), ("g0",), 0.0, 400.0, "ram", HOST)
    assert there.ledger.empty() == ["cpu", "g0"]
    text = "asleep in host memory, wakes in about 0.8 s"
    assert (there.play.shown("a"), there.play.reason("a")) == ("parked", text)
    assert forecast(there.play.pool("a"), 0, there.play.now).eta_s is None


def test_a_call_comes_before_the_sleep() -> None:
    """A server that was called refuses: it is listed again, and charged as before."""
    there = Parked()
    there.warm(a="r1")
    there.idle()

    there.play.on(events.NotIdle("r1", 0.2))

    assert (there.play.state("r1"), there.listed()) == (State.READY, ["r1"])
    assert there.charge() == Charge(("g0",), ("g0",), 1.0, FULL)


def test_it_sleeps_although_it_was_taken_for_one_that_refuses() -> None:
    """A ready server whose engine says that it sleeps is ended: it would serve nobody."""
    there = Parked()
    there.warm(a="r1")

    assert only(there.asleep(), Release) == [
        Release("r1", "it sleeps although it was not asked to")
    ]


def test_a_server_that_was_just_told_to_take_calls_is_not_parked() -> None:
    """The answer to Resume would be taken for a refusal."""
    there = Parked()
    there.warm(a="r1")
    there.play.on(events.Greeted("r1", {}, True))

    assert only(there.idle(), Drain) == [Drain("r1", IDLE_S)]
    assert "r1 is not parked: it was told to take calls a moment ago" in notes(there.play, A)


@pytest.mark.parametrize(
    ("changes", "ram", "why"),
    [
        ({"park": None}, RAM, ""),
        ({"load_s": 0.5}, RAM, "a wake takes as long as a start"),
        (
            {"park": replace(PARK, residue_mib=2_001.0)},
            RAM,
            "2001 MiB would stay in use on g0, 2000 may",
        ),
        ({}, replace(RAM, memory_mib=0.0), f"the memory of {LOCAL_HOST} is not accounted"),
        ({}, replace(RAM, memory_mib=6_000.0), "6000 MiB of host memory are not free"),
    ],
)
def test_what_is_stopped_and_not_parked(changes: dict[str, object], ram: Device, why: str) -> None:
    """Without a profile, a gain, or room for what it keeps, a server is stopped as before; with
    one, why it is not parked is noted."""
    there = Parked(sleeper(**changes), ram=(ram,))
    there.play.demand(a=1)
    there.play.ready("r1", memory_mib=FULL)
    there.play.pool("a").reload_s = 0.0
    there.play.demand()

    assert only(there.idle(), Drain | Park) == [Drain("r1", IDLE_S)]  # type: ignore[arg-type]

    said = [text for text in notes(there.play, A) if "not parked" in text]
    assert said == ([f"r1 is not parked: {why}"] if why else [])


def test_a_server_that_does_not_work_is_not_parked() -> None:
    """What answers wrong is replaced, and not kept asleep."""
    there = Parked()
    there.warm(a="r1")
    there.play.replica("r1").is_kept_wrong = True

    assert only(there.idle(), Drain) == [Drain("r1", IDLE_S)]


def test_a_server_that_was_started_without_a_park_is_not_parked() -> None:
    """It may be older than the trial that has parked its revision, or on another kind of GPU."""
    there = Parked()
    there.play.demand(a=1)
    there.play.on(events.Greeted("r1", {"start": 3.0}))
    load = {"load": 60_000.0}
    there.play.on(events.Loaded("r1", 4, True, FULL, load, is_unparkable=True))
    there.play.demand()

    assert only(there.idle(), Drain) == [Drain("r1", IDLE_S)]
    said = "r1 is not parked: it was started without what a park needs"
    assert said in notes(there.play, A)


def test_nothing_is_parked_on_a_device_that_takes_one_replica_at_a_time() -> None:
    """Beside a sleeper it would take none."""
    there = Parked()
    there.warm(a="r1")
    there.ledger.devices["g0"] = replace(there.ledger.devices["g0"], is_exclusive=True)

    assert only(there.idle(), Park) == []
    said = "r1 is not parked: g0 takes one replica at a time"
    assert said in notes(there.play, A)


def test_where_memory_of_devices_is_not_known_residues_have_no_bound() -> None:
    """Devices without accounted memory, or that are not known, hinder no park."""
    there = Parked()
    there.warm(a="r1")
    there.ledger.devices["g0"] = Device("g0", "cuda")

    assert only(there.idle(), Park)


def test_several_parked_ones_share_a_fifth_of_a_device() -> None:
    """The third one would keep too much of the device beside the two that are parked."""
    park = replace(PARK, residue_mib=900.0, host_mib=100.0)
    there = Parked(*(sleeper(f"default/{name}@1", park=park, memory_mib=500.0) for name in "abc"))
    for number, name in enumerate("abc", 1):
        there.play.demand(**{name: 1})
        there.play.on(events.Greeted(f"r{number}", {}))
        there.play.on(events.Loaded(f"r{number}", 4, True, 500.0, {"load": 60_000.0}))
        there.play.demand()
        commands = there.idle()
        if name != "c":
            there.asleep(f"r{number}")
            there.prove(f"r{number}", 900.0)

    assert only(commands, Drain) == [Drain("r3", IDLE_S)]


def test_those_that_fall_asleep_together_count_together() -> None:
    """Two servers that share a device may not both keep more than half of the fifth."""
    park = replace(PARK, residue_mib=1_500.0, host_mib=100.0)
    specs = [sleeper(f"default/{name}@1", park=park, memory_mib=500.0, share=0.5) for name in "ab"]
    there = Parked(*specs)
    there.play.demand(a=1, b=1)
    for id in ("r1", "r2"):
        there.play.on(events.Greeted(id, {}))
        there.play.on(events.Loaded(id, 4, True, 500.0, {"load": 60_000.0}))
    there.play.demand()

    commands = there.idle()

    assert (len(only(commands, Park)), len(only(commands, Drain))) == (1, 1)


# To wake


def test_a_call_wakes_it_and_is_held_until_it_is_verified(parked: Parked) -> None:
    """Its device is charged in full from before the command; it is listed after its sample."""
    play = parked.play

    assert play.demand(a=1) == [Unpark("r1")]

    assert parked.charge() == Charge(("g0",), ("g0",), 1.0, FULL, "ram", HOST)
    shown = forecast(play.pool("a"), 1, play.now)
    assert (play.shown("a"), shown.phase, shown.eta_s) == ("waking", "wake", 0.75)
    assert play.on(events.UnparkAnswered("r1", "", 0.5), 0.5) == [Verify("r1")]
    shown = forecast(play.pool("a"), 1, play.now)
    assert (parked.listed(), shown.phase, shown.eta_s) == ([], "verify", 0.25)
    assert play.on(events.Verified("r1", ""), 0.25) == [RecordWake(A, "r1", "right", 0.75)]
    [endpoint] = play.machine.endpoints(A, play.now).replicas
    assert endpoint.phases == {"place": 0.0, "wake": 500.0, "verify": 250.0}
    assert forecast(play.pool("a"), 1, play.now).eta_s is None
    assert parked.charge().host_mib == HOST, "an engine may keep what it took"
    receipts = len(play.receipts)
    play.on(events.FirstRun("r1", 9.0))
    assert len(play.receipts) == receipts, "a wake is no cold start"


def test_it_is_parked_again_with_the_host_memory_that_it_has(parked: Parked) -> None:
    """A second park needs no more room, and keeps the time of the first run."""
    parked.play.replica("r1").phases["first_run"] = 7.0
    parked.play.demand(a=1)
    parked.wake()
    parked.play.demand()
    assert parked.play.replica("r1").phases["first_run"] == 7.0
    parked.ledger.charge_bank("other", "ram", 20_000.0 - 256.0 - HOST)

    parked.park()
    parked.play.demand(a=1)
    parked.play.on(events.UnparkAnswered("r1", "", 0.5))
    parked.play.on(events.Verified("r1", ""))
    parked.play.demand()
    parked.idle()
    parked.play.on(events.NotIdle("r1", 0.0))

    assert parked.charge().host_mib == HOST


@pytest.mark.parametrize("state", [State.PARKING, State.PARKED])
def test_how_long_a_call_waits_for_one_that_sleeps(state: State) -> None:
    """Before the wake, what is left of the sleep and the whole wake count."""
    there = Parked()
    there.warm(a="r1")
    there.park()
    pool, replica = there.play.pool("a"), there.play.replica("r1")
    replica.state, replica.since_s = state, there.play.now - 0.25

    expected = {State.PARKING: 1.5, State.PARKED: 0.75}[state]
    assert forecast(pool, 1, there.play.now).eta_s == expected


def test_nothing_that_sleeps_has_no_time_left() -> None:
    """A cold start has another estimate."""
    there = Parked()
    there.play.demand(a=1)

    assert forecast(there.play.pool("a"), 1, there.play.now).eta_s is None


# What goes wrong


def wrong_at(there: Parked, state: State, event: events.Event | None) -> list[Command]:
    """Bring r1 into a state and let something go wrong: an event, or its time limit."""
    steps = [State.PARKING, State.PARKED, State.UNPARKING, State.VERIFYING]
    there.warm(a="r1")
    there.idle()
    for step in steps[1 : steps.index(state) + 1]:
        if step is State.PARKED:
            there.asleep()
            there.prove()
        elif step is State.UNPARKING:
            there.play.demand(a=1)
        else:
            there.play.on(events.UnparkAnswered("r1", "", 0.5))
    assert there.play.state("r1") is state
    if event is None:
        return there.play.tick(there.play.replica("r1").deadline_s - there.play.now)
    return there.play.on(event)


DIES = events.Lost("r1", "signal 9")


@pytest.mark.parametrize(
    ("state", "event", "reason", "wakes", "wrong"),
    [
        (
            State.PARKING,
            events.ParkAnswered("r1", "status 500", 0.1),
            "its engine does not sleep: status 500",
            [],
            1,
        ),
        (State.PARKING, None, "parking lasted too long", [], 1),
        (State.PARKING, DIES, "signal 9", [], 1),
        (
            State.PARKED,
            events.ParkRefuted("r1", "8000 MiB"),
            "its park is not proved: 8000 MiB",
            [],
            0,
        ),
        (
            State.PARKED,
            events.ParkProven("r1", {"g0": 2_500.0}),
            "2500 MiB would stay in use on g0, 2000 may",
            [],
            0,
        ),
        (State.PARKED, DIES, "signal 9", [], 0),
        (State.PARKED, None, "parked for 86400 s", [], 0),
        (
            State.UNPARKING,
            events.UnparkAnswered("r1", "out of memory", 0.1),
            "it does not wake: out of memory",
            ["failed"],
            1,
        ),
        (State.UNPARKING, None, "unparking lasted too long", ["failed"], 1),
        (State.UNPARKING, DIES, "signal 9", ["failed"], 1),
        (
            State.VERIFYING,
            events.Verified("r1", "other tokens"),
            "it woke wrong: other tokens",
            ["wrong"],
            1,
        ),
        (State.VERIFYING, None, "verifying lasted too long", ["wrong"], 1),
        (State.VERIFYING, DIES, "signal 9", ["wrong"], 1),
        (State.VERIFYING, replace(DIES, is_its_fault=False), "signal 9", [], 0),
    ],
)
def test_whatever_goes_wrong_ends_it(
    state: State, event: events.Event | None, reason: str, wakes: list[str], wrong: int
) -> None:
    """Each failure, limit and end releases the replica; wakes are counted by their outcome, what
    went wrong against the parks, and nothing against the starts: the call starts cold."""
    there = Parked()

    commands = wrong_at(there, state, event)

    assert only(commands, Release) == [Release("r1", reason)]
    assert [one.outcome for one in commands if isinstance(one, RecordWake)] == wakes
    pool = there.play.pool("a")
    assert (len(pool.parks.wrong), pool.failures) == (wrong, 0)
    there.play.on(events.Released("r1"))
    assert there.ledger.in_bank("ram") == []
    assert launched(there.play.demand(a=1) or there.play.tick()) == [("r2", "g0")] or [
        one.id for one in there.play.machine.replicas()
    ] == ["r2"]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (events.ParkRefuted("r1", "8000 MiB"), "its park is not proved: 8000 MiB"),
        (events.ParkProven("r1", {}), "nothing is known of what it keeps on g0"),
        (
            events.ParkProven("r1", {"g0": 2_500.0}),
            "2500 MiB would stay in use on g0, 2000 may",
        ),
        (None, "proving lasted too long"),
    ],
)
def test_an_engine_that_says_that_it_sleeps_proves_nothing(
    event: events.Event | None, reason: str
) -> None:
    """What is not proved within its limit ends."""
    there = Parked()
    there.warm(a="r1")
    there.idle()
    there.asleep()

    commands = there.play.on(event) if event else there.play.tick(20.0)

    assert only(commands, Release) == [Release("r1", reason)]


def test_two_wrong_ones_in_a_day_switch_parks_off() -> None:
    """From then on replicas are stopped; `fnctl why` has the reason."""
    there = Parked()
    for id in ("r1", "r2"):
        there.warm(a=id)
        assert only(there.idle(), Park) == [Park(id, IDLE_S)]
        there.play.on(events.ParkAnswered(id, "status 500", 0.1))
        there.play.on(events.Released(id))
    off = "2 went wrong within a day, the last one because its engine does not sleep: status 500"
    assert f"replicas are stopped from now on, not parked: {off}" in notes(there.play, A)

    there.warm(a="r3")

    assert only(there.idle(), Drain) == [Drain("r3", IDLE_S)]
    assert f"r3 is not parked: {off}" in notes(there.play, A)


def test_what_is_parked_ends_when_parks_are_off(parked: Parked) -> None:
    """Parked replicas end once parks are off, or their revision has none any more."""
    parked.play.on(events.PoolDefined(sleeper(park=None)))

    why = "it is parked no more: its revision is not parked"
    assert parked.play.replica("r1").why == why


@pytest.mark.parametrize(
    "event",
    [
        events.ParkProven("r1", {"g0": 0.0}),
        events.ParkRefuted("r1", ""),
        events.UnparkAnswered("r1", "no", 0.0),
        events.Verified("r1", "no"),
        events.ParkProven("r9", {}),
    ],
)
def test_what_crossed_a_change_is_ignored(event: events.Event) -> None:
    """Answers of another state, and of unknown replicas, change nothing."""
    there = Parked()
    there.warm(a="r1")

    assert there.play.on(event) == []
    there.idle()
    there.play.on(events.ParkProven("r1", {"g0": 0.0}))

    assert there.play.state("r1") is State.PARKING


# Beside others


def test_an_evicted_server_is_parked_if_the_claimant_fits_beside_it() -> None:
    """The device goes to the claimant after the proof; its own call then takes it back."""
    there = Parked(sleeper(A), sleeper(B))
    there.warm(a="r1")

    assert only(there.play.demand(70.0, b=1), Park) == [Park("r1", 0.001)]
    assert there.play.tick() == []
    reserved = there.play.pool("b").reservation
    assert reserved is not None
    assert (reserved.devices, reserved.victims) == (("g0",), ("r1",))
    assert there.asleep() == [ProvePark("r1", RESIDUE)]
    assert launched(there.prove()) == [("r2", "g0")]
    there.play.on(events.Greeted("r2", {}))
    there.play.on(events.Loaded("r2", 4, True, FULL, {"load": 60_000.0}))
    there.play.demand()

    assert only(there.play.demand(70.0, a=1), Park) == [Park("r2", 0.001)]
    there.asleep("r2")
    assert there.prove("r2") == [Unpark("r1")]


@pytest.mark.parametrize("name", ["too large", "no profile"])
def test_an_evicted_server_is_stopped_otherwise(name: str) -> None:
    """A claimant that needs the residue's memory, and a server without park, stop it."""
    large = sleeper(B, memory_mib=9_500.0)
    specs = {"too large": (sleeper(A), large), "no profile": (sleeper(A, park=None), sleeper(B))}
    there = Parked(*specs[name])
    there.warm(a="r1")

    assert only(there.play.demand(70.0, b=1), Drain) == [Drain("r1", 0.001)]


def test_a_parked_one_ends_for_who_needs_what_it_keeps() -> None:
    """A claimant that does not fit beside the residue ends it, also if calls wait for it."""
    there = Parked(sleeper(A), sleeper(B, memory_mib=9_500.0))
    there.warm(a="r1")
    there.park()

    commands = there.play.demand(b=1)

    assert only(commands, Release) == [Release("r1", f"evicted for {B}")]
    assert launched(there.play.on(events.Released("r1"))) == [("r2", "g0")]


def test_a_busy_server_is_drained_softly_beside_parked_ones() -> None:
    """The parked one, and the busy one, make room together."""
    specs = sleeper(A), sleeper(B), sleeper("default/c@1", memory_mib=9_500.0)
    there = Parked(*specs)
    there.warm(a="r1")
    there.park()
    there.warm(b="r2")
    there.play.run(1.0, b=1)
    commands: list[Command] = []
    for _ in range(80):
        commands += there.play.hear_all(1.0, in_flight={"b": 1}, queued={"c": 1})
        commands += there.play.tick()

    assert only(commands, Quiesce) == [Quiesce("r2")]
    assert only(commands, Release) == [Release("r1", "gives way: drained for default/c@1")]


def test_host_memory_is_taken_back_from_the_one_of_least_worth() -> None:
    """A server that is called more often waits until the memory of the parked one is free, and is
    parked then; one that is worth less is stopped."""
    there = Parked(sleeper(A), sleeper(B), devices=2, ram=(replace(RAM, memory_mib=10_000.0),))
    there.warm(a="r1")
    there.park()
    there.warm(b="r2")
    for _ in range(30):
        there.play.run(60.0, b=1)
    there.play.demand()

    commands = there.idle()

    assert only(commands, Release) == [Release("r1", f"{B} is parked instead")]
    assert there.listed("b") == ["r2"]
    assert there.play.tick(RETRY_S) == []
    there.play.on(events.Released("r1"))
    assert only(there.play.tick(RETRY_S), Park) == [Park("r2", IDLE_S)]
    there.asleep("r2")
    there.prove("r2")
    there.warm(a="r3")
    there.play.pool("a").call_rate.log_gap = 9.0
    assert only(there.idle(), Drain) == [Drain("r3", IDLE_S)]


def test_nothing_is_taken_from_a_parked_one_that_is_called() -> None:
    """The parked server waits for its device; an idle one that lacks host memory is stopped. Models
    on CPU slots keep theirs."""
    small = Device("g1", "cuda", 9_000.0, pci_bus="1")
    there = Parked(
        sleeper(A, memory_mib=9_200.0),
        sleeper(B),
        sleeper("default/c@1"),
        PoolSpec("default/d@1", device_kind="cpu", memory_mib=500.0, idle_s=9_999.0),
        ram=(small, replace(RAM, memory_mib=10_000.0)),
    )
    there.warm(a="r1")
    there.park()
    there.warm(b="r2")
    there.warm(c="r3")
    there.warm(d="r4")
    assert there.ledger.on("g0") == ["r3"]
    there.play.run(IDLE_S - 2.0, c=1)
    there.play.hear_all(1.0, in_flight={"c": 1}, queued={"a": 1})

    commands = there.play.tick(1.0)

    assert only(commands, Drain) == [Drain("r2", IDLE_S)]
    assert there.play.state("r1") is State.PARKED


def test_a_park_that_is_proved_again_is_charged_anew(parked: Parked) -> None:
    """What a parked server keeps is what was read last."""
    assert parked.prove(residue=700.0) == []

    assert parked.charge().memory_mib == 700.0


def test_a_cpu_replica_takes_host_memory_back() -> None:
    """A model on a CPU slot ends the parked server whose memory it needs."""
    cpu = PoolSpec(B, device_kind="cpu", memory_mib=15_000.0)
    there = Parked(sleeper(A), cpu)
    there.warm(a="r1")
    there.park()

    commands = there.play.demand(b=1)

    assert only(commands, Release) == [Release("r1", f"evicted for {B}")]
    assert launched(there.play.on(events.Released("r1"))) == [("r2", "cpu")]


def test_busy_devices_are_left_for_a_start_elsewhere() -> None:
    """Its device runs another function for longer than a start takes: another replica starts on a
    free one, and the parked one ends when that is ready."""
    there = Parked(sleeper(A), sleeper(B), devices=2)
    there.warm(a="r1")
    there.park()
    there.play.on(events.DeviceLost("g1", "Xid 79", True))
    there.warm(b="r2")
    there.play.on(events.DeviceBack("g1"))
    there.play.run(1.0, b=1)
    waits = {"in_flight": {"b": 1}, "queued": {"a": 1}}
    there.play.pool("b").parks.off = "as its residency would be that of a wake"
    assert launched(there.play.hear_all(1.0, **waits)) == []
    there.play.pool("a").unserved_since_s = there.play.now - PATIENCE * 60.0 + 1.0

    commands = there.play.hear_all(1.0, **waits)

    assert launched(commands) == [("r3", "g1")]
    assert there.play.replica("r1").successor == "r3"
    there.play.on(events.Lost("r3", "accident", is_its_fault=False))
    there.play.on(events.Released("r3"))
    assert there.play.state("r1") is State.PARKED
    there.play.hear_all(2.0, in_flight={"b": 1}, queued={"a": 1})
    there.play.tick()
    there.play.on(events.Greeted("r4", {}))
    commands = there.play.on(events.Loaded("r4", 4, True, FULL, {"load": 60_000.0}))
    assert only(commands, Release) == [Release("r1", "r4 serves in its place")]


@pytest.mark.parametrize(
    ("state", "if_idle", "stuck", "expected"),
    [
        (State.RELEASING, False, False, 0.0),
        (State.RELEASING, False, True, float("inf")),
        (State.DRAINING, True, False, 0.0),
        (State.LOADING, False, False, 50.0),
    ],
)
def test_when_the_devices_of_a_parked_one_are_free(
    state: State, if_idle: bool, stuck: bool, expected: float
) -> None:
    """What leaves is gone soon, unless its release fails; what loads is kept for 10 s after it."""
    there = Parked(sleeper(A), sleeper(B))
    there.warm(a="r1")
    there.park()
    there.warm(b="r2")
    other = there.play.replica("r2")
    other.state, other.if_idle = state, if_idle
    other.deadline_s = there.play.now + 50.0 if stuck else float("inf")
    other.since_s = there.play.now - 20.0
    evictor = there.play.machine._supply.evictor

    assert evictor.until_free_s(there.play.replica("r1"), there.play.now) == expected


def test_what_its_min_keeps_is_never_gone() -> None:
    """A replica that the `min` of its function keeps leaves no device."""
    there = Parked(sleeper(A), sleeper(B, min=1))
    there.play.on(events.PoolDefined(sleeper(B, min=0)))
    there.warm(a="r1")
    there.park()
    there.warm(b="r2")
    evictor, r1 = there.play.machine._supply.evictor, there.play.replica("r1")
    idle_s = evictor.until_free_s(r1, there.play.now)

    there.play.on(events.PoolDefined(sleeper(B, min=1)))

    assert idle_s == 10.0
    assert evictor.until_free_s(r1, there.play.now) == float("inf")


def test_an_idle_victim_on_its_devices_makes_room_for_a_wake() -> None:
    """A gang wakes on exactly its devices, once those there are parked or gone."""
    there = Parked(sleeper(A, count=2), sleeper(B), devices=2)
    there.warm(a="r1")
    there.park()
    there.warm(b="r2")
    there.play.tick(70.0)

    assert only(there.play.demand(a=1), Park) == [Park("r2", 0.001)]
    assert set(there.play.pool("a").reservation.devices) == {"g0", "g1"}  # type: ignore[union-attr]
    there.asleep("r2")
    assert there.prove("r2") == [Unpark("r1")]
    assert there.charge().devices == ("g0", "g1")


def test_what_it_keeps_is_its_own_when_it_wakes() -> None:
    """A server that fills its device wakes although its residue is charged there."""
    there = Parked(sleeper(memory_mib=9_500.0))
    there.warm(a="r1")
    there.park()

    assert there.play.demand(a=1) == [Unpark("r1")]


def test_those_that_are_called_are_the_last_parked_ones_to_end() -> None:
    """Whatever the `min`, a parked one may make room for a claimant whose turn it is."""
    there = Parked(sleeper(A), sleeper(B, idle_s=9_999.0), devices=2)
    there.warm(a="r1")
    there.park()
    there.warm(b="r2")
    play = there.play
    play.pool("a").unserved_since_s = None
    resident = play.machine._supply.evictor.candidates.resident
    resident.forget()
    quiet = resident.all(play.now)["r1"].cost
    play.pool("a").unserved_since_s = play.now
    resident.forget()

    assert quiet < resident.all(play.now)["r1"].cost == 1.0


def test_residency_is_the_time_of_the_next_return() -> None:
    """An idle server that is parked is kept for 10 s, one that starts anew for its start."""
    there = Parked(sleeper(A), sleeper(B))
    there.warm(a="r1")

    assert only(there.play.demand(9.0, b=1), Park) == []
    assert only(there.play.tick(1.5), Park) == [Park("r1", 0.001)]


# Ends, hosts, requests


def test_a_lost_device_ends_what_is_parked_on_it(parked: Parked) -> None:
    """What a device keeps is gone with it."""
    commands = parked.play.on(events.DeviceLost("g0", "Xid 79", True))

    assert only(commands, Release) == [Release("r1", "g0 is gone: Xid 79")]


def test_a_cordoned_device_is_emptied_of_what_sleeps(parked: Parked) -> None:
    """A device that must be reset is emptied; so is everything at a shutdown."""
    commands = parked.play.on(events.DeviceLost("g0", "Xid 48", False))

    assert only(commands, Release) == [Release("r1", "g0 is cordoned: Xid 48")]


def test_a_shutdown_ends_what_sleeps_and_drains_what_falls_asleep(parked: Parked) -> None:
    """A parked server has nothing open; one that is asked to sleep may have."""
    assert only(parked.play.on(events.Shutdown()), Release)
    there = Parked()
    there.warm(a="r1")
    there.idle()
    assert there.play.on(events.Shutdown()) == [Drain("r1", None)]


HOST_NAME = "far"
FAR_GPU = Device("far/g0", "cuda", 10_000.0, host=HOST_NAME)


def far_up(epoch: int, running: frozenset[str] = frozenset()) -> events.HostUp:
    return events.HostUp(HOST_NAME, epoch, (FAR_GPU,), running, memory_mib=9_000.0)


def far(state: State) -> Parked:
    """A server on another host without CPU slots, in a state of its park."""
    there = Parked(devices=0)
    there.play.on(events.HostDefined(HOST_NAME))
    there.play.on(far_up(1))
    there.warm(a="r1")
    there.idle()
    if state is not State.PARKING:
        there.asleep()
        there.prove()
    if state in (State.UNPARKING, State.VERIFYING):
        there.play.demand(a=1)
    if state is State.VERIFYING:
        there.play.on(events.UnparkAnswered("r1", "", 0.5))
    assert there.play.state("r1") is state
    return there


@pytest.mark.parametrize(
    ("state", "command"),
    [
        (State.PARKING, Park("r1", 0.001)),
        (State.PARKED, ProvePark("r1", RESIDUE)),
        (State.UNPARKING, Unpark("r1")),
        (State.VERIFYING, Verify("r1")),
    ],
)
def test_what_a_lost_link_may_have_lost_is_commanded_again(state: State, command: Command) -> None:
    """The commands of a park are sent again over a new link; a park is proved again."""
    there = far(state)
    assert there.ledger.host_bank(HOST_NAME) == "far/memory"
    assert there.charge().host_mib == HOST
    there.play.on(events.HostUnreachable(HOST_NAME, "no route"))
    assert there.play.tick(30.0) == []
    there.play.on(far_up(2, frozenset({"r1"})))

    assert there.play.on(events.Greeted("r1", {}, True)) == [command]

    assert there.play.state("r1") is state


def test_a_parked_one_on_a_host_that_is_gone_ends() -> None:
    """Its calls start elsewhere at once: it can serve nobody by itself."""
    there = far(State.PARKED)
    there.play.on(events.HostUnreachable(HOST_NAME, "no route"))
    assert there.play.pool("a").count() == 0

    there.play.tick(100.0)

    assert there.play.state("r1") is State.RELEASING
    there.play.on(events.HostRemoved(HOST_NAME, True))
    there.play.tick()
    assert there.ledger.host_bank(HOST_NAME) == "far/memory"


@pytest.mark.parametrize(
    ("life", "state", "command"),
    [
        (State.PARKING, State.PARKING, Park("r9", 0.001)),
        (State.PARKED, State.PROVING, ProvePark("r9", RESIDUE)),
        (State.UNPARKING, State.UNPARKING, Unpark("r9")),
        (State.VERIFYING, State.VERIFYING, Verify("r9")),
    ],
)
def test_a_server_of_an_earlier_manager_is_charged_in_full_until_it_is_proved(
    life: State, state: State, command: Command
) -> None:
    """What slept or woke under an earlier manager goes on; nothing of it is believed."""
    there = Parked()
    play = Play(sleeper(), devices=[*gpus(), RAM], is_open=False)
    there.play, there.ledger = play, play.machine.cluster.ledger
    play.on(events.Found("r9", A, ("g0",)))
    assert there.charge("r9").host_mib == HOST, "it may sleep"
    play.on(events.ReplicasListed())
    play.on(events.Greeted("r9", {}, True))

    commands = play.on(events.Loaded("r9", 4, True, FULL, {}, life=life))

    assert commands == [command]
    assert (play.state("r9"), there.listed()) == (state, [])
    assert there.charge("r9") == Charge(("g0",), ("g0",), 1.0, FULL, "ram", HOST)
    if life is State.PARKED:
        there.prove("r9")
        assert play.state("r9") is State.PARKED


def test_a_wake_has_phases_also_of_an_adopted_server() -> None:
    """The callers of a wake are told its phases, whoever started the server."""
    there = Parked()
    play = Play(sleeper(), devices=[*gpus(), RAM], is_open=False)
    there.play, there.ledger = play, play.machine.cluster.ledger
    play.on(events.Found("r9", A, ("g0",)))
    play.on(events.ReplicasListed())
    play.on(events.Greeted("r9", {}, True))
    play.on(events.Loaded("r9", 4, True, FULL, {"load": 9.0}, life=State.PARKED))
    there.prove("r9")
    play.demand(a=1)
    there.wake("r9")

    (listed,) = play.machine.endpoints(A, play.now).replicas

    assert listed.phases["wake"] == 500.0
    assert "load" not in listed.phases


@pytest.mark.parametrize("life", [State.READY, State.PARKED])
def test_an_adopted_server_is_charged_what_its_life_takes(life: State) -> None:
    """A ready one is charged no host memory; one that sleeps and has no profile any more ends."""
    spec = sleeper() if life is State.READY else sleeper(park=None)
    play = Play(spec, devices=[*gpus(), RAM], is_open=False)
    play.on(events.Found("r9", A, ("g0",)))
    play.on(events.ReplicasListed())
    play.on(events.Greeted("r9", {}, True))

    commands = play.on(events.Loaded("r9", 4, True, FULL, {}, life=life))

    if life is State.READY:
        assert play.machine.cluster.ledger.charge_of("r9").host_mib == 0.0
    else:
        why = "it sleeps, and its revision has no park any more"
        assert only(commands, Release) == [Release("r9", why)]


def test_a_late_report_of_a_life_is_ignored(parked: Parked) -> None:
    """A report that crossed a change of the state changes nothing."""
    event = events.Loaded("r1", 4, True, FULL, {}, life=State.PARKED)

    assert parked.play.on(event) == []
    assert parked.play.on(replace(event, id="r7")) == []


def test_an_operator_parks_and_wakes() -> None:
    """What is idle is parked on request, and woken for nobody's call."""
    there = Parked()
    there.warm(a="r1")

    assert there.play.on(events.ParkRequested(A)) == [Park("r1", 0.001)]
    there.asleep()
    there.prove()
    assert there.play.on(events.UnparkRequested(A)) == [Unpark("r1")]
    assert EndWarm(A, "ready", "kept for the next call") in there.wake()
    assert there.play.on(events.UnparkRequested("no/such@1")) == [
        EndWarm("no/such@1", "failed", "no such pool")
    ]


@pytest.mark.parametrize(
    ("changes", "busy", "why"),
    [
        ({"park": None}, 0, "its revision has no park"),
        ({}, 1, "it is called"),
        ({"min": 1}, 0, "the min of its function keeps it"),
    ],
)
def test_an_operator_is_told_what_is_not_parked(
    changes: dict[str, object], busy: int, why: str
) -> None:
    """A replica that is called or kept, or has no profile, stays."""
    there = Parked(sleeper(**changes))
    there.warm(a="r1")
    there.play.run(a=busy)

    assert there.play.on(events.ParkRequested(A)) == []
    assert f"r1 is not parked: {why}" in notes(there.play, A)


def test_sleep_by_force_ends_what_is_parked(parked: Parked) -> None:
    """A pool that is put to sleep keeps what is parked, unless by force."""
    assert parked.play.on(events.SleepRequested(A)) == []

    assert only(parked.play.on(events.SleepRequested(A, force=True)), Release)


def test_what_a_client_unloads_is_not_parked() -> None:
    """A client that unloads a model asks for its memory, too."""
    there = Parked()
    there.warm(a="r1")
    there.play.run(1.0, a=1)
    there.play.on(events.UnloadRequested(A))

    assert only(there.play.demand(1.0), Drain) == [Drain("r1", 0.001)]


def test_a_request_before_decisions_begin_is_ignored() -> None:
    """Nothing is parked on incomplete knowledge."""
    play = Play(sleeper(), devices=[*gpus(), RAM], is_open=False)

    assert play.on(events.ParkRequested(A)) == []


def test_a_state_without_a_park_implies_nothing(parked: Parked) -> None:
    """A link that is new says nothing to a replica that starts."""
    replica = parked.play.replica("r1")
    replica.state = State.LOADING

    assert implied(replica, UNKNOWN) == []
    replica.condemned = Cause.WRONG
    assert not replica.is_parked


def test_pools_without_a_profile_are_not_asked() -> None:
    """A pool that is not parked has no return but its start."""
    there = Parked(sleeper(park=None))
    there.warm(a="r1")
    pool = there.play.pool("a")

    assert (pool.park, pool.return_s) == (None, 60.0)
    assert launched([Launch("r1", A, ("g0",), "serve", {})]) == [("r1", "g0")]
