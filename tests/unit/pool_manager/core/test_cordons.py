"""Cordoned devices: which replicas end, which finish, which are placed elsewhere."""

from __future__ import annotations

import pytest

from pool_manager.core import events
from pool_manager.core.commands import Bind, Drain, EndTrial, Launch, Release
from pool_manager.core.eviction import PREEMPT_AFTER_S, RESIDENCY_S
from pool_manager.core.state import Cordon, Device, PoolSpec
from registry.exchange import Load
from tests.support.play import Play, cpus, launched

A, B, C = (f"default/{name}@1" for name in "abc")
G1, G2 = Device("g1", "cuda", 10_000), Device("g2", "cuda", 10_000)
HELD, RUNS = Load(1, 0, 0.0), Load(0, 1, 0.0)
GONE, UNFIT = events.DeviceLost("g1", "XID 79", True), events.DeviceLost("g1", "XID 48", False)
BACK = events.DeviceBack("g1")


def serving(*specs: PoolSpec, devices: list[Device] | None = None) -> Play:
    """A is called and served by r1 on g1."""
    play = Play(PoolSpec(A), *specs, devices=devices or [G1, G2])
    play.run(a=1)
    play.ready("r1")
    return play


def test_what_is_on_a_device_that_is_gone_ends_at_once() -> None:
    """The pool starts on another device in the same step, without a counted failure."""
    play = serving()

    commands = play.on(GONE)

    assert commands[0] == Release("r1", "g1 is gone: XID 79")
    assert launched(commands) == [("r2", "g2")]
    assert play.pool("a").failures == 0
    assert [note.text for note in play.notes if "gone" in note.text] == [
        "r1 is stopped: g1 is gone: XID 79"
    ]


def test_a_start_on_a_device_that_is_gone_is_not_paused() -> None:
    """The loss of a device causes no back-off for the pool's next start."""
    play = Play(PoolSpec(A), devices=[G1, G2])
    play.demand(a=1)

    assert launched(play.on(GONE)) == [("r2", "g2")]


@pytest.mark.parametrize("loaded", [False, True])
def test_no_state_outlives_its_device(loaded: bool) -> None:
    """A replica that is still loading on a lost device is released like a ready one."""
    play = Play(PoolSpec(A), devices=[G1, G2])
    play.demand(a=1)
    play.on(events.Greeted("r1", {}, loaded))

    assert play.on(GONE)[0] == Release("r1", "g1 is gone: XID 79")


def test_what_is_going_already_is_ended_too() -> None:
    """A draining replica on a lost device is released at once; one that is being released is not
    affected."""
    play = serving()
    play.on(UNFIT)

    assert play.on(GONE) == [Release("r1", "g1 is gone: XID 79")]
    assert play.on(GONE) == []


def test_what_is_on_a_device_to_be_left_finishes() -> None:
    """Replicas on a cordoned device are drained, not killed, whatever the pool's `min`; calls go to
    other devices."""
    play = Play(PoolSpec(A, min=1), devices=[G1, G2])
    play.demand()
    play.ready("r1")

    commands = play.on(UNFIT)

    assert commands[0] == Drain("r1", None)
    assert launched(commands) == [("r2", "g2")]
    assert play.on(UNFIT) == []


def test_who_may_refuse_to_go_may_no_longer() -> None:
    """A conditional drain becomes unconditional when the replica's device is cordoned."""
    play = serving(PoolSpec(B), devices=[G1])
    play.run()
    assert play.demand(1.0, b=1) == [Drain("r1", 0.001)]

    assert play.on(UNFIT) == [Drain("r1", None)]
    assert not play.replica("r1").can_serve


def test_a_cordoned_device_gets_nothing() -> None:
    """A cordoned device gets no replica: not when it is empty, nor by an eviction or a swap. `fnctl
    why` names it."""
    play = Play(PoolSpec(A), PoolSpec(B), devices=[G1, G2])
    play.on(UNFIT)
    assert launched(play.run(a=1)) == [("r1", "g2")]
    play.ready("r1")

    play.hear({A: RUNS, B: HELD})

    assert play.reason("b") == "no free device (1 in use), 1 is cordoned: XID 48 (g1)"
    assert play.machine.cluster.ledger.cordons == {"g1": Cordon("XID 48", is_gone=False)}
    assert play.hear({A: RUNS, B: HELD}, PREEMPT_AFTER_S) == []
    assert play.hear({A: RUNS, B: HELD}, RESIDENCY_S) == [Drain("r1", None)]
    assert play.pool("b").reservation.devices == ("g2",)  # type: ignore[union-attr]


def test_who_was_to_get_the_device_looks_elsewhere() -> None:
    """A reservation ends with its device; the next one is made where there is room."""
    play = Play(PoolSpec(A), PoolSpec(B), PoolSpec(C), devices=[G1, G2])
    play.warm(a="r1")
    play.warm(b="r2")
    play.demand(1.0, c=1)
    assert play.pool("c").reservation.devices == ("g1",)  # type: ignore[union-attr]

    assert play.on(GONE) == [Release("r1", "g1 is gone: XID 79"), Drain("r2", 0.001)]
    assert play.pool("c").reservation.devices == ("g2",)  # type: ignore[union-attr]


def test_a_device_that_is_back_is_used() -> None:
    """After DeviceBack the cordon is gone and waiting pools are placed on the device."""
    play = Play(PoolSpec(A), devices=[G1])
    play.on(GONE)
    assert play.demand(a=1) == []
    assert play.reason("a") == "no device of kind any, 1 is cordoned: XID 79 (g1)"

    assert launched(play.on(BACK)) == [("r1", "g1")]
    assert play.machine.cluster.ledger.cordons == {}
    assert play.on(BACK) == []


def test_what_cannot_be_released_keeps_its_device() -> None:
    """A quarantined device stays taken after DeviceBack, until its replica is released."""
    play = serving(devices=[G1])
    play.on(GONE)
    play.on(events.NotReleased("r1", "stuck"))

    assert launched(play.on(BACK)) == []
    assert launched(play.on(events.Released("r1"))) == [("r2", "g1")]


def test_strange_devices_are_ignored() -> None:
    """Loss and return of unknown devices are ignored."""
    play = serving()

    assert play.on(events.DeviceLost("g9", "XID 79", True)) == []
    assert play.on(events.DeviceBack("g9")) == []
    assert play.machine.cluster.ledger.cordons == {}


def test_what_is_gone_stays_gone_until_it_is_back() -> None:
    """A needs-reset report does not downgrade a lost device: replicas found on it are released."""
    play = Play(PoolSpec(A), devices=[G1, G2], is_open=False)
    play.on(GONE)
    play.on(UNFIT)

    assert play.on(events.Found("old", A, ("g1",))) == [Release("old", "g1 is gone: XID 48")]


@pytest.mark.parametrize("event", [GONE, UNFIT])
def test_a_trial_is_run_again_elsewhere(event: events.DeviceLost) -> None:
    """A trial on a lost device is restarted elsewhere and does not refuse the model."""
    play = Play(PoolSpec(A, role="trial"), devices=[G1, G2])
    play.tick(5.0)
    assert play.on(events.Greeted("r1", {})) == [Bind("r1", A)]

    commands = play.on(event)

    assert [type(one) for one in commands] == [Release, Launch]
    assert launched(commands) == [("r2", "g2")]


def test_a_trial_without_any_device_is_told() -> None:
    """A trial whose possible devices are all cordoned fails at once, with a reason that names the
    device, not the model."""
    play = Play(PoolSpec(A, role="trial", device_kind="cuda"), devices=[*cpus(1), G1])
    play.tick(5.0)

    release, end = play.on(GONE)

    assert release == Release("r1", "g1 is gone: XID 79")
    assert end == EndTrial(A, {}, "place", "no device of kind cuda, 1 is cordoned: XID 79 (g1)")
    play.on(events.Released("r1"))
    assert A not in play.machine.pools


def test_a_trial_that_comes_later_is_told_as_well() -> None:
    """A trial requested after the cordon also fails if only a cordoned device could hold it; other
    trials start."""
    play = Play(devices=[G1, Device("small", "cuda", 1_000)])
    play.on(UNFIT)
    play.demand()

    large, small = (PoolSpec(key, role="trial", memory_mib=m) for key, m in ((A, 800), (B, 100)))
    (end,) = play.on(events.PoolDefined(large))
    assert isinstance(end, EndTrial)
    assert launched(play.on(events.PoolDefined(small))) == [("r1", "small")]


def test_a_found_replica_may_say_what_it_does_first() -> None:
    """An adopted replica on a cordoned device is drained only once it has reported its state, so
    that no request is lost."""
    play = Play(PoolSpec(A), devices=[G1, G2], is_open=False)
    play.on(UNFIT)
    play.on(events.Found("old", A, ("g1",)))
    play.on(events.ReplicasListed())
    assert play.run(a=1) == []
    assert play.on(events.Greeted("old", {}, loaded=True)) == []

    commands = play.on(events.Loaded("old", 4, True, 80.0, {}))

    assert commands[0] == Drain("old", None)
    assert launched(commands) == [("r1", "g2")]


def test_nobody_is_asked_to_go_on_a_half_known_world() -> None:
    """Before decisions have begun, only replicas on lost devices are released; none is drained."""
    play = Play(PoolSpec(A), devices=[G1, G2], gpu_standbys=1, is_open=False)
    play.on(events.Found("old", "", ("g1",), "standby"))

    assert play.on(UNFIT) == []
    play.on(events.ReplicasListed())
    assert play.demand()[0] == Release("old", "g1 is cordoned: XID 48")


@pytest.mark.parametrize("event", [GONE, UNFIT])
def test_standbys_go_with_their_device_and_come_back_with_it(event: events.DeviceLost) -> None:
    """A lost device's standby ends, and is not replaced while the device is cordoned."""
    play = Play(devices=[G1], gpu_standbys=1)
    play.demand()
    play.on(events.Greeted("r1", {}))

    (release,) = play.on(event)
    assert isinstance(release, Release)
    play.on(events.Released("r1"))
    assert play.tick(10.0) == []
    assert play.on(BACK) == [Launch("r2", "", ("g1",), "standby", {})]


def test_a_replica_ends_with_one_of_its_devices() -> None:
    """A replica on several devices is released when one of them is gone."""
    play = Play(PoolSpec(A), devices=[G1, G2])
    play.on(events.Found("old", A, ("g1", "g2")))

    commands = play.on(events.DeviceLost("g2", "XID 79", is_gone=True))

    assert commands == [Release("old", "g2 is gone: XID 79")]
