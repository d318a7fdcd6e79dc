"""Property tests of placement: indexes choose as a plain search over all devices does.

`Plain` is that search: it reads the ledger's records by its public questions about one device, and
sorts everything for each decision. The victims on one device are those of the product; a search
over all sets of candidates judges them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool_manager.core.candidates import Candidate, CandidateTable
from pool_manager.core.hosts import HostRecord, HostState
from pool_manager.core.ledger import Ledger, Need, Reservation
from pool_manager.core.placement import (
    CPU_SLOT_S,
    SPREAD_S,
    STAY_S,
    EvictionPlan,
    find_device,
    find_devices,
    plan_eviction,
    start_price_s,
    victims_on,
)
from pool_manager.core.state import Cordon, Device
from registry.model.hosts import LOCAL_HOST, Ability
from tests.support.doses import amount

HOSTS = [LOCAL_HOST, "gpu2", "gpu3"]
RECORDS = {
    LOCAL_HOST: HostRecord(
        LOCAL_HOST, HostState.UP, 0.0, abilities=frozenset({Ability.COMMAND}), bytes_per_s=inf
    ),
    "gpu2": HostRecord(
        "gpu2",
        HostState.UP,
        0.0,
        labels={"zone": "a"},
        abilities=frozenset({Ability.IMAGE}),
        rtt_s=0.07,
        files=frozenset({"f1"}),
    ),
    "gpu3": HostRecord(
        "gpu3",
        HostState.UP,
        0.0,
        labels={"zone": "b"},
        abilities=frozenset({Ability.IMAGE}),
        images=frozenset({"i1"}),
    ),
}


def devices_of(host: str) -> list[Device]:
    prefix = "" if host == LOCAL_HOST else f"{host}/"
    return [
        *(
            Device(f"{prefix}cpu{n}", "cpu", 2_000.0, f"{prefix}ram", host)
            for n in range(3 if host == LOCAL_HOST else 2)
        ),
        *(Device(f"{prefix}GPU-{n}", "cuda", 3_000.0, host=host) for n in range(2)),
    ]


@dataclass
class Plain:
    """Placement by sorting all devices. `since` has the empty devices, longest empty first."""

    ledger: Ledger
    is_single: bool
    since: list[str] = field(default_factory=list)

    def price_s(self, need: Need, host: str) -> float:
        if self.is_single:
            return 0.0
        record = self.ledger.hosts.get(host)
        price_s = start_price_s(record, need) if record else 0.0
        return price_s + SPREAD_S * need.spread_from.count(host)

    def order(self, need: Need) -> list[str]:
        ledger = self.ledger
        if need.takes_rest:
            shared = sorted(
                ledger.devices.keys() - set(self.since), key=lambda id: (len(ledger.on(id)), id)
            )
            able = [*self.since, *shared]
        elif need.share >= 1.0:
            able = list(self.since)
        else:
            able = sorted(ledger.devices, key=lambda id: -len(ledger.on(id)))

        def price_s(id: str) -> float:
            device = ledger.devices[id]
            is_slot = need.kind == "any" and device.kind == "cpu"
            return self.price_s(need, device.host) + (CPU_SLOT_S if is_slot else 0.0)

        return sorted(able, key=price_s)

    def find(self, need: Need, without: Collection[str]) -> str | None:
        fit = (id for id in self.order(need) if self.ledger.fits(id, need, without))
        return next(fit, None)

    def plan(
        self, need: Need, candidates: Mapping[str, Candidate], without: Collection[str]
    ) -> EvictionPlan | None:
        ledger = self.ledger
        floors: dict[str, float] = {}
        for id, candidate in candidates.items():
            (bank,) = ledger.charge_of(id).banks
            floors[bank] = min(candidate.cost, floors.get(bank, candidate.cost))
        table = CandidateTable.of(ledger, candidates)
        best: tuple[float, EvictionPlan] | None = None
        for bound, device in sorted(
            (floors[one.bank] + self.price_s(need, one.host) / STAY_S, one.id)
            for one in ledger.devices.values()
            if one.bank in floors and ledger.fits_kind(one.id, need)
        ):
            if best is not None and best[0] <= bound:
                break
            victims = victims_on(device, need, ledger, table, without)
            if victims is None:
                continue
            price_s = self.price_s(need, ledger.devices[device].host)
            total = sum(candidates[id].cost for id in victims) + price_s / STAY_S
            if best is None or total < best[0]:
                best = total, EvictionPlan((device,), victims)
        return best[1] if best else None


needs = st.builds(
    Need,
    st.sampled_from(["p", "q", "new"]),
    st.sampled_from(["any", "cpu", "cuda"]),
    st.sampled_from([0.3, 0.5, 1.0]),
    st.sampled_from([0.0, 500.0, 1_800.0, 2_500.0, 9_000.0]),
    st.booleans(),
    st.sampled_from([(), (), (("zone", "a"),), (("zone", "b"),), (("rack", "1"),)]),
    st.sampled_from(["", "", "process", "docker"]),
    st.sampled_from(["", "f1", "f2"]),
    st.just(10_000_000_000),
    st.sampled_from(["", "", "i1"]),
    st.lists(st.sampled_from(HOSTS), max_size=3).map(tuple),
)
places = st.integers(0, 40)
steps = st.one_of(
    st.tuples(
        st.just("charge"),
        places,
        st.sampled_from([0.3, 0.5, 1.0]),
        st.sampled_from([0.0, 400.0, 1_500.0]),
    ),
    st.tuples(
        st.sampled_from(["release", "reserve", "cordon", "uncordon", "close", "join"]), places
    ),
)


class Drawn:
    """A ledger of a few hosts after some changes. `since` has its empty devices, the one that is
    empty for longest first."""

    def __init__(self, hosts: int, changes: list[tuple]) -> None:  # type: ignore[type-arg]
        self.ledger = Ledger([device for host in HOSTS[:hosts] for device in devices_of(host)])
        self.ledger.hosts.update({host: RECORDS[host] for host in HOSTS[1:]})
        self.since = list(self.ledger.devices)
        self.replicas: list[str] = []
        for number, change in enumerate(changes):
            self.change(f"r{number}", *change)
            is_empty = [id for id in self.ledger.devices if not self.ledger.on(id)]
            since = [id for id in self.since if id in is_empty]
            self.since = since + [id for id in is_empty if id not in since]
        self.ledger.charge_bank("s1", "ram", 80.0)

    def change(self, id: str, what: str, place: int, *charge: float) -> None:
        ledger, host = self.ledger, HOSTS[place % 3]
        device = list(ledger.devices)[place % len(ledger.devices)]
        if what == "charge":
            ledger.charge(id, (device,), *charge)
            self.replicas.append(id)
        elif what == "release" and self.replicas:
            ledger.release(self.replicas.pop(place % len(self.replicas)))
        elif what == "reserve" and device not in ledger.reservations | ledger.cordons:
            ledger.reserve(Reservation(Need("q", memory_mib=300.0), (device,), (), 0.0))
        elif what == "cordon" and device not in ledger.reservations:
            ledger.cordon(device, Cordon("XID 79", is_gone=False))
        elif what == "uncordon":
            ledger.uncordon(device)
        elif what == "close" and not ledger.reserved_on(host):
            ledger.close_host(host, "unreachable")
        elif what == "join":
            ledger.open_host(host)
            ledger.add_devices(devices_of(host))


fleets = st.builds(Drawn, st.integers(1, 3), st.lists(steps, max_size=25))
prices = st.lists(st.sampled_from([0.0, 0.001, 0.2, 0.2, 3.0]), min_size=8, max_size=8)


@given(
    fleet=fleets,
    wishes=st.lists(needs, min_size=1, max_size=4),
    costs=prices,
    spare=st.sampled_from([1, 2, 9]),
)
@settings(max_examples=amount(300, 5_000), deadline=None)
def test_indexed_placement_is_the_plain_one(
    fleet: Drawn, wishes: list[Need], costs: list[float], spare: int
) -> None:
    """After any changes, the indexes find the device and the victims that a search over all devices
    finds, for one host and for several."""
    ledger, replicas = fleet.ledger, fleet.replicas
    names = {device.host for device in ledger.devices.values()}
    plain = Plain(ledger, len(names) == 1, fleet.since)
    assert ledger.empty() == fleet.since
    candidates = {
        id: Candidate(f"p{n % 4}", costs[n % 8], spare) for n, id in enumerate(replicas[::2])
    }
    table = CandidateTable.of(ledger, candidates)

    for need in wishes:
        assert find_device(need, ledger, ("s1",)) == plain.find(need, ("s1",))
        assert plan_eviction(need, ledger, table, ("s1",)) == plain.plan(need, candidates, ("s1",))
        for id in replicas[: len(replicas) // 3]:
            table.discard(id)
            candidates.pop(id, None)


@given(fleet=fleets, wishes=st.lists(needs, min_size=1, max_size=3), costs=prices)
@settings(max_examples=amount(150, 5_000), deadline=None)
def test_a_plan_exists_if_any_set_of_candidates_makes_room(
    fleet: Drawn, wishes: list[Need], costs: list[float]
) -> None:
    """Of all sets of candidates on all devices, some make room or none does, and so does the plan.
    None of its victims is stopped in vain, and a single victim is the cheapest one with the price
    of its host. A device has room only if no set is needed."""
    ledger = fleet.ledger
    names = {device.host for device in ledger.devices.values()}
    plain = Plain(ledger, len(names) == 1)
    costs_of = dict(zip(fleet.replicas[-6:], costs, strict=False))
    table = CandidateTable.of(ledger, {id: Candidate("p", c, 9) for id, c in costs_of.items()})
    sets = [one for n in range(1, 7) for one in itertools.combinations(costs_of, n)]

    for need in wishes:
        device = find_device(need, ledger, ("s1",))
        assert (device is None) == (
            not any(ledger.fits(id, need, ("s1",)) for id in ledger.devices)
        )
        if device is not None:
            continue
        making_room = {
            (id, victims): sum(costs_of[one] for one in victims)
            + plain.price_s(need, ledger.devices[id].host) / STAY_S
            for id in ledger.devices
            for victims in sets
            if ledger.fits(id, need, ("s1", *victims))
        }
        plan = plan_eviction(need, ledger, table, ("s1",))
        assert (plan is None) == (not making_room)
        if plan is not None:
            smaller = itertools.combinations(plan.victims, len(plan.victims) - 1)
            (device,) = plan.devices
            assert ledger.fits(device, need, ("s1", *plan.victims))
            assert not any(ledger.fits(device, need, ("s1", *one)) for one in smaller)
            if len(plan.victims) == 1:
                total = making_room[device, plan.victims]
                assert total == min(making_room.values())


def gangs_on_two_hosts(pick: random.Random) -> tuple[Ledger, dict[str, Candidate]]:
    """Return a ledger of two hosts with replicas on one GPU or several, and those of them that may
    be stopped; each pool keeps some of its replicas."""
    sizes = {LOCAL_HOST: pick.randint(1, 5), "gpu2": pick.randint(0, 4)}
    ledger = Ledger(
        Device(f"{host}/g{n}", "cuda", host=host)
        for host, size in sizes.items()
        for n in range(size)
    )
    ledger.hosts["gpu2"] = HostRecord("gpu2", HostState.UP, 0.0, rtt_s=pick.choice([0.0, 6.0]))
    candidates = {}
    for host, size in sizes.items():
        left = [f"{host}/g{n}" for n in range(size)]
        pick.shuffle(left)
        while left:
            taken = [left.pop() for _ in range(min(len(left), pick.choice([1, 1, 2, 3])))]
            id, pool = f"r{host}{len(left)}", pick.choice("pq")
            if pick.random() < 0.8:
                ledger.charge(id, tuple(taken), 1.0, 0.0)
                candidates[id] = Candidate(
                    pool, pick.choice([0.001, 0.2, 1.0]), "pq".index(pool) + 1
                )
            if pick.random() < 0.2:
                candidates.pop(id, None)
    return ledger, candidates


@pytest.mark.parametrize("seed", range(amount(150, 5_000)))
def test_sets_of_devices_are_those_of_a_full_search(seed: int) -> None:
    """For a need of several GPUs: of all sets of devices of one host whose replicas may all be
    stopped, the plan has one of the cheapest; there is none if there is no such set. Devices with
    room are found if and only if there are enough on one host."""
    pick = random.Random(seed)
    ledger, candidates = gangs_on_two_hosts(pick)
    need = Need("new", "cuda", count=pick.randint(2, 4))

    costs: dict[tuple[str, ...], float] = {}
    for host in {device.host for device in ledger.devices.values()}:
        there = [id for id, device in ledger.devices.items() if device.host == host]
        price_s = start_price_s(ledger.hosts[host], need) if host in ledger.hosts else 0.0
        price_s = price_s if len({one.host for one in ledger.devices.values()}) > 1 else 0.0
        for devices in itertools.combinations(there, need.count):
            gone = {id for device in devices for id in ledger.on(device)}
            pools = [candidates[id].pool for id in gone if id in candidates]
            is_allowed = pools.count("p") <= 1 and pools.count("q") <= 2
            if gone <= candidates.keys() and is_allowed:
                costs[devices] = sum(candidates[id].cost for id in gone) + price_s / STAY_S
    plan = plan_eviction(need, ledger, CandidateTable.of(ledger, candidates))
    free = find_devices(need, ledger)

    assert bool(free) == any(not any(map(ledger.on, devices)) for devices in costs)
    assert not any(map(ledger.on, free))
    assert (plan is None) == (not costs)
    if plan is not None:
        gone = {id for device in plan.devices for id in ledger.on(device)}
        assert gone == {*plan.victims}
        assert costs[tuple(sorted(plan.devices))] == pytest.approx(min(costs.values()))
