"""Tests of the memory of bodies that still arrive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.reservations import SMALL, BodyBudget, BodyReservation
from registry.errors import BodyEvicted, FnError, QueueFull

CAPACITY = 64 * SMALL


class Held:
    """The counter of accepted calls."""

    def __init__(self) -> None:
        self.held_bytes = 0

    def reserve(self, count: int) -> None:
        self.held_bytes += count


class World:
    """Reservations with a clock that stands still."""

    def __init__(self) -> None:
        self.held = Held()
        self.now = 0.0
        self.all = BodyBudget(self.held, CAPACITY, lambda: self.now)
        self.evicted: list[int] = []
        self.numbers: Iterator[int] = iter(range(10**6))

    def open(self, count: int = 0) -> BodyReservation:
        number = next(self.numbers)

        def gone(error: FnError) -> None:
            assert isinstance(error, BodyEvicted)
            assert error.retry_after_s
            self.evicted.append(number)

        one = self.all.open(gone)
        if count:
            one.grow(count)
        return one


@pytest.fixture
def world() -> World:
    return World()


def test_bytes_count_from_the_first_one_until_they_are_released(world: World) -> None:
    """Given back once, however often that is said."""
    one = world.open(5)
    one.grow(6)
    assert (world.held.held_bytes, len(world.all)) == (11, 1)
    one.release()
    one.release()
    assert (world.held.held_bytes, len(world.all)) == (0, 0)


def test_many_slow_uploads_give_way_to_one_that_is_fast(world: World) -> None:
    """However many and however large: a slow one is ended, never the fast one."""
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
    assert world.held.held_bytes <= CAPACITY


def test_an_upload_that_stalled_gives_way_to_a_steady_one(world: World) -> None:
    """Bytes that came long ago are no progress."""
    burst = world.open(CAPACITY // 2)
    steady = world.open()
    for _ in range(30):
        world.now += 1.0
        steady.grow(SMALL)
    world.open(CAPACITY // 4)
    assert (burst.bytes, world.evicted) == (0, [0])
    assert steady.bytes == 30 * SMALL


def test_the_slowest_is_refused_itself(world: World) -> None:
    """It is not told of what it is just being told."""
    one = world.open(CAPACITY // 2)
    world.now = 20.0
    world.open(CAPACITY // 2)
    with pytest.raises(BodyEvicted):
        one.grow(1)
    assert (one.bytes, world.evicted) == (0, [])


def test_calls_come_before_uploads_and_are_never_ended(world: World) -> None:
    """What is accepted stays; an upload that cannot fit beside it is refused, alone."""
    world.open(CAPACITY // 2)
    world.all.make_room(CAPACITY)
    assert (world.held.held_bytes, world.evicted) == (0, [0])
    world.all.charge(CAPACITY - 10)
    small = world.open(10)
    with pytest.raises(BodyEvicted):
        world.open(11)
    world.all.make_room(11)
    assert (small.bytes, world.evicted) == (10, [0])
    with pytest.raises(QueueFull):
        world.all.charge(11)
    world.all.refund(CAPACITY - 10)
    assert world.held.held_bytes == small.bytes


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 9), st.sampled_from(["grow", "release", "call"]), st.integers(0, 20)
        ),
        max_size=60,
    )
)
def test_no_more_is_held_than_may_be(steps: list[tuple[int, str, int]]) -> None:
    """The counter is the sum of what all hold, and within the capacity, whatever happens."""
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
        assert world.held.held_bytes == calls + sum(one.bytes for one in ones) <= CAPACITY
