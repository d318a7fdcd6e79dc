"""Replicas on several GPUs of one host: their devices, their victims, the standing claim."""

from __future__ import annotations

from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.core.candidates import Candidate, CandidateTable
from pool_manager.core.commands import Drain, EndTrial, Launch, Quiesce, Release
from pool_manager.core.eviction import PREEMPT_AFTER_S, RESIDENCY_S, TRIAL_PREEMPT_AFTER_S
from pool_manager.core.hosts import HostRecord, HostState
from pool_manager.core.ledger import Ledger, Need, Reservation, StandingClaim
from pool_manager.core.placement import (
    EvictionPlan,
    claimed_devices,
    find_device,
    find_devices,
    is_unplaceable,
    placement_obstacle,
    plan_eviction,
)
from pool_manager.core.state import Cordon, Device, PoolSpec, State
from registry.exchange import Load
from registry.model.hosts import LOCAL_HOST
from runtime_image.contract.gpus import Ancestor, Link
from tests.support.play import Play

A, B, C, D = (f"default/{name}@1" for name in "abcd")
TRIAL = "default/trial-1@1"
HELD = Load(1, 0, 0.0)


def gpus(count: int, memory_mib: float = 10_000.0, host: str = "") -> list[Device]:
    prefix = f"{host}/" if host else ""
    where = host or LOCAL_HOST
    return [Device(f"{prefix}g{n}", "cuda", memory_mib, host=where) for n in range(count)]


def gang(key: str = A, count: int = 2, **settings: Any) -> PoolSpec:
    return PoolSpec(key, count=count, device_kind="cuda", **settings)


def need(count: int = 2, memory_mib: float = 0.0, pool: str = "new", **more: Any) -> Need:
    return Need(pool, "cuda", memory_mib=memory_mib, count=count, **more)


def house(devices: list[Device], **there: str) -> Ledger:
    """A ledger with replicas that have whole devices: `r1="g0 g1"`."""
    ledger = Ledger(devices)
    for id, names in there.items():
        ledger.charge(id, tuple(names.split()), 1.0, 0.0)
    return ledger


def plan(
    need: Need, ledger: Ledger, spare: int = 9, pool: str = "", **costs: float
) -> EvictionPlan | None:
    table = {id: Candidate(pool or f"pool {id}", cost, spare) for id, cost in costs.items()}
    return plan_eviction(need, ledger, CandidateTable.of(ledger, table))


def launched(commands: list[Any]) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.id, one.devices) for one in commands if isinstance(one, Launch)]


# Devices with room


def test_a_gang_takes_whole_gpus_of_one_host() -> None:
    """The first free ones in the order of their addresses; slices and CPU slots never."""
    devices = [*gpus(3), Device("mig", "cuda", is_slice=True), Device("c0", "cpu")]

    assert find_devices(need(2), house(devices)) == ("g0", "g1")
    assert find_devices(need(2), house(devices, r1="g1")) == ("g0", "g2")
    assert find_devices(need(3), house(devices, r1="g1")) == ()
    assert find_devices(need(4), house(devices)) == ()
    assert find_devices(need(1), house(devices)) == ("g0",)
    assert find_devices(Need("new", "any", count=3), house(devices)) == ("g0", "g1", "g2")


def test_each_device_must_have_the_memory() -> None:
    """The need's memory is that of each; a standby keeps its own."""
    ledger = Ledger([*gpus(2), Device("g2", "cuda", 20_000.0)])
    ledger.charge_bank("s0", "g0", 600.0)

    assert find_devices(need(2, 9_000.0), ledger) == ("g0", "g1")
    assert find_devices(need(2, 9_700.0), ledger) == ("g1", "g2")
    assert find_devices(need(3, 9_700.0), ledger) == ()


def test_two_halves_of_different_hosts_are_no_gang() -> None:
    """The host with the lower price is chosen of those that have all."""
    ledger = Ledger([*gpus(1), *gpus(2, host="far"), *gpus(2, host="near")])
    ledger.hosts["far"] = HostRecord("far", HostState.UP, 0.0, rtt_s=0.4)
    ledger.hosts["near"] = HostRecord("near", HostState.UP, 0.0, rtt_s=0.001)

    assert find_devices(need(2), ledger) == ("near/g0", "near/g1")
    ledger.charge("r1", ("near/g0",), 1.0, 0.0)
    assert find_devices(need(2), ledger) == ("far/g0", "far/g1")
    assert plan(need(2), ledger, r1=0.001) == EvictionPlan(("near/g0", "near/g1"), ("r1",))
    assert plan(need(2), ledger, r1=0.1) == EvictionPlan(("far/g0", "far/g1"), ())


def test_a_gang_is_charged_on_all_of_its_devices() -> None:
    """And measured memory, the largest of them, too."""
    play = Play(gang(memory_mib=3_000.0), devices=gpus(3))
    ledger = play.machine.cluster.ledger

    assert launched(play.demand(a=1)) == [("r1", ("g0", "g1"))]
    play.ready("r1", memory_mib=4_000.0)

    assert [ledger.free_share(f"g{n}") for n in range(3)] == [0.0, 0.0, 1.0]
    assert [ledger.free_mib(f"g{n}", "") for n in range(3)] == [5_744.0, 5_744.0, 9_744.0]
    play.demand()
    play.lose("r1")
    assert [ledger.free_mib(f"g{n}", "") for n in range(3)] == [9_744.0] * 3


def test_a_gang_uses_no_standby() -> None:
    """It starts a process of its own, and standbys stay where there is room for both."""
    play = Play(gang(memory_mib=1_000.0), devices=gpus(2), gpu_standbys=1)
    play.demand()
    play.tick(3.0)
    play.tick()
    play.on(events.Greeted("r1", {}))
    play.on(events.Greeted("r2", {}))

    assert launched(play.demand(a=1)) == [("r3", ("g0", "g1"))]
    assert [play.state(id) for id in ("r1", "r2")] == [State.STANDBY] * 2
    assert not play.machine.cluster.wakes_by_standby(play.pool("a"))


def test_singles_take_what_is_broken_while_a_gang_is_deployed() -> None:
    """The device in the island with the fewest free ones; else the one that is free for longest."""
    links = (Link("g0", "g1", Ancestor.SINGLE, True), Link("g2", "g3", Ancestor.SINGLE, True))
    devices = [Device(f"g{n}", "cuda", links=links if n == 0 else ()) for n in range(4)]
    ledger = house(devices, r1="g3")
    assert find_device(need(1), ledger) == "g0"

    ledger.gangs.add("a")

    assert find_device(need(1), ledger) == "g2"
    assert find_devices(need(2), ledger) == ("g0", "g1")
    ledger.charge("r2", ("g2",), 1.0, 0.0)
    assert find_device(need(1), ledger) == "g0"


def test_a_pool_is_a_gang_as_long_as_it_takes_several() -> None:
    """A build of one takes one device."""
    play = Play(gang(count=2), PoolSpec(B, count=2, role="build"), devices=gpus(2))
    gangs = play.machine.cluster.ledger.gangs
    play.demand()

    assert gangs == {A}
    assert [one.devices for one in play.machine.replicas()] == [("g0",)]
    assert [one.id for one in play.machine.cluster.suitable(play.pool("a"))] == ["g0", "g1"]
    play.on(events.PoolDefined(gang(count=3)))
    assert play.machine.cluster.suitable(play.pool("a")) == []
    play.on(events.PoolDefined(gang(count=1)))
    assert gangs == set()
    play.on(events.PoolDefined(gang(count=2)))
    play.on(events.PoolRemoved(A))
    assert gangs == set()


# Victims


def test_the_cheapest_devices_are_cleared() -> None:
    """Free ones cost nothing; the reservation has all."""
    ledger = house(gpus(4), r1="g0", r2="g1", r3="g3")

    assert plan(need(2), ledger, r1=3.0, r2=1.0, r3=2.0) == EvictionPlan(("g1", "g2"), ("r2",))
    assert plan(need(3), ledger, r1=3.0, r2=1.0, r3=2.0) == EvictionPlan(
        ("g1", "g2", "g3"), ("r2", "r3")
    )
    assert plan(need(4), ledger, r2=1.0, r3=2.0) is None


def test_a_gang_is_paid_once() -> None:
    """Two devices of one replica cost what one does."""
    ledger = house(gpus(4), r1="g0 g2", r2="g1", r3="g3")

    assert plan(need(2), ledger, r1=1.5, r2=1.0, r3=1.0) == EvictionPlan(("g0", "g2"), ("r1",))
    assert plan(need(2), ledger, r1=2.5, r2=1.0, r3=1.0) == EvictionPlan(("g1", "g3"), ("r2", "r3"))
    assert plan(need(1), ledger, r1=0.5, r2=1.0) == EvictionPlan(("g0",), ("r1",))


def test_only_what_leaves_the_chosen_devices_has_to_go() -> None:
    """A standby on a device of the same victim that is not needed stays."""
    ledger = house(gpus(3), r1="g0 g1 g2")
    for n in range(3):
        ledger.charge_bank(f"s{n}", f"g{n}", 600.0)

    found = plan(need(2, 9_500.0), ledger, r1=1.0, s0=0.0, s1=0.0, s2=0.0)

    assert found is not None
    assert (found.devices, {*found.victims}) == (("g0", "g1"), {"r1", "s0", "s1"})


def test_each_pool_keeps_its_min() -> None:
    """Although each device alone could be cleared; the cheapest of the allowed sets goes."""
    ledger = house(gpus(4), r1="g0", r2="g1", r3="g2", r4="g3")
    table = {
        "r1": Candidate("p", 1.0, 1),
        "r2": Candidate("p", 2.0, 1),
        "r3": Candidate("q", 4.0, 9),
        "r4": Candidate("q", 8.0, 9),
    }

    def best(count: int) -> EvictionPlan | None:
        return plan_eviction(need(count), ledger, CandidateTable.of(ledger, table))

    assert best(2) == EvictionPlan(("g0", "g2"), ("r1", "r3"))
    assert best(3) == EvictionPlan(("g0", "g2", "g3"), ("r1", "r3", "r4"))
    assert best(4) is None


def test_the_search_for_allowed_sets_has_a_limit() -> None:
    """A plan that is not found among so many is none."""
    ledger = house(gpus(12), **{f"r{n}": f"g{n}" for n in range(12)})
    costs = {f"r{n}": 1.0 for n in range(12)}

    assert plan(need(6), ledger, spare=5, pool="p", **costs) is None


def test_victims_are_drained_together() -> None:
    """Idle ones at once, and the devices are kept until all have left."""
    play = Play(gang(count=3), PoolSpec(B), PoolSpec(C), PoolSpec(D), devices=gpus(3))
    play.warm(b="r1")
    play.warm(c="r2")
    play.tick(1.0)

    assert play.demand(a=1) == [Drain("r1", 0.001), Drain("r2", 0.001)]
    assert play.reason("a") == (f"waits for {B} and {C} to make room on 3 GPUs")
    play.lose("r1")
    assert launched(play.demand(a=1, d=1)) == []
    play.on(events.Lost("r2", "exit 0"))
    assert launched(play.on(events.Released("r2"))) == [("r3", ("g0", "g1", "g2"))]


def test_busy_victims_are_preempted_softly_and_together() -> None:
    """After PREEMPT_AFTER_S, past the residency of all."""
    play = Play(gang(is_server=True), PoolSpec(B), gang(C, 1, is_server=True), devices=gpus(2))
    play.warm(b="r1")
    play.warm(c="r2")
    load = {"in_flight": {"b": 1, "c": 1}, "queued": {"a": 1}}
    play.hear_all(RESIDENCY_S, **load)

    play.hear_all(PREEMPT_AFTER_S - 1.0, **load)
    assert play.hear_all(1.0, **load) == [Drain("r1", None), Quiesce("r2")]
    reservation = play.pool("a").reservation
    assert reservation is not None
    assert reservation.devices == ("g0", "g1")


def test_a_single_gets_one_device_of_a_gang() -> None:
    """Of an older revision with several devices, a newer one with one reserves only that."""
    play = Play(
        gang("default/a@2", 1, function="default/a"),
        gang(A, 2, function="default/a"),
        devices=gpus(2),
    )
    play.warm(a="r1")
    play.tick(1.0)
    play.hear({"default/a@2": HELD})
    reservation = play.machine.pools["default/a@2"].reservation

    assert reservation is not None
    assert (reservation.devices, reservation.victims) == (("g0",), ("r1",))


def test_a_gang_reserves_no_part_of_its_devices() -> None:
    """Where an older revision with one device has to go first because of `max`."""
    play = Play(
        gang("default/a@2", 2, function="default/a"),
        gang(A, 1, function="default/a"),
        devices=gpus(2),
    )
    play.warm(a="r1")
    play.tick(1.0)
    play.hear({"default/a@2": HELD})
    reservation = play.machine.pools["default/a@2"].reservation

    assert reservation is not None
    assert (reservation.devices, reservation.victims) == ((), ("r1",))
    play.on(events.Lost("r1", "exit 0"))
    assert launched(play.on(events.Released("r1"))) == [("r2", ("g0", "g1"))]


# The standing claim


def blocked_gang(count: int = 2, **settings: Any) -> Play:
    """A gang whose calls have waited for PREEMPT_AFTER_S while a trial is on one of its devices."""
    play = Play(
        gang(count=count, **settings),
        PoolSpec(TRIAL, role="trial", device_kind="cuda"),
        PoolSpec(B),
        PoolSpec(C),
        devices=gpus(2),
    )
    play.demand(a=1)
    play.demand(PREEMPT_AFTER_S, a=1)
    return play


def claim(play: Play) -> StandingClaim | None:
    return play.machine.cluster.ledger.claim


def test_a_gang_without_a_plan_claims_its_devices() -> None:
    """A trial is in the way. A pool that began to wait later gets nothing on them, and is told
    why; one that began earlier does. The gang starts when the trial is over, and the claim ends."""
    play = blocked_gang()
    since_s = play.pool("a").unserved_since_s
    assert since_s is not None

    assert claim(play) == StandingClaim(A, ("g0", "g1"), since_s)
    assert launched(play.demand(a=1, b=1)) == []
    assert play.reason("b") == (
        "no free device (2 in use); 2 are kept for a replica on several GPUs that has waited longer"
    )
    play.on(events.Lost("r1", "exit 0"))
    assert launched(play.on(events.Released("r1"))) == [("r2", ("g0", "g1"))]
    assert claim(play) is None


def test_a_claim_ends_with_the_wait() -> None:
    """The callers left: others have the device at once."""
    play = blocked_gang()

    assert launched(play.demand(b=1)) == [("r2", ("g1",))]
    assert claim(play) is None


@pytest.mark.parametrize(
    "event",
    [
        events.PoolRemoved(A),
        events.DeviceLost("g1", "XID 79", is_gone=True),
        events.EngineLost("no answer"),
    ],
)
def test_a_claim_ends_with_what_it_is_for(event: events.Event) -> None:
    """Its pool, one of its devices, its host."""
    play = blocked_gang()

    play.on(event)

    assert claim(play) is None


def test_a_claim_ends_with_a_failed_start() -> None:
    """While a back-off lasts, others may have the devices."""
    play = blocked_gang()
    play.pool("a").retry_at_s = play.now + 60.0

    play.tick(1.0)

    assert claim(play) is None


def test_a_claim_of_another_device_stays() -> None:
    """When a device is lost that it is not on."""
    play = Play(gang(count=3), PoolSpec(TRIAL, role="trial"), PoolSpec(B, min=1), devices=gpus(4))
    play.demand()
    play.demand(a=1)
    play.demand(PREEMPT_AFTER_S, a=1)
    before = claim(play)
    assert before is not None

    (other,) = {f"g{n}" for n in range(4)} - {*before.devices}
    play.on(events.DeviceLost(other, "XID 48", is_gone=False))

    assert claim(play) == before


def test_the_oldest_gang_has_the_claim() -> None:
    """A younger one has none; an older one, which did not need it before, takes it over."""
    play = Play(
        gang(A), gang(B), PoolSpec(TRIAL, role="trial", device_kind="cuda"), devices=gpus(2)
    )
    play.demand(b=1)
    play.pool("a").retry_at_s = play.now + 20.0
    play.demand(1.0, a=1, b=1)
    play.machine.cluster.pools[A].unserved_since_s = play.now - 2.0
    play.demand(PREEMPT_AFTER_S, a=1, b=1)
    first = claim(play)
    assert first is not None
    assert first.pool == B

    play.demand(20.0, a=1, b=1)

    second = claim(play)
    assert second is not None
    assert second.pool == A
    play.demand(1.0, a=1, b=1)
    assert claim(play) == second


def test_a_claim_avoids_what_nothing_clears() -> None:
    """A device that a `min` keeps, and one whose release fails."""
    play = Play(gang(), PoolSpec(B, min=1), PoolSpec(C), devices=gpus(4))
    play.ready("r1")
    play.demand(c=1)
    play.on(events.Lost("r2", "exit 1"))
    play.on(events.NotReleased("r2", "stuck"))
    play.demand()
    ledger = play.machine.cluster.ledger
    assert (ledger.on("g0"), ledger.on("g1")) == (["r1"], ["r2"])

    play.on(events.PoolDefined(PoolSpec(TRIAL, role="trial", device_kind="cuda")))
    play.demand(a=1)
    play.demand(PREEMPT_AFTER_S, a=1)
    found = claim(play)

    assert found is not None
    assert found.devices == ("g2", "g3")
    play.on(events.PoolDefined(PoolSpec(D, min=1)))
    play.demand(1.0, a=1)
    assert claim(play) == found


def test_a_claim_that_cannot_be_cleared_is_made_anew_or_ends() -> None:
    """A device of it is kept by the `min` of a function now."""
    play = blocked_gang()
    ledger = play.machine.cluster.ledger
    ledger.claim = None
    play.demand(b=1)
    play.ready("r2")
    play.on(events.PoolDefined(PoolSpec(B, min=1)))
    play.demand(a=1)

    play.demand(PREEMPT_AFTER_S, a=1)

    assert claim(play) is None
    assert play.reason("a").startswith(
        "needs 2 free, equal GPUs of one host, at most 0 are free"
        " (2 in all, 1 of them kept by the min of other functions)"
    )


def test_a_claim_leaves_each_pool_its_min() -> None:
    """Of three replicas of a function that keeps two, it counts on one."""
    play = Play(
        PoolSpec(B, min=3, max=3),
        PoolSpec(TRIAL, role="trial", device_kind="cuda"),
        gang(),
        devices=gpus(4),
    )
    play.demand()
    play.on(events.PoolDefined(PoolSpec(B, min=2, max=3)))
    play.ready("r1", "r2", "r3", "r4")
    on = {one.devices[0]: one.pool for one in play.machine.replicas()}
    assert sorted(on.values()) == [B, B, B, TRIAL]
    load = {"in_flight": {"b": 30}, "queued": {"a": 1}}
    play.hear_all(1.0, **load)
    play.hear_all(PREEMPT_AFTER_S, **load)
    found = claim(play)

    assert found is not None
    assert sorted(on[device] for device in found.devices) == [B, TRIAL]


def test_a_plan_moves_the_claim() -> None:
    """The devices that it reserves are claimed: of two trials the second ends first."""
    play = Play(
        PoolSpec("default/trial-0@1", role="trial", device_kind="cuda"),
        PoolSpec(TRIAL, role="trial", device_kind="cuda"),
        gang(),
        PoolSpec(B),
        devices=gpus(3),
    )
    play.demand(b=1)
    play.ready("r3")
    load = {"in_flight": {"b": 1}, "queued": {"a": 1}}
    play.hear_all(1.0, **load)
    play.hear_all(RESIDENCY_S, **load)
    before = claim(play)
    assert before is not None
    assert before.devices == ("g0", "g1")
    play.on(events.Lost("r2", "exit 1"))

    assert play.on(events.Released("r2")) == [Drain("r3", None)]
    after = claim(play)
    assert after is not None
    assert after.devices == ("g1", "g2")
    play.on(events.Lost("r3", "exit 0"))
    assert launched(play.on(events.Released("r3"))) == [("r4", ("g1", "g2"))]
    assert claim(play) is None


def test_claimed_devices_are_the_ones_that_are_not_reserved() -> None:
    """Of a host with as many; reserved ones where there are no others."""
    ledger = Ledger([*gpus(3), *gpus(1, host="far")])
    ledger.reserve(Reservation(Need("q"), ("g0",), (), 0.0))

    assert claimed_devices(need(2), ledger, ()) == ("g1", "g2")
    assert claimed_devices(need(3), ledger, ()) == ("g0", "g1", "g2")
    assert claimed_devices(need(2), ledger, {"g1"}) == ("g0", "g2")
    assert claimed_devices(need(3), ledger, {"g1"}) == ()
    assert claimed_devices(need(2, 20_000.0), ledger, ()) == ()


def test_a_claim_bars_who_waits_later() -> None:
    """On its devices; who has one of them reserved keeps it."""
    ledger = Ledger(gpus(3))
    ledger.claim = StandingClaim("a", ("g0", "g1"), 10.0)
    ledger.reserve(Reservation(Need("c"), ("g1",), (), 0.0))

    def may(pool: str, since_s: float) -> list[str]:
        wish = Need(pool, unserved_since_s=since_s)
        return [id for id in ledger.devices if ledger.fits_kind(id, wish)]

    assert may("a", 10.0) == ["g0", "g2"]
    assert may("b", 9.0) == ["g0", "g2"]
    assert may("b", 10.0) == may("b", 11.0) == may("b", float("inf")) == ["g2"]
    assert may("c", 11.0) == ["g1", "g2"]


def test_no_standby_starts_on_a_claimed_device() -> None:
    """The gang may need its memory."""
    play = Play(
        gang(),
        PoolSpec(TRIAL, role="trial", device_kind="cuda"),
        devices=gpus(2),
        gpu_standbys=1,
    )
    play.machine.cluster.ledger.claim = StandingClaim(A, ("g0", "g1"), play.now)
    play.demand(a=1)
    before = len(play.machine.replicas())
    for id in [one.id for one in play.machine.replicas() if one.role == "standby"]:
        play.lose(id)

    play.machine.cluster.ledger.claim = StandingClaim(A, ("g0", "g1"), play.now)
    play.tick(5.0)
    roles = [one.role for one in play.machine.replicas()]

    assert before > len(roles) or "standby" not in roles


# Trials


def trial(**settings: Any) -> PoolSpec:
    return gang(TRIAL, 2, role="trial", **settings)


def test_a_trial_of_a_gang_gathers_idle_devices() -> None:
    """It takes whole devices, not the rest of one, and those of functions that nobody calls."""
    play = Play(PoolSpec(B, share=0.3), devices=gpus(2))
    play.warm(b="r1")
    play.demand(60.0)

    assert play.on(events.PoolDefined(trial())) == [Drain("r1", 0.001)]
    play.on(events.Lost("r1", "exit 0"))
    assert launched(play.on(events.Released("r1"))) == [("r2", ("g0", "g1"))]
    assert play.machine.cluster.ledger.free_share("g1") == 0.0


@pytest.mark.parametrize("evicts", [True, False])
def test_a_trial_of_a_gang_claims_only_if_it_evicts(evicts: bool) -> None:
    """After TRIAL_PREEMPT_AFTER_S; who keeps the devices is told."""
    other = PoolSpec("default/trial-0@1", role="trial", device_kind="cuda")
    play = Play(other, trial(evicts=evicts), devices=gpus(2))
    play.demand()
    play.tick(TRIAL_PREEMPT_AFTER_S - 1.0)
    assert claim(play) is None

    play.tick(1.0)
    play.tick(1.0)

    assert (claim(play) is not None) == evicts
    assert "g0 is held by trial-0@1" in play.machine.pools[TRIAL].blocked


def test_a_trial_ends_if_cordons_leave_too_few() -> None:
    """It says how many it needs, and how many there are."""
    play = Play(PoolSpec(B), devices=gpus(2))
    play.demand()
    play.on(events.DeviceLost("g1", "XID 79", is_gone=False))

    (end,) = (one for one in play.on(events.PoolDefined(trial())) if isinstance(one, EndTrial))

    assert end.reason == (
        "needs 2 equal GPUs of one host; the largest host has 1, 1 is cordoned: XID 79 (g1)"
    )


# Losses, texts


def test_a_gang_ends_with_one_of_its_devices() -> None:
    """It is released at once; all of its devices are charged until that is proved."""
    play = Play(gang(), devices=gpus(2))
    play.warm(a="r1")

    assert play.on(events.DeviceLost("g1", "XID 79", is_gone=True)) == [
        Release("r1", "g1 is gone: XID 79")
    ]
    ledger = play.machine.cluster.ledger
    assert [ledger.free_share(one) for one in ("g0", "g1")] == [0.0, 0.0]
    play.on(events.Released("r1"))
    assert [ledger.free_share(one) for one in ("g0", "g1")] == [1.0, 1.0]


def test_a_reservation_ends_with_one_of_its_devices() -> None:
    """The others are free for everybody."""
    play = Play(gang(), PoolSpec(B), devices=gpus(2))
    play.warm(b="r1")
    play.tick(1.0)
    play.demand(a=1)
    ledger = play.machine.cluster.ledger
    assert ledger.reservations.keys() == {"g0", "g1"}

    play.on(events.DeviceLost("g1", "XID 48", is_gone=False))

    assert ledger.reservations == {}
    assert play.reason("a") == (
        "needs 2 equal GPUs of one host; the largest host has 1, 1 is cordoned: XID 48 (g1)"
    )


def test_a_gang_that_is_too_large_says_so() -> None:
    """With the numbers, and the wanted host; a cordon that would not help is not the reason."""
    ledger = Ledger([*gpus(2), *gpus(1, host="far")])
    text = "needs 4 equal GPUs of one host; the largest host has 2"

    assert placement_obstacle(need(4), ledger) == text
    wished = Need("new", "cuda", count=2, labels=(("zone", "a"),))
    ledger.hosts["far"] = HostRecord("far", HostState.UP, 0.0, labels={"zone": "a"})
    assert placement_obstacle(wished, ledger).startswith(
        "needs 2 equal GPUs of one host on a host with zone=a; the largest host has 1"
    )
    assert not is_unplaceable(need(4), ledger)
    ledger.cordon("g0", Cordon("XID 79", is_gone=True))
    assert is_unplaceable(need(2), ledger)
    assert placement_obstacle(need(2), ledger) == (
        "needs 2 equal GPUs of one host; the largest host has 1, 1 is cordoned: XID 79 (g0)"
    )


def test_a_replica_has_gpus_of_one_model() -> None:
    """Its golden sample and its measured memory are those of one type of device."""
    mixed = [
        Device(f"g{n}", "cuda", 10_000.0, model=model)
        for n, model in enumerate(("H100", "L40S", "L40S", "H100"))
    ]
    ledger = Ledger(mixed)
    assert find_devices(need(2), ledger) == ("g0", "g3")
    ledger.charge("r1", ("g0",), 1.0, 0.0)
    assert find_devices(need(2), ledger) == ("g1", "g2")
    ledger.charge("r2", ("g1",), 1.0, 0.0)
    assert find_devices(need(2), ledger) == ()
    assert placement_obstacle(need(2), ledger) == (
        "needs 2 free, equal GPUs of one host, at most 1 are free (4 in all)"
    )
    assert placement_obstacle(need(3), ledger) == (
        "needs 3 equal GPUs of one host; the largest host has 2"
    )
