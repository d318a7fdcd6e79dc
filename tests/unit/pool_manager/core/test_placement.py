"""Placement: the device of a replica, and the victims that make room."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from pool_manager.core.candidates import Candidate, CandidateTable
from pool_manager.core.ledger import Ledger, Need, Reservation
from pool_manager.core.placement import (
    EvictionPlan,
    find_device,
    is_unplaceable,
    kept_devices,
    placement_obstacle,
    plan_eviction,
)
from pool_manager.core.state import Cordon, Device

GPUS = [Device("g1", "cuda", 10_000), Device("g2", "cuda", 10_000)]
CPUS = [Device("c1", "cpu", 2_000, "ram"), Device("c2", "cpu", 2_000, "ram")]


def need(share: float = 1.0, memory_mib: float = 0.0, kind: str = "any") -> Need:
    return Need("new", kind, share, memory_mib)


def house(*charges: tuple[str, str, float, float], devices: list[Device] = GPUS) -> Ledger:
    """A ledger with replicas given as (id, device, share, MiB)."""
    ledger = Ledger(devices)
    for id, device, share, memory_mib in charges:
        ledger.charge(id, (device,), share, memory_mib)
    return ledger


def candidates(spare: int = 9, **costs: float) -> dict[str, Candidate]:
    """Candidates, each in its own pool."""
    return {id: Candidate(f"pool {id}", value, spare) for id, value in costs.items()}


def plan(
    need: Need, ledger: Ledger, costs: dict[str, Candidate], without: tuple[str, ...] = ()
) -> EvictionPlan | None:
    """The cheapest plan with these candidates."""
    return plan_eviction(need, ledger, CandidateTable.of(ledger, costs), without)


def test_a_free_device_is_found() -> None:
    """A replica that needs a whole device gets an empty one of its kind."""
    ledger = house(("r1", "g1", 0.1, 0.0), devices=[*GPUS, *CPUS])

    assert find_device(need(), ledger) == "g2"
    assert find_device(need(kind="cpu"), ledger) == "c1"
    assert find_device(need(kind="npu"), ledger) is None


def test_who_shares_goes_where_most_are() -> None:
    """Shared devices are packed, so that whole devices stay free."""
    ledger = house(("r1", "g2", 0.5, 0.0))

    assert find_device(need(0.5), ledger) == "g2"
    assert find_device(need(0.6), ledger) == "g1"


def test_memory_decides_where() -> None:
    """A device with too little free memory is skipped."""
    ledger = house(("r1", "g2", 0.1, 9_000.0))

    assert find_device(need(0.1, 2_000.0), ledger) == "g1"
    assert find_device(need(0.1, 9_800.0), ledger) is None


def test_a_standby_lends_its_memory_to_its_successor() -> None:
    """The memory of a standby is available to the replica that it becomes."""
    ledger = house(devices=CPUS)
    ledger.charge_bank("s1", "ram", 80.0)

    assert find_device(need(memory_mib=1_740.0), ledger) is None
    assert find_device(need(memory_mib=1_740.0), ledger, ("s1",)) == "c1"


def test_the_cheapest_goes() -> None:
    """Of replicas that each suffice, the cheapest is chosen."""
    ledger = house(("r1", "g1", 1.0, 0.0), ("r2", "g2", 1.0, 0.0))

    assert plan(need(), ledger, candidates(r1=2.0, r2=1.0)) == EvictionPlan(("g2",), ("r2",))
    assert plan(need(), ledger, candidates(r1=2.0)) == EvictionPlan(("g1",), ("r1",))
    assert plan(need(), ledger, {}) is None


def test_a_set_is_judged_by_its_sum() -> None:
    """One expensive replica may be cheaper than two cheap ones together."""
    ledger = house(("a1", "g1", 0.5, 0.0), ("a2", "g1", 0.5, 0.0), ("b1", "g2", 1.0, 0.0))

    assert plan(need(), ledger, candidates(a1=2.0, a2=2.0, b1=3.0)) == EvictionPlan(
        ("g2",), ("b1",)
    )
    assert plan(need(), ledger, candidates(a1=2.0, a2=2.0, b1=5.0)) == EvictionPlan(
        ("g1",), ("a1", "a2")
    )


def test_who_proved_superfluous_stays() -> None:
    """A small victim chosen first is spared if the larger one that follows suffices."""
    ledger = house(("a1", "g1", 0.1, 1_000.0), ("a2", "g1", 0.1, 8_000.0), devices=GPUS[:1])

    assert plan(need(0.1, 5_000.0), ledger, candidates(a1=1.0, a2=2.0)) == EvictionPlan(
        ("g1",), ("a2",)
    )


def test_nobody_goes_in_vain() -> None:
    """If all candidates together do not make enough room, none is stopped."""
    ledger = house(("a1", "g1", 0.5, 0.0), ("busy", "g1", 0.5, 0.0), devices=GPUS[:1])

    assert plan(need(), ledger, candidates(a1=1.0)) is None
    assert plan(need(0.5), ledger, candidates(a1=1.0)) == EvictionPlan(("g1",), ("a1",))
    assert plan(need(0.5, 20_000.0), ledger, candidates(a1=1.0)) is None


def test_memory_may_come_from_another_device_of_the_bank() -> None:
    """A CPU slot without enough memory gets it from an idle replica on another slot."""
    ledger = house(("a1", "c1", 1.0, 1_500.0), ("busy", "c2", 0.5, 100.0), devices=CPUS)

    assert plan(need(0.5, 1_000.0), ledger, candidates(a1=1.0)) == EvictionPlan(("c1",), ("a1",))
    ledger.charge("tied", ("c1",), 0.0, 0.0)
    assert plan(need(0.5, 1_000.0), ledger, candidates(a1=1.0)) in (
        EvictionPlan(("c1",), ("a1",)),
        EvictionPlan(("c2",), ("a1",)),
    )


def test_a_standby_goes_first() -> None:
    """A standby's memory is cheaper than any replica."""
    ledger = house(("a1", "c1", 1.0, 1_000.0), devices=CPUS)
    ledger.charge_bank("s1", "ram", 80.0)
    costs = candidates(a1=0.1) | {"s1": Candidate("standby", 0.0, 1)}

    assert plan(need(memory_mib=700.0), ledger, costs) == EvictionPlan(("c2",), ("s1",))
    assert plan(need(memory_mib=700.0, kind="cuda"), ledger, costs) is None


def test_one_that_is_used_up_is_no_victim() -> None:
    """A standby that becomes the new replica is not also evicted for it."""
    ledger = house(("a1", "c1", 1.0, 1_000.0), devices=CPUS)
    ledger.charge_bank("s1", "ram", 80.0)
    costs = candidates(a1=0.1) | {"s1": Candidate("standby", 0.0, 1)}

    clearing = plan(need(memory_mib=800.0), ledger, costs, ("s1",))
    assert clearing is not None
    assert clearing.victims == ("a1",)


def test_a_floor_is_kept_wherever_its_replicas_are() -> None:
    """Of two replicas of a pool that can spare one, either may be chosen, but not both."""
    ledger = house(("a1", "g1", 1.0, 0.0), ("a2", "g2", 0.5, 0.0), ("a3", "g2", 0.5, 0.0))
    pool = {id: Candidate("a", 1.0, 1) for id in ("a1", "a2", "a3")}

    assert plan(need(), ledger, pool) == EvictionPlan(("g1",), ("a1",))
    del pool["a1"]
    assert plan(need(), ledger, pool) is None
    assert plan(need(0.5), ledger, pool) == EvictionPlan(("g2",), ("a2",))


def test_a_device_claimed_by_another_is_not_cleared() -> None:
    """A device reserved for another pool is not cleared."""
    ledger = house(("r1", "g1", 1.0, 0.0), devices=GPUS[:1])
    ledger.reserve(Reservation(Need("other"), ("g1",), ("r1",), 0.0))

    assert plan(need(), ledger, candidates(r1=1.0)) is None


def test_one_on_a_device_that_is_no_more_makes_no_room() -> None:
    """An adopted replica on an unknown device makes no room."""
    ledger = house(("old", "gone", 1.0, 100.0), ("r1", "g1", 1.0, 0.0), devices=GPUS[:1])

    assert plan(need(), ledger, candidates(old=0.1, r1=1.0)) == EvictionPlan(("g1",), ("r1",))


def test_why_there_is_no_place_is_said() -> None:
    """The reasons of a missing kind, a too large need, lacking memory and used devices differ."""
    ledger = house(("r1", "g1", 1.0, 0.0), ("r2", "g2", 0.5, 9_000.0))

    assert placement_obstacle(need(kind="npu"), ledger) == "no device of kind npu"
    assert placement_obstacle(need(memory_mib=9_999.0), ledger) == (
        "needs 9999 MiB + 256 spare, no device has that"
    )
    assert placement_obstacle(need(memory_mib=1.0), ledger) == "no free device (2 in use)"
    assert placement_obstacle(need(0.5, 1_000.0), ledger) == "needs 1000 MiB, 744 are free"
    ledger.recharge("r2", 9_900.0)
    assert placement_obstacle(need(0.5, 1_000.0), ledger) == "needs 1000 MiB, 0 are free"


def test_devices_that_are_kept_are_counted_with_their_owners() -> None:
    """Only those that would have room without the other replicas on them do not count."""
    ledger = house(("r1", "g1", 1.0, 0.0), ("r2", "g2", 0.5, 0.0), ("r3", "g2", 0.4, 0.0))
    keepers = {"g1": {"r1": "default/a"}, "g2": {"r2": "default/b"}, "gone": {"r9": "default/c"}}

    assert kept_devices(need(), ledger, keepers) == {"g1": {"default/a"}, "g2": {"default/b"}}
    assert kept_devices(need(0.5), ledger, keepers) == {"g1": {"default/a"}}
    assert kept_devices(need(kind="npu"), ledger, keepers) == {}
    assert placement_obstacle(need(), ledger, 2) == (
        "no free device (2 in use, 2 of them kept by the min of other functions)"
    )


def test_devices_of_unknown_size_are_never_too_small() -> None:
    """Without accounted memory, only a device's use is an obstacle."""
    ledger = house(("r1", "c", 1.0, 0.0), devices=[Device("c", "cpu")])

    assert placement_obstacle(need(memory_mib=1e6), ledger) == "no free device (1 in use)"


replicas = st.lists(
    st.tuples(
        st.sampled_from(["c1", "c2", "g1"]),
        st.sampled_from([0.3, 0.5, 1.0]),
        st.sampled_from([100.0, 600.0, 1_500.0]),
        st.sampled_from(["p", "q", "busy"]),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(
    replicas, st.sampled_from([0.4, 1.0]), st.sampled_from([0.0, 900.0]), st.sampled_from([1, 2, 9])
)
def test_whatever_idles_makes_enough_room(
    there: list[tuple[str, float, float, str]], share: float, memory_mib: float, spare: int
) -> None:
    """A plan is found if and only if one exists, it makes enough room, and it spares what it can.
    If only some replicas of a pool may be stopped, a free share may be missed that another choice
    would find."""
    ledger = Ledger([*CPUS, GPUS[0]])
    costs = {}
    for number, (device, part, mib, pool) in enumerate(there):
        ledger.charge(f"r{number}", (device,), part, mib)
        if pool != "busy":
            costs[f"r{number}"] = Candidate(pool, float(number), spare)
    wish = need(share, memory_mib)
    if find_device(wish, ledger) is not None:
        return

    clearing = plan(wish, ledger, costs)

    groups = chain.from_iterable(combinations(costs, n) for n in range(len(costs) + 1))
    able = [
        group
        for group in groups
        if all(sum(costs[id].pool == pool for id in group) <= spare for pool in "pq")
        and any(ledger.fits(device, wish, group) for device in ledger.devices)
    ]
    assert able or clearing is None
    if share == 1.0 or spare > len(there):
        assert (clearing is not None) == bool(able)
    if clearing is not None:
        assert clearing.victims in able or tuple(sorted(clearing.victims)) in able
        (device,) = clearing.devices
        assert ledger.fits(device, wish, clearing.victims)
        for id in clearing.victims:
            fewer = [one for one in clearing.victims if one != id]
            assert not ledger.fits(device, wish, fewer)


def test_who_may_go_anywhere_gets_a_gpu_first() -> None:
    """If any kind is allowed, GPUs come first, then CPU slots, however long they have been free."""
    ledger = house(devices=[*CPUS, *GPUS])
    found = []
    for number in range(4):
        device = find_device(need(), ledger)
        assert device is not None
        found.append(device)
        ledger.charge(f"r{number}", (device,), 1.0, 0.0)

    assert found == ["g1", "g2", "c1", "c2"]
    assert find_device(need(), ledger) is None


def test_a_shared_gpu_comes_before_a_shared_slot() -> None:
    """The kind decides first, then the number of replicas."""
    ledger = house(("r1", "c1", 0.1, 0.0), ("r2", "g2", 0.1, 0.0), devices=[*CPUS, *GPUS])

    assert find_device(need(0.5), ledger) == "g2"
    assert find_device(need(0.5, kind="cpu"), ledger) == "c1"
    assert find_device(need(0.5, 9_900.0), ledger) is None
    assert find_device(need(0.5, 1_000.0, "cpu"), ledger) == "c1"


def test_who_takes_the_rest_takes_a_whole_device_first() -> None:
    """A trial gets a whole device, otherwise the rest of the one with the fewest replicas."""
    rest = Need("new", takes_rest=True)
    shared = [("r1", "g1", 0.1, 0.0), ("r2", "g1", 0.1, 0.0), ("r3", "g2", 0.5, 0.0)]

    assert find_device(rest, house(*shared[:2])) == "g2"
    assert find_device(rest, house(*shared)) == "g2"
    assert find_device(rest, house(*shared, ("r4", "g2", 0.5, 0.0))) == "g1"
    assert find_device(rest, house(("r1", "g1", 1.0, 0.0), ("r2", "g2", 1.0, 0.0))) is None


def test_why_names_the_devices_that_may_not_be_used() -> None:
    """The reason has the number, ids and causes of cordoned devices of the right kind."""
    ledger = house(("r1", "g2", 1.0, 0.0), devices=[*GPUS, *CPUS])
    ledger.cordon("g1", Cordon("XID 79", is_gone=True))
    assert placement_obstacle(need(kind="cuda"), ledger) == (
        "no free device (1 in use), 1 is cordoned: XID 79 (g1)"
    )
    assert "cordoned" not in placement_obstacle(need(kind="cpu", memory_mib=9_000), ledger)

    ledger.cordon("g2", Cordon("row remap", is_gone=False))

    assert placement_obstacle(need(kind="cuda"), ledger) == (
        "no device of kind cuda, 2 are cordoned: XID 79 (g1); row remap (g2)"
    )


def test_hopeless_is_what_only_a_cordoned_device_could_hold() -> None:
    """A need is unplaceable only if a cordoned device could hold it; devices in use and needs that
    never fit do not count."""
    ledger = house(("r1", "g2", 1.0, 0.0), devices=[*GPUS, *CPUS])
    assert not is_unplaceable(need(memory_mib=99_999), ledger)

    ledger.cordon("g1", Cordon("XID 79", is_gone=True))

    assert not is_unplaceable(need(kind="cuda"), ledger)
    assert is_unplaceable(need(kind="cuda", memory_mib=9_900), ledger)
    ledger.cordon("g2", Cordon("XID 79", is_gone=True))
    assert is_unplaceable(need(kind="cuda"), ledger)
    assert not is_unplaceable(need(), ledger)
