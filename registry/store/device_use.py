"""What replicas had of devices, kept in buckets of a minute, ten minutes and an hour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from registry.model import Use
from registry.store.database import Transaction

MINUTE_S: Final = 60
TEN_MINUTES_S: Final = 600
HOUR_S: Final = 3600
KEEP_S: Final = {MINUTE_S: 3 * 3600.0, TEN_MINUTES_S: 3 * 86_400.0}
"""How long the finer buckets stay; those of an hour stay as long as all history. A function that
is always warm has 180, 432 and at most 720 rows, whatever happens."""


async def insert_use(transaction: Transaction, records: Iterable[Use]) -> None:
    """Add these seconds to what there is of their buckets."""
    await transaction.execute_many(
        "INSERT INTO device_use VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET waking_s = waking_s + excluded.waking_s,"
        " idle_s = idle_s + excluded.idle_s, busy_s = busy_s + excluded.busy_s",
        [
            (
                bucket_s,
                one.minute_s // bucket_s * bucket_s,
                one.namespace,
                one.name,
                one.number,
                one.device,
                one.waking_s,
                one.idle_s,
                one.busy_s,
            )
            for one in records
            for bucket_s in (MINUTE_S, TEN_MINUTES_S, HOUR_S)
        ],
    )


async def trim_use(transaction: Transaction, now_s: float, keep_s: float) -> None:
    """Remove what is older than its size of bucket is kept, `keep_s` at most."""
    for bucket_s in (MINUTE_S, TEN_MINUTES_S, HOUR_S):
        oldest_s = now_s - min(keep_s, KEEP_S.get(bucket_s, keep_s))
        await transaction.query(
            "DELETE FROM device_use WHERE bucket_s = ? AND at_s < ?", (bucket_s, oldest_s)
        )
