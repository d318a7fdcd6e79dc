"""How the GPUs of one host are connected, and which set of them a replica on several GPUs gets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import combinations, islice
from typing import Final, NamedTuple

from pool_manager.core.state import Device
from runtime_image.contract.gpus import Ancestor, Link

NO_NVLINK_S: Final = 30.0
"""Price of a set of GPUs without NVLink between all of them, in seconds of start, on a host that
has such a set."""
NUMA_S: Final = 5.0
"""Price of a set of GPUs on several NUMA nodes, in seconds of start."""
UNKNOWN: Final = len(Ancestor) * 10
"""Distance of two GPUs of which the driver reports no common ancestor: farther than any other."""


ISLANDS_MAX: Final = 32
"""Max islands of a host. Boards of eight GPUs have up to 15."""
LINKED_MAX: Final = 32
"""Max GPUs of a host whose connections are looked at; those of a host with more do not count."""


class Clearing(NamedTuple):
    """Devices that are cleared together, because one replica that has to leave is on all of them.
    Any number of them may be used, for one `cost`."""

    cost: float
    devices: tuple[str, ...]
    """Their ids, in the order of the topology."""
    victims: tuple[str, ...]
    """Ids of the replicas that have to leave."""


class Choice(NamedTuple):
    """A set of devices. Of two choices the smaller one is better."""

    cost: float
    """What clearing them costs, with the price of their connections."""
    distance: int
    """The farthest ancestor that two of them have in common."""
    positions: tuple[int, ...]
    """Their positions in the order of the topology."""
    parts: tuple[Clearing, ...]
    """What is cleared for them."""


class Topology:
    """The GPUs of one host in the order of their PCI addresses, with their connections.

    `islands` are sets of GPUs that are close to each other, without repetition: those with NVLink
    between all of them, those below a common ancestor, and all. A search for a set looks into each
    island, so there are ISLANDS_MAX at most.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        there = sorted(devices, key=lambda one: (one.pci_bus, one.id))
        self.order = tuple(one.id for one in there)
        self._position = {id: at for at, id in enumerate(self.order)}
        self._links: dict[tuple[str, str], Link] = {}
        is_small = len(there) <= LINKED_MAX
        for link in (link for one in there for link in one.links if is_small):
            self._links[link.first, link.second] = self._links[link.second, link.first] = link
        by_nvlink = [self._nvlinked(id) for id in self.order]
        by_ancestor = [self._within(id, level) for level in Ancestor for id in self.order]
        several = (one for one in (*by_nvlink, *by_ancestor) if len(one) > 1)
        found = islice(dict.fromkeys(several), ISLANDS_MAX - 1)
        self.islands = tuple(dict.fromkeys((*found, self.order)))
        self._largest_nvlinked = max(map(len, by_nvlink), default=0)
        self._island_of: dict[str, tuple[str, ...]] = {}
        for island in sorted(self.islands, key=len):  # of equal ones the nearest is first
            for id in island:
                self._island_of.setdefault(id, island)

    def sorted(self, devices: Iterable[str]) -> tuple[str, ...]:
        """Return devices of this host in the order of their PCI addresses."""
        return tuple(sorted(devices, key=self._position.__getitem__))

    def price_s(self, devices: Collection[str]) -> float:
        """Return the price of the connections of a set of devices, in seconds of start."""
        pairs = list(combinations(devices, 2))
        could_nvlink = len(devices) <= self._largest_nvlinked
        lacks_nvlink = could_nvlink and not all(self._has_nvlink(*pair) for pair in pairs)
        crosses_nodes = any(self._distance(*pair) == Ancestor.SYSTEM for pair in pairs)
        return NO_NVLINK_S * lacks_nvlink + NUMA_S * crosses_nodes

    def island_of(self, device: str) -> tuple[str, ...]:
        """Return the smallest island that a device is in, () for another device than a GPU."""
        return self._island_of.get(device, ())

    def choose(self, clearings: Iterable[Clearing], count: int, per_cost_s: float) -> Choice | None:
        """Return the best `count` devices, None if fewer can be cleared. `per_cost_s` is the price
        in seconds that equals a cost of 1.

        In each island this is a knapsack that must be filled, solved exactly: each clearing costs
        the same for one of its devices as for all of them.
        """
        known, best = list(clearings), None
        for island in self.islands:
            members = frozenset(island)
            inside = [
                one._replace(devices=there)
                for one in known
                if (there := tuple(id for id in one.devices if id in members))
            ]
            filled = self._fill(inside, count)
            if filled is None:
                continue
            cost, positions, parts = filled
            devices = [self.order[at] for at in positions]
            distance = max(self._distance(*pair) for pair in combinations(devices, 2))
            total = cost + self.price_s(devices) / per_cost_s
            choice = Choice(total, distance, positions, parts)
            best = choice if best is None else min(best, choice)
        return best

    def _fill(
        self, clearings: Iterable[Clearing], count: int
    ) -> tuple[float, tuple[int, ...], tuple[Clearing, ...]] | None:
        """Return cost, positions and parts of the cheapest clearings with `count` devices. `best`
        has them for each smaller number, too."""
        best: dict[int, tuple[float, tuple[int, ...], tuple[Clearing, ...]]] = {0: (0.0, (), ())}
        for one in clearings:
            there = [self._position[id] for id in one.devices]
            for filled, (cost, positions, parts) in sorted(best.items(), reverse=True):
                added = there[: count - filled]
                new = cost + one.cost, tuple(sorted((*positions, *added))), (*parts, one)
                known = best.get(filled + len(added))
                if added and (known is None or new < known):
                    best[filled + len(added)] = new
        return best.get(count)

    def _nvlinked(self, device: str) -> tuple[str, ...]:
        """Return a device and others, so that there is NVLink between all of them."""
        return self.sorted(joined(device, self.order, self._has_nvlink))

    def _within(self, device: str, distance: int) -> tuple[str, ...]:
        """Return the devices that have an ancestor with a device that is not farther."""
        return tuple(
            one for one in self.order if one == device or self._distance(one, device) <= distance
        )

    def _has_nvlink(self, first: str, second: str) -> bool:
        link = self._links.get((first, second))
        return link is not None and link.has_nvlink is True

    def _distance(self, first: str, second: str) -> int:
        link = self._links.get((first, second))
        return UNKNOWN if link is None or link.ancestor is None else link.ancestor


def joined(first: str, others: Iterable[str], are_joined: Callable[[str, str], bool]) -> list[str]:
    """Return `first` and those of the others, in their order, of which each two are joined."""
    found = [first]
    for other in others:
        if other not in found and all(are_joined(other, one) for one in found):
            found.append(other)
    return found


def grouped(
    topology: Topology, victims: Mapping[str, tuple[str, ...]], costs: Mapping[str, float]
) -> list[Clearing]:
    """Return the devices of `victims` as they are cleared: those that share a victim, a replica on
    several GPUs, together. `victims` has the ids of the replicas that must leave each device,
    `costs` has the cost of each.

    A device has one such replica at most, since that takes it whole: what is cleared together is
    what that one is on.
    """
    groups: list[tuple[list[str], dict[str, None]]] = []
    for device in topology.sorted(victims):
        there = dict.fromkeys(victims[device])
        joined = [one for one in groups if not one[1].keys().isdisjoint(there)]
        groups = [one for one in groups if one not in joined]
        devices = [*(id for one in joined for id in one[0]), device]
        groups.append((devices, {id: None for one in joined for id in one[1]} | there))
    return [
        Clearing(sum(costs[id] for id in gone), topology.sorted(devices), tuple(gone))
        for devices, gone in groups
    ]
