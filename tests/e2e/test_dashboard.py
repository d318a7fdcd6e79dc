"""Tests of the dashboard with a real browser, a real server and real replicas."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import expect

from tests.support.browser import Scheme, View, need_browser
from tests.support.dashboard.live import GatedDigits, act, dashboard, row_of
from tests.support.process_server import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PAGES: dict[str, str] = {
    "#/": ".function-row",
    "#/fn/digits": ".fall",
    "#/timeline": ".tl-list .lane path",
}
"""Each page, and a selector that matches once the page has its content."""
FITS = "() => document.documentElement.scrollWidth <= window.innerWidth"
LOOKS: tuple[tuple[Scheme, int], ...] = (("light", 1440), ("dark", 1440), ("light", 390))


@pytest.fixture(autouse=True)
def _browser() -> None:
    need_browser()


@pytest.fixture(params=[1, 2], ids=["one process", "two workers"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server without functions and without standbys, so that a cold start has all its phases."""
    options = ("--workers", str(request.param))
    with server_process(tmp_path / "data", *options, environment={"FN_STANDBYS": "0"}) as running:
        yield running


@pytest.fixture
def digits(tmp_path: Path) -> GatedDigits:
    """The function digits, not deployed yet."""
    return GatedDigits(tmp_path)


async def test_a_function_is_deployed_woken_and_killed(
    server: ServerProcess, digits: GatedDigits
) -> None:
    """A deployed function appears, wakes phase by phase and answers; after a kill its page has the
    reason."""
    async with dashboard(server) as view:
        page = view.page
        await asyncio.to_thread(digits.deploy, server)
        await row_of(view, "digits").get_by_text("cold", exact=True).wait_for()
        await page.get_by_role("link", name="digits", exact=True).click()

        await cold_call(view, digits)

        receipt = page.locator(".outcome-receipt")
        for phase in ("start", "import", "load", "first_run"):
            await expect(receipt.locator(".phase-legend")).to_contain_text(phase)
        await expect(page.locator(".top th").first).to_have_text("7")
        await expect(page.locator(".fall")).to_have_count(1)
        await expect(page.locator(".fall")).to_contain_text("load")
        await expect(page.locator(".log-list")).to_contain_text("looked at 1")
        await expect(page.get_by_label("Decisions, newest first")).to_contain_text("cpu:")

        # The call must have ended everywhere: a gateway process reports that within a second.
        await expect(page.locator(".fn-head .fn-doing")).to_contain_text("sleeps in")
        [pid] = server.replica_pids("serve")
        os.kill(pid, signal.SIGKILL)

        await expect(page.locator(".fn-state")).to_have_text("cold")
        await expect(page.locator(".replicas .is-gone").first).to_contain_text("SIGKILL")
        await expect(page.get_by_label("Decisions, newest first")).to_contain_text("SIGKILL")


async def cold_call(view: View, digits: GatedDigits) -> None:
    """Call the function with its sample from the playground and check that it wakes meanwhile."""
    page = view.page
    digits.shut()
    await page.get_by_role("button", name="Sample").click()
    await page.locator(".play-preview").wait_for()
    await page.get_by_role("button", name="Invoke").click()
    await expect(page.locator(".fn-state")).to_have_text("waking")
    await expect(page.locator(".fn-head .fn-doing")).to_contain_text("load")
    await expect(page.locator(".play-waiting")).to_contain_text("waking")
    digits.open()
    await expect(page.locator(".fn-state")).to_have_text("warm 1/1")
    await expect(page.locator(".outcome-status")).to_have_text("200")
    await expect(page.locator(".outcome")).to_contain_text("cold start on cpu")


async def test_an_operator_changes_what_runs(server: ServerProcess, digits: GatedDigits) -> None:
    """The actions work: warm, a minimum that sleep respects, idle sleep, rollback, delete."""
    digits.deploy(server)
    async with dashboard(server, "#/fn/digits") as view:
        page = view.page
        state = page.locator(".fn-state")
        notes = page.locator(".notes")
        await act(view, "Warm")
        await expect(state).to_have_text("warm 1/1")
        await expect(notes).to_contain_text("digits is warm after")

        await scale(view, least="1", idle_s="300")
        await act(view, "Sleep")
        await expect(notes).to_contain_text("0 replicas asked to stop, 1 stay")
        await expect(state).to_have_text("warm 1/1")

        await scale(view, least="0", idle_s="0.5")
        await expect(state).to_have_text("cold")

        await asyncio.to_thread(digits.deploy, server, "saw")
        await expect(page.locator(".fn-head .mono")).to_have_text("digits@2")
        await page.get_by_role("button", name="Roll back to digits@1").click()
        await page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
        await expect(page.locator(".fn-head .mono")).to_have_text("digits@1")
        await expect(page.locator(".revisions .has-traffic th .mono")).to_have_text("digits@1")

        await act(view, "Delete")
        delete = page.get_by_role("dialog").get_by_role("button", name="Delete")
        await expect(delete).to_be_disabled()
        await page.get_by_role("dialog").get_by_role("textbox").fill("digits")
        await delete.click()
        await expect(notes).to_contain_text("digits is deleted")
        # The page's own words, or those of the server if the page has asked it meanwhile.
        gone = re.compile("no function (with this name|'digits')")
        await expect(page.get_by_role("status").filter(has_text=gone)).to_be_visible()


async def scale(view: View, *, least: str, idle_s: str) -> None:
    """Change the function's scaling in its dialog."""
    await act(view, "Scale")
    dialog = view.page.get_by_role("dialog")
    await dialog.get_by_label("Minimum replicas").fill(least)
    await dialog.get_by_label("Idle time").fill(idle_s)
    await dialog.get_by_role("button", name="Change").click()
    await expect(dialog).to_have_count(0)


async def test_a_killed_server_is_said_and_its_next_one_shown(
    server: ServerProcess, digits: GatedDigits
) -> None:
    """After a kill of the server the page is marked stale, reconnects, and shows the new state."""
    digits.deploy(server)
    assert server.fnctl("warm", "digits").returncode == 0
    async with dashboard(server) as view:
        connection = view.page.locator(".connection")
        await expect(row_of(view, "digits").locator(".state")).to_have_text("warm 1/1")
        await end_abruptly(server)
        await expect(connection).to_contain_text("reconnecting")
        await expect(view.page.locator("html.is-stale")).to_have_count(1)
        await view.page.set_viewport_size({"width": 390, "height": 900})
        await view.until(FITS)
        [pid] = server.replica_pids("serve")
        os.killpg(pid, signal.SIGKILL)

        await asyncio.to_thread(server.start)

        await expect(connection).to_have_text("live")
        await expect(row_of(view, "digits").locator(".state")).to_have_text("cold")
        await expect(view.page.locator("html.is-stale")).to_have_count(0)


async def end_abruptly(server: ServerProcess) -> None:
    """Kill the server with SIGKILL; its next start is on the same port."""
    server.port = urlsplit(server.url).port or 0
    await asyncio.to_thread(server.kill)


@pytest.mark.parametrize("server", [2], indirect=True)
async def test_refusals_are_shown_and_wake_nothing(
    server: ServerProcess, digits: GatedDigits
) -> None:
    """Bad input shows the reason beside it, an action beyond the key's scope does too, and nothing
    wakes."""
    digits.deploy(server)
    async with dashboard(server, "#/fn/digits") as view:
        page = view.page
        fault = page.locator(".play-fault")
        await page.get_by_role("button", name="JSON").click()
        image = page.get_by_label("image FP32")
        await image.fill("[[1, 2]]")
        await page.get_by_role("button", name="Invoke").click()
        await expect(fault).to_contain_text("expected 8 items at [0]")
        await expect(image).to_have_attribute("aria-invalid", "true")

        await page.get_by_role("button", name="Raw").click()
        await page.get_by_role("textbox", name="Body").fill('{"inputs": {"image": [[1, 2]]}}')
        await page.get_by_role("button", name="Invoke").click()
        await expect(page.locator(".outcome-status")).to_have_text("400")
        await page.get_by_role("button", name="JSON").click()
        await expect(fault).to_contain_text("got a list of 2 at index [0]")

    key = server.fnctl_json("key", "add", "--scope", "read")["secret"]
    async with dashboard(server, "#/fn/digits", key=key) as view:
        page = view.page
        buttons = page.get_by_role("group", name="Actions of digits").get_by_role("button")
        await expect(buttons).to_have_count(5)
        for button in await buttons.all():
            await expect(button).to_have_attribute("aria-disabled", "true")
            assert "needs the scope deploy" in (await button.get_attribute("title") or "")
        await expect(page.get_by_role("button", name="Invoke")).to_be_disabled()
        await page.get_by_text("needs the scope invoke").wait_for()
        await expect(page.locator(".fn-state")).to_have_text("cold")

    assert server.fnctl_json("why", "digits")["cold_starts"] == []
    assert server.replica_pids("serve") == []


@pytest.mark.parametrize("server", [1], indirect=True)
async def test_everybody_can_use_it(server: ServerProcess, digits: GatedDigits) -> None:
    """axe finds nothing serious in light and dark and on a phone, and no page is wider than its
    window."""
    digits.deploy(server)
    seven = f"image=@{digits.folder / 'seven.png'}"
    assert server.fnctl("invoke", "digits", "-i", seven).returncode == 0
    async with dashboard(server) as view:
        page = view.page
        policy = "() => fetch('.').then(one => one.headers.get('Content-Security-Policy'))"
        assert "default-src 'none'" in await page.evaluate(policy)
        for scheme, width in LOOKS:
            await page.emulate_media(color_scheme=scheme)
            await page.set_viewport_size({"width": width, "height": 900})
            for path, shown in PAGES.items():
                await page.evaluate("path => { location.hash = path }", path)
                await page.locator(shown).first.wait_for()
                assert await view.faults() == []
                assert await page.evaluate(FITS), (path, width)
            await page.evaluate("() => { location.hash = '#/fn/digits' }")
            await act(view, "Scale")
            await page.get_by_role("dialog").get_by_label("Idle time").fill("x")
            assert await view.faults() == []
            await page.keyboard.press("Escape")
        # At the phone's width, lanes are as wide as the page.
        await page.evaluate("() => { location.hash = '#/timeline' }")
        lane = page.locator(".tl-list .lane").first
        await expect(lane).to_have_attribute("width", re.compile(r"3\d\d"))
        # Checked last, since a call counts on the timeline some seconds after it.
        await page.get_by_role("link", name="digits").click()
        await expect(page.locator(".use-facts div", has_text="requests")).to_have_text("requests1")
