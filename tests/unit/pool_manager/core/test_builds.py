"""Builds: placed only on spare devices, given up at once when a pool waits."""

from __future__ import annotations

import pytest

from pool_manager.core import events
from pool_manager.core.commands import (
    Command,
    Drain,
    EndBuild,
    Launch,
    RecordNotCompiled,
    Release,
)
from pool_manager.core.start_queue import Rank
from pool_manager.core.state import BUILD_S, Device, PoolSpec, State
from registry.builds import DeviceType
from tests.support.play import Play, cpus, launched

A, B = "default/a@1", "default/b@1"
BUILD = "default/a@1-build"
GPU = Device("g1", "cuda", 10_000)
HOST = Device("far/g1", "cuda", 10_000, host="far")


def build(key: str = BUILD, **settings: object) -> PoolSpec:
    """Return the pool of a build; it asks for half a device, which does not count."""
    return PoolSpec(key, role="build", share=0.5, **settings)  # type: ignore[arg-type]


def begun(play: Play, **settings: object) -> list[Command]:
    """Request a build, once decisions have begun; return the commands."""
    if not play.machine.is_open:
        play.demand()
    return play.on(events.PoolDefined(build(**settings)))


def ends(commands: list[Command]) -> list[EndBuild]:
    """Return the ends of builds."""
    return [one for one in commands if isinstance(one, EndBuild)]


def test_a_build_takes_a_free_device_as_a_new_process() -> None:
    """Even where a standby waits, and the standby stays."""
    play = Play(PoolSpec(A), standbys=1, devices=2)
    play.tick(3.0)
    play.on(events.Greeted("r1", {}))

    (launch,) = begun(play)

    assert launch == Launch("r2", BUILD, ("d0",), "build", {})
    assert play.replica("r1").state is State.STANDBY
    assert play.machine.cluster.ledger.free_share("d0") == 0.0
    assert play.machine.cluster.start_priority("r2").rank is Rank.BUILD
    assert begun(play) == []


def test_devices_that_may_ever_serve_a_pool() -> None:
    """Those of its kind that are large enough, on whichever host."""
    small = Device("g0", "cuda", 1_000)
    play = Play(
        PoolSpec(A, device_kind="cuda", memory_mib=2_000.0), devices=[*cpus(1), small, HOST]
    )
    cluster = play.machine.cluster

    assert cluster.suitable(cluster.pools[A]) == [HOST]


def test_a_build_takes_a_device_of_its_type() -> None:
    """It waits for one although another is free."""
    old, new = Device("g0", "cuda", 9_000, model="L4"), Device("g1", "cuda", 9_000, model="H100")
    play = Play(PoolSpec(A), devices=[old, new])

    assert launched(begun(play, device_type=new.type)) == [("r1", "g1")]
    assert launched(begun(play, key="b-build", device_type=new.type)) == []
    assert play.machine.pools["b-build"].blocked == (
        "a build uses only spare devices: no free device (1 in use)"
    )
    assert launched(begun(play, key="c-build", device_type=DeviceType("far", "L4"))) == []
    assert "no device of kind any" in play.machine.pools["c-build"].blocked
    assert launched(play.demand(0.1, a=1)) == [("r2", "g0")]


def test_a_finished_build_is_reported_and_released() -> None:
    """With its report and the device; it needs no gateway to know it."""
    play = Play(devices=1)
    begun(play)
    play.on(events.Greeted("r1", {}))

    commands = play.on(events.Loaded("r1", 0, True, 50.0, {}, {"built": "it"}))

    assert commands == [
        EndBuild(BUILD, "ended", "d0", {"built": "it"}),
        Release("r1", "the build is over"),
    ]
    assert play.on(events.Released("r1")) == []
    assert BUILD not in play.machine.pools
    assert play.machine.cluster.build_pools == {}


@pytest.mark.parametrize("state", ["starting", "standby", "loading"])
def test_a_call_ends_a_build_in_the_same_step(state: str) -> None:
    """In whatever state it is; the device is reserved for that caller's pool."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=1)
    begun(play)
    if state != "starting":
        play.on(events.Greeted("r1", {}))

    commands = play.demand(1.0, b=1)

    assert commands == [
        EndBuild(BUILD, "given_up", reason=f"its place is needed for {B}"),
        Release("r1", f"its place is needed for {B}"),
    ]
    assert play.demand(0.1, a=1, b=1) == []
    assert launched(play.on(events.Released("r1"))) == [("r2", "d0")]
    assert play.replica("r2").pool == B


def test_a_trial_and_a_floor_end_a_build_too() -> None:
    """Whatever wants a replica comes before a build."""
    for spec in (PoolSpec("default/t@trial-1", role="trial"), PoolSpec(A, min=1)):
        play = Play(devices=1)
        begun(play)

        assert [one.outcome for one in ends(play.on(events.PoolDefined(spec)))] == ["given_up"]


def test_no_idle_replica_is_evicted_while_the_end_of_a_build_suffices() -> None:
    """Only as many builds end as are needed, also while the first one is being released."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=3)
    play.warm(a="r1")
    begun(play)
    begun(play, key="default/b@1-build")

    commands = play.demand(60.0, a=0, b=1)
    again = play.tick(1.0)

    assert [type(one) for one in commands] == [EndBuild, Release]
    assert again == []
    assert play.state("r1") == "ready"
    assert [one.state for one in play.machine.cluster.builds()].count(State.STARTING) == 1


def test_a_build_and_an_idle_replica_go_together_where_neither_suffices() -> None:
    """Memory of two devices is needed."""
    play = Play(PoolSpec(A), PoolSpec(B, memory_mib=2_700.0), devices=cpus(3, 3_500))
    play.demand(a=1)
    play.ready("r1", memory_mib=1_500.0)
    play.demand()
    begun(play, memory_mib=1_500.0)

    commands = play.demand(60.0, b=1)

    assert {type(one) for one in commands} == {Drain, EndBuild, Release}


def test_a_build_ends_although_a_victim_is_leaving_already() -> None:
    """A pool that waits for a drain takes the device of a build that becomes usable for it."""
    play = Play(
        PoolSpec(A, labels=(("host", "local"),)),
        PoolSpec(B, labels=(("zone", "x"),)),
        devices=[Device("d0", "cuda"), FAR],
    )
    up(play, labels=(("host", "far"),))
    play.on(events.PoolDefined(PoolSpec("default/c@1", labels=(("host", "far"),))))
    play.demand(a=1)
    play.ready("r1")
    begun(play, labels=(("host", "far"),))
    play.demand()
    play.on(events.PoolDefined(PoolSpec(B, labels=(("host", "local"),))))
    assert play.demand(60.0, b=1) == [Drain("r1", 0.001)]

    commands = play.on(events.PoolDefined(PoolSpec(B)))

    assert [one.reason for one in ends(commands)] == [f"its place is needed for {B}"]


FAR = Device("far/d0", "cuda", host="far")


def up(play: Play, *devices: Device, labels: tuple[tuple[str, str], ...] = ()) -> list[Command]:
    """Connect the host `far`."""
    play.on(events.HostDefined("local", (("host", "local"),)))
    play.on(events.HostDefined("far", labels))
    return play.on(events.HostUp("far", 1, devices or (FAR,), frozenset()))


def test_a_build_waits_while_a_pool_waits_that_could_have_the_device() -> None:
    """For instance in its back-off: it would end the build a second later."""
    play = Play(PoolSpec(A), devices=1)
    play.demand(a=1)
    play.lose("r1")
    assert begun(play) == []
    assert play.machine.pools[BUILD].blocked == (
        f"a build uses only spare devices: {A} waits for a device"
    )

    assert launched(play.demand(0.5)) == [("r2", "d0")]
    assert play.replica("r2").role == "build"


def test_a_pool_that_no_device_can_hold_keeps_no_build_waiting() -> None:
    """It would wait for ever, and so would the build."""
    play = Play(PoolSpec(A, memory_mib=9_000.0), devices=cpus(1, 4_000))
    play.demand(a=1)

    assert launched(begun(play)) == [("r1", "d0")]


def test_a_build_evicts_nothing() -> None:
    """It waits for a device that is free of everything, with the reason."""
    play = Play(PoolSpec(A, share=0.3), devices=1)
    play.warm(a="r1")

    assert begun(play) == []
    assert play.tick(60.0) == []
    assert play.machine.pools[BUILD].blocked == (
        "a build uses only spare devices: no free device (1 in use)"
    )

    play.lose("r1")
    assert play.replica("r2").role == "build"


def test_a_build_leaves_the_memory_of_missing_standbys() -> None:
    """One of two standbys of 80 MiB has yet to be started: it comes before a build."""
    play = Play(devices=cpus(2, 256 + 300), standbys=2)

    assert begun(play, memory_mib=150.0) == []
    assert play.machine.pools[BUILD].blocked == (
        "a build uses only spare devices: the memory is for standbys that are yet to be started"
    )
    assert launched(play.on(events.PoolRemoved(BUILD))) == []
    assert launched(begun(play, memory_mib=140.0)) == [("r2", "d0")]


def test_standbys_of_other_devices_and_small_devices_do_not_matter() -> None:
    """The build goes to the second GPU, which is empty and large enough, although the CPU lacks
    memory for its standbys."""
    small = Device("g0", "cuda", 1_000)
    play = Play(devices=[*cpus(1, 300), small, GPU], standbys=2)

    assert launched(begun(play, device_kind="cuda", memory_mib=2_000.0)) == [("r1", "g1")]


def test_the_newest_build_ends_for_a_standby_without_room() -> None:
    """Only if that makes room, and only as many as needed; a standby of its own device counts
    too."""
    play = Play(PoolSpec(A), devices=cpus(4, 256 + 500), standbys=1)
    play.tick(3.0)
    play.on(events.Greeted("r1", {}))
    begun(play, memory_mib=150.0)
    begun(play, key="default/b@1-build", memory_mib=150.0)
    play.demand(a=1)
    play.ready("r1", memory_mib=130.0)
    assert play.replica("r1").pool == A

    commands = play.tick(3.0)

    assert ends(commands) == [
        EndBuild("default/b@1-build", "given_up", reason="its place is needed for a standby")
    ]
    assert play.tick(3.0) == []
    play.on(events.Released("r3"))
    assert launched(play.tick()) == [("r4", "")]
    assert play.state("r2") == "starting"


def test_no_build_ends_for_a_standby_that_has_no_room_anyway() -> None:
    """Its end would be in vain."""
    play = Play(PoolSpec(A, memory_mib=430.0), devices=cpus(2, 256 + 500), standbys=1)
    play.tick(3.0)
    play.on(events.Greeted("r1", {}))
    play.demand(a=1)
    play.ready("r1", memory_mib=480.0)
    begun(play, memory_mib=10.0)

    assert ends(play.tick(3.0)) == []


def test_a_build_is_no_cold_start_in_progress() -> None:
    """Standbys are replaced at once although a build loads for an hour."""
    play = Play(PoolSpec(A), devices=2, standbys=1)
    begun(play)
    play.on(events.Greeted("r1", {}))
    play.on(events.Greeted("r2", {}))
    assert play.replica("r2").role == "build"
    play.demand(a=1)
    play.ready("r1")

    assert launched(play.on(events.FirstRun("r1", 1.0))) == [("r3", "")]


def test_a_build_counts_for_no_max_and_takes_no_calls() -> None:
    """The function may have its replica beside it, and gateways see nothing of the build."""
    play = Play(PoolSpec(A, max=1), devices=2)
    begun(play)

    assert launched(play.demand(a=1)) == [("r2", "d1")]
    assert play.machine.endpoints(BUILD, play.now).replicas == []


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (events.DeviceLost("d0", "XID 79", True), "d0 is gone: XID 79"),
        (events.DeviceLost("d0", "XID 48", False), "d0 is cordoned: XID 48"),
        (events.HostDefined("local", (), True), "local is drained"),
        (events.Lost("r1", "the engine is away", is_its_fault=False), "the engine is away"),
    ],
)
def test_an_accident_gives_a_build_up(event: events.Event, reason: str) -> None:
    """It is not started again by itself."""
    play = Play(devices=2)
    begun(play)

    commands = play.on(event)

    assert commands == [EndBuild(BUILD, "given_up", reason=reason), Release("r1", reason)]
    assert play.on(events.Released("r1")) == []


def test_a_crash_fails_a_build() -> None:
    """With stage, reason and the last lines of its log; there is no second start."""
    play = Play(devices=1)
    begun(play)

    commands = play.on(events.Lost("r1", "exited with code 1", ("line",), "load"))

    assert ends(commands) == [
        EndBuild(BUILD, "failed", "", {}, "load", "exited with code 1", ("line",))
    ]
    assert play.receipts == []
    assert play.on(events.Released("r1")) == []
    assert play.tick(100.0) == []


def test_a_build_has_an_hour() -> None:
    """Then it has failed; a load comes before, and the transfer of its files after."""
    play = Play(devices=1)
    begun(play)
    play.on(events.Greeted("r1", {}))

    assert play.tick(BUILD_S + 60.0) == []
    (end, release) = play.tick(900.0)

    assert isinstance(end, EndBuild)
    assert (end.outcome, end.reason) == ("failed", "loading lasted too long")
    assert release == Release("r1", "loading lasted too long")


def test_a_cancelled_build_is_released_at_once() -> None:
    """Its caller has left, so no end is reported."""
    play = Play(devices=1)
    begun(play)
    play.on(events.Greeted("r1", {}))

    assert play.on(events.PoolRemoved(BUILD)) == [Release("r1", "the pool was removed")]


def test_a_shutdown_ends_a_build() -> None:
    """Its end is reported as given up."""
    play = Play(devices=1)
    begun(play)

    assert [one.outcome for one in ends(play.on(events.Shutdown()))] == ["given_up"]


def test_a_build_of_an_earlier_manager_is_released() -> None:
    """It has no caller any more."""
    play = Play(devices=1, is_open=False)

    commands = play.on(events.Found("r9", BUILD, ("d0",), "build"))

    assert commands == [Release("r9", "its build ended with the earlier manager")]
    play.on(events.ReplicasListed())
    assert play.on(events.Released("r9")) == []
    assert BUILD not in play.machine.pools


def test_a_host_that_breaks_gives_its_builds_up() -> None:
    """Another host may build; that one is released there when it is back."""
    play = Play(devices=[])
    up(play, HOST)
    assert launched(begun(play)) == [("r1", "far/g1")]
    assert play.replica("r1").host == "far"

    commands = play.on(events.HostUnreachable("far", "cable cut"))

    assert [(one.outcome, one.reason) for one in ends(commands)] == [
        ("given_up", "far is unreachable: cable cut")
    ]
    assert play.on(events.HostUp("far", 2, (HOST,), frozenset({"r1"}))) == [
        Release("r1", "far is unreachable: cable cut")
    ]


def test_nothing_is_built_where_nothing_can_be_started() -> None:
    """The engine is away; the build waits."""
    play = Play(devices=1)
    play.on(events.EngineLost("no answer"))

    assert begun(play) == []
    assert play.machine.pools[BUILD].blocked.startswith("nothing can be started: ")
    assert launched(play.on(events.EngineBack(frozenset()))) == [("r1", "d0")]


def test_a_pool_at_its_max_ends_no_build() -> None:
    """A device would not help it."""
    specs = [PoolSpec(f"default/a@{n}", max=1, function="default/a") for n in (1, 2)]
    play = Play(*specs, devices=2)
    play.warm(a="r1")
    begun(play)

    commands = play.on(events.WarmRequested("default/a@2"))

    assert ends(commands) == []


def test_the_session_of_a_replica_is_recorded() -> None:
    """The session is kept; a compiled model that is not used is reported each time."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.on(events.Greeted("r1", {}))
    loaded = events.Loaded("r1", 4, True, 80.0, {}, session="fast", not_compiled="another key")

    assert play.on(loaded) == [RecordNotCompiled(A, "d0", "another key")]
    assert (play.replica("r1").session, play.replica("r1").not_compiled) == ("fast", "another key")
    assert play.on(events.Upgraded("r1", "fast", "too little memory")) == [
        RecordNotCompiled(A, "d0", "too little memory")
    ]
    assert play.on(events.Upgraded("r1", "compiled", "")) == []
    assert (play.replica("r1").session, play.replica("r1").not_compiled) == ("compiled", "")


def test_a_start_from_a_compiled_model_is_noted() -> None:
    """`fnctl why` shows it."""
    play = Play(PoolSpec(A))
    play.demand(a=1)
    play.on(events.Greeted("r1", {}))
    play.on(events.Loaded("r1", 4, True, 80.0, {}, session="compiled"))

    assert play.notes[-1].text == "r1 is ready with its compiled model"


GPUS = [Device("g1", "cuda", 256 + 1_000)]


def test_a_second_session_is_charged_while_both_are_there() -> None:
    """Nothing else gets its memory meanwhile; then the compiled model's counts, if it is used."""
    play = Play(PoolSpec(A), devices=GPUS)
    play.demand(a=1)
    play.ready("r1", memory_mib=400.0)
    cluster, ledger = play.machine.cluster, play.machine.cluster.ledger

    assert cluster.begin_upgrade("r1") == ""
    assert ledger.charge_of("r1").memory_mib == 800.0
    assert cluster.begin_upgrade("r1") == "another upgrade of it is in progress"
    cluster.end_upgrade("r1")
    assert ledger.charge_of("r1").memory_mib == 400.0

    play.on(events.PoolDefined(PoolSpec(A, memory_mib=500.0)))
    assert cluster.begin_upgrade("r1") == ""
    play.on(events.Upgraded("r1", "compiled", ""))
    cluster.end_upgrade("r1")
    assert ledger.charge_of("r1").memory_mib == 500.0


def test_a_second_session_without_room_is_not_opened() -> None:
    """The device's memory decides; the replica goes on as it is, with its charge."""
    play = Play(PoolSpec(A), devices=GPUS)
    play.demand(a=1)
    play.ready("r1", memory_mib=600.0)
    cluster = play.machine.cluster

    assert cluster.begin_upgrade("r1") == (
        "both sessions at once need 600 MiB more, 400 are free;"
        " it gets the compiled model at its next start"
    )
    assert cluster.ledger.charge_of("r1").memory_mib == 600.0
    assert play.state("r1") == "ready"


def test_a_replica_that_ends_during_an_upgrade() -> None:
    """Its charge goes with it."""
    play = Play(PoolSpec(A), devices=GPUS)
    play.demand(a=1)
    cluster = play.machine.cluster
    assert cluster.begin_upgrade("r1") == "it is not ready"
    play.ready("r1")
    assert cluster.begin_upgrade("r1") == ""
    play.demand()
    play.lose("r1")

    cluster.end_upgrade("r1")

    assert cluster.begin_upgrade("r1") == "it is not ready"
    assert cluster.ledger.free_mib("g1", A) == 1_000.0


def test_only_serving_replicas_are_upgraded() -> None:
    """An answer that crossed the replica's end changes nothing."""
    play = Play(PoolSpec(A))
    play.demand(a=1)

    assert play.on(events.Upgraded("r1", "compiled", "")) == []
    assert play.replica("r1").session == ""
