"""Placement over several hosts: which may be used, and the price of a start there."""

from __future__ import annotations

from math import inf

import pytest

from pool_manager.core.candidates import Candidate, CandidateTable
from pool_manager.core.hosts import HostRecord, HostState
from pool_manager.core.ledger import Ledger, Need
from pool_manager.core.placement import (
    CPU_SLOT_S,
    HOSTS_MAX,
    IMAGE_BYTES,
    SPREAD_S,
    EvictionPlan,
    find_device,
    is_unplaceable,
    placement_obstacle,
    plan_eviction,
    start_price_s,
)
from pool_manager.core.state import Cordon, Device, PoolSpec
from registry.model.hosts import LOCAL_HOST, Ability

GB = 1_000_000_000


def gpu(host: str, number: int = 0) -> Device:
    return Device(f"{host}/GPU-{number}", "cuda", 10_000, host=host)


def record(name: str, ability: Ability = Ability.IMAGE, **labels: str) -> HostRecord:
    """A host with an ability and a round trip of 10 ms that gets 100 MB/s."""
    there = HostRecord(name, HostState.UP, 0.0, labels=labels, rtt_s=0.01)
    there.abilities = frozenset({ability})
    there.bytes_per_s = 1e8
    return there


def fleet(*records: HostRecord) -> Ledger:
    """A ledger of hosts with a GPU each."""
    ledger = Ledger([gpu(one.name) for one in records])
    ledger.hosts.update({one.name: one for one in records})
    return ledger


@pytest.mark.parametrize(
    ("spec", "price_s"),
    [
        (PoolSpec("a"), 0.04),
        (PoolSpec("a", files="f1", bundle_bytes=2 * GB), 20.04),
        (PoolSpec("a", files="f2", bundle_bytes=2 * GB), 0.04),
        (PoolSpec("a", image="i1"), 0.04 + IMAGE_BYTES / 1e8),
        (PoolSpec("a", image="i2"), 0.04),
        (PoolSpec("a", files="f1", bundle_bytes=2 * GB, image="i1"), 20.04 + IMAGE_BYTES / 1e8),
    ],
)
def test_a_start_costs_round_trips_and_transfers(spec: PoolSpec, price_s: float) -> None:
    """The price of a start is that of its round trips and of the files and image that the host
    lacks; on a host that shares the server's files it is nothing."""
    there, local = record("gpu2"), record(LOCAL_HOST)
    local.bytes_per_s, local.rtt_s = inf, 0.0
    there.files, there.images = frozenset({"f2"}), frozenset({"i2"})

    assert start_price_s(there, spec) == pytest.approx(price_s)
    assert start_price_s(local, spec) == 0.0


def test_a_host_without_a_measured_rate_has_a_price() -> None:
    """A rate of 0 is no division by zero."""
    there = record("gpu2")
    there.bytes_per_s = 0.0

    assert start_price_s(there, PoolSpec("a", files="f1", bundle_bytes=9)) == pytest.approx(9.04)


def test_the_host_with_the_files_is_chosen() -> None:
    """Of equally free hosts the one that has the files is chosen, then the nearest."""
    far, near, stocked = record("far"), record("near"), record("stocked")
    far.rtt_s, stocked.rtt_s, stocked.files = 0.07, 0.07, frozenset({"f1"})
    ledger = fleet(far, near, stocked)
    need = Need("a", files="f1", bundle_bytes=GB)

    assert find_device(need, ledger) == "stocked/GPU-0"
    assert find_device(Need("a"), ledger) == "near/GPU-0"
    ledger.charge("r1", ("stocked/GPU-0",), 1.0, 0.0)
    assert find_device(need, ledger) == "near/GPU-0"


def test_replicas_of_a_function_are_spread() -> None:
    """A host with a replica of the function comes after one without, unless the other one would
    have to receive much more."""
    there, other = record("gpu2"), record("gpu3")
    ledger = fleet(there, other)
    ledger.add_devices([gpu("gpu2", 1)])
    ledger.charge("r1", ("gpu2/GPU-0",), 1.0, 0.0)

    ledger.charge("r2", ("gpu3/GPU-0",), 1.0, 0.0)
    ledger.release("r2")

    assert find_device(Need("a"), ledger) == "gpu2/GPU-1"
    assert find_device(Need("a", spread_from=("gpu2",)), ledger) == "gpu3/GPU-0"
    assert find_device(Need("a", spread_from=("gpu2", "gpu3", "gpu3")), ledger) == "gpu2/GPU-1"
    there.files = frozenset({"f1"})
    heavy = int(2 * SPREAD_S * 1e8)
    need = Need("a", files="f1", bundle_bytes=heavy, spread_from=("gpu2",))
    assert find_device(need, ledger) == "gpu2/GPU-1"


def test_a_gpu_far_away_comes_before_a_slot_here() -> None:
    """If any kind is allowed, a free GPU elsewhere is worth CPU_SLOT_S of transfers."""
    ledger = fleet(record("gpu2"))
    ledger.add_devices([Device("d0", "cpu")])
    rate = 1e8
    light, heavy = (int(CPU_SLOT_S * rate * part) for part in (0.9, 1.1))

    assert find_device(Need("a", files="f", bundle_bytes=light), ledger) == "gpu2/GPU-0"
    assert find_device(Need("a", files="f", bundle_bytes=heavy), ledger) == "d0"
    assert find_device(Need("a", "cuda", files="f", bundle_bytes=heavy), ledger) == "gpu2/GPU-0"


def test_a_shared_device_is_the_fullest_of_the_nearest_hosts() -> None:
    """Devices of the same price are filled up in the order of their use, whatever their host."""
    ledger = fleet(record("gpu2"), record("gpu3"))
    ledger.charge("r1", ("gpu3/GPU-0",), 0.3, 0.0)

    assert find_device(Need("a", share=0.5), ledger) == "gpu3/GPU-0"
    assert find_device(Need("a", share=0.8), ledger) == "gpu2/GPU-0"
    rest = Need("a", takes_rest=True)
    assert find_device(rest, ledger) == "gpu2/GPU-0"
    ledger.charge("r2", ("gpu2/GPU-0",), 0.1, 0.0)
    ledger.charge("r3", ("gpu2/GPU-0",), 0.1, 0.0)
    assert find_device(rest, ledger) == "gpu3/GPU-0"


def test_the_device_free_for_longest_is_taken_whatever_its_host() -> None:
    """Empty devices of the same price are used in rotation over all hosts."""
    ledger = fleet(record("gpu2"), record("gpu3"), record("gpu4"))
    for number, host in enumerate(("gpu4", "gpu2", "gpu3")):
        ledger.charge(f"r{number}", (f"{host}/GPU-0",), 1.0, 0.0)
    for number in (2, 0, 1):
        ledger.release(f"r{number}")

    assert ledger.empty() == ["gpu3/GPU-0", "gpu4/GPU-0", "gpu2/GPU-0"]
    assert find_device(Need("a"), ledger) == "gpu3/GPU-0"


def test_labels_and_abilities_choose_hosts() -> None:
    """Only hosts with all labels and the ability of a need are used, not closed ones; a host
    without a record has no labels and every ability."""
    ledger = fleet(record("gpu2", zone="a", disk="fast"), record("gpu3", Ability.COMMAND, zone="b"))
    ledger.add_devices([gpu("new")])
    zone_a, zone_b = Need("a", labels=(("zone", "a"),)), Need("a", labels=(("zone", "b"),))

    assert find_device(zone_a, ledger) == "gpu2/GPU-0"
    assert find_device(zone_b, ledger) == "gpu3/GPU-0"
    assert find_device(Need("a", labels=(("zone", "a"), ("disk", "slow"))), ledger) is None
    assert find_device(Need("a", ability=Ability.COMMAND), ledger) == "new/GPU-0"
    ledger.charge("r1", ("new/GPU-0",), 1.0, 0.0)
    assert find_device(Need("a", ability=Ability.COMMAND), ledger) == "gpu3/GPU-0"
    assert find_device(Need("a", labels=(("zone", "b"),), ability=Ability.IMAGE), ledger) is None
    ledger.close_host("gpu3", "unreachable")
    assert find_device(zone_b, ledger) is None


def test_an_eviction_where_the_files_are_beats_a_cheaper_victim() -> None:
    """The price of the start counts beside the costs of victims: 10 GB are not sent to spare a
    replica that costs a little more."""
    stocked, bare = record("stocked"), record("bare")
    stocked.files = frozenset({"f1"})
    ledger = fleet(bare, stocked)
    ledger.charge("r1", ("bare/GPU-0",), 1.0, 0.0)
    ledger.charge("r2", ("stocked/GPU-0",), 1.0, 0.0)
    costs = {"r1": Candidate("p", 0.1, 1), "r2": Candidate("q", 0.4, 1)}
    table = CandidateTable.of(ledger, costs)

    heavy = Need("a", files="f1", bundle_bytes=10 * GB)
    assert plan_eviction(heavy, ledger, table) == EvictionPlan(("stocked/GPU-0",), ("r2",))
    light = Need("a", files="f1", bundle_bytes=GB)
    assert plan_eviction(light, ledger, table) == EvictionPlan(("bare/GPU-0",), ("r1",))
    stocked.files = frozenset()
    assert plan_eviction(heavy, ledger, table) == EvictionPlan(("bare/GPU-0",), ("r1",))


def test_a_host_that_admits_nothing_is_not_cleared() -> None:
    """No replica is stopped on a closed host, or on one without the label."""
    ledger = fleet(record("gpu2"), record("gpu3", zone="b"))
    ledger.charge("r1", ("gpu2/GPU-0",), 1.0, 0.0)
    ledger.charge("r2", ("gpu3/GPU-0",), 1.0, 0.0)
    table = CandidateTable.of(ledger, {"r1": Candidate("p", 0.0, 1), "r2": Candidate("q", 1.0, 1)})
    zone_b = Need("a", labels=(("zone", "b"),))

    assert plan_eviction(zone_b, ledger, table) == EvictionPlan(("gpu3/GPU-0",), ("r2",))
    ledger.close_host("gpu3", "unreachable")
    assert plan_eviction(zone_b, ledger, table) is None
    assert plan_eviction(Need("a"), ledger, table) == EvictionPlan(("gpu2/GPU-0",), ("r1",))


def test_the_obstacle_names_labels_and_hosts() -> None:
    """The reason has the wanted labels, and why each host with such devices is not used."""
    ledger = fleet(
        record("gpu2", zone="a"), record("gpu3", zone="b"), record("gpu4"), record("gpu5", zone="b")
    )
    ledger.hosts["gpu5"].abilities = frozenset({Ability.COMMAND})
    ledger.add_devices([gpu("new"), Device("d0", "cpu")])
    ledger.close_host("gpu3", "unreachable since 12:04")
    need = Need("a", "cuda", labels=(("zone", "b"),), ability=Ability.IMAGE)

    assert placement_obstacle(need, ledger) == (
        "no device of kind cuda on a host with zone=b; hosts: gpu2 (zone=a),"
        " gpu3 (unreachable since 12:04), gpu4 (no label zone), gpu5 (runs no images),"
        " new (no label zone)"
    )
    ledger.close_host("gpu2", "gpu2 is drained")
    assert "hosts: gpu2 is drained, gpu3 (unre" in placement_obstacle(need, ledger)
    assert placement_obstacle(Need("a", "npu"), ledger) == "no device of kind npu"


def test_the_obstacle_names_closed_hosts_beside_devices_in_use() -> None:
    """If some devices are in use, hosts that are away are named besides, at most a few."""
    records = [record(f"h{number:02}") for number in range(HOSTS_MAX + 3)]
    ledger = fleet(*records)
    ledger.charge("r1", ("h00/GPU-0",), 1.0, 0.0)
    for one in records[1:]:
        ledger.close_host(one.name, "unreachable")

    text = placement_obstacle(Need("a", "cuda"), ledger)

    assert text.startswith("no free device (1 in use); hosts: h01 (unreachable), h02 (unreachable)")
    assert text.endswith(f"h{HOSTS_MAX:02} (unreachable) and 2 more")


def test_cordons_of_other_hosts_do_not_matter() -> None:
    """A need is unplaceable, and its obstacle names cordons, only where a host admits it."""
    ledger = fleet(record("gpu2", zone="a"), record("gpu3", zone="b"))
    ledger.cordon("gpu3/GPU-0", Cordon("XID 79", is_gone=True))
    zone_a, zone_b = Need("a", labels=(("zone", "a"),)), Need("a", labels=(("zone", "b"),))

    assert is_unplaceable(zone_b, ledger)
    assert not is_unplaceable(zone_a, ledger)
    assert "cordoned: XID 79 (gpu3/GPU-0)" in placement_obstacle(zone_b, ledger)
    assert "cordoned" not in placement_obstacle(zone_a, ledger)


def test_a_closed_host_is_waited_for() -> None:
    """A need that only a closed host or a cordoned device could hold is not unplaceable."""
    ledger = fleet(record("gpu2"), record("gpu3"))
    ledger.cordon("gpu3/GPU-0", Cordon("XID 79", is_gone=True))
    ledger.close_host("gpu2", "unreachable")

    assert not is_unplaceable(Need("a", "cuda"), ledger)
    ledger.remove_devices(["gpu2/GPU-0"])
    ledger.close_host("gpu3", "unreachable")
    assert is_unplaceable(Need("a", "cuda"), ledger)
