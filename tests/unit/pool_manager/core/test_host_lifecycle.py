"""Hosts: connections and their epochs, engines, drains, removal, standbys."""

from __future__ import annotations

import pytest

from pool_manager.core import events
from pool_manager.core.cluster import GPU_STANDBY_MIB, STANDBY_MIB
from pool_manager.core.commands import Abandon, Assign, Drain, Launch, Release, WatchEngine
from pool_manager.core.hosts import HOST_LOST_S
from pool_manager.core.ledger import Charge
from pool_manager.core.state import Device, PoolSpec
from registry.model.hosts import LOCAL_HOST
from tests.support.book import charged
from tests.support.fleet_play import ABILITIES, FAR_GPU, HOST, SLOTS, FleetPlay
from tests.support.play import Play, launched

A, B = "default/a@1", "default/b@1"
MODEL, HANDLER = PoolSpec(A), PoolSpec(A, may_rerun=False)


def test_a_host_joins() -> None:
    """A host that was added takes replicas once it is up."""
    play = FleetPlay(MODEL, is_up=False)
    assert play.demand(a=1) == []
    assert play.host.state == "joining"
    assert "gpu2 has not joined yet" in play.reason("a")

    commands = play.up()

    assert [(c.id, c.devices, c.host) for c in commands if isinstance(c, Launch)] == [
        ("r1", ("gpu2/d0",), HOST)
    ]
    assert (play.host.state, play.host.abilities, play.host.rtt_s) == ("up", ABILITIES, 0.001)
    assert play.machine.cluster.host_of("r1") == HOST
    assert play.machine.cluster.host_of("nobody") == ""


def test_the_local_host_is_always_there() -> None:
    """The local host is UP, has the abilities of the server, and cannot be lost or removed."""
    play = Play(MODEL)
    for event in (
        events.HostUp(LOCAL_HOST, 9, (), frozenset()),
        events.HostUnreachable(LOCAL_HOST, "no answer"),
        events.HostRemoved(LOCAL_HOST, is_forced=True),
    ):
        assert play.on(event) == []

    (host,) = play.machine.cluster.hosts.values()
    assert (host.name, host.state, host.can_be_lost) == (LOCAL_HOST, "up", False)
    assert launched(play.demand(a=1)) == [("r1", "d0")]


@pytest.mark.parametrize(
    "event",
    [
        events.HostUp("gpu9", 1, SLOTS, frozenset()),
        events.HostUnreachable("gpu9", "no route"),
        events.HostRemoved("gpu9"),
        events.HostStocked("gpu9", frozenset(), frozenset(), 1e6),
        events.EngineLost("no answer", "gpu9"),
    ],
)
def test_events_of_unknown_hosts_are_ignored(event: events.Event) -> None:
    """Events of a host that is not defined (any more) change nothing."""
    play = FleetPlay(MODEL)

    assert play.on(event) == []
    assert play.machine.cluster.hosts.keys() == {LOCAL_HOST, HOST}


def test_labels_files_and_images_of_a_host_are_recorded() -> None:
    """Labels, files, images and the speed of transfers are kept for placement."""
    play = FleetPlay()
    play.on(events.HostDefined(HOST, (("zone", "a"),)))
    play.on(events.HostStocked(HOST, frozenset({"f"}), frozenset({"i"}), 1e6))

    host = play.host
    assert host.labels == {"zone": "a"}
    assert (host.files, host.images, host.bytes_per_s) == ({"f"}, {"i"}, 1e6)


def test_a_burst_of_old_events_is_harmless() -> None:
    """Of the events of earlier connections none is applied, in whichever order they arrive."""
    play = FleetPlay(MODEL)
    play.warm(a="r1")
    play.down()
    play.up("r1")
    play.greet("r1")

    for event in (
        events.HostUnreachable(HOST, "late", 1),
        events.HostUp(HOST, 1, (), frozenset()),
        events.HostUp(HOST, 2, (), frozenset()),
    ):
        assert play.on(event) == []

    assert (play.host.state, play.host.epoch, play.shown("a")) == ("up", 2, "warm")
    assert play.on(events.HostUnreachable(HOST, "now", 2)) == []
    assert play.host.state == "unreachable"


def test_a_connection_that_has_ended_is_not_taken_for_one() -> None:
    """HostUp that arrives after the HostUnreachable of its connection is ignored."""
    play = FleetPlay(MODEL, is_up=False)
    play.on(events.HostUnreachable(HOST, "closed", 1))

    play.on(events.HostUp(HOST, 1, SLOTS, frozenset()))

    assert play.host.state == "unreachable"


def test_a_new_connection_may_come_without_the_end_of_the_old_one() -> None:
    """What runs stays known; what does not has ended."""
    play = FleetPlay(MODEL, PoolSpec(B))
    play.warm(a="r1", b="r2")

    assert play.up("r1") == [Release("r2", "it ended while gpu2 was unreachable")]
    assert (play.shown("a"), play.contact("r1")) == ("warm", "known")


def test_repeated_reports_do_not_prolong_the_wait() -> None:
    """Each try to connect may fail with another reason; the host becomes GONE all the same."""
    play = FleetPlay()
    play.down()
    play.now += HOST_LOST_S - 1.0
    play.on(events.HostUnreachable(HOST, "refused"))
    play.tick(1.0)

    assert (play.host.state, play.host.reason) == ("gone", "refused")
    play.on(events.HostUnreachable(HOST, "no route"))
    assert (play.host.state, play.host.obstacle) == ("gone", "gpu2 is gone: no route")


def test_a_host_that_never_answers_is_gone() -> None:
    """The wait for a host that is joining ends, too."""
    play = FleetPlay(is_up=False)
    play.tick(HOST_LOST_S)

    assert play.host.state == "gone"
    play.up()
    assert play.host.state == "up"


def test_nothing_is_reserved_on_a_closed_host() -> None:
    """A pool that waits for a device of a host that breaks waits for another one."""
    play = FleetPlay(MODEL, PoolSpec(B), far=[FAR_GPU])
    play.warm(a="r1")
    play.demand(20.0, b=1)
    assert play.pool("b").reservation is not None

    play.down()

    assert play.machine.cluster.ledger.reservations == {}
    assert "gpu2 is unreachable: no route" in play.pool("b").blocked
    assert play.machine.cluster.closure() == ""


def test_without_any_host_nothing_can_be_started() -> None:
    """The reason has the causes of all hosts."""
    play = FleetPlay(MODEL, near=1)
    play.on(events.EngineLost("no answer"))
    assert play.machine.cluster.engine_down == "no answer"
    play.down()

    play.demand(a=1)

    text = "nothing can be started: no answer; gpu2 is unreachable: no route"
    assert play.pool("a").blocked == text


def test_the_engine_of_one_host_stops_starts_there_only() -> None:
    """The other hosts go on; replicas serve on."""
    play = FleetPlay(MODEL, PoolSpec(B), near=1)
    play.warm(a="r1")
    host = play.replica("r1").host
    other = LOCAL_HOST if host == HOST else HOST

    (watch,) = play.on(events.EngineLost("no answer", host))
    assert watch == WatchEngine("no answer", host)
    assert play.shown("a") == "warm"
    (launch,) = play.demand(b=1)
    assert isinstance(launch, Launch)
    assert launch.host == other

    assert play.on(events.EngineBack(frozenset(), host)) == [
        Release("r1", "it ended while the engine was away")
    ]
    assert play.state("r2") == "starting"


def test_the_engine_of_an_unreachable_host_is_not_asked() -> None:
    """HostUp says that it answers; an answer of an earlier connection is ignored."""
    play = FleetPlay(MODEL)
    play.warm(a="r1")
    play.on(events.EngineLost("no answer", HOST))
    play.down()
    assert play.on(events.EngineLost("no answer", HOST)) == []
    play.up("r1")

    assert play.host.engine_down == ""
    assert play.on(events.EngineBack(frozenset(), HOST)) == []
    assert play.state("r1") == "ready"


# Drain and removal


def test_a_host_is_drained_and_opened_again() -> None:
    """Its replicas drain, its standbys end, nothing is placed there until it is opened."""
    play = FleetPlay(MODEL, PoolSpec(B), standbys=1)
    play.demand()
    play.tick()
    play.greet("r1", loaded=False)
    play.warm(a="r1")
    play.tick(5.0)
    play.tick(5.0)
    (spare,) = (one.id for one in play.machine.cluster.replicas() if one.role == "standby")

    commands = play.on(events.HostDefined(HOST, is_draining=True))

    assert set(commands) == {Drain("r1", None), Release(spare, "gpu2 is drained")}
    assert play.host.state == "draining"
    assert play.demand(b=1) == []
    assert "gpu2 is drained" in play.pool("b").blocked
    commands = play.on(events.HostDefined(HOST))
    assert [c.pool for c in commands if isinstance(c, Launch)][:1] == [B]


def test_a_drain_outlasts_a_break() -> None:
    """A host that comes back drains on."""
    play = FleetPlay(MODEL)
    play.warm(a="r1")
    play.down()
    assert play.on(events.HostDefined(HOST, is_draining=True)) == []
    assert play.host.state == "unreachable"

    assert play.up("r1") == []
    assert play.host.state == "draining"
    assert play.greet("r1") == [Drain("r1", None)]


def test_the_local_host_can_be_drained() -> None:
    """A trial there begins anew elsewhere."""
    play = FleetPlay(near=1)
    play.demand()
    play.on(events.HostDefined(HOST, is_draining=True))
    play.on(events.PoolDefined(PoolSpec(A, role="trial")))
    assert play.replica("r1").host == LOCAL_HOST
    play.on(events.HostDefined(HOST))

    commands = play.on(events.HostDefined(LOCAL_HOST, is_draining=True))

    assert commands[0] == Release("r1", "local is drained")
    assert launched(commands) == [("r2", "gpu2/d0")]


def test_nothing_is_drained_before_decisions_begin() -> None:
    """A drain waits for the driver's list, like every decision."""
    play = FleetPlay(MODEL, is_up=False)
    closed = Play(MODEL, is_open=False)
    assert closed.on(events.HostDefined(LOCAL_HOST, is_draining=True)) == []
    assert play.on(events.HostDefined(HOST, is_draining=True)) == []
    assert play.host.state == "joining"


def test_a_removed_host_is_forgotten_when_it_is_empty() -> None:
    """Its replicas drain; then its record, devices and standby pools are removed."""
    play = FleetPlay(MODEL, standbys=1)
    play.demand()
    play.tick()
    play.greet("r1", loaded=False)
    play.warm(a="r1")

    assert Drain("r1", None) in play.on(events.HostRemoved(HOST))
    assert play.host.state == "draining"
    for one in play.machine.replicas():
        play.lose(one.id)

    cluster = play.machine.cluster
    assert cluster.hosts.keys() == {LOCAL_HOST}
    assert (play.machine.devices, cluster.ledger.closed) == ({}, {})
    assert play.machine.pools.keys() == {A}
    assert cluster.standby_places.keys() == set()
    assert play.up() == []


def test_a_removal_can_be_taken_back() -> None:
    """A host that is defined again keeps what has not ended yet, and its standbys."""
    play = FleetPlay(MODEL, standbys=1)
    play.warm(a="r2") if play.demand() else None
    play.on(events.HostRemoved(HOST))

    play.on(events.HostDefined(HOST))

    assert play.host.state == "up"
    assert not play.machine.pools["standby/gpu2/cpu"].removed


def test_an_unreachable_host_is_not_forgotten() -> None:
    """What may run there is drained once it is back."""
    play = FleetPlay(MODEL)
    play.warm(a="r1")
    play.down()

    assert play.on(events.HostRemoved(HOST)) == []
    assert play.tick(HOST_LOST_S) == []
    assert play.host.state == "gone"
    assert play.up("r1") == [Release("r1", "gpu2 is gone: no route")]
    play.on(events.Released("r1"))
    assert HOST not in play.machine.cluster.hosts


def test_an_unreachable_host_is_removed_by_force() -> None:
    """What may run twice is abandoned at once, a handler when nothing there takes calls."""
    play = FleetPlay(HANDLER, PoolSpec(B))
    play.warm(a="r1", b="r2")
    play.down()

    assert play.on(events.HostRemoved(HOST, is_forced=True)) == [Abandon("r2", "gpu2 was removed")]
    assert play.state("r2") == "stopped"
    assert play.shown("b") == "cold"
    play.on(events.HostRemoved(HOST))
    assert play.tick(HOST_LOST_S) == [Abandon("r1", "gpu2 was removed")]
    assert play.machine.cluster.hosts.keys() == {LOCAL_HOST}
    assert charged(play.machine.cluster.ledger, SLOTS) == set()


def test_force_has_no_effect_on_a_host_that_is_up() -> None:
    """Its replicas finish their calls."""
    play = FleetPlay(MODEL)
    play.warm(a="r1")

    assert play.on(events.HostRemoved(HOST, is_forced=True)) == [Drain("r1", None)]
    assert play.down() == [Abandon("r1", "gpu2 was removed")]


def test_replicas_on_an_undefined_host_are_abandoned() -> None:
    """The host of an earlier manager's replica was removed meanwhile. The replica is kept until the
    host would be gone, in case that it is defined later."""
    play = Play(MODEL)
    play.on(events.Found("old", A, ("gpu2/d0",), "serve", HOST))
    assert play.machine.cluster.hosts[HOST].is_removed
    assert play.tick(HOST_LOST_S - 1.0) == []

    assert play.tick(1.0) == [Abandon("old", "gpu2 was removed")]
    assert HOST not in play.machine.cluster.hosts


# Devices and standbys


def test_each_host_keeps_its_standbys() -> None:
    """CPU slots of each host share a pool of standbys, charged to the host's memory; each GPU has
    its own."""
    far = (*SLOTS, FAR_GPU)
    play = FleetPlay(MODEL, near=1, far=far, standbys=1, gpu_standbys=1)
    commands = play.demand() + play.tick()

    started = {(c.devices, c.host): c.id for c in commands if isinstance(c, Launch)}
    assert started.keys() == {((), LOCAL_HOST), ((), HOST), (("gpu2/GPU-1",), HOST)}
    ledger = play.machine.cluster.ledger
    assert ledger.charge_of(started[(), HOST]) == Charge((), ("gpu2/ram",), 0.0, STANDBY_MIB)
    assert ledger.charge_of(started[("gpu2/GPU-1",), HOST]).memory_mib == GPU_STANDBY_MIB
    assert play.machine.pools.keys() == {
        A,
        "standby/cpu",
        "standby/gpu2/cpu",
        "standby/gpu2/GPU-1",
    }


def test_a_host_without_cpu_slots_has_no_standbys_for_them() -> None:
    """A host has such a pool only if it has CPU slots."""
    play = FleetPlay(near=1, far=[FAR_GPU], standbys=1)

    assert play.machine.cluster.standby_places.keys() == {"standby/cpu"}
    assert not FleetPlay(far=[FAR_GPU], standbys=1).machine.cluster.standby_places


def test_a_standby_is_used_on_its_own_host() -> None:
    """A start on one host does not take the standby of another one."""
    play = FleetPlay(MODEL, near=1, standbys=1)
    commands = play.demand() + play.tick()
    ids = {c.host: c.id for c in commands if isinstance(c, Launch)}
    for id in ids.values():
        play.greet(id, loaded=False)
    play.on(events.HostDefined(LOCAL_HOST, is_draining=True))

    (told,) = (one for one in play.demand(a=1) if isinstance(one, Assign))

    assert (told.id, told.devices) == (ids[HOST], ("gpu2/d0",))
    assert play.machine.cluster.wakes_by_standby(play.pool("a"))


def test_a_standby_of_a_closed_host_wakes_nothing() -> None:
    """Estimates of cold starts do not count on it."""
    play = FleetPlay(MODEL, standbys=1)
    play.demand()
    play.tick()
    play.greet("r1", loaded=False)
    assert play.machine.cluster.wakes_by_standby(play.pool("a"))

    play.down()

    assert not play.machine.cluster.wakes_by_standby(play.pool("a"))
    assert play.tick(60.0) == []
    play.up("r1")
    assert play.tick() == []
    play.greet("r1", loaded=False)
    assert play.machine.cluster.wakes_by_standby(play.pool("a"))


def test_a_standby_found_before_its_host_is_charged_when_that_is_up() -> None:
    """The memory bank of a host is known with its devices."""
    play = FleetPlay(standbys=1, is_up=False)
    play.found("old", "", "")
    ledger = play.machine.cluster.ledger
    assert ledger.charge_of("old") == Charge((), ("",), 0.0, STANDBY_MIB)

    assert play.up("old") == []

    assert ledger.charge_of("old").banks == ("gpu2/ram",)
    assert play.contact("old") == "expected"


def test_a_host_comes_back_with_other_devices() -> None:
    """Replicas on a device that is missing are released, and its standbys; new devices are used."""
    play = FleetPlay(PoolSpec(A, device_kind="cuda"), far=[FAR_GPU], gpu_standbys=1, standbys=1)
    play.warm(a="r1")
    play.tick(5.0)
    (spare,) = (one.id for one in play.machine.cluster.replicas() if one.role == "standby")
    play.down()
    other = Device("gpu2/GPU-2", "cuda", 8_000, host=HOST)
    play.far = (other,)

    commands = play.up("r1", spare)

    why = "gpu2 has no device gpu2/GPU-1"
    assert {one for one in commands if isinstance(one, Release)} == {
        Release("r1", why),
        Release(spare, why),
    }
    assert play.machine.devices.keys() == {"gpu2/GPU-2"}
    assert not play.machine.cluster.wakes_by_standby(play.pool("a"))
    for id in ("r1", spare):
        play.on(events.Released(id))
    assert "standby/gpu2/GPU-1" not in play.machine.pools
    assert "standby/gpu2/GPU-2" in play.machine.pools


def test_a_device_may_lack_where_no_standbys_are_kept() -> None:
    """A device that is missing is forgotten, with or without standbys."""
    play = FleetPlay()
    play.far = SLOTS[:1]

    play.up()

    assert play.machine.devices.keys() == {"gpu2/d0"}


def test_the_devices_of_other_hosts_are_not_taken() -> None:
    """A host reports its own devices only."""
    play = FleetPlay(far=[*SLOTS, Device("d9", "cpu")])

    assert play.machine.devices.keys() == {"gpu2/d0", "gpu2/d1"}


def test_a_cordoned_device_of_an_unreachable_host_is_left() -> None:
    """What is there is released when the host is back."""
    play = FleetPlay(MODEL, far=[FAR_GPU])
    play.warm(a="r1")
    play.down()
    assert play.on(events.DeviceLost(FAR_GPU.id, "XID 79", is_gone=True)) == []

    commands = play.up("r1")

    assert commands == [Release("r1", f"{FAR_GPU.id} is gone: XID 79")]


def test_the_shutdown_does_not_wait_for_an_unreachable_host() -> None:
    """What runs there ends by itself, or is adopted by a later manager."""
    play = FleetPlay(MODEL, PoolSpec(B), near=1, far=[FAR_GPU])
    play.warm(a="r1", b="r2")
    assert {play.replica(id).host for id in ("r1", "r2")} == {LOCAL_HOST, HOST}
    play.down()
    near = next(id for id in ("r1", "r2") if play.replica(id).host == LOCAL_HOST)

    assert play.on(events.Shutdown()) == [Drain(near, None)]
    assert not play.machine.is_stopped
    play.lose(near)
    assert play.machine.is_stopped
