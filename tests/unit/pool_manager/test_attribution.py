"""Attribution of the time and the energy of devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool_manager.attribution import (
    OWNERS_MAX,
    POWER_MAX_W,
    Attribution,
    EnergyCounter,
    Holder,
    by_minute,
    split,
    weights,
)

GPU = "GPU-a"
Sums = dict[str | None, tuple[float, float]]


def sums(attribution: Attribution[str], now: float, device: str = GPU) -> Sums:
    """Return seconds and joules of a device by owner, until `now`."""
    found: Sums = {}
    for one in attribution.take(now):
        if one.device == device:
            held_s, joules = found.get(one.owner, (0.0, 0.0))
            found[one.owner] = round(held_s + one.held_s, 6), round(joules + one.joules, 6)
    return found


@pytest.fixture
def gpu() -> Attribution[str]:
    """One GPU from second 0 on, which is a full minute."""
    made = Attribution[str](6000.0)
    made.set_devices([GPU], 0.0)
    return made


def test_the_holder_of_a_device_has_its_time_and_energy(gpu: Attribution[str]) -> None:
    """Energy is split by the seconds since the last sample, between holders and idle time."""
    gpu.sample(GPU, 1_000, 1.0, 0.0)
    gpu.hold("r1", (GPU,), Holder("a", 1.0), 2.0)
    gpu.release("r1", 5.0)
    gpu.hold("r2", (GPU,), Holder("b", 1.0), 5.0)
    gpu.sample(GPU, 101_000, 1.0, 10.0)

    assert sums(gpu, 12.0) == {None: (2.0, 20.0), "a": (3.0, 30.0), "b": (7.0, 50.0)}


def test_holders_of_a_device_split_it_by_their_shares(gpu: Attribution[str]) -> None:
    """Shares are relative to each other: a free share is not idle time. Standbys have none."""
    gpu.sample(GPU, 0, 1.0, 0.0)
    gpu.hold("r1", (GPU,), Holder("a", 0.5), 0.0)
    gpu.hold("r2", (GPU,), Holder("b", 0.25), 0.0)
    gpu.hold("s1", (GPU,), Holder(None, 0.0), 0.0)
    gpu.sample(GPU, 90_000, 1.0, 9.0)

    assert sums(gpu, 9.0) == {"a": (6.0, 60.0), "b": (3.0, 30.0)}


def test_a_replica_may_change_hands(gpu: Attribution[str]) -> None:
    """A standby that is given away changes its owner, and a replica its share."""
    gpu.hold("r1", (GPU,), Holder(None, 0.0), 1.0)
    gpu.hold("r1", (GPU,), Holder("a", 1.0), 3.0)
    gpu.hold("r1", (GPU,), Holder("a", 1.0), 4.0)

    assert sums(gpu, 5.0) == {None: (3.0, 0.0), "a": (2.0, 0.0)}


def test_a_slice_has_its_part_of_the_energy_of_its_gpu(gpu: Attribution[str]) -> None:
    """The counter is that of the whole GPU."""
    for at, millijoules in ((0.0, 0), (10.0, 800_000)):
        gpu.sample(GPU, millijoules, 0.125, at)

    assert sums(gpu, 10.0) == {None: (10.0, 100.0)}


def test_time_goes_to_its_minutes(gpu: Attribution[str]) -> None:
    """A span over the end of a minute is divided."""
    gpu.hold("r1", (GPU,), Holder("a", 1.0), 40.0)
    gpu.release("r1", 70.0)

    assert gpu.take(80.0) == [
        (None, GPU, 6000, 40.0, 0.0),
        ("a", GPU, 6000, 20.0, 0.0),
        ("a", GPU, 6060, 10.0, 0.0),
        (None, GPU, 6060, 10.0, 0.0),
    ]
    assert gpu.take(80.0) == []


def test_only_known_devices_are_attributed(gpu: Attribution[str]) -> None:
    """A replica without a device or on an unknown one is ignored, also after a device went."""
    gpu.hold("r1", (), Holder("a", 1.0), 0.0)
    gpu.hold("r2", ("GPU-b",), Holder("b", 1.0), 0.0)
    gpu.sample("GPU-b", 5, 1.0, 1.0)
    gpu.hold("r3", (GPU,), Holder("c", 1.0), 1.0)
    gpu.set_devices(["cpu:0"], 3.0)
    gpu.release("r3", 4.0)

    assert {(one.owner, one.device): one.held_s for one in gpu.take(4.0)} == {
        (None, GPU): 1.0,
        ("c", GPU): 2.0,
        (None, "cpu:0"): 1.0,
    }


def test_a_counter_may_begin_again() -> None:
    """A lower value is what was counted since the driver was loaded: less is never negative."""
    counter = EnergyCounter()

    assert counter.joules(7_000_000, 0.0) is None
    assert counter.joules(7_300_000, 1.0) == 300.0
    assert counter.joules(7_300_000, 2.0) is None
    assert counter.joules(40_000, 3.0) == 40.0
    assert counter.joules(90_000, 4.0) == 50.0


def test_a_counter_that_was_silent_counts_for_the_whole_time() -> None:
    """The bound is on power, so what a silent driver counted is not lost."""
    counter = EnergyCounter()
    counter.joules(0, 0.0)
    for second in range(1, 60):
        assert counter.joules(0, float(second)) is None

    assert counter.joules(42_000_000, 60.0) == 42_000.0


@pytest.mark.parametrize("after", [2**53, 10**15])
def test_a_counter_is_bounded_by_a_power(after: int) -> None:
    """A counter that jumps adds no more than the greatest power for the time that passed."""
    counter = EnergyCounter()
    counter.joules(5, 100.0)

    assert counter.joules(after, 102.0) == 2 * POWER_MAX_W
    assert counter.joules(after - 1, 101.0) == 0.0


def test_owners_between_two_samples_are_limited(gpu: Attribution[str]) -> None:
    """Beyond the limit the time of further owners counts as idle."""
    gpu.sample(GPU, 0, 1.0, 0.0)
    for number in range(OWNERS_MAX + 10):
        gpu.hold("r1", (GPU,), Holder(f"f{number}", 1.0), float(number))
    gpu.sample(GPU, (OWNERS_MAX + 10) * 1000, 1.0, OWNERS_MAX + 10.0)
    joules = {owner: joules for owner, (_, joules) in sums(gpu, OWNERS_MAX + 10.0).items()}

    assert joules["f0"] == 1.0
    assert joules[None] == 10.0
    assert sum(joules.values()) == pytest.approx(OWNERS_MAX + 10)


OWNERS = st.sampled_from(["a", "b", "c", None])
STEPS = st.lists(
    st.tuples(
        st.floats(0.0, 90.0),
        st.one_of(
            st.tuples(st.just("hold"), st.integers(0, 4), OWNERS, st.sampled_from([0, 0.25, 1])),
            st.tuples(st.just("release"), st.integers(0, 4)),
            st.tuples(st.just("sample"), st.integers(0, 400_000)),
            st.tuples(st.just("reset"), st.integers(0, 400_000)),
            st.tuples(st.just("take")),
        ),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_the_parts_are_the_whole(steps: list[tuple[float, tuple[object, ...]]]) -> None:
    """Whatever happens, seconds of all owners add up to the time, and joules to what an independent
    reading of the counter says; nothing is negative."""
    made, reference = Attribution[str](123.25), EnergyCounter()
    made.set_devices([GPU], 0.0)
    now, counter, total_j = 0.0, 0, 0.0
    found = []
    for after_s, (kind, *rest) in steps:
        now += after_s
        match kind, rest:
            case "hold", [int(id), str() | None as owner, share]:
                assert isinstance(share, int | float)
                made.hold(f"r{id}", (GPU,), Holder(owner, share), now)
            case "release", [int(id)]:
                made.release(f"r{id}", now)
            case "take", []:
                found += made.take(now)
            case _, [int(amount)]:
                counter = amount if kind == "reset" else counter + amount
                made.sample(GPU, counter, 1.0, now)
                total_j += reference.joules(counter, now) or 0.0
    found += made.take(now)

    assert sum(one.held_s for one in found) == pytest.approx(now, abs=1e-6)
    assert sum(one.joules for one in found) == pytest.approx(total_j, rel=1e-9, abs=1e-6)
    assert all(one.held_s >= 0 and one.joules >= 0 for one in found)
    for one in found:
        assert one.minute_s % 60 == 0


@given(
    amount=st.floats(0, 1e12),
    shares=st.lists(st.tuples(OWNERS, st.floats(0, 1)), max_size=6),
)
def test_parts_add_up(amount: float, shares: list[tuple[str | None, float]]) -> None:
    """Weights add up to 1 and parts to the amount, whatever the shares."""
    parts = weights([Holder(owner, share) for owner, share in shares])

    assert sum(parts.values()) == pytest.approx(1.0)
    assert sum(split(amount, parts).values()) == pytest.approx(amount)


def test_minutes_are_touched_once() -> None:
    """A span that begins and ends within minutes has all its seconds in them."""
    assert list(by_minute(59.0, 121.0)) == [(0, 1.0), (60, 60.0), (120, 1.0)]
    assert list(by_minute(60.0, 60.0)) == []


def test_a_replica_holds_each_of_its_devices(gpu: Attribution[str]) -> None:
    """Its time is that of all its devices until it ends, or one is attributed no more."""
    gpu.set_devices([GPU, "GPU-b", "GPU-c"], 0.0)
    gpu.hold("r1", (GPU, "GPU-b", "elsewhere"), Holder("a", 1.0), 0.0)
    gpu.hold("r1", (GPU, "GPU-b", "elsewhere"), Holder("a", 1.0), 1.0)
    gpu.set_devices([GPU, "GPU-c"], 2.0)
    gpu.hold("r1", (GPU, "GPU-c"), Holder("a", 1.0), 3.0)
    gpu.release("r1", 4.0)

    held = {(one.owner, one.device): one.held_s for one in gpu.take(5.0)}
    assert held == {
        ("a", GPU): 4.0,
        (None, GPU): 1.0,
        ("a", "GPU-b"): 2.0,
        (None, "GPU-c"): 4.0,
        ("a", "GPU-c"): 1.0,
    }
