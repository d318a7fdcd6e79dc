"""Which hosts get which files ahead of need."""

from __future__ import annotations

from collections import Counter

import pytest

from pool_manager.core.hosts import HostRecord, HostState
from pool_manager.core.stocking import FileSet, HostSpace, stock_targets
from registry.model.hosts import Ability

SETS = [FileSet(f"f{number}", 10, hosts=2) for number in range(60)]


def room(
    name: str,
    limit_bytes: int = 10_000,
    kinds: tuple[str, ...] = ("cpu", "cuda"),
    state: HostState = HostState.UP,
    **labels: str,
) -> HostSpace:
    """A host that runs images, with room for files."""
    abilities = frozenset({Ability.IMAGE})
    record = HostRecord(name, state, 0.0, labels=labels, epoch=1, abilities=abilities)
    return HostSpace(record, limit_bytes, kinds)


def rooms(count: int) -> list[HostSpace]:
    return [room(f"gpu{number}") for number in range(count)]


def test_files_are_spread_over_hosts() -> None:
    """Each file set goes to as many different hosts as wanted, and each host has its part."""
    targets = stock_targets(SETS, rooms(5))

    assert len(targets) == len(set(targets)) == 120
    assert set(Counter(files for _, files in targets).values()) == {2}
    parts = Counter(host for host, _ in targets)
    assert len(parts) == 5
    assert all(12 <= count <= 36 for count in parts.values())


def test_the_order_of_files_and_hosts_does_not_matter() -> None:
    """The same files and hosts give the same targets in any order, also where room is scarce."""
    tight = [room(f"gpu{number}", 200) for number in range(5)]

    assert stock_targets(SETS[::-1], tight[::-1]) == stock_targets(SETS, tight)


def test_little_moves_when_a_host_joins() -> None:
    """A host that joins takes its part; no copy moves between the others."""
    before, after = (set(stock_targets(SETS, rooms(count))) for count in (5, 6))

    assert {host for host, _ in after - before} == {"gpu5"}
    assert len(before - after) == len(after - before)
    assert 10 <= len(after - before) <= 30


def test_a_host_without_room_is_passed_over() -> None:
    """No host gets more than it has room for; what fits nowhere is left out."""
    small, large = room("small", 20), room("large", 30)
    sets = [FileSet(f"f{number}", 10) for number in range(9)]

    parts = Counter(host for host, _ in stock_targets(sets, [small, large]))

    assert parts == {"small": 2, "large": 3}
    assert stock_targets([FileSet("huge", 31)], [small, large]) == []


@pytest.mark.parametrize("state", [HostState.DRAINING, HostState.GONE])
def test_hosts_that_leave_get_nothing(state: HostState) -> None:
    """Hosts that drain, are removed or gone, get no files."""
    drained, removed = room("a"), room("b")
    drained.record.is_draining = removed.record.is_removed = True

    assert stock_targets(SETS, [drained, removed, room("c", state=state)]) == []


@pytest.mark.parametrize("state", [HostState.JOINING, HostState.UNREACHABLE])
def test_a_host_that_is_away_keeps_its_part(state: HostState) -> None:
    """A short loss of a host moves no files."""
    away = [*rooms(2), room("gpu2", state=state)]

    assert stock_targets(SETS, away) == stock_targets(SETS, rooms(3))


def test_only_hosts_that_can_run_the_function_get_its_files() -> None:
    """Labels, ability and device kind decide; the abilities of a new host are not known yet."""
    there = [room("a", zone="x"), room("b", kinds=("cpu",), zone="y"), room("c", kinds=())]
    there[2].record.epoch = 0

    def hosts(**settings: object) -> list[str]:
        one = FileSet("f", 1, 9, **settings)  # type: ignore[arg-type]
        return [host for host, _ in stock_targets([one], there)]

    assert hosts() == ["a", "b"]
    assert hosts(labels=(("zone", "y"),)) == ["b"]
    assert hosts(labels=(("zone", "y"), ("rack", "1"))) == []
    assert hosts(device_kind="cuda") == ["a"]
    assert hosts(ability=Ability.IMAGE) == ["a", "b"]
    assert hosts(ability=Ability.COMMAND) == []
    there[0].record.epoch, there[0].record.abilities = 0, frozenset()
    assert hosts(ability=Ability.COMMAND) == ["a"]


def test_nothing_is_wanted_where_no_files_are() -> None:
    """A revision without files, or one that wants no host, gets none; equal files count once."""
    assert stock_targets([FileSet("", 1), FileSet("f", 1, 0)], rooms(2)) == []
    assert len(stock_targets([FileSet("f", 1), FileSet("f", 1)], rooms(2))) == 1
