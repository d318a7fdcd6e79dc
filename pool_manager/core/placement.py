"""Placement: which device a replica gets, or which replicas to stop for it at the least cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heappop, heappush, merge
from math import inf
from typing import Final, NamedTuple, Protocol

from pool_manager.core.candidates import CandidateTable
from pool_manager.core.gpus.topology import Choice, Clearing, Topology, grouped
from pool_manager.core.hosts import DeviceGroup, HostRecord
from pool_manager.core.ledger import RESERVE_MIB, SHARE_SLACK, Ledger, Need
from registry.builds import DeviceType
from registry.model.hosts import Ability

ROUND_TRIPS: Final = 4
"""Round trips between the decision and a replica that loads: its folders and links, the creation
and the start of its container, its HELLO with the answer."""
IMAGE_BYTES: Final = 8e9
"""Size assumed for an image that a host lacks; the engine reports it only after the transfer.
Images with CUDA and a serving framework have 5 to 15 GB."""
SPREAD_S: Final = 5.0
"""Price of a second replica on a host, in seconds of start: less than a model's load from a disk,
so that a host without the files is not chosen for the spread alone; more than any round trip."""
CPU_SLOT_S: Final = 30.0
"""Price of a CPU slot where a GPU would do, in seconds of start: a GPU on a host that has the files
comes first however far it is; one that must receive more than 3 GB at 100 MB/s does not."""
STAY_S: Final = 60.0
"""Time over which the price of a start is spread when it is compared with the costs of victims,
which are seconds of cold starts per second: a started replica usually stays for longer."""
BRANCHES_MAX: Final = 64
"""Sets of victims on one host that are looked at until one keeps the `min` of all pools."""
HOSTS_MAX: Final = 8
"""Hosts, or devices of one refusal, named in the reason of a missing place."""
REASONS_MAX: Final = 4
"""Different refusals quoted there."""


LACKING: Final = {
    Ability.COMMAND: "commands",
    Ability.IMAGE: "images",
    Ability.PACKAGES: "Python packages",
}
"""What a host without an ability does not run, in words."""


class Shipment(Protocol):
    """What must be on a host before a replica starts there: `files` of `bundle_bytes`, `image`."""

    @property
    def files(self) -> str: ...
    @property
    def bundle_bytes(self) -> int: ...
    @property
    def image(self) -> str: ...


class EvictionPlan(NamedTuple):
    """What makes room for a replica."""

    devices: tuple[str, ...]
    """The devices that then have room; none if only `max` was in the way."""
    victims: tuple[str, ...]
    """The replicas to stop."""
    paused: tuple[str, ...] = ()
    """The replicas that only yield their CPU slots."""


class _Choice(NamedTuple):
    """Victims on devices."""

    total: float
    """Their cost with the price of the start."""
    bound: float
    """The least that any set in the memory bank could cost."""
    devices: tuple[str, ...]
    """The devices that have room without them."""
    victims: tuple[str, ...]
    """Ids of the replicas to stop."""

    def is_before(self, floor: float, first: str) -> bool:
        """Whether no bank from this floor on can have a better choice. `first` is its first
        device."""
        is_tie = floor == self.total
        return floor > self.total or (
            is_tie and (self.bound < self.total or (first,) > self.devices)
        )


def start_price_s(record: HostRecord, shipment: Shipment) -> float:
    """Return the seconds that a start takes longer on a host than on one that shares the server's
    files: ROUND_TRIPS over its link, and the transfer of the files and the image that it lacks."""
    missing = 0.0
    if shipment.files and shipment.files not in record.files:
        missing += shipment.bundle_bytes
    if shipment.image and shipment.image not in record.images:
        missing += IMAGE_BYTES
    return ROUND_TRIPS * record.rtt_s + missing / max(1.0, record.bytes_per_s)


def find_device(need: Need, ledger: Ledger, without: Collection[str] = ()) -> str | None:
    """Return the best device with room now, None if there is none; the order is that of
    `devices_by_preference`.

    `without`: standbys that may become the new replica; their memory is available to it.
    """
    devices = devices_by_preference(need, ledger)
    return next((device for device in devices if ledger.fits(device, need, without)), None)


def find_devices(need: Need, ledger: Ledger, without: Collection[str] = ()) -> tuple[str, ...]:
    """Return the best devices with room now, in the order of their PCI addresses, none if there are
    too few: one as of `find_device`, or several equal ones of one host as of `plan_eviction`."""
    if need.count == 1:
        device = find_device(need, ledger, without)
        return () if device is None else (device,)
    victims: Victims = {}
    for group in ledger.groups(need):
        free = (id for id in group.empty if ledger.fits(id, need, without))
        for id in free:
            victims.setdefault(ledger.devices[id].type, {})[id] = ()
    plan = _plan_set(need, ledger, CandidateTable(ledger), victims)
    return plan.devices if plan is not None else ()


def devices_by_preference(need: Need, ledger: Ledger) -> Iterator[str]:
    """Yield the devices that may have room without an eviction, the best first.

    (1) Only hosts that admit the need: not closed, with its labels and its ability.
    (2) The lowest price first, in seconds of start (`_price_s`). If any kind is allowed, a CPU slot
        costs CPU_SLOT_S more than a GPU. Among devices of the same price:
    (3) A trial, which takes the rest of a device: empty devices, then those with the fewest
        replicas.
    (4) A replica that needs a whole device: empty devices, the one free for longest first. While
        there are pools whose replicas take several: the one first that breaks the smallest island
        (`_most_broken`).
    (5) A replica that shares a device: the fullest first, to keep whole devices for (4).
    """
    priced: dict[float, list[DeviceGroup]] = {}
    for group in ledger.groups(need):  # (1)
        slot_s = CPU_SLOT_S if need.kind == "any" and group.kind == "cpu" else 0.0
        price_s = _price_s(need, ledger, group.host) + slot_s
        priced.setdefault(price_s, []).append(group)
    for price_s in sorted(priced):  # (2)
        groups = priced[price_s]
        if need.takes_rest:  # (3)
            yield from _longest_empty(groups)
            shared = [id for group in groups for id in group.devices if id not in group.empty]
            yield from sorted(shared, key=lambda id: (len(ledger.on(id)), id))
        elif need.share >= 1.0:  # (4)
            empty = _longest_empty(groups)
            yield from _most_broken(empty, ledger) if ledger.gangs else empty
        else:  # (5)
            yield from _fullest(groups, need, ledger)


def _price_s(need: Need, ledger: Ledger, host: str) -> float:
    """Return the price of a start on a host, with SPREAD_S for each replica of the function that is
    there already and that it should be spread from; 0 if there is only one host."""
    if ledger.has_one_host:
        return 0.0
    record = ledger.hosts.get(host)
    price_s = start_price_s(record, need) if record is not None else 0.0
    return price_s + SPREAD_S * need.spread_from.count(host)


def _longest_empty(groups: list[DeviceGroup]) -> Iterator[str]:
    if len(groups) == 1:
        return iter(list(groups[0].empty))
    rows = [[(since, id) for id, since in group.empty.items()] for group in groups]
    return (id for _, id in merge(*rows))


def _most_broken(devices: Iterator[str], ledger: Ledger) -> list[str]:
    """Return empty devices in the order in which they leave room for replicas on several: those
    with the fewest empty devices on their island first, then on their host."""
    found = list(devices)
    empty = set(ledger.empty())

    def room(id: str) -> tuple[int, int]:
        topology = ledger.topology(ledger.devices[id].host)
        island = topology.island_of(id)
        return len(empty.intersection(island)), len(empty.intersection(topology.order))

    return sorted(found, key=room)


def _fullest(groups: list[DeviceGroup], need: Need, ledger: Ledger) -> Iterator[str]:
    rows = []
    for group in groups:
        devices = ledger.fullest(group)
        if need.share <= group.free_share + SHARE_SLACK:
            rows.append([(-len(ledger.on(id)), group.devices[id], id) for id in devices])
    return (id for _, _, id in merge(*rows))


def plan_eviction(
    need: Need, ledger: Ledger, candidates: CandidateTable, without: Collection[str] = ()
) -> EvictionPlan | None:
    """Return the cheapest set of candidates whose end makes room on one device, or on as many as
    are needed; None if there is none. Several devices are (5), one is (1) to (4):

    (1) Each bank has a floor, the cost of its cheapest candidate, since stopping that one may make
        room on any device of the bank. Banks are tried in the order of their floors, and the
        devices of a bank by id.
    (2) The price of the start on the host (`_price_s`), spread over STAY_S, is added to the floor
        and to the cost of a set. Nothing on a device costs less than its floor with this price.
    (3) On each device, the cheapest candidates are chosen until share and memory fit
        (`victims_on`).
    (4) The search ends at a bank whose floor is above the cost of the best set so far. Of sets
        with the same cost, the one with the lowest floor is best, then the one whose device comes
        first.
    (5) For several devices of one host, the victims on each are chosen as in (3); those that share
        a victim, a replica on several, are cleared together for its cost. The cheapest of them that
        fill the number are chosen (`Topology.choose`), so that each pool keeps its `min`.
    """
    if need.count > 1:  # (5)
        return _plan_set(need, ledger, candidates, _victims(need, ledger, candidates, without))
    best: _Choice | None = None
    prices: dict[str, float] = {}
    for floor, first, bank in candidates.floors():  # (1)
        if best is not None and best.is_before(floor, first):  # (4)
            break
        host = ledger.devices[first].host
        if host not in prices:
            prices[host] = _price_s(need, ledger, host) / STAY_S
        bound = floor + prices[host]  # (2)
        is_open = best is None or bound <= best.total
        for device in ledger.devices_of(bank) if is_open else ():
            if best is not None and (bound, bound, (device,)) >= best:
                break
            victims = victims_on(device, need, ledger, candidates, without)  # (3)
            if victims is not None:
                total = sum(candidates[id].cost for id in victims) + prices[host]
                choice = _Choice(total, bound, (device,), victims)
                best = choice if best is None else min(best, choice)
    return EvictionPlan(best.devices, best.victims) if best is not None else None


Victims = dict[DeviceType, dict[str, tuple[str, ...]]]
"""By host and model, the devices that can be cleared, with the candidates that must leave each."""


def _victims(
    need: Need, ledger: Ledger, candidates: CandidateTable, without: Collection[str]
) -> Victims:
    found: Victims = {}
    for id, device in ledger.devices.items():
        victims = victims_on(id, need, ledger, candidates, without)
        if victims is not None:
            found.setdefault(device.type, {})[id] = victims
    return found


def _plan_set(
    need: Need, ledger: Ledger, candidates: CandidateTable, victims: Victims
) -> EvictionPlan | None:
    """Return the best devices of one host and model for a need of several, with the replicas that
    must leave; None if no host has as many."""
    best: tuple[float, int, DeviceType] | None = None
    plan = None
    for kind in sorted(victims):
        there = victims[kind]
        if len(there) < need.count:
            continue
        topology = ledger.topology(kind.host)
        costs = {id: candidates[id].cost for ids in there.values() for id in ids}
        clearings = grouped(topology, there, costs)
        choice = _choose_set(need, topology, clearings, candidates)
        if choice is None:
            continue
        total = choice.cost + _price_s(need, ledger, kind.host) / STAY_S
        if best is None or (total, choice.distance, kind) < best:
            best = total, choice.distance, kind
            devices = tuple(topology.order[at] for at in choice.positions)
            gone = dict.fromkeys(id for one in choice.parts for id in one.victims)
            needed = {id for device in devices for id in there[device]}
            plan = EvictionPlan(devices, tuple(id for id in gone if id in needed))
    return plan


def _choose_set(
    need: Need, topology: Topology, clearings: list[Clearing], candidates: CandidateTable
) -> Choice | None:
    """Return the best set of devices whose victims leave each pool its `min`; None if there is
    none, or none among the first BRANCHES_MAX.

    A set that takes too many replicas of a pool is replaced by those without one of the clearings
    that take them; the search goes on with the best of all.
    """
    best = topology.choose(clearings, need.count, STAY_S)
    queue: list[tuple[Choice, list[int]]] = [] if best is None else [(best, [])]
    seen = set[frozenset[int]]()
    while queue and len(seen) < BRANCHES_MAX:
        choice, barred = heappop(queue)
        gone = Counter(candidates[id].pool for one in choice.parts for id in one.victims)
        over = {
            at
            for at, one in enumerate(clearings)
            if one in choice.parts
            and any(gone[candidates[id].pool] > candidates[id].spare for id in one.victims)
        }
        if not over:
            return choice
        for without in {frozenset((*barred, at)) for at in over} - seen:
            seen.add(without)
            left = [one for at, one in enumerate(clearings) if at not in without]
            other = topology.choose(left, need.count, STAY_S)
            if other is not None:
                heappush(queue, (other, sorted(without)))
    return None


def claimed_devices(need: Need, ledger: Ledger, avoided: Collection[str]) -> tuple[str, ...]:
    """Return the devices on which a need of several should be the next to get anything: as many of
    one host and model as it needs, none if no host has them. Reserved ones come last. `avoided` are
    devices that nothing can clear."""
    best: tuple[float, DeviceType, tuple[str, ...]] | None = None
    for kind in dict.fromkeys(one.type for one in ledger.devices.values()):
        topology = ledger.topology(kind.host)
        able = [
            Clearing(float(id in ledger.reservations), (id,), ())
            for id in topology.order
            if ledger.devices[id].type == kind
            and ledger.counts(id, need)
            and ledger.can_hold(id, need)
            and id not in avoided
        ]
        choice = topology.choose(able, need.count, STAY_S)
        if choice is not None:
            total = choice.cost + _price_s(need, ledger, kind.host) / STAY_S
            devices = tuple(topology.order[at] for at in choice.positions)
            best = min(best or (inf, kind, ()), (total, kind, devices))
    return best[2] if best is not None else ()


def placement_obstacle(need: Need, ledger: Ledger, kept: int = 0) -> str:
    """Return why no device has room for a need now, which devices are cordoned or refused, and
    which hosts may not be used (text for callers, which names no function). `kept`: as many devices
    are kept by the `min` of other functions."""
    text = _obstacle(need, ledger, kept)
    cordoned = ledger.cordoned(need)
    if cordoned:
        verb = "is" if len(cordoned) == 1 else "are"
        causes = "; ".join(f"{cordon.reason} ({device})" for device, cordon in cordoned.items())
        text += f", {len(cordoned)} {verb} cordoned: {causes}"
    return text + _refused_text(need, ledger) + _hosts_text(need, ledger)


def is_unplaceable(need: Need, ledger: Ledger) -> bool:
    """Whether no usable device could hold the need even if all were empty, while a cordoned device
    might. A closed host may be open again soon, so its devices count as usable."""
    fleet = ledger.fleet(need, is_closed_counted=True)
    is_too_large = need.memory_mib + RESERVE_MIB > fleet.largest_mib
    is_too_many = fleet.alike < need.count
    return bool(ledger.cordoned(need)) and (is_too_many or is_too_large)


def kept_devices(
    need: Need, ledger: Ledger, keepers: Mapping[str, Mapping[str, str]]
) -> dict[str, set[str]]:
    """Return the devices that a need might have, were it not for replicas that make no room, each
    with the owners of those. `keepers` has such replicas by memory bank, with their owners. On a
    CPU they keep memory only: slots are given in turns."""
    found = {}
    for bank, kept in keepers.items():
        others = [id for id in ledger.in_bank(bank) if id not in kept]
        lacks_memory = need.memory_mib > ledger.free_mib(bank, need.pool, others)
        for device in ledger.devices_of(bank):
            if not ledger.counts(device, need):
                continue
            is_slot = ledger.devices[device].kind == "cpu"
            if lacks_memory:
                found[device] = set(kept.values())
            elif not (is_slot or ledger.fits_share(device, need, others)):
                there = ledger.on(device)
                found[device] = {owner for id, owner in kept.items() if id in there}
    return found


def _obstacle(need: Need, ledger: Ledger, kept: int) -> str:
    """Return the obstacle: (1) no device of the kind on a host with labels and ability, or too few
    of one host; (2) every device is too small; (3) every device is in use, or too many of each
    host; (4) too little free memory."""
    fleet = ledger.fleet(need)
    if not fleet.devices:  # (1)
        return f"no device of kind {need.kind}{_wanted_host(need)}"
    if fleet.alike < need.count:
        return (
            f"needs {need.count} equal GPUs of one host{_wanted_host(need)};"
            f" the largest host has {fleet.alike}"
        )
    if need.memory_mib + RESERVE_MIB > fleet.largest_mib:  # (2)
        return f"needs {need.memory_mib:.0f} MiB + {RESERVE_MIB:.0f} spare, no device has that"
    by_min = f", {kept} of them kept by the min of other functions" if kept else ""
    claimed = _claimed_text(need, ledger)
    if need.count > 1:  # (3)
        free = Counter(
            ledger.devices[id].type
            for group in ledger.groups(need)
            for id in group.empty
            if ledger.fits(id, need)
        )
        return (
            f"needs {need.count} free, equal GPUs of one host, at most"
            f" {max(free.values(), default=0)} are free ({fleet.devices} in all{by_min}){claimed}"
        )
    able = [id for id in devices_by_preference(need, ledger) if ledger.fits_kind(id, need)]
    banks = {ledger.devices[id].bank for id in able if ledger.fits_share(id, need)}
    if not banks:  # (3)
        in_use = fleet.devices - len(ledger.refused(need))
        return f"no free device ({in_use} in use{by_min}){claimed}"
    free_mib = max(ledger.free_mib(bank, need.pool) for bank in banks)  # (4)
    by_min = ", the min of other functions keeps the rest" if kept else ""
    return f"needs {need.memory_mib:.0f} MiB, {max(0.0, free_mib):.0f} are free{by_min}"


def _claimed_text(need: Need, ledger: Ledger) -> str:
    """Return how many devices are claimed by a pool that has waited longer, "" if none are."""
    claim = ledger.claim
    if claim is None or not any(
        ledger.counts(id, need) and claim.bars(id, need) for id in claim.devices
    ):
        return ""
    return f"; {len(claim.devices)} are kept for a replica on several GPUs that has waited longer"


def _refused_text(need: Need, ledger: Ledger) -> str:
    """Return the devices that are refused, with the words of the engines of their hosts; "" without
    any. At most REASONS_MAX different ones are quoted, with HOSTS_MAX devices each."""
    refused: dict[str, list[str]] = {}
    for device, one in ledger.refused(need).items():
        refused.setdefault(one.reason, []).append(device)
    if not refused:
        return ""
    texts = []
    for reason, devices in list(refused.items())[:REASONS_MAX]:
        more = f" and {len(devices) - HOSTS_MAX} more" if len(devices) > HOSTS_MAX else ""
        texts.append(f"{reason} ({', '.join(devices[:HOSTS_MAX])}{more})")
    more = f" and {len(refused) - REASONS_MAX} other reasons" if len(refused) > REASONS_MAX else ""
    count = sum(map(len, refused.values()))
    return f", {count} {'is' if count == 1 else 'are'} refused: {'; '.join(texts)}{more}"


def _wanted_host(need: Need) -> str:
    """Return which hosts are wanted, "" if only the local one is known or any would do."""
    wanted = [f"{key}={value}" for key, value in need.labels]
    return f" on a host with {', '.join(wanted)}" if wanted else ""


def _hosts_text(need: Need, ledger: Ledger) -> str:
    """Return why hosts with devices of the kind may not be used; at most HOSTS_MAX are named."""
    hosts = ledger.refusing(need)
    if not hosts:
        return ""
    texts = [_host_obstacle(need, ledger, host) for host in hosts[:HOSTS_MAX]]
    more = f" and {len(hosts) - HOSTS_MAX} more" if len(hosts) > HOSTS_MAX else ""
    return f"; hosts: {', '.join(texts)}{more}"


def _host_obstacle(need: Need, ledger: Ledger, host: str) -> str:
    """Return a host with the reason why it admits no replica of the need: (1) it is closed, for a
    reason that may name it; (2) it lacks a label; (3) it lacks the
    ability."""
    closed = ledger.closed.get(host, "")
    if host in closed:  # (1)
        return closed
    record = ledger.hosts.get(host)
    labels = record.labels if record is not None else {}
    named = [f"{key}={labels[key]}" for key, _ in need.labels if key in labels]
    if closed:
        why = closed
    elif any(labels.get(key) != value for key, value in need.labels):  # (2)
        why = ", ".join(named) or f"no label {need.labels[0][0]}"
    else:  # (3)
        assert need.ability is not None
        why = f"runs no {LACKING[need.ability]}"
    return f"{host} ({why})"


def victims_on(
    device: str,
    need: Need,
    ledger: Ledger,
    candidates: CandidateTable,
    without: Collection[str],
) -> tuple[str, ...] | None:
    """Return the candidates to stop on one device; None if it may not be used, or if they cannot
    make room.

    (1) The cheapest first, until share and memory fit.
    (2) If that fails because of the pools' `min`: the largest first.
    (3) The most expensive ones are kept if the others suffice.
    """
    if not (ledger.can_hold(device, need) and ledger.fits_kind(device, need)):
        return None
    chosen = _choose(
        device, need, ledger, candidates, without, lambda id: candidates[id].cost
    )  # (1)
    if chosen is None:  # (2)
        bank = ledger.devices[device].bank
        chosen = _choose(
            device, need, ledger, candidates, without, lambda id: -ledger.charge_of(id).mib_in(bank)
        )
    if chosen is None:
        return None
    for id in sorted(chosen, key=lambda one: -candidates[one].cost):  # (3)
        others = [one for one in chosen if one != id]
        if ledger.fits(device, need, (*without, *others)):
            chosen = others
    return tuple(chosen)


def _choose(
    device: str,
    need: Need,
    ledger: Ledger,
    candidates: CandidateTable,
    without: Collection[str],
    order: Callable[[str], float],
) -> list[str] | None:
    """Return candidates in `order`: those on the device until the share fits, then those in its
    bank until the memory fits. None if all of them do not suffice."""
    chosen: list[str] = []
    gone: Counter[str] = Counter()
    bank = ledger.devices[device].bank
    for there, fits in (
        (ledger.on(device), ledger.fits_share),
        (ledger.in_bank(bank), ledger.fits_memory),
    ):
        able = [id for id in there if id in candidates and id not in chosen and id not in without]
        for id in sorted(able, key=order):
            if fits(device, need, (*without, *chosen)):
                break
            if gone[candidates[id].pool] < candidates[id].spare:
                gone[candidates[id].pool] += 1
                chosen.append(id)
        if not fits(device, need, (*without, *chosen)):
            return None
    return chosen
