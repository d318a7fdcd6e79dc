"""Costs of functions and keys, by prices of device-seconds and joules. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from admin.prices import Prices
from registry.store.device_time import DeviceTime
from registry.store.usage import BusyRow
from registry.usage import IDLE

HOUR_S: Final = 3600
JOULES_PER_KWH: Final = 3.6e6
BY_NO_KEY: Final = "_by_no_key"
"""Key of the functions that were held without any call."""


@dataclass(slots=True)
class Cost:
    """Device-seconds, joules and costs of a function or a key.

    `no_counter_s` are those of `held_s` on devices without an energy counter. `joules` is None if
    all are. `device_cost`, `energy_cost` and `cost`, their sum, are None if nothing of it has a
    price; `unpriced_s` are device-seconds without a price.
    """

    waking_s: float = 0.0
    idle_s: float = 0.0
    busy_s: float = 0.0
    held_s: float = 0.0
    no_counter_s: float = 0.0
    unpriced_s: float = 0.0
    joules: float | None = None
    device_cost: float | None = None
    energy_cost: float | None = None

    @property
    def cost(self) -> float | None:
        """Total, None without a price."""
        return _sum(self.device_cost, self.energy_cost)

    def add(self, other: Cost, part: float = 1.0) -> None:
        """Add a part of another cost."""
        self.waking_s += other.waking_s * part
        self.idle_s += other.idle_s * part
        self.busy_s += other.busy_s * part
        self.held_s += other.held_s * part
        self.no_counter_s += other.no_counter_s * part
        self.unpriced_s += other.unpriced_s * part
        self.joules = _sum(self.joules, _times(other.joules, part))
        self.device_cost = _sum(self.device_cost, _times(other.device_cost, part))
        self.energy_cost = _sum(self.energy_cost, _times(other.energy_cost, part))


def costs(rows: Sequence[DeviceTime], prices: Prices) -> dict[str, Cost]:
    """Return the costs by function, IDLE for the time that no function held."""
    counted = {(row.kind, row.model) for row in rows if row.joules > 0}
    found: dict[str, Cost] = {}
    for row in rows:
        has_counter = (row.kind, row.model) in counted
        found.setdefault(row.name or IDLE, Cost()).add(_cost(row, prices, has_counter=has_counter))
    return found


def costs_by_key(functions: Mapping[str, Cost], busy: Iterable[BusyRow]) -> dict[str, Cost]:
    """Return the costs by id of a key: each function's, split by the time of its keys' calls.

    Functions without such calls are under BY_NO_KEY. The sum is that of the functions.
    """
    keys: dict[str, dict[str, int]] = {}
    for row in busy:
        keys.setdefault(row.name, {})[row.key_id] = row.busy_ms
    found: dict[str, Cost] = {}
    for name, cost in functions.items():
        shares = keys.get(name) or {IDLE if name == IDLE else BY_NO_KEY: 1}
        total_ms = sum(shares.values())
        for key, busy_ms in shares.items():
            found.setdefault(key, Cost()).add(cost, busy_ms / total_ms)
    return found


def total(found: Iterable[Cost]) -> Cost:
    """Return the sum."""
    whole = Cost()
    for cost in found:
        whole.add(cost)
    return whole


def _cost(row: DeviceTime, prices: Prices, *, has_counter: bool) -> Cost:
    price = prices.device_hour(row.kind, row.model, row.part)
    joules = row.joules if has_counter else None
    return Cost(
        row.waking_s,
        row.idle_s,
        row.busy_s,
        row.held_s,
        0.0 if has_counter else row.held_s,
        row.held_s if price is None else 0.0,
        joules,
        _times(price, row.held_s / HOUR_S),
        _times(joules, prices.kwh / JOULES_PER_KWH) if prices.kwh else None,
    )


def _sum(one: float | None, other: float | None) -> float | None:
    if one is None:
        return other
    return one if other is None else one + other


def _times(value: float | None, by: float) -> float | None:
    return None if value is None else value * by
