"""Queries over a time span: states, device-seconds, arrivals. Read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from registry.model.functions import NAMESPACE
from registry.model.history import StateInterval
from registry.store.database import Database, Row
from registry.store.history import HOUR_S, MINUTE_S, TEN_MINUTES_S
from registry.store.records import decode_record

DAY_HOURS: Final = 24
FUNCTIONS_MAX: Final = 200
DEVICES_MAX: Final = 64
STATES_MAX: Final = 2000
"""Max intervals of one result: the newest."""
ROWS_MAX: Final = 20_000
"""Max buckets of one result; enough for all listed devices."""


@dataclass(frozen=True, slots=True)
class Span:
    """Time from `from_s` up to now, `to_s` (Unix seconds), in buckets.

    Buckets begin at multiples of `bucket_s`; the last one is not complete.
    """

    from_s: int
    to_s: float
    bucket_s: int

    @classmethod
    def of_hours(cls, hours: int, now_s: float) -> Span:
        """Return the last hours by minute (one hour), by ten minutes (up to a day) or by hour."""
        bucket_s = MINUTE_S if hours == 1 else TEN_MINUTES_S if hours <= DAY_HOURS else HOUR_S
        end_s = (int(now_s) // bucket_s + 1) * bucket_s
        return cls(end_s - hours * HOUR_S, now_s, bucket_s)


class Seconds(NamedTuple):
    """Device-seconds by activity."""

    waking_s: float
    idle_s: float
    busy_s: float


class BucketUse(NamedTuple):
    """Use of one device in the bucket that begins at `at_s`."""

    at_s: int
    device: str
    seconds: Seconds


class Timeline:
    """Queries over the history of one namespace.

    Records with a time in the future are ignored: they were made while the clock was wrong.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def states(
        self, name: str, span: Span, namespace: str = NAMESPACE
    ) -> list[StateInterval]:
        """Return the intervals that end within the span, oldest first: the newest STATES_MAX."""
        rows = await self._database.read(
            "SELECT record FROM state_intervals WHERE namespace = ? AND name = ? AND to_s > ?"
            " AND to_s <= ? ORDER BY id DESC LIMIT ?",
            (namespace, name, span.from_s, span.to_s, STATES_MAX),
        )
        return [decode_record(row[0], StateInterval) for row in reversed(rows)]

    async def use(self, name: str, span: Span, namespace: str = NAMESPACE) -> list[BucketUse]:
        """Return a function's device-seconds by bucket and device, summed over its revisions."""
        rows = await self._database.read(
            "SELECT at_s, device, sum(waking_s), sum(idle_s), sum(busy_s) FROM device_use"
            # Explicit, because without statistics SQLite would scan the buckets of all functions.
            " INDEXED BY device_use_by_function"
            " WHERE namespace = ? AND name = ? AND bucket_s = ? AND at_s BETWEEN ? AND ?"
            " GROUP BY at_s, device ORDER BY at_s, device LIMIT ?",
            (namespace, name, span.bucket_s, span.from_s, span.to_s, ROWS_MAX),
        )
        return _buckets(rows)

    async def arrivals(
        self, name: str, span: Span, namespace: str = NAMESPACE
    ) -> list[tuple[int, int]]:
        """Return the buckets with requests: start of the bucket and number of requests."""
        rows = await self._database.read(
            "SELECT minute_s / ? * ? AS at_s, sum(count) FROM arrivals"
            " WHERE namespace = ? AND name = ? AND minute_s BETWEEN ? AND ?"
            " GROUP BY 1 ORDER BY 1",
            (span.bucket_s, span.bucket_s, namespace, name, span.from_s, span.to_s),
        )
        return [(at_s, count) for at_s, count in rows]

    async def cold_starts(self, name: str, span: Span, namespace: str = NAMESPACE) -> int:
        """Return the number of cold starts in the span, among those that are kept."""
        rows = await self._database.read(
            "SELECT count(*) FROM cold_starts WHERE namespace = ? AND name = ?"
            " AND json_extract(record, '$.at_s') BETWEEN ? AND ?",
            (namespace, name, span.from_s, span.to_s),
        )
        return int(rows[0][0])

    async def functions(
        self, span: Span, namespace: str = NAMESPACE
    ) -> list[tuple[str, Seconds, int]]:
        """Return the FUNCTIONS_MAX functions with the most device-seconds, in descending order.

        Each with name, device-seconds and number of requests.
        """
        rows = await self._database.read(
            "SELECT name, sum(waking_s), sum(idle_s), sum(busy_s) FROM device_use"
            " WHERE bucket_s = ? AND at_s BETWEEN ? AND ? AND namespace = ?"
            " GROUP BY name ORDER BY sum(waking_s + idle_s + busy_s) DESC, name LIMIT ?",
            (span.bucket_s, span.from_s, span.to_s, namespace, FUNCTIONS_MAX),
        )
        requests = await self._requests([row[0] for row in rows], span, namespace)
        return [(name, Seconds(*took), requests.get(name, 0)) for name, *took in rows]

    async def _requests(self, names: Sequence[str], span: Span, namespace: str) -> dict[str, int]:
        # Restricted to these names: all others may have a thousand times as many rows.
        marks = ", ".join("?" * len(names))
        rows = await self._database.read(
            "SELECT name, sum(count) FROM arrivals WHERE namespace = ?"  # noqa: S608 - marks only
            f" AND name IN ({marks}) AND minute_s BETWEEN ? AND ? GROUP BY name",
            (namespace, *names, span.from_s, span.to_s),
        )
        return dict(rows)

    async def devices(self, span: Span) -> list[BucketUse]:
        """Return device-seconds by bucket of the DEVICES_MAX most used devices.

        Summed over all functions and standbys.
        """
        rows = await self._database.read(
            "WITH had AS (SELECT at_s, device, sum(waking_s) AS waking_s, sum(idle_s) AS idle_s,"
            " sum(busy_s) AS busy_s FROM device_use WHERE bucket_s = ? AND at_s BETWEEN ? AND ?"
            " AND waking_s + idle_s + busy_s > 0"
            " GROUP BY at_s, device)"
            " SELECT * FROM had WHERE device IN (SELECT device FROM had GROUP BY device"
            " ORDER BY sum(waking_s + idle_s + busy_s) DESC, device LIMIT ?)"
            " ORDER BY at_s, device LIMIT ?",
            (span.bucket_s, span.from_s, span.to_s, DEVICES_MAX, ROWS_MAX),
        )
        return _buckets(rows)


def _buckets(rows: Sequence[Row]) -> list[BucketUse]:
    return [BucketUse(at_s, device, Seconds(*took)) for at_s, device, *took in rows]


def total(seconds: Sequence[Seconds]) -> Seconds:
    """Return the sum."""
    return Seconds(*(sum(column) for column in zip(*seconds, strict=True))) if seconds else NONE


NONE: Final = Seconds(0.0, 0.0, 0.0)
