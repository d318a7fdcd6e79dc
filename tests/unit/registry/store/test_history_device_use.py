"""Device-seconds, in buckets that are as old as they are coarse."""

from __future__ import annotations

from registry.model import Use
from registry.store.database import Database
from registry.store.history import insert_use, trim_use

DAY_S = 86_400.0
HOUR_S = 3600


def use(minute_s: int, busy_s: float = 1.0, name: str = "digits") -> Use:
    return Use("default", name, 1, "cuda:0", minute_s, 0.5, 0.25, busy_s)


async def buckets(database: Database) -> list[tuple[int, int, float]]:
    rows = await database.read("SELECT bucket_s, at_s, busy_s FROM device_use ORDER BY 1, 2")
    return [(bucket_s, at_s, busy_s) for bucket_s, at_s, busy_s in rows]


async def test_seconds_add_up_in_each_size_of_bucket(database: Database) -> None:
    """Records of one minute, ten minutes or hour become one row."""
    async with database.write() as transaction:
        await insert_use(transaction, [use(7200), use(7200, 2.0), use(7260, 4.0)])
        await insert_use(transaction, [use(7800, 8.0), use(10_800, 16.0)])

    assert await buckets(database) == [
        (60, 7200, 3.0),
        (60, 7260, 4.0),
        (60, 7800, 8.0),
        (60, 10_800, 16.0),
        (600, 7200, 7.0),
        (600, 7800, 8.0),
        (600, 10_800, 16.0),
        (3600, 7200, 15.0),
        (3600, 10_800, 16.0),
    ]


async def test_fine_buckets_go_first(database: Database) -> None:
    """Minutes stay for three hours, ten minutes for three days, hours as long as all history."""
    now_s = 40 * DAY_S
    ages_s = [HOUR_S, 4 * HOUR_S, 4 * DAY_S, 31 * DAY_S]
    async with database.write() as transaction:
        await insert_use(transaction, [use(int(now_s - age_s)) for age_s in ages_s])
        await trim_use(transaction, now_s, 30 * DAY_S)

    left = [bucket_s for bucket_s, _, _ in await buckets(database)]
    assert left == [60, 600, 600, 3600, 3600, 3600]
