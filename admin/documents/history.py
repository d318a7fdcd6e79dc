"""Types of bodies about history, advice and usage."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class Spent(msgspec.Struct):
    """Device-seconds."""

    waking_s: float
    idle_s: float
    busy_s: float


class BucketUse(Spent, kw_only=True):
    """Device-seconds in the bucket that begins at `at_s`."""

    at_s: int


class DeviceBucketUse(BucketUse, kw_only=True):
    """Device-seconds on one device in the bucket that begins at `at_s`."""

    device: str


class BucketArrivals(msgspec.Struct):
    """Requests in the bucket that begins at `at_s`."""

    at_s: int
    count: int


class TimelineState(msgspec.Struct):
    """A state of a revision, from `from_s` to `to_s`."""

    from_s: float
    to_s: float
    state: str
    reason: str
    revision: str


class TimelineTotals(Spent, kw_only=True):
    """Sums of a function's timeline."""

    cold_starts: int
    requests: int


class FunctionTimeline(msgspec.Struct):
    """History of one function in buckets of `bucket_s`."""

    from_s: float
    to_s: float
    bucket_s: int
    states: list[TimelineState]
    use: list[DeviceBucketUse]
    arrivals: list[BucketArrivals]
    totals: TimelineTotals


class FunctionUse(Spent, kw_only=True):
    """Device-seconds and requests of a function."""

    name: str
    requests: int


class DeviceUse(Spent, kw_only=True):
    """Use of a device in total and by bucket."""

    id: str
    use: list[BucketUse]


class Timeline(msgspec.Struct):
    """History of the busiest functions and of all devices."""

    from_s: float
    to_s: float
    bucket_s: int
    functions: list[FunctionUse]
    devices: list[DeviceUse]


class AdviceBasis(msgspec.Struct):
    """Measurements that the advice rests on."""

    cold_start_ms: float
    run_ms: float
    cold_starts_seen: int


class AdviceRow(msgspec.Struct, frozen=True):
    """Result of simulating `idle_s`. `held` requests found no replica and waited `waited_s` seconds
    in total. `device_s` is from launch to exit, `idle_device_s` the part without a run."""

    idle_s: float
    cold_starts: int
    waited_s: float
    held: int
    device_s: float
    idle_device_s: float
    is_current: bool


class Advice(msgspec.Struct):
    """What other idle times would have cost. Without rows a note says why."""

    from_s: float
    to_s: float
    requests: int
    idle_s: float
    basis: AdviceBasis
    rows: list[AdviceRow]
    notes: list[str]


class UsageSums(msgspec.Struct):
    """Usage of models. `unknown`: calls whose number of tokens is not known."""

    tokens_in: int
    tokens_out: int
    calls: int
    unknown: int


class UsageItem(UsageSums, kw_only=True):
    """Usage of one key, with its note, or of one function."""

    removed: bool
    key: str | UnsetType = UNSET
    note: str | UnsetType = UNSET
    function: str | UnsetType = UNSET


class Usage(msgspec.Struct):
    """Usage by key or by function. `left_out`: rows beyond the limit of rows."""

    by: Literal["key", "function"]
    from_s: float
    to_s: float
    items: list[UsageItem]
    left_out: int
    total: UsageSums
    next: str | None


class CostSums(Spent, kw_only=True):
    """Device-seconds, joules and costs.

    `held_s`: device-seconds of which several holders of a device have their shares.
    `no_counter_s`: those on devices without an energy counter. `unpriced_s`: those without a price.
    `joules` is null without any counter, costs without any price.
    """

    held_s: float
    no_counter_s: float
    unpriced_s: float
    joules: float | None
    device_cost: float | None
    energy_cost: float | None
    cost: float | None


class CostItem(CostSums, kw_only=True):
    """Cost of one function, or of one key with its note. `_idle` is time that no function held,
    `_by_no_key` that of functions without any call."""

    removed: bool
    key: str | UnsetType = UNSET
    note: str | UnsetType = UNSET
    function: str | UnsetType = UNSET


class Costs(msgspec.Struct):
    """Costs by key or by function. `left_out`: rows beyond the limit of rows."""

    by: Literal["key", "function"]
    from_s: float
    to_s: float
    currency: str | None
    items: list[CostItem]
    left_out: int
    total: CostSums
    next: str | None
