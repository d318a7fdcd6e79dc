"""Tests of a function's page and of the timeline in a real browser, with a scripted server."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession, ClientTimeout
from playwright.async_api import Browser

from tests.support.browser import Scheme, View, need_browser, viewing
from tests.support.caller import UNTIL_S, Caller
from tests.support.dashboard.details import build
from tests.support.dashboard.server import KEY, READER, Dashboard, serving_dashboard
from tests.support.process_server import server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

DIGITS = Path(__file__).parent.parent.parent / "functions" / "digits"
LOOKS: tuple[tuple[Scheme, int], ...] = (("light", 1440), ("dark", 1440), ("light", 360))


@pytest.fixture(autouse=True)
def _browser() -> None:
    need_browser()


@asynccontextmanager
async def page_of(
    path: str,
    ready: str,
    *,
    functions: int = 20,
    key: str = KEY,
    width: int = 1440,
    scheme: Scheme = "light",
    browser: Browser | None = None,
) -> AsyncIterator[tuple[Dashboard, View]]:
    """Open the page at `path` and wait for `ready`; afterwards the browser, a new one by default,
    must have reported no errors."""
    async with serving_dashboard(functions, 4) as dashboard:
        dashboard.routes.pace_s = 0.05
        url = f"{dashboard.url}/ui/#key={key}"
        async with viewing(url, width, scheme=scheme, browser=browser) as view:
            await view.page.locator(".topbar").wait_for()
            await view.page.evaluate("path => { location.hash = path }", path)
            await view.page.locator(ready).first.wait_for()
            yield dashboard, view
            # Besides its server, the page may load only pictures that it made itself (blob: has no
            # host).
            assert view.hosts - {""} == {urlsplit(dashboard.url).netloc}
        # The browser's own console reports every refused call.
        assert [text for text in view.complaints if "Failed to load resource" not in text] == []


async def test_a_cold_call_is_seen_from_waking_to_its_waterfall() -> None:
    """State, phases, answer, receipt, the new cold start and sleep show without a reload."""
    async with page_of("#/fn/digits", "#playground-title") as (dashboard, view):
        page, world = view.page, dashboard.world
        dashboard.tell(world.rest("digits"))
        state = page.locator(".fn-state")
        await state.get_by_text("cold").wait_for()
        await page.locator(".fall").first.wait_for()
        before = await view.count(".fall")
        await page.evaluate("() => { window.sameDocument = true }")

        await page.get_by_role("button", name="Sample").click()
        await page.locator(".play-preview").wait_for()
        await page.get_by_role("button", name="Invoke").click()

        await state.get_by_text("waking").wait_for()
        await page.locator(".play-waiting", has_text="waking").wait_for()
        await state.get_by_text("warm 1/").wait_for()
        await page.locator(".outcome-status.good", has_text="200").wait_for()
        await page.locator(".outcome", has_text="cold start on").wait_for()
        await page.locator(".top", has_text="seven").wait_for()
        await view.until("n => document.querySelectorAll('.fall').length === n", before + 1)
        assert dashboard.routes.calls[0][0] == "image/png"

        dashboard.tell(world.rest("digits"))
        await state.get_by_text("cold").wait_for()
        assert await page.evaluate("() => window.sameDocument")


async def test_a_call_can_be_given_up() -> None:
    """After a cancelled call the page stops waiting at once, and the next call can be made."""
    async with page_of("#/fn/digits", "#playground-title") as (dashboard, view):
        dashboard.routes.pace_s = 60
        dashboard.tell(dashboard.world.rest("digits"))
        await view.page.locator(".fn-state", has_text="cold").wait_for()
        await view.page.get_by_role("button", name="Sample").click()
        await view.page.locator(".play-preview").wait_for()
        await view.page.get_by_role("button", name="Invoke").click()

        await view.page.get_by_role("button", name="Cancel").click()

        await view.page.locator(".play-waiting").wait_for(state="detached")
        assert await view.page.get_by_role("button", name="Invoke").is_enabled()
        assert await view.count(".outcome") == 0


async def test_a_replica_that_goes_leaves_its_reason() -> None:
    """The page keeps the reason of each ended replica: killed, evicted or idle."""
    async with page_of("#/fn/digits", "#replicas-title") as (dashboard, view):
        dashboard.tell(dashboard.world.warm("digits"))
        await view.page.locator(".replicas .state.warm").wait_for()
        replicas = dashboard.world.replicas.values()
        mine = next(one for one in replicas if one["function"] == "digits")
        killed = {**mine, "state": "releasing", "why": "killed by signal 9 (SIGKILL)"}

        dashboard.tell([("replicas", {"items": [killed]})])
        dashboard.tell([("gone", {"functions": [], "replicas": [mine["id"]]})])

        gone = view.page.locator(".replicas .is-gone", has_text="signal 9")
        await gone.wait_for()
        assert "gone" in await gone.inner_text()


async def test_bad_input_is_reported_beside_it() -> None:
    """Bad input is reported beside it, by the page before it is sent and by the server
    otherwise."""
    async with page_of("#/fn/faces", "#playground-title") as (dashboard, view):
        page = view.page
        first, second = page.get_by_label("x FP32"), page.get_by_label("ids INT64")
        await first.fill("[[1, 2, 3]]")
        await second.fill("[1.5]")
        await page.get_by_role("button", name="Invoke").click()

        await page.get_by_text("expected 4 items at [0]").wait_for()
        await page.get_by_text("expected an integer for INT64 at [0], got 1.5").wait_for()
        assert await first.get_attribute("aria-invalid") == "true"
        assert dashboard.routes.calls == []

        await first.fill("[[1, 2, 3, 4.50]]")
        await second.fill("[9007199254740993]")
        await page.get_by_role("button", name="Invoke").click()
        await page.locator(".outcome-status").wait_for()
        sent = b'{"inputs": {"x": [[1, 2, 3, 4.50]], "ids": [9007199254740993]}}'
        assert dashboard.routes.calls == [("application/json", sent)]

        await page.get_by_role("button", name="Raw").click()
        await page.get_by_role("textbox", name="Body").fill("refuse")
        await page.get_by_role("button", name="Invoke").click()
        await page.locator(".outcome-status.bad", has_text="400").wait_for()
        await page.get_by_role("button", name="JSON").click()
        await page.get_by_text("got shape [1, 3]").first.wait_for()


async def test_a_picture_can_be_pasted_anywhere() -> None:
    """A pasted image becomes the input without a click on the drop zone."""
    async with page_of("#/fn/digits", "#playground-title") as (dashboard, view):
        dashboard.tell(dashboard.world.warm("digits"))
        await view.page.evaluate(
            """() => {
              const files = new DataTransfer();
              files.items.add(new File(["pasted"], "shot.webp", {type: "image/webp"}));
              document.body.dispatchEvent(
                new ClipboardEvent("paste", {clipboardData: files, bubbles: true}));
            }"""
        )
        await view.page.get_by_text("shot.webp").wait_for()

        await view.page.get_by_role("button", name="Invoke").click()

        await view.page.locator(".outcome-status").wait_for()
        assert dashboard.routes.calls == [("image/webp", b"pasted")]


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_real_function_is_called_killed_and_told_of(tmp_path: Path, workers: str) -> None:
    """On a real server: sample, cold call, labels, waterfall, and the reason of its replica's
    end."""
    with server_process(tmp_path / "data", "--workers", workers) as server:
        async with ClientSession(timeout=ClientTimeout(total=UNTIL_S)) as session:
            await Caller(server.url, server.token, session).deploy(DIGITS)
        async with viewing(f"{server.url}/ui/#key={server.token}") as view:
            page = view.page
            await page.locator(".topbar").wait_for()
            await page.evaluate("() => { location.hash = '#/fn/digits' }")
            await page.get_by_role("button", name="Sample").click()
            await page.locator(".play-preview").wait_for()
            await page.get_by_role("button", name="Invoke").click()
            await page.locator(".top th", has_text="7").first.wait_for()
            await page.locator(".fall").first.wait_for()
            replica = await page.locator(".replicas li:not(.is-gone) .mono").first.inner_text()

            os.kill(server.replica_processes()[replica], signal.SIGKILL)

            await page.locator(".replicas .is-gone", has_text="SIGKILL").wait_for()
            assert view.complaints == []


async def test_text_from_outside_stays_text() -> None:
    """Names, reasons and answers of models and clients are shown as text, never as HTML."""
    nasty = "<img src=x onerror=alert(1)>"
    async with page_of("#/fn/digits", ".happenings") as (dashboard, view):
        fields = {"function": "digits", "revision": "digits@1", "at_s": dashboard.world.now_s + 5}
        dashboard.tell([("decision", {**fields, "text": nasty})])

        await view.page.get_by_text(nasty).wait_for()
        assert await view.count("img[src=x]") == 0


async def test_a_key_that_may_only_read_says_so() -> None:
    """With a read-only key every action is disabled with the reason."""
    async with page_of("#/fn/digits", "#playground-title", key=READER) as (dashboard, view):
        page = view.page
        buttons = page.get_by_role("group", name="Actions of digits").get_by_role("button")
        assert await buttons.count() == 5
        for at in range(5):
            assert await buttons.nth(at).get_attribute("aria-disabled") == "true"
            assert "needs the scope deploy" in (await buttons.nth(at).get_attribute("title") or "")
        await buttons.nth(4).click(force=True)

        assert await page.get_by_role("button", name="Invoke").is_disabled()
        assert await view.count("dialog") == 0
        assert not [one for one in dashboard.requests if one.startswith(("POST", "DELETE"))]


async def test_logs_follow_until_they_are_held() -> None:
    """Logs show few rows and follow the end until they are paused."""
    async with page_of("#/fn/digits", ".log-line") as (dashboard, view):
        page = view.page
        dashboard.routes.line_s = 0.02
        # Any row: the first may be out of sight again before the check.
        await page.get_by_text(re.compile(r"request \d+ of digits")).last.wait_for()
        assert await view.count(".log-line") < 60
        assert "\x1b" not in await page.locator(".log-list").inner_text()

        await page.get_by_role("button", name="Pause").click()
        await page.get_by_text("paused, ").wait_for()
        held = await page.locator(".log-list").get_attribute("aria-label")
        await page.get_by_label("Filter lines").fill("line 42 of")
        await view.until("() => document.querySelectorAll('.log-line').length === 1")
        await page.get_by_label("Filter lines").fill("")
        assert await page.locator(".log-list").get_attribute("aria-label") == held

        await page.get_by_role("button", name="Resume").click()
        await page.get_by_text("following").wait_for()


async def test_a_cold_starts_phases_are_read_by_keyboard() -> None:
    """The legend shows the phases of the focused row, and its text is accessible."""
    async with page_of("#/fn/digits", ".fall") as (_, view):
        legend = view.page.locator(".phase-legend").first
        first = await legend.inner_text()

        await view.page.locator(".fall").nth(2).focus()

        await view.until("was => document.querySelector('.phase-legend').innerText !== was", first)
        words = await view.page.locator(".fall").nth(2).get_attribute("title") or ""
        assert "load " in words


async def test_another_idle_time_is_worked_out_and_applied() -> None:
    """The advised idle time is applied after a confirmation, with the ETag that was read."""
    async with page_of("#/fn/digits", "#advice-title") as (dashboard, view):
        page = view.page
        await page.get_by_role("button", name="Simulate").click()
        await page.get_by_role("button", name="Apply an idle time of 10 min").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_text("of idle device time").wait_for()

        await dialog.get_by_role("button", name="Apply").click()

        await dialog.wait_for(state="detached")
        await page.locator(".advice tr.is-current", has_text="10 min").wait_for()
        assert dashboard.world.functions["digits"]["idle_s"] == 600
        assert "PATCH /admin/v1/functions/digits" in dashboard.requests


async def test_candidates_of_other_precision_are_seen() -> None:
    """The panel has a row for each candidate with its time and its disagreement, marks the one that
    serves, and says why each other one does not, or which column agrees least. A function without
    candidates has no panel."""
    async with page_of("#/fn/digits", "#precision-title") as (_, view):
        rows = view.page.locator(".precision tbody tr:not(.precision-why)")
        texts = [" ".join(text.split()) for text in await rows.all_inner_texts()]
        whys = await view.page.locator(".precision .precision-why").all_inner_texts()

        assert [text.split()[0] for text in texts] == ["original", "fp16", "int8", "int8-dynamic"]
        assert len(whys) == 3
        assert "its rows take 4 % longer" in whys[0]
        assert "probabilities column 3: error 1.1 % of its spread 0.231" in whys[1]
        assert "column 3: expected an error of at most 2 % of the column's spread" in whys[2]
        assert "probabilities column 3 31 %" in texts[3]
        assert "0.17 ms at 16 rows, 1.35" in texts[2]
        assert "labels 0.0052" in texts[2]
        assert await view.count(".precision .has-traffic") == 1
        assert await view.count(".bars.is-off") == 1
        await view.page.evaluate("() => { location.hash = '#/fn/faces' }")
        await view.page.locator("#revisions-title").wait_for()
        await view.page.locator("#precision-title").wait_for(state="detached")


async def test_a_build_is_followed_to_its_end() -> None:
    """The panel has the state, the time by the server's clock with the estimate, the reason of a
    failure with what to do, and the facts of the compiled model. On a phone nothing is cut off."""
    async with page_of("#/fn/digits", "#revisions-title") as (dashboard, view):
        page, world = view.page, dashboard.world
        panel = page.locator(".build-panel")
        assert await panel.count() == 0
        await page.evaluate("() => { const now = Date.now; Date.now = () => now() + 600_000 }")

        def tell(*builds: dict[str, Any]) -> None:
            world.functions["digits"] |= {"build": builds[0], "builds": builds}
            dashboard.tell([("functions", {"items": [world.functions["digits"]]})])

        tell(build("waiting"))
        await panel.get_by_text("A build begins when a device is free").wait_for()
        tell(build("building", began_s=world.now_s - 12))
        await panel.get_by_text(re.compile(r"^building: [12]\d s of about 40 s$")).wait_for()
        tell(build("failed", reason=f"output y differs by 0.5 {'x' * 200}"))
        await panel.get_by_text("fnctl prepare digits --now").wait_for()
        await panel.locator(".tag.bad", has_text="failed").wait_for()
        await page.set_viewport_size({"width": 360, "height": 900})
        assert await panel.evaluate("one => one.scrollWidth - one.clientWidth") <= 0
        assert await view.faults() == []
        bars = page.locator(".precision-panel .has-traffic").locator(".bars")
        edge = await page.locator(".precision-panel").bounding_box()
        for at in range(2):
            bar = await bars.nth(at).bounding_box()
            assert bar
            assert edge
            assert bar["x"] + bar["width"] <= edge["x"] + edge["width"]

        tell(build("done"))
        rows = panel.locator("tr")
        await rows.first.wait_for()
        texts = [" ".join(text.split()) for text in await rows.all_inner_texts()]
        assert texts == [
            "by tensorrt for cuda",
            "graph wholly compiled",
            "took 38 s",
            "differs by 0 (probabilities, 12 samples)",
            "shapes x 1x8x8 to 64x8x8",
            "other shapes run uncompiled",
            "1 row 0.250 ms instead of 0.500 ms",
            "64 rows 3.0 ms instead of 9.0 ms",
        ]

        far = build("building", began_s=world.now_s - 12, host="gpu2", device_model="NVIDIA L4")
        tell(far, build("done"))
        await panel.get_by_text("gpu2 NVIDIA L4").wait_for()
        await panel.get_by_text("local NVIDIA H100, sm90").wait_for()
        await panel.locator(".build-device .tag.good", has_text="done").wait_for()
        assert await rows.count() == len(texts)
        assert await panel.evaluate("one => one.scrollWidth - one.clientWidth") <= 0
        assert await view.faults() == []


async def test_a_timeline_of_many_is_few_rows() -> None:
    """Lanes of a long timeline are loaded only when visible, and keys move through time."""
    async with page_of("#/timeline?hours=24", "#functions-title", functions=250) as (
        dashboard,
        view,
    ):
        page = view.page
        await page.locator(".tl-list .lane path").first.wait_for()
        assert await view.count(".tl-list .tl-row") < 60
        lanes = [
            one for one in dashboard.requests if one.endswith("/timeline") and "/fn" not in one
        ]
        assert len(lanes) < 60

        await page.evaluate("() => window.scrollTo(0, document.body.scrollHeight)")
        await page.locator(".tl-list .tl-row").last.locator(".lane path").first.wait_for()
        assert await view.count(".tl-list .tl-row") < 60

        cursor = page.get_by_role("slider", name="Time cursor of all devices")
        await cursor.focus()
        before = await cursor.get_attribute("aria-valuetext")
        await page.keyboard.press("ArrowLeft")
        after = await cursor.get_attribute("aria-valuetext")
        assert after is not None
        assert after != before
        assert "gpu-000" in after


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
async def test_everybody_can_use_a_functions_page(scheme: Scheme, width: int) -> None:
    """axe finds nothing serious with an answer, advice and a dialog open, and nothing overflows."""
    async with page_of("#/fn/digits", "#playground-title", width=width, scheme=scheme) as (_, view):
        page = view.page
        await page.get_by_role("button", name="Sample").click()
        await page.locator(".play-preview").wait_for()
        await page.get_by_role("button", name="Invoke").click()
        await page.locator(".outcome-status").wait_for()
        await page.get_by_role("button", name="Simulate").click()
        await page.locator(".advice").wait_for()

        assert await view.faults() == []
        wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(wide) <= 0

        await page.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").wait_for()
        assert await view.faults() == []
        await page.keyboard.press("Escape")
        focused = await page.evaluate("() => document.activeElement.innerText")
        assert focused == "Delete"


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
async def test_everybody_can_use_the_timeline(scheme: Scheme, width: int) -> None:
    """axe finds nothing serious on the timeline, and nothing overflows."""
    async with page_of("#/timeline", "#functions-title", width=width, scheme=scheme) as (_, view):
        await view.page.locator(".tl-list .lane path").first.wait_for()

        assert await view.faults() == []
        wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await view.page.evaluate(wide) <= 0


async def test_the_example_can_be_copied_or_taken() -> None:
    """The page has a shell command to call the function, to copy."""
    async with page_of("#/fn/digits", ".copy-text") as (dashboard, view):
        text = await view.page.locator(".copy-text pre").inner_text()

        assert text.startswith(f"curl {dashboard.url}/fn/digits ")
        assert json.loads(text.rpartition("-d '")[2].rstrip("'")) == {}
