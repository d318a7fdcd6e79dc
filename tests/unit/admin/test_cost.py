"""Tests of costs: prices of device-seconds and joules, by function and by key."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.cost import BY_NO_KEY, Cost, costs, costs_by_key, total
from admin.prices import Prices
from registry.store.device_time import DeviceTime
from registry.store.usage import BusyRow
from registry.usage import IDLE

EUR = Prices("EUR", 0.36, None, {"cuda": 3.6, "cpu": 0.36})
GPU = DeviceTime("digits", "cuda", "NVIDIA A", 1.0, 100.0, 500.0, 400.0, 1000.0, 1e6)
SLOT = DeviceTime("digits", "cpu", "", 1.0, 0.0, 90.0, 10.0, 100.0, 0.0)
FREE = DeviceTime("", "cuda", "NVIDIA A", 1.0, 0.0, 0.0, 0.0, 2000.0, 5e5)


def test_a_function_costs_its_devices_and_their_energy() -> None:
    """Device-seconds have the price of their device, joules that of a kWh."""
    found = costs([GPU, SLOT, FREE], EUR)

    digits = Cost(100.0, 590.0, 410.0, 1100.0, 100.0, 0.0, 1e6, 1.01, 0.1)
    assert asdict(found["digits"]) == pytest.approx(asdict(digits))
    assert found["digits"].cost == pytest.approx(1.11)
    idle = Cost(held_s=2000.0, joules=5e5, device_cost=2.0, energy_cost=0.05)
    assert asdict(found[IDLE]) == pytest.approx(asdict(idle))


def test_a_slot_has_no_energy() -> None:
    """Without a counter energy is unknown, not 0; so is its price."""
    found = costs([SLOT], EUR)["digits"]

    assert (found.joules, found.energy_cost, found.no_counter_s) == (None, None, 100.0)
    assert found.cost == pytest.approx(0.01)


def test_a_gpu_that_was_held_too_short_for_a_sample_has_a_counter() -> None:
    """Whether a device has a counter shows in what all functions had of it."""
    found = costs([GPU, GPU._replace(name="brief", joules=0.0, held_s=0.1)], EUR)["brief"]

    assert (found.joules, found.no_counter_s) == (0.0, 0.0)


def test_unpriced_time_is_counted() -> None:
    """Without prices costs are unknown; with some, unpriced time is counted."""
    bare = costs([GPU, SLOT], Prices())["digits"]
    some = costs([GPU, SLOT], Prices("EUR", 0.0, None, {"cuda": 3.6}))["digits"]

    assert (bare.device_cost, bare.energy_cost, bare.cost, bare.unpriced_s) == (
        None,
        None,
        None,
        1100.0,
    )
    assert (some.cost, some.unpriced_s, some.joules) == (pytest.approx(1.0), 100.0, 1e6)


def test_keys_share_a_function_by_the_time_of_their_calls() -> None:
    """Costs without a key stay apart, and so does idle time."""
    functions = costs([GPU, FREE, GPU._replace(name="plain", held_s=7.0)], EUR)
    busy = [BusyRow("digits", "k1", 3000), BusyRow("digits", "", 1000), BusyRow("gone", "k1", 5)]
    found = costs_by_key(functions, busy)

    assert {key: one.held_s for key, one in found.items()} == {
        "k1": 750.0,
        "": 250.0,
        BY_NO_KEY: 7.0,
        IDLE: 2000.0,
    }
    assert found["k1"].joules == 750_000.0


NAMES = st.sampled_from(["", "a", "b", "c"])
AMOUNTS = st.floats(0, 1e7)
ROWS = st.lists(
    st.builds(
        DeviceTime,
        NAMES,
        st.sampled_from(["cpu", "cuda"]),
        st.sampled_from(["", "NVIDIA A", "NVIDIA A MIG 1g.5gb"]),
        st.sampled_from([1.0, 0.125]),
        *[AMOUNTS] * 5,
    ),
    max_size=12,
)
BUSY = st.lists(
    st.builds(BusyRow, NAMES, st.sampled_from(["k1", "k2", ""]), st.integers(1, 10**9)),
    max_size=8,
    unique_by=lambda row: row[:2],
)
PRICES = st.sampled_from([Prices(), EUR, Prices("EUR", 0.0, 0.5), Prices("EUR", 0.3)])


@given(rows=ROWS, busy=BUSY, prices=PRICES)
def test_the_parts_are_the_whole(
    rows: list[DeviceTime], busy: list[BusyRow], prices: Prices
) -> None:
    """The sums by function and by key are equal, and that of device-seconds is that of the rows."""
    functions = costs(rows, prices)
    whole = total(functions.values())
    by_key = total(costs_by_key(functions, busy).values())

    assert whole.held_s == pytest.approx(sum(row.held_s for row in rows))
    assert asdict(by_key) == pytest.approx(asdict(whole))
    assert by_key.cost == pytest.approx(whole.cost)
    assert all(value is None or value >= 0 for value in asdict(whole).values())
