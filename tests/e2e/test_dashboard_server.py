"""Tests of a server function's page in a real browser, with a scripted server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.e2e.test_dashboard_function import LOOKS, page_of
from tests.support.browser import Scheme, browsing, need_browser, viewing
from tests.support.process_server import server_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="module"),
]

PAGE = ("#/fn/web", "#server-title")
APP = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class App(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for part in ("one", "two"):
            self.wfile.write(f"data: {part}\\n\\n".encode())
            if self.path == "/stays":
                self.rfile.read(1)  # until the client leaves


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests: each has a window that shares nothing with the others."""
    need_browser()
    async with browsing() as browser:
        yield browser


async def test_the_page_says_what_runs_and_what_wakes_it(browser: Browser) -> None:
    """Command, readiness, start, rules and limits are shown, and nothing about batches."""
    async with page_of(*PAGE, browser=browser) as (_, view):
        title = view.page.locator("#server-title")
        panel = await view.page.locator("section", has=title).inner_text()

        for text in ("uvicorn app:app", "/health", "912 ms, at most ", "POST /v1/*", "/static/*"):
            assert text in panel
        assert await view.count("text=latency by batch") == 0
        assert await view.count("text=Signature") == 0
        settings = await view.page.locator(".settings").inner_text()
        assert "concurrency" in settings
        assert "batching" not in settings


async def test_events_are_shown_as_they_arrive(browser: Browser) -> None:
    """An event is on the page while the stream is open; markup in it stays text."""
    async with page_of(*PAGE, browser=browser) as (dashboard, view):
        page, routes = view.page, dashboard.routes
        assert await page.get_by_label("Path and query").input_value() == "/events?n=3"
        await page.get_by_role("button", name="Send").click()

        routes.tick.release()
        await page.locator(".play-events li", has_text='"n": 0').wait_for()
        await page.locator(".outcome .tag", has_text="open").wait_for()
        assert await view.count(".play-events li") == 1
        assert await view.count(".play-events b") == 0

        routes.tick.release()
        routes.tick.release()
        await page.locator(".play-events li", has_text='"n": 2').wait_for()
        await page.locator(".outcome .tag", has_text="open").wait_for(state="detached")
        await page.get_by_text("3 events").wait_for()
        await page.get_by_text("first byte after").wait_for()


async def test_a_stream_can_be_aborted(browser: Browser) -> None:
    """Abort ends the exchange at the server, and what had arrived stays."""
    async with page_of(*PAGE, browser=browser) as (dashboard, view):
        page, routes = view.page, dashboard.routes
        await page.get_by_role("button", name="Send").click()
        routes.tick.release()
        await page.locator(".play-events li").wait_for()
        assert routes.ended.locked()

        await page.get_by_role("button", name="Abort").click()

        await page.locator(".outcome .tag", has_text="aborted").wait_for()
        assert await view.count(".play-events li") == 1
        assert await page.get_by_role("button", name="Send").is_enabled()
        async with asyncio.timeout(15):
            await routes.ended.acquire()


async def test_any_request_can_be_sent(browser: Browser) -> None:
    """Method, path, query, headers and body are sent as entered; the curl line shows the same."""
    async with page_of(*PAGE, browser=browser) as (dashboard, view):
        page = view.page
        await page.get_by_label("Method").select_option("PUT")
        await page.get_by_label("Path and query").fill("/items/7?q=a%20b")
        await page.get_by_label("Headers").fill("Content-Type: text/csv")
        await page.get_by_role("textbox", name="Body").fill("a,b")
        curl = await page.get_by_label("The request with curl").inner_text()
        await page.get_by_role("button", name="Send").click()

        await page.locator(".outcome-status.good", has_text="200").wait_for()
        assert dashboard.routes.exchanges == [("PUT", "/fn/web/items/7?q=a%20b", b"a,b")]
        assert "-X PUT" in curl
        assert f"{dashboard.url}/fn/web/items/7?q=a%20b" in curl
        assert "fn_" not in curl
        await page.locator(".outcome summary").first.click()
        await page.locator(".play-headers", has_text="x-app").wait_for()


async def test_a_path_out_of_the_function_is_not_sent(browser: Browser) -> None:
    """A path that a browser would resolve to another route is refused beside its field."""
    async with page_of(*PAGE, browser=browser) as (dashboard, view):
        page = view.page
        await page.get_by_label("Path and query").fill("/../../admin/v1/keys")
        await page.get_by_role("button", name="Send").click()

        await page.get_by_text("this path leaves the function").wait_for()
        assert dashboard.routes.exchanges == []


async def test_a_redirect_is_told_and_not_followed(browser: Browser) -> None:
    """The page does not carry its key to the target of a redirect."""
    async with page_of(*PAGE, browser=browser) as (dashboard, view):
        page = view.page
        await page.get_by_label("Path and query").fill("/away")
        await page.get_by_role("button", name="Send").click()

        await page.get_by_text("answered with a redirect").wait_for()
        assert [path for _, path, _ in dashboard.routes.exchanges] == ["/fn/web/away"]


async def test_the_overview_marks_servers(browser: Browser) -> None:
    """The row of a server function says so."""
    async with page_of("#/", ".function-row", browser=browser) as (_, view):
        row = view.page.locator(".function-row", has=view.page.get_by_text("web", exact=True))
        await row.get_by_text("· server").wait_for()


@pytest.mark.parametrize(("scheme", "width"), [*LOOKS, ("dark", 390)])
async def test_everybody_can_use_a_servers_page(
    browser: Browser, scheme: Scheme, width: int
) -> None:
    """axe finds nothing serious with events, headers and a fault shown, and nothing overflows."""
    async with page_of(*PAGE, width=width, scheme=scheme, browser=browser) as (dashboard, view):
        page = view.page
        await page.get_by_role("button", name="Send").click()
        for _ in range(3):
            dashboard.routes.tick.release()
        await page.get_by_text("3 events").wait_for()
        await page.locator(".outcome .tag", has_text="open").wait_for(state="detached")
        await page.locator(".outcome summary").first.click()
        await page.get_by_label("Headers").fill("no colon")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_text("expected Name: value").wait_for()

        assert await view.faults() == []
        wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(wide) <= 0


async def test_a_real_server_is_woken_and_streams(browser: Browser, tmp_path: Path) -> None:
    """On a real server: a cold request, an open stream in the header, an abort, and its log."""
    app = tmp_path / "app"
    app.mkdir()
    (app / "app.py").write_text(APP)
    with server_process(tmp_path / "data") as server:
        command = f"{sys.executable} app.py ${{PORT}}"
        server.fnctl_json("deploy", str(app), "--name", "web", "--command", command, "--trust")
        async with viewing(f"{server.url}/ui/#key={server.token}", browser=browser) as view:
            page = view.page
            await page.locator(".topbar").wait_for()
            await page.evaluate("() => { location.hash = '#/fn/web' }")
            await page.locator("#server-title").wait_for()
            await page.get_by_role("button", name="Send").click()
            await page.get_by_text("2 events").wait_for()
            await page.locator(".outcome-status.good", has_text="200").wait_for()

            await page.get_by_label("Path and query").fill("/stays")
            await page.get_by_role("button", name="Send").click()
            await page.locator(".play-events li", has_text="one").wait_for()
            open_ones = page.locator(".fn-facts > div", has=page.get_by_text("open", exact=True))
            await open_ones.get_by_text("1", exact=True).wait_for()
            first = page.locator(".fn-facts > div", has=page.get_by_text("first byte p50"))
            await first.get_by_text(" ms").wait_for()
            await page.get_by_role("button", name="Abort").click()
            await open_ones.get_by_text("0", exact=True).wait_for()
            await page.locator(".log-line", has_text="GET /stays").wait_for()
            assert view.complaints == []
