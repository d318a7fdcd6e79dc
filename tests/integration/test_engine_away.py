"""Test of a server whose driver does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_driver.driver import FakeDriver
from tests.support.server import serving

BODY: dict[str, Any] = {"inputs": {}}
MODEL = {"m.onnx": b"\x3a\x00"}
"""ONNX file with an empty graph, enough for fake replicas."""


@pytest.mark.slow
async def test_calls_are_held_while_the_engine_is_away(tmp_path: Path) -> None:
    """Without the engine a warm function answers, a cold call is held, no function counts as
    failing, and /readyz has the reason."""
    driver = FakeDriver()
    async with serving(tmp_path, driver, cpu_slots=2) as server:
        await server.deploy(MODEL, name="warm")
        await server.deploy(MODEL, name="cold")
        assert (await server.call("warm", BODY)).status == 200
        await server.until_pools(
            lambda: (
                not any(one.role == "standby" for one in server.server.manager.replicas())
                or any(one.state == "standby" for one in server.server.manager.replicas())
            )
        )

        driver.away = "nobody listens at its socket"
        held = asyncio.create_task(server.call("cold", BODY))
        await server.until_pools(lambda: bool(server.server.manager.engine_down))
        assert (await server.call("warm", BODY)).status == 200
        ready = await server.readiness()
        assert ready.status == 200
        assert "engine: nobody listens at its socket" in ready.json()["reasons"]

        driver.away = ""
        assert (await held).status == 200
        assert server.server.manager.engine_down == ""
        shown = await server.admin("GET", "/functions/cold")
        assert shown.json()["state"] == "warm"
