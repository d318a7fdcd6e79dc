"""Connections of GPUs: which set of them a replica on several gets."""

from __future__ import annotations

import itertools
import random

import pytest

from pool_manager.core.state import Device
from pool_manager.core.topology import NO_NVLINK_S, NUMA_S, Clearing, Topology, grouped
from runtime_image.contract.gpus import Ancestor, Link

STAY_S = 60.0


def board(count: int, nvlinks: set[tuple[int, int]] = frozenset(), per_node: int = 9) -> Topology:  # type: ignore[assignment]
    """GPUs g0, g1, ... with these NVLinks, `per_node` of them on each NUMA node."""
    devices = []
    for n in range(count):
        links = tuple(
            Link(
                f"g{n}",
                f"g{other}",
                Ancestor.NODE if n // per_node == other // per_node else Ancestor.SYSTEM,
                (n, other) in nvlinks,
            )
            for other in range(n + 1, count)
        )
        devices.append(Device(f"g{n}", "cuda", pci_bus=f"0000:{n:02x}", links=links))
    return Topology(reversed(devices))


def free(topology: Topology, *devices: str) -> list[Clearing]:
    """Return devices, by default all, that cost nothing."""
    return [Clearing(0.0, (one,), ()) for one in devices or topology.order]


def chosen(topology: Topology, clearings: list[Clearing], count: int) -> tuple[str, ...] | None:
    choice = topology.choose(clearings, count, STAY_S)
    return choice and tuple(topology.order[at] for at in choice.positions)


def test_devices_are_in_the_order_of_their_pci_addresses() -> None:
    """Also where their names are in another one; without an address, names decide."""
    devices = [
        Device("b", "cuda", pci_bus="0000:02"),
        Device("a", "cuda", pci_bus="0000:03"),
        Device("c", "cuda", pci_bus="0000:01"),
    ]

    assert Topology(devices).order == ("c", "b", "a")
    assert Topology(devices).sorted({"a", "c"}) == ("c", "a")
    assert Topology(Device(one, "cuda") for one in "ba").order == ("a", "b")
    assert Topology([]).islands == ()


def test_the_lowest_addresses_win_where_nothing_is_known() -> None:
    """Of GPUs whose connections are not known, the first ones are taken, at no price."""
    topology = Topology(Device(f"g{n}", "cuda") for n in range(4))

    assert chosen(topology, free(topology), 2) == ("g0", "g1")
    assert chosen(topology, free(topology, "g1", "g3"), 2) == ("g1", "g3")
    assert chosen(topology, free(topology, "g1"), 2) is None
    assert topology.price_s(topology.order) == 0.0


def test_nvlink_comes_first_then_the_numa_node() -> None:
    """Of free GPUs those with NVLink between all of them, else those of one NUMA node."""
    topology = board(6, {(1, 5), (3, 4)}, per_node=3)

    assert chosen(topology, free(topology), 2) == ("g3", "g4")
    assert chosen(topology, free(topology, "g0", "g1", "g2", "g5"), 2) == ("g1", "g5")
    assert chosen(topology, free(topology, "g0", "g3", "g5"), 2) == ("g3", "g5")
    assert topology.price_s(("g1", "g5")) == NUMA_S
    assert topology.price_s(("g0", "g1")) == NO_NVLINK_S
    # No three have NVLink between all of them, so none is missed.
    assert topology.price_s(("g0", "g1", "g2")) == 0.0
    assert chosen(topology, free(topology), 3) == ("g0", "g1", "g2")


def test_of_equal_prices_the_nearest_ancestor_wins() -> None:
    """Before the lowest address."""
    links = (Link("g1", "g2", Ancestor.SINGLE), Link("g0", "g1", Ancestor.NODE))
    topology = Topology(Device(f"g{n}", "cuda", links=links if n == 1 else ()) for n in range(3))

    assert chosen(topology, free(topology), 2) == ("g1", "g2")
    assert topology.island_of("g1") == ("g1", "g2")
    assert topology.island_of("g0") == ("g0", "g1")
    assert topology.island_of("c0") == ()


def test_a_connection_is_worth_a_victim() -> None:
    """The price of a set without NVLink is seconds of start; a victim that costs more stays."""
    topology = board(3, {(1, 2)})
    cheap, dear = Clearing(0.4, ("g2",), ("r1",)), Clearing(0.6, ("g2",), ("r1",))

    assert chosen(topology, [*free(topology, "g0", "g1"), cheap], 2) == ("g1", "g2")
    assert chosen(topology, [*free(topology, "g0", "g1"), dear], 2) == ("g0", "g1")


def test_what_shares_a_victim_is_cleared_together() -> None:
    """A replica on several GPUs is paid once; chains of shared victims are one clearing."""
    topology = Topology(Device(f"g{n}", "cuda") for n in range(5))
    victims = {"g0": ("r1",), "g3": ("r1", "r2"), "g4": ("r2",), "g1": (), "g2": ("r3",)}

    assert grouped(topology, victims, {"r1": 1.0, "r2": 2.0, "r3": 4.0}) == [
        Clearing(0.0, ("g1",), ()),
        Clearing(4.0, ("g2",), ("r3",)),
        Clearing(3.0, ("g0", "g3", "g4"), ("r1", "r2")),
    ]


@pytest.mark.parametrize("seed", range(60))
def test_the_cheapest_clearings_are_found(seed: int) -> None:
    """As by a search through all sets of devices, with random costs and connections."""
    pick = random.Random(seed)
    size = pick.randint(2, 7)
    pairs = [pair for pair in itertools.combinations(range(size), 2) if pick.random() < 0.3]
    topology = board(size, set(pairs) if pick.random() < 0.3 else set(), pick.randint(1, 4))
    left = list(topology.order)
    pick.shuffle(left)
    clearings = []
    while left:
        taken = [left.pop() for _ in range(min(len(left), pick.choice([1, 1, 1, 2, 3])))]
        cost = pick.choice([0.0, 0.2, 1.0, 3.0])
        clearings.append(Clearing(cost, topology.sorted(taken), (f"r{len(left)}",)))
    count = pick.randint(2, size)

    def cost(devices: tuple[str, ...]) -> float:
        paid = sum(one.cost for one in clearings if {*devices} & {*one.devices})
        return paid + topology.price_s(devices) / STAY_S

    best = min(map(cost, itertools.combinations(topology.order, count)))
    choice = topology.choose(clearings, count, STAY_S)

    assert choice is not None
    assert choice.cost == pytest.approx(best)
    assert cost(tuple(topology.order[at] for at in choice.positions)) == pytest.approx(best)
