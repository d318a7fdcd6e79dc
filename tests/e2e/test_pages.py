"""Functions' own hosts in a real browser: tickets, cookies, and what pages cannot reach."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import page_app
from tests.support.browser import View, need_browser, viewing
from tests.support.process_server import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

READ = """async (url) => {
  try { return (await fetch(url, {credentials: "include"})).status; }
  catch (error) { return error.name; }
}"""
SEND = """async (url) => {
  try { return (await fetch(url, {method: "POST", mode: "no-cors", credentials: "include"})).type; }
  catch (error) { return error.name; }
}"""
CONNECT = """(url) => new Promise((done) => {
  const socket = new WebSocket(url);
  socket.onmessage = (event) => done(event.data);
  socket.onerror = () => done("refused");
})"""
FRAME = """(url) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.src = url;
  frame.onload = () => {
    try { done(frame.contentDocument ? "readable" : "apart"); } catch (error) { done(error.name); }
  };
  document.body.append(frame);
})"""
REGISTER = """async () => {
  try { await navigator.serviceWorker.register("sw.js"); return "registered"; }
  catch (error) { return error.name; }
}"""
STORE = """() => {
  try { return sessionStorage.length; } catch (error) { return error.name; }
}"""


@pytest.fixture(autouse=True)
def _browser() -> None:
    need_browser()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with the functions `one` and `two`, which needs keys for calls."""
    with serving(tmp_path) as server:
        server.fnctl_json("key", "add", "--scope", "invoke:one")
        yield server


def serving(folder: Path) -> Any:
    """Return a server with both functions."""
    return _Serving(folder)


class _Serving:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = server_process(folder / "data")

    def __enter__(self) -> ServerProcess:
        app = self._folder / "app"
        app.mkdir()
        shutil.copy(page_app.__file__, app / "app.py")
        server = self._running.__enter__()
        command = f"{sys.executable} app.py ${{PORT}}"
        for name in ("one", "two"):
            server.fnctl_json("deploy", str(app), "--name", name, "--command", command, "--trust")
        return server

    def __exit__(self, *error: object) -> None:
        self._running.__exit__(*error)


def host(server: ServerProcess, name: str, scheme: str = "http") -> str:
    """Return the origin of a function's own host."""
    return f"{scheme}://{name}.localhost:{server.url.rpartition(':')[2]}"


def ticket(server: ServerProcess, name: str, path: str = "/") -> str:
    """Return an address with a ticket, as `fnctl open` prints it."""
    answer = server.fnctl_json("open", name, "--path", path)
    assert answer["url"].startswith(f"{host(server, name)}/.fngate/enter#")
    return str(answer["url"])


@asynccontextmanager
async def entered(server: ServerProcess, *names: str) -> AsyncIterator[View]:
    """Open the pages of functions by tickets, one after the other; the last one stays open."""
    async with viewing("about:blank") as view:
        for name in names:
            await view.page.goto(ticket(server, name))
            await view.page.locator("h1", has_text="A page").wait_for()
        yield view


def count(server: ServerProcess, name: str) -> int:
    """Return how many requests a function's server has got."""
    return int(server.fnctl("invoke", name, "--path", "/count").stdout)


async def test_a_ticket_opens_the_page(server: ServerProcess) -> None:
    """The path of the ticket opens, the cookie is for this host alone, and no script can read it;
    the ticket is in no address afterwards, and is worth nothing."""
    async with viewing("about:blank") as view:
        page, address = view.page, ticket(server, "one", "/lab?x=1")
        await page.goto(address)
        await page.locator("h1", has_text="A page").wait_for()
        assert page.url == f"{host(server, 'one')}/lab?x=1"
        (cookie,) = await page.context.cookies()
        assert cookie["domain"] == "one.localhost"
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
        assert await page.evaluate("document.cookie") == ""
        await page.go_back()
        assert "#" not in page.url
        await page.goto(f"{host(server, 'one')}/who")
        assert "Cookie" not in json.loads(await page.locator("body").inner_text())

        other = await page.context.browser.new_context()  # type: ignore[union-attr]
        again = await other.new_page()
        await again.goto(address)
        await again.get_by_text("Not opened: the ticket is unknown").wait_for()
        assert await other.cookies() == []
        shut = await again.goto(f"{host(server, 'one')}/")
        assert shut is not None
        assert shut.status == 401
        await again.get_by_text("fnctl open one").wait_for()


async def test_a_page_cannot_reach_another_function(server: ServerProcess) -> None:
    """The visitor is signed in to both; the page of one can neither read nor send to the other,
    nor frame it, nor connect to it, nor give it a cookie."""
    async with entered(server, "one", "two") as view:
        page, there = view.page, host(server, "one")
        before = count(server, "one")
        assert await page.evaluate(READ, f"{there}/who") == "TypeError"
        await page.evaluate(SEND, f"{there}/")
        assert await page.evaluate(CONNECT, f"{host(server, 'one', 'ws')}/ws") == "refused"
        assert count(server, "one") == before
        assert await page.evaluate(FRAME, f"{there}/") != "readable"
        assert not [frame for frame in page.frames if frame.url.startswith(there)]
        await page.goto(f"{host(server, 'two')}/toss")
        await page.evaluate("document.cookie = 'mine=1; domain=localhost; path=/'")
        await page.goto(f"{there}/who")
        got = json.loads(await page.locator("body").inner_text())
        assert "Cookie" not in got
        assert "tossed" not in await page.evaluate("document.cookie")


async def test_a_page_is_whole_on_its_own_host(server: ServerProcess) -> None:
    """It can call its server, connect, store, frame itself and have a service worker; links from
    other sites lead to it."""
    async with entered(server, "one") as view:
        page, here = view.page, host(server, "one")
        assert await page.evaluate(READ, "/who") == 200
        assert await page.evaluate(CONNECT, f"{host(server, 'one', 'ws')}/ws") == "hello"
        assert await page.evaluate(FRAME, f"{here}/") == "readable"
        assert await page.evaluate(STORE) == 0
        assert await page.evaluate(REGISTER) == "registered"
        await page.goto(f"{server.url}/ui/")
        await page.evaluate("(url) => { location = url; }", f"{here}/linked")
        await page.wait_for_url(f"{here}/linked")
        await page.locator("h1", has_text="A page").wait_for()


async def test_the_key_in_the_dashboard_is_out_of_reach(tmp_path: Path) -> None:
    """A page below /fn/, in the tab that has the dashboard's key, reads neither storage nor the
    admin API, and cannot stay as a service worker."""
    with serving(tmp_path) as server:
        async with viewing(f"{server.url}/ui/#key={server.token}") as view:
            page = view.page
            await page.locator(".topbar").wait_for()
            assert await page.evaluate(STORE) > 0
            await page.evaluate("() => { location = '/fn/one/'; }")
            await page.locator("h1", has_text="A page").wait_for()
            assert page.url == f"{server.url}/fn/one/"
            assert await page.evaluate("origin") == "null"
            assert await page.evaluate(STORE) == "SecurityError"
            assert await page.evaluate(REGISTER) != "registered"
            assert await page.evaluate(READ, "/admin/v1/session") == "TypeError"
            assert await page.evaluate(FRAME, "/ui/") != "readable"


async def test_the_dashboard_opens_a_page(server: ServerProcess) -> None:
    """In a tab of its own, which cannot reach the dashboard."""
    async with viewing(f"{server.url}/ui/#key={server.token}") as view:
        page = view.page
        await page.locator(".topbar").wait_for()
        await page.evaluate("() => { location.hash = '#/fn/one' }")
        button = page.get_by_role("button", name="Open", exact=True)
        await button.wait_for()
        async with page.context.expect_page() as opening:
            await button.click()
        opened = await opening.value
        await opened.locator("h1", has_text="A page").wait_for()
        assert opened.url == f"{host(server, 'one')}/"
        assert await opened.evaluate("opener === null && document.referrer === ''")
        assert view.complaints == []
