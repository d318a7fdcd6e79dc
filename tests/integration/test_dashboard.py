"""Tests of the dashboard on real servers in a real browser, with one and with several processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.support import models
from tests.support.browser import View, need_browser, viewing
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess, server_process
from tests.support.worker_server import worker_pids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

WORKERS = [pytest.param((), id="one"), pytest.param(("--workers", "2"), id="workers")]


@pytest.fixture(autouse=True)
def _browser() -> None:
    need_browser()


@asynccontextmanager
async def dashboard(
    folder: Path, options: tuple[str, ...]
) -> AsyncIterator[tuple[ServerProcess, View, Caller]]:
    """A server in a process of its own with `tiny`, deployed and cold, and its dashboard."""
    with server_process(folder / "data", *options, "--cpu-slots", "2") as server:
        model = models.affine(folder, 2, 0)
        await asyncio.to_thread(
            server.fnctl_json, "deploy", str(model), "--name", "tiny", "--idle", "600"
        )
        address = (await asyncio.to_thread(server.fnctl_json, "ui"))["url"]
        async with viewing(address) as view, ClientSession() as session:
            await view.page.locator(".connection").get_by_text("live").wait_for()
            yield server, view, Caller(server.url, server.token, session)


@pytest.mark.parametrize("options", WORKERS)
async def test_a_function_is_seen_to_wake_and_sleep(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A function's waking and sleep show without a reload, by its first call and by the page's
    action."""
    async with dashboard(tmp_path, options) as (_, view, caller):
        page = view.page
        row = page.locator(".function-row")
        assert (await caller.call("tiny", {"inputs": {"x": [[1, 0, 0, 0]]}})).status == 200
        await row.get_by_text("warm 1/1").wait_for()
        await page.locator(".chip").get_by_text("tiny@1").wait_for()
        # The row shows when it sleeps, so it is known to be idle: for a busy one the page would ask
        # first.
        await row.locator(".cell.sleeps").get_by_text(":").wait_for()

        await page.get_by_role("button", name="Actions of tiny").click()
        await page.get_by_role("menuitem", name="Put to sleep").click()
        await row.locator(".state.cold").wait_for()

        await page.get_by_role("button", name="Actions of tiny").click()
        await page.get_by_role("menuitem", name="Scale").click()
        await page.get_by_label("Maximum replicas").fill("2")
        await page.get_by_role("button", name="Change").click()
        await page.get_by_text("0 to 2 replicas").wait_for()
        assert view.complaints == []


async def test_a_gateway_process_that_dies_is_got_over(tmp_path: Path) -> None:
    """If the gateway process with the page's stream is killed, the page goes on through another
    one."""
    async with dashboard(tmp_path, ("--workers", "2")) as (server, view, caller):
        assert server.process is not None
        connection = view.page.locator(".connection")
        for pid in worker_pids(server.process.pid):
            os.kill(pid, signal.SIGKILL)
        await connection.get_by_text("reconnecting").wait_for()

        await connection.get_by_text("live").wait_for()

        answer = await caller.call("tiny", {"inputs": {"x": [[1, 0, 0, 0]]}})
        assert answer.status == 200
        await view.page.locator(".function-row").get_by_text("warm 1/1").wait_for()
