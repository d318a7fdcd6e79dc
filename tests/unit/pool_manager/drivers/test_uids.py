"""User ids of containers."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pool_manager.drivers import uids
from pool_manager.drivers.uids import UidAllocator, misfit, parse_range, slice_of
from registry.errors import DriverError

WHOLE = "         0          0 4294967295\n"
RANGE = parse_range(uids.DEFAULT)


def test_the_range_by_default() -> None:
    """The default range is valid without user namespaces and overlaps no usual id range."""
    assert (RANGE[0], len(RANGE)) == (1879048192, 65536)
    assert misfit(RANGE, WHOLE) == ""
    systemd = (range(61184, 65520), range(524288, 1879048192))
    assert not any(RANGE[0] in taken or RANGE[-1] in taken for taken in systemd)


@pytest.mark.parametrize(
    "text", ["", "5", "0:65536", "1000:255", "1000-2000", "2147483000:1000", "1:1:1", "-1:300"]
)
def test_a_range_that_is_none(text: str) -> None:
    """A malformed range, one with root, and one too small for a server's replicas are refused."""
    with pytest.raises(ValueError, match="expected FIRST:COUNT, at least 256 ids from 1"):
        parse_range(text)


@pytest.mark.parametrize(
    ("uid_map", "advice"),
    [
        ("0 100000 65536", "set FN_REPLICA_UIDS=32767:32767"),
        ("0 1000 1\n1 100000 65536", "set FN_REPLICA_UIDS=32769:32768"),
        ("0 100000 1000000000", "set FN_REPLICA_UIDS=999934464:65536"),
        ("0 1000 1", "it has only 1: map more user ids, or use --driver process"),
        ("", "it has only 0: map more user ids, or use --driver process"),
    ],
)
def test_a_namespace_without_the_range(uid_map: str, advice: str) -> None:
    """The reason names a range that fits, if there is one."""
    reason = misfit(RANGE, uid_map)

    assert reason.endswith(f"in this user namespace; {advice}")
    assert str(RANGE[0]) in reason
    if "FN_REPLICA_UIDS" in advice:
        assert misfit(parse_range(advice.partition("=")[2]), uid_map) == ""


@given(st.integers(1, 10**9), st.integers(uids.UIDS_MIN, 200_000), st.binary())
def test_a_slice_is_part_of_the_range(first: int, count: int, data: bytes) -> None:
    """Slices have the same size for every data folder, and are stable."""
    owner = hashlib.sha256(data).hexdigest()[:16]
    whole = range(first, first + count)
    part = slice_of(whole, owner)

    assert part == slice_of(whole, owner)
    assert len(part) == min(len(whole), uids.SLICE)
    assert part[0] in whole
    assert part[-1] in whole


def test_an_id_comes_round_last() -> None:
    """A freed id is reused after all others; with all ids taken `take` raises."""
    allocator = UidAllocator(range(100, 104), skip=1)

    first = allocator.take("a")
    allocator.free("a")
    others = [allocator.take(id) for id in "bcd"]

    assert (allocator.holder, first, others) == (100, 102, [103, 101, 102])
    with pytest.raises(DriverError, match="every user id for replicas is taken"):
        allocator.take("e")
    assert allocator.take("b") == 103


class Servers(RuleBasedStateMachine):
    """Starts, ends and servers that find what an earlier one has left."""

    replicas = Bundle("replicas")

    def __init__(self) -> None:
        super().__init__()
        self.slice = range(1000, 1000 + 8)
        self.allocator = UidAllocator(self.slice)
        self.running: dict[str, int] = {}
        self.count = 0

    @rule(target=replicas)
    def start(self) -> str:
        self.count += 1
        id = f"r{self.count}"
        free = {*self.slice[1:]} - {*self.running.values()}
        if free:
            self.running[id] = self.allocator.take(id)
            assert self.running[id] in free
        else:
            with pytest.raises(DriverError):
                self.allocator.take(id)
        return id

    @rule(id=consumes(replicas))
    def end(self, id: str) -> None:
        self.allocator.free(id)
        self.running.pop(id, None)

    @rule(skip=st.integers(0, 20), moved=st.integers(-3, 3))
    def restart(self, skip: int, moved: int) -> None:
        """Perhaps with another range, which the running ones are not in."""
        self.slice = range(1000 + moved, 1008 + moved)
        self.allocator = UidAllocator(self.slice, skip)
        for id, uid in self.running.items():
            self.allocator.adopt(id, uid)

    @invariant()
    def no_two_share(self) -> None:
        held = self.allocator._held
        assert held == self.running
        assert len({*held.values()}) == len(held)


TestServers = Servers.TestCase
