"""Tests of a server function's page in a real browser, with a scripted server."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, FilePayload, Route

from tests.e2e.test_dashboard_function import LOOKS, page_of
from tests.support import models
from tests.support.browser import Scheme, View, browsing, need_browser, viewing
from tests.support.dashboard.server import READER
from tests.support.process_server import ServerProcess, server_process

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


DROP = """(element, {name, content}) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(content)], name));
  for (const kind of ["dragover", "drop"])
    element.dispatchEvent(
      new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: transfer}));
}"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests: each has a window that shares nothing with the others."""
    need_browser()
    async with browsing() as browser:
        yield browser


async def test_the_page_says_what_runs_and_what_wakes_it(browser: Browser) -> None:
    """Command, readiness, start, rules and limits are shown, and nothing about batches. Of a
    thousand open exchanges 50 are listed, the others counted, and each kind that keeps the function
    awake has its remedy; asleep, the page says what wakes it."""
    async with page_of(*PAGE, browser=browser) as (dashboard, view):
        page = view.page
        panel = await page.locator("section", has=page.locator("#server-title")).inner_text()

        for text in ("uvicorn app:app", "/health", "912 ms, at most ", "POST /v1/*", "/static/*"):
            assert text in panel
        assert await view.count("text=latency by batch") == 0
        assert await view.count("text=Signature") == 0
        settings = await page.locator(".settings").inner_text()
        assert "concurrency" in settings
        assert "batching" not in settings
        assert "openai/gpt-4o:mini" in settings
        assert "2 more" in settings

        dashboard.tell(dashboard.world.warm("web"))
        connected = page.locator(".connections-panel")
        await connected.get_by_text("995 open exchanges keep it awake.").wait_for()
        text = await connected.inner_text()
        for word in ("1\u202f000 open", "the lab", "key 000000000000", "and 950 more"):
            assert word in text
        assert 'limits.websockets = "ignore"' in text
        assert "Ignored: 2 WebSockets, 2 event streams, 1 request." in text
        assert await connected.locator("li").count() == 50

        dashboard.tell(dashboard.world.rest("web"))
        await connected.get_by_text("Asleep, woken by: /items/*, POST /v1/*.").wait_for()
        await connected.locator("li").first.wait_for(state="detached")


async def test_usage_is_shown_by_key(browser: Browser) -> None:
    """A model's page has the tokens of the last day and week, and the keys with the most; further
    ones are counted. A cell has the exact number as its title."""
    async with page_of(*PAGE, browser=browser) as (_, view):
        panel = view.page.locator(".usage-panel")
        await panel.wait_for()
        rows = [await row.inner_text() for row in await panel.locator("tbody tr").all()]

        assert [row.split("\t")[0].strip() for row in rows] == [
            "last day",
            "last 7 days",
            "last 7 days by key",
            "no key",
            "key 000000000001, removed",
            "the shop",
            *(f"key {at:012x}" for at in range(3, 8)),
        ]
        assert [cell.strip() for cell in rows[1].split("\t")[1:]] == [
            "3\u202f822",
            "2151k",
            "1037k",
            "42",
        ]
        assert await panel.locator("td[title='1,036,980']").count() == 1
        assert "and 4 more keys: fnctl usage web --by key --since 7d" in await panel.inner_text()


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
        async with asyncio.timeout(60):
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
        assert await page.evaluate(OVERFLOW) <= 0


async def test_a_key_that_may_not_deploy_is_told_so(browser: Browser) -> None:
    """The way to the deploy page is closed to it, and the form too, each with the reason."""
    reason = "changing functions needs the scope deploy"
    async with page_of("#/", ".function-row", browser=browser, key=READER) as (_, view):
        button = view.page.get_by_role("button", name="Deploy")
        assert reason in (await button.get_attribute("title") or "")
        await view.page.evaluate("() => { location.hash = '#/deploy' }")
        await view.page.get_by_text(reason).first.wait_for()
        await view.page.locator("input[type=file]").set_input_files(files=[file_of(b"model")])
        await view.page.get_by_role("button", name="Deploy").click(force=True)
        assert await view.count(".run-steps") == 0


async def test_everybody_can_deploy(browser: Browser) -> None:
    """axe finds nothing serious on the whole form and beside a refusal with all its parts, and
    nothing overflows."""
    problem = {
        "title": "The server was refused",
        "detail": "not ready after 60 s: expected an answer at /, got connection refused",
        "code": "server_refused",
        "stage": "start",
        "expected": "an answer",
        "got": "connection refused",
        "log_tail": ["starting", "a" * 300],
    }

    async def refuse(route: Route) -> None:
        await route.fulfill(status=422, json=problem)

    async with page_of("#/deploy", "#deploy-form-title", browser=browser) as (_, view):
        page = view.page
        await page.route("**/revisions", refuse)
        await page.get_by_role("button", name="Image").click()
        await page.get_by_role("textbox", name="Image", exact=True).fill("team/new:1")
        for more in await page.locator(".deploy-more > summary").all():
            await more.click()
        await page.get_by_label("(egress)").check()
        await page.get_by_role("button", name="Deploy").click()
        refusal = page.locator(".run-refusal")
        await refusal.get_by_text("got connection refused").wait_for()
        for part in ("The server was refused", "Its last lines are below.", "a" * 300):
            assert part in await refusal.inner_text()
        await page.get_by_role("textbox", name=re.compile("^Name")).fill("web")
        await page.get_by_role("textbox", name="Port").fill("0")
        await page.get_by_role("button", name="Deploy").click()
        await page.get_by_text("expected a whole number from 1 to 65535").wait_for()
        await page.get_by_text("Choose another name, or let it make").wait_for()
        for scheme, width in (*LOOKS, ("dark", 390)):
            await page.emulate_media(color_scheme=scheme)
            await page.set_viewport_size({"width": width, "height": 900})
            assert await view.faults() == []
            assert await page.evaluate(OVERFLOW) <= 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A real server with the function `web`, cold."""
    folder = tmp_path_factory.mktemp("running")
    app = folder / "app"
    app.mkdir()
    (app / "app.py").write_text(APP)
    with server_process(folder / "data") as server:
        command = f"{sys.executable} app.py ${{PORT}}"
        server.fnctl_json("deploy", str(app), "--name", "web", "--command", command, "--trust")
        yield server


async def test_a_real_server_is_woken_and_streams(browser: Browser, running: ServerProcess) -> None:
    """On a real server: a cold request, an open stream in the header and among the connections, an
    abort, and its log."""
    async with entered(running, "#/fn/web", browser) as view:
        page = view.page
        await page.locator("#server-title").wait_for()
        told = page.locator(".connections-told")
        await told.get_by_text("Asleep, woken by: every request.").wait_for()
        await page.get_by_role("button", name="Send").click()
        await page.get_by_text("2 events").wait_for()
        await page.locator(".outcome-status.good", has_text="200").wait_for()

        await page.get_by_label("Path and query").fill("/stays")
        await page.get_by_role("button", name="Send").click()
        await page.locator(".play-events li", has_text="one").wait_for()
        open_ones = page.locator(".fn-facts > div", has=page.get_by_text("open", exact=True))
        await open_ones.get_by_text("1", exact=True).wait_for()
        await told.get_by_text("1 open exchange keeps it awake.").wait_for()
        await told.get_by_text('server.free = ["/stays"]').wait_for()
        one = await page.locator(".connections li").inner_text()
        for word in ("stream", "admin token", "/stays"):
            assert word in one
        first = page.locator(".fn-facts > div", has=page.get_by_text("first byte p50"))
        await first.get_by_text(" ms").wait_for()
        await page.get_by_role("button", name="Abort").click()
        await open_ones.get_by_text("0", exact=True).wait_for()
        await told.get_by_text("Nothing open keeps it awake.").wait_for()
        await page.locator(".log-line", has_text="GET /stays").wait_for()
        assert view.complaints == []


async def test_a_dropped_file_is_deployed(
    browser: Browser, running: ServerProcess, tmp_path: Path
) -> None:
    """Dropped on the overview it is on the form. A file that is no model is refused with the
    reason; a model is deployed under its file's name, and can then only become a revision."""
    async with entered(running, "#/", browser) as view:
        page = view.page
        await drop(view, ".overview", "My Model.onnx", b"no model")
        await page.get_by_role("button", name="Deploy").click()
        refusal = page.locator(".run-refusal")
        await refusal.get_by_text("My Model.onnx is not an ONNX model").wait_for()
        assert "The model was refused" in await refusal.inner_text()

        model = models.affine(tmp_path, 2, 0).read_bytes()
        await drop(view, ".deploy-page", "My Model.onnx", model)
        await page.get_by_text(f"{len(model)} B").wait_for()
        await page.get_by_role("button", name="Deploy").click()
        await page.locator(".run-state", has_text="done").wait_for()
        await page.get_by_text("my-model@1 is deployed.").wait_for()

        await drop(view, ".deploy-page", "My Model.onnx", model)
        await page.get_by_text("my-model exists").wait_for()
        await page.get_by_label("Make its next revision").check()
        await page.get_by_text("Scaling and device").click()
        await page.get_by_label("Idle time").fill("7")
        await page.get_by_role("button", name="Deploy").click()
        await page.get_by_text("changed: scaling.idle_s").wait_for()
        await page.get_by_role("link", name="To my-model").click()
        await page.locator(".settings", has_text="7 s").wait_for()
        assert running.fnctl_json("show", "my-model")["idle_s"] == 7


async def test_an_upload_is_cancelled(browser: Browser, running: ServerProcess) -> None:
    """While its bytes are on their way; nothing is deployed."""
    async with entered(running, "#/deploy", browser) as view:
        page = view.page
        begun = asyncio.Event()

        async def hold(route: Route) -> None:
            if route.request.method == "PUT":
                begun.set()
            else:
                await route.continue_()

        await page.route("**/blobs/*", hold)
        await drop(view, ".deploy-page", "held.onnx", b"held")
        await page.get_by_role("button", name="Deploy").click()
        async with asyncio.timeout(60):
            await begun.wait()
        await page.locator(".run-step", has_text="Upload").wait_for()
        await page.get_by_role("button", name="Cancel").click()
        await page.locator(".run-state", has_text="cancelled").wait_for()
        await page.unroute_all(behavior="ignoreErrors")
        names = {one["name"] for one in running.fnctl_json("ls")["items"]}
        assert "held" not in names


@asynccontextmanager
async def entered(server: ServerProcess, path: str, browser: Browser) -> AsyncIterator[View]:
    """Open a page of a real server's dashboard, with the admin token."""
    async with viewing(f"{server.url}/ui/#key={server.token}", browser=browser) as view:
        await view.page.locator(".connection").get_by_text("live").wait_for()
        await view.page.evaluate("path => { location.hash = path }", path)
        yield view


def file_of(content: bytes, name: str = "model.onnx") -> FilePayload:
    """Return a file for a file input."""
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


async def drop(view: View, selector: str, name: str, content: bytes) -> None:
    """Drop a file on an element, as from the desktop."""
    await view.page.locator(selector).evaluate(DROP, {"name": name, "content": [*content]})
