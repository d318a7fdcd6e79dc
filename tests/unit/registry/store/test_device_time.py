"""Tests of device-seconds by function and model of device."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.model.devices import DeviceModel, Use
from registry.settings import StoreSettings
from registry.store.database import Database
from registry.store.device_time import DeviceTime, DeviceTimes
from registry.store.history import HOUR_S, Event, History

NOW_S = 500_000 * HOUR_S
DAY_S = 24 * HOUR_S


@pytest.fixture
async def history(database: Database, tmp_path: Path) -> History:
    return History(database, StoreSettings(tmp_path), lambda: NOW_S)


async def record(history: History, *events: Event) -> None:
    for event in events:
        history.record(event)
    await history.flush()


def use(name: str, device: str, held_s: float, at_s: int = NOW_S, joules: float = 0.0) -> Use:
    namespace = "default" if name else ""
    return Use(namespace, name, 1, device, at_s, 1.0, 2.0, 3.0, held_s, joules)


def model(device: str, kind: str, name: str, part: float = 1.0, at_s: float = NOW_S) -> DeviceModel:
    return DeviceModel(device, kind, name, part, at_s)


async def test_devices_of_a_model_are_one_row(database: Database, history: History) -> None:
    """Rows are by function, kind, model and part; idle time has rows, too."""
    await record(
        history,
        model("GPU-a", "cuda", "NVIDIA A"),
        model("gpu2/GPU-b", "cuda", "NVIDIA A"),
        model("MIG-1", "cuda", "NVIDIA A MIG 1g", 0.125),
        model("cpu:0", "cpu", ""),
        use("digits", "GPU-a", 10.0, joules=5.0),
        use("digits", "GPU-a", 10.0, NOW_S + 60, joules=5.0),
        use("digits", "gpu2/GPU-b", 5.0, joules=1.0),
        use("digits", "MIG-1", 2.0),
        use("other", "cpu:0", 4.0),
        use("", "GPU-a", 100.0, joules=50.0),
    )
    times = DeviceTimes(database)

    assert await times.list(NOW_S, NOW_S + 90) == [
        DeviceTime("", "cuda", "NVIDIA A", 1.0, 1.0, 2.0, 3.0, 100.0, 50.0),
        DeviceTime("digits", "cuda", "NVIDIA A", 1.0, 3.0, 6.0, 9.0, 25.0, 11.0),
        DeviceTime("other", "cpu", "", 1.0, 1.0, 2.0, 3.0, 4.0, 0.0),
        DeviceTime("digits", "cuda", "NVIDIA A MIG 1g", 0.125, 1.0, 2.0, 3.0, 2.0, 0.0),
    ]
    assert await times.list(NOW_S + HOUR_S, NOW_S + DAY_S) == []


async def test_an_unknown_device_has_its_kind_by_its_id(
    database: Database, history: History
) -> None:
    """Devices of earlier releases have no model."""
    await record(history, use("a", "gpu2/cpu:3", 3.0), use("b", "GPU-x", 2.0))
    found = await DeviceTimes(database).list(NOW_S, NOW_S)

    assert [(one.name, one.kind, one.model, one.part) for one in found] == [
        ("a", "cpu", "", 1.0),
        ("b", "cuda", "", 1.0),
    ]


async def test_a_model_is_replaced_and_forgotten_with_the_history(
    database: Database, history: History
) -> None:
    """The last description of a device counts; that of a device long gone is removed."""
    await record(
        history,
        model("GPU-a", "cuda", "NVIDIA A"),
        model("GPU-old", "cuda", "NVIDIA A", at_s=NOW_S - 31 * DAY_S),
        model("GPU-a", "cuda", "NVIDIA B", 0.5),
    )
    for _ in range(60):
        await history.flush()

    rows = await database.read("SELECT device, model, part FROM device_models")
    assert rows == [("GPU-a", "NVIDIA B", 0.5)]


async def test_rows_of_an_earlier_release_stay(database: Database) -> None:
    """What was stored before the migration has no held seconds, and is counted on."""
    async with database.write() as transaction:
        await transaction.query(
            "INSERT INTO device_use (bucket_s, at_s, namespace, name, number, device, waking_s,"
            " idle_s, busy_s) VALUES (3600, ?, 'default', 'a', 1, 'cpu:0', 1, 2, 3)",
            (NOW_S,),
        )

    assert await DeviceTimes(database).list(NOW_S, NOW_S) == [
        DeviceTime("a", "cpu", "", 1.0, 1.0, 2.0, 3.0, 0.0, 0.0)
    ]
