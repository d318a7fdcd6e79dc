"""Tests of the memory budget for arriving bodies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.held import HeldBytes
from gateway.http.reservations import SMALL, BodyBudget, BodyReservation
from registry.errors import BodyEvicted, FnError, QueueFull

CAPACITY = 64 * SMALL


class World:
    """Body budget with a clock that the test sets."""

    def __init__(self) -> None:
        self.held = HeldBytes(CAPACITY)
        self.now = 0.0
        self.all = BodyBudget(self.held, lambda: self.now)
        self.evicted: list[int] = []
        self.numbers: Iterator[int] = iter(range(10**6))

    def open(self, count: int = 0) -> BodyReservation:
        number = next(self.numbers)

        def on_evicted(error: FnError) -> None:
            assert isinstance(error, BodyEvicted)
            assert error.retry_after_s
            self.evicted.append(number)

        one = self.all.open(on_evicted)
        if count:
            one.grow(count)
        return one


@pytest.fixture
def world() -> World:
    return World()


def test_bytes_count_from_the_first_one_until_they_are_released(world: World) -> None:
    """A reservation counts from its first byte; a second release has no effect."""
    one = world.open(5)
    one.grow(6)
    assert (world.held.bytes, len(world.all)) == (11, 1)
    one.release()
    one.release()
    assert (world.held.bytes, len(world.all)) == (0, 0)


def test_slow_uploads_are_evicted_for_a_fast_one(world: World) -> None:
    """Slow uploads are evicted, whatever their number and size; the fast one never is."""
    slow = [world.open(CAPACITY // 33) for _ in range(32)]
    world.now = 20.0
    for one in slow:
        one.grow(1)
    fast = world.open()
    for _ in range(48):
        world.now += 0.001
        fast.grow(SMALL)
    assert fast.bytes == 48 * SMALL
    assert 32 not in world.evicted
    assert world.held.bytes <= CAPACITY


def test_a_stalled_upload_is_evicted_for_a_steady_one(world: World) -> None:
    """Bytes received long ago do not count as progress."""
    burst = world.open(CAPACITY // 2)
    steady = world.open()
    for _ in range(30):
        world.now += 1.0
        steady.grow(SMALL)
    world.open(CAPACITY // 4)
    assert (burst.bytes, world.evicted) == (0, [0])
    assert steady.bytes == 30 * SMALL


def test_the_slowest_upload_is_refused_itself(world: World) -> None:
    """If the growing upload is the slowest, `grow` raises; its eviction callback is not called."""
    one = world.open(CAPACITY // 2)
    world.now = 20.0
    world.open(CAPACITY // 2)
    with pytest.raises(BodyEvicted):
        one.grow(1)
    assert (one.bytes, world.evicted) == (0, [])


def test_calls_evict_uploads_and_are_never_evicted(world: World) -> None:
    """Accepted calls stay; an upload that does not fit beside them is refused alone."""
    world.open(CAPACITY // 2)
    world.all.make_room(CAPACITY)
    assert (world.held.bytes, world.evicted) == (0, [0])
    world.all.charge(CAPACITY - 10)
    small = world.open(10)
    with pytest.raises(BodyEvicted):
        world.open(11)
    world.all.make_room(11)
    assert (small.bytes, world.evicted) == (10, [0])
    with pytest.raises(QueueFull):
        world.all.charge(11)
    world.all.refund(CAPACITY - 10)
    assert world.held.bytes == small.bytes


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 9), st.sampled_from(["grow", "release", "call"]), st.integers(0, 20)
        ),
        max_size=60,
    )
)
def test_held_bytes_never_exceed_the_capacity(steps: list[tuple[int, str, int]]) -> None:
    """The counter is the sum of all reservations and calls, and never above the capacity."""
    world = World()
    ones = [world.open() for _ in range(10)]
    calls = 0
    for number, step, size in steps:
        world.now += 0.25
        try:
            if step == "grow":
                ones[number].grow(size * SMALL)
            elif step == "release":
                ones[number].release()
            else:
                world.all.charge(size * SMALL)
                calls += size * SMALL
        except (BodyEvicted, QueueFull):
            pass
        assert world.held.bytes == calls + sum(one.bytes for one in ones) <= CAPACITY
