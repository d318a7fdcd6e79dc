"""Device-seconds and joules by function and model of device, for costs. Read-only."""

from __future__ import annotations

from typing import Final, NamedTuple

from registry.model.functions import NAMESPACE
from registry.store.database import Database
from registry.store.history import HOUR_S

ROWS_MAX: Final = 50_000
"""Max rows of one result: those with the most device-seconds."""


class DeviceTime(NamedTuple):
    """Time and energy of a function on all devices of one kind, model and part of a GPU.

    `name` is "" for time that no function held. `model` is "" if it is not known. Seconds and
    joules as in `registry.model.devices.Use`.
    """

    name: str
    kind: str
    model: str
    part: float
    waking_s: float
    idle_s: float
    busy_s: float
    held_s: float
    joules: float


class DeviceTimes:
    """Queries over the use of devices by whole hours."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, from_s: int, to_s: float, namespace: str = NAMESPACE) -> list[DeviceTime]:
        """Return the use in the hours that begin in a span (Unix seconds). A device without a known
        model has its kind by its id."""
        rows = await self._database.read(
            "SELECT u.name, coalesce(m.kind, iif(u.device LIKE '%cpu:%', 'cpu', 'cuda')),"
            " coalesce(m.model, ''), coalesce(m.part, 1.0), sum(u.waking_s), sum(u.idle_s),"
            " sum(u.busy_s), sum(u.held_s), sum(u.joules)"
            " FROM device_use u LEFT JOIN device_models m ON m.device = u.device"
            " WHERE u.bucket_s = ? AND u.at_s BETWEEN ? AND ? AND u.namespace IN (?, '')"
            " GROUP BY 1, 2, 3, 4 ORDER BY 8 DESC, 1, 2, 3, 4 LIMIT ?",
            (HOUR_S, from_s, to_s, namespace, ROWS_MAX),
        )
        return [DeviceTime(*row) for row in rows]
