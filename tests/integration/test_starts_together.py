"""Test of cold functions called together, on a host that starts one replica at a time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from admin.settings import Settings
from pool_manager.ports import ServerContainer
from pool_manager.settings import PoolSettings
from runtime_image.contract.control import ReplicaRecord
from tests.support.fake_driver.driver import FakeDriver
from tests.support.fake_driver.service import Script
from tests.support.server import Gate, serving

BODY: dict[str, Any] = {"inputs": {}}
MANIFEST = 'schema = 1\nmodel = "m.onnx"\n[scaling]\nidle_s = 0.05\n'
MODEL = {"m.onnx": b"\x3a\x00"}
NAMES = [f"f{number}" for number in range(10)]


class OneAtATime(Settings):
    """Settings of a machine with one core."""

    def pool(self) -> PoolSettings:
        return replace(super().pool(), starts_at_once=1)


class Starts(FakeDriver):
    """Driver that records the order of starts."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(Script(load_s=1), sleep=gate)
        self.order: list[str] = []

    async def start(
        self,
        record: ReplicaRecord,
        run_dir: Path,
        log: Path,
        server: ServerContainer | None = None,
    ) -> None:
        self.order.append(record.bound.partition("/")[2].partition("@")[0])
        await super().start(record, run_dir, log, server)


async def test_ten_at_once_are_served_in_order(tmp_path: Path) -> None:
    """Ten cold functions are started and answered in the order of their calls."""
    gate = Gate()
    driver = Starts(gate)
    async with serving(tmp_path, driver, kind=OneAtATime, cpu_slots=12, standbys=0) as server:
        for name in NAMES:
            await server.deploy(MODEL, name=name, manifest=MANIFEST)
        await server.until_pools(lambda: not server.bound())
        gate.shut()
        driver.order.clear()
        answered: list[str] = []

        async def call(name: str) -> int:
            status = (await server.call(name, BODY)).status
            answered.append(name)
            return status

        tasks = []
        for name in NAMES:
            tasks.append(asyncio.create_task(call(name)))
            await server.until_shown(name, held=1)
        gate.open()
        statuses = [await task for task in tasks]

    assert statuses == [200] * len(NAMES)
    assert driver.order == NAMES
    assert answered[0] == NAMES[0]
