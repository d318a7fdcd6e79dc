"""Functions' own hosts in a real browser: tickets, cookies, and what hostile pages cannot reach."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.support import page_app, raw_http
from tests.support.browser import browsing, need_browser, viewing
from tests.support.page_attacks import (
    ELEMENTS,
    FOREIGN,
    NEIGHBOURS,
    REDIRECTS,
    REQUESTS,
    SANDBOXED,
    attempt,
)
from tests.support.process_server import ServerProcess, server_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

EVIL = "evil.example"
"""Host of a site that has nothing to do with the server."""
REBOUND = "rebound.example"
"""Host of such a site whose name now has the server's address."""
RESOLVES = f"--host-resolver-rules=MAP {EVIL} 127.0.0.1,MAP {REBOUND} 127.0.0.1"
HEADING = "<h1>A page</h1>"
READ = "async (url) => (await fetch(url)).status"
CONNECT = """(url) => new Promise((done) => {
  const socket = new WebSocket(url);
  socket.onmessage = (event) => done(event.data);
  socket.onerror = () => done("refused");
})"""
FRAME = """(url) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.src = url;
  frame.onload = () => done(frame.contentDocument ? "readable" : "apart");
  document.body.append(frame);
})"""
REGISTER = """async (scope) => {
  const made = await navigator.serviceWorker.register("/say?field=Content-Type:text/javascript"
    + "&field=Service-Worker-Allowed:/"
    + "&body=onfetch = (event) => event.respondWith(fetch(event.request))", {scope});
  await navigator.serviceWorker.ready;
  return new URL(made.scope).pathname;
}"""
KEEP = """async () => {
  localStorage.setItem("a", "b");
  sessionStorage.setItem("a", "b");
  document.cookie = "a=b";
  await caches.open("a");
  await new Promise((done) => { indexedDB.open("a").onsuccess = done; });
  await navigator.serviceWorker.register("/sw.js");
  navigator.locks.request("a", () => new Promise(() => {}));
  const channel = new BroadcastChannel("talk");
  setInterval(() => channel.postMessage("a"), 20);
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests: each has a window that shares nothing with the others."""
    need_browser()
    async with browsing(RESOLVES) as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the functions `one` and `two`; nobody needs a key."""
    need_browser()
    folder = tmp_path_factory.mktemp("pages")
    app = folder / "app"
    app.mkdir()
    shutil.copy(page_app.__file__, app / "app.py")
    with server_process(folder / "data") as server:
        command = f"{sys.executable} app.py ${{PORT}}"
        for name in ("one", "two"):
            server.fnctl_json("deploy", str(app), "--name", name, "--command", command, "--trust")
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def closed(server: ServerProcess) -> AsyncIterator[ServerProcess]:
    """The same server while a key exists, so that calls need one."""
    made = await api(server, "POST", "/admin/v1/keys", {"scopes": ["invoke:one"]})
    yield server
    await api(server, "DELETE", f"/admin/v1/keys/{made['id']}")
    await api(server, "PATCH", "/admin/v1/access", {"openness": "open"})


async def api(server: ServerProcess, method: str, path: str, body: Any = None) -> Any:
    """Return the answer to an administrator's request."""
    data = None if body is None else json.dumps(body).encode()
    fields = {**server.headers, "Host": f"127.0.0.1:{port(server)}"}
    got = await raw_http.ask(port(server), method, path, data, fields)
    assert got.status < 300, got
    return got.json() if got.body else None


def port(server: ServerProcess) -> int:
    """Return the server's TCP port."""
    return int(server.url.rpartition(":")[2])


def host(server: ServerProcess, name: str, scheme: str = "http") -> str:
    """Return the origin of a function's own host."""
    return f"{scheme}://{name}.localhost:{port(server)}"


async def ticket(server: ServerProcess, name: str, path: str = "/") -> str:
    """Return an address with a ticket of the administrator."""
    body = {"path": path}
    answer = await api(server, "POST", f"/admin/v1/functions/{name}/tickets", body)
    return f"http://{answer['address']}"


async def enter(page: Page, server: ServerProcess, *names: str) -> None:
    """Open the pages of functions by tickets, one after the other; the last one stays open."""
    for name in names:
        await page.goto(await ticket(server, name))
        await page.locator("h1", has_text="A page").wait_for()


async def marks(server: ServerProcess, name: str = "one") -> list[str]:
    """Return the requests for paths below /mark/ that a function's server has got, in order."""
    return list(await api(server, "GET", f"/fn/{name}/log"))


def say(*fields: str, body: str = HEADING) -> str:
    """Return the path of an answer with these fields."""
    return "/say?" + "&".join([*(f"field={quote(one)}" for one in fields), f"body={quote(body)}"])


class ForeignApp(page_app.App):
    """The pages of another site."""

    timeout = 2.0
    """Seconds after which a connection that the browser does not use ends."""


class ForeignServer(ThreadingHTTPServer):
    """The server of another site; its close waits for its connections."""

    daemon_threads = False


@asynccontextmanager
async def foreign_site() -> AsyncIterator[str]:
    """Run the server of another site; its origin."""
    site = ForeignServer(("127.0.0.1", 0), ForeignApp)
    thread = threading.Thread(target=site.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{EVIL}:{site.server_address[1]}"
    finally:
        site.shutdown()
        site.server_close()
        thread.join()


async def report(page: Page, site: str, target: str) -> None:
    """Open a page of `site` that has the browser send a report to `target`, and preload it."""
    path = say(
        "Content-Type:text/html",
        f"Content-Security-Policy:img-src 'none'; report-uri {target}",
        f"Link:<{target}>; rel=preload; as=fetch; crossorigin",
        body="<img src=/x>",
    )
    async with page.context.expect_event("request", lambda one: one.method == "POST") as sent:
        await page.goto(site + path)
    assert (await sent.value).url == target


async def cookie_of(page: Page) -> dict[str, Any]:
    """Return the only cookie of a window."""
    (cookie,) = await page.context.cookies()
    return dict(cookie)


async def test_a_ticket_opens_the_page(closed: ServerProcess, browser: Browser) -> None:
    """The path of the ticket opens, the cookie is for this host alone, and no script can read it;
    the ticket is in no address afterwards, and is worth nothing."""
    address = closed.fnctl_json("open", "one", "--path", "/lab?x=1")["url"]
    assert address.startswith(f"{host(closed, 'one')}/.fngate/enter#")
    async with viewing(address, browser=browser) as view:
        page = view.page
        await page.locator("h1", has_text="A page").wait_for()
        assert page.url == f"{host(closed, 'one')}/lab?x=1"
        cookie = await cookie_of(page)
        assert cookie["domain"] == "one.localhost"
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
        assert await page.evaluate("document.cookie + document.referrer") == ""
        await page.go_back()
        assert "#" not in page.url
        await page.goto(f"{host(closed, 'one')}/who")
        assert "Cookie" not in json.loads(await page.locator("body").inner_text())
    async with viewing(address, browser=browser) as view:
        page = view.page
        await page.get_by_text("Not opened: the ticket is unknown").wait_for()
        assert await page.context.cookies() == []
        shut = await page.goto(f"{host(closed, 'one')}/")
        assert shut is not None
        assert shut.status == 401
        await page.get_by_text("fnctl open one").wait_for()


async def test_a_page_is_whole_on_its_own_host(closed: ServerProcess, browser: Browser) -> None:
    """It can call its server, connect, store, frame itself and have a service worker for all of
    it; links from other sites lead to it, also through that worker."""
    async with viewing("about:blank", browser=browser) as view:
        page, here = view.page, host(closed, "one")
        await enter(page, closed, "one")
        assert await page.evaluate(READ, "/who") == 200
        assert await page.evaluate(CONNECT, f"{host(closed, 'one', 'ws')}/ws") == "hello"
        assert await page.evaluate(FRAME, f"{here}/") == "readable"
        assert await page.evaluate("sessionStorage.length") == 0
        assert await page.evaluate(REGISTER, "/") == "/"
        await page.goto(f"{closed.url}/ui/")
        await page.evaluate("(url) => { location = url; }", f"{here}/linked")
        await page.wait_for_url(f"{here}/linked")
        await page.locator("h1", has_text="A page").wait_for()


async def test_leaving(closed: ServerProcess, browser: Browser) -> None:
    """The button removes the cookie; the page is closed then."""
    async with viewing("about:blank", browser=browser) as view:
        page, here = view.page, host(closed, "one")
        await enter(page, closed, "one")
        await page.goto(f"{here}/.fngate/leave")
        await page.get_by_role("button", name="Leave").click()
        await page.get_by_text("This browser has left.").wait_for()
        assert await page.context.cookies() == []
        shut = await page.goto(f"{here}/")
        assert shut is not None
        assert shut.status == 401


async def test_a_page_cannot_reach_another_function(
    closed: ServerProcess, browser: Browser
) -> None:
    """The visitor is signed in to both; the page of one can neither read nor send to the other or
    the dashboard, nor frame them, nor connect, nor see what they have stored."""
    places = {"one": host(closed, "one"), "site": closed.url}
    before = await marks(closed)
    async with viewing(f"{closed.url}/ui/#key={closed.token}", browser=browser) as view:
        await view.page.locator(".topbar").wait_for()
        other = await view.page.context.new_page()
        await enter(other, closed, "one")
        await other.evaluate(KEEP)
        page = await view.page.context.new_page()
        await enter(page, closed, "two")
        await report(page, host(closed, "two"), f"{places['one']}/mark/report")
        await page.goto(host(closed, "two"))
        for attacks in (NEIGHBOURS, REQUESTS, REDIRECTS, ELEMENTS):
            assert await attempt(page, attacks, **places) == {}
        shown = [frame.url for frame in page.frames if frame.url.startswith(places["one"])]
        assert shown == []
        assert f"{closed.url}/ui/" not in [frame.url for frame in page.frames]
    assert await marks(closed) == before


async def test_a_foreign_site_can_only_link(closed: ServerProcess, browser: Browser) -> None:
    """The visitor is signed in; a site elsewhere gets nothing to a function but a link that is
    followed. A name that now has the server's address is no name of the server."""
    here = host(closed, "one")
    places = {"one": here, "site": closed.url}
    before = await marks(closed)
    async with viewing("about:blank", browser=browser) as view, foreign_site() as evil:
        page = view.page
        await enter(page, closed, "one")
        await page.goto(evil)
        for attacks in (REQUESTS, REDIRECTS, ELEMENTS, FOREIGN):
            assert await attempt(page, attacks, **places) == {}
        assert await marks(closed) == before

        await page.goto(evil)
        await page.evaluate("(url) => { location = url; }", f"{here}/mark/link")
        await page.wait_for_url(f"{here}/mark/link")
        assert await marks(closed) == [*before, "GET /mark/link"]
        await page.goto(evil)
        async with page.expect_navigation() as sent:
            await page.evaluate(
                """(action) => Object.assign(document.body.appendChild(
                document.createElement("form")), {method: "post", action}).submit()""",
                f"{here}/mark/form",
            )
        refused = await sent.value
        assert refused is not None
        assert refused.status == 403

        for path in ("/mark/rebound", "/fn/one/mark/rebound", "/ui/", "/.fngate/enter"):
            rebound = await page.goto(f"http://{REBOUND}:{port(closed)}{path}")
            assert rebound is not None
            assert rebound.status == 421
        assert await marks(closed) == [*before, "GET /mark/link"]


async def test_a_page_cannot_fix_or_flood_cookies(closed: ServerProcess, browser: Browser) -> None:
    """Neither its server nor its scripts set the gateway's cookie or one for others; with too many
    it shuts out nobody but itself."""
    async with viewing("about:blank", browser=browser) as view:
        page, here = view.page, host(closed, "two")
        await enter(page, closed, "one", "two")
        mine = await page.context.cookies()
        for name in ("fngate", "__Host-fngate", "=fngate"):
            for more in ("", "; Domain=localhost", "; Domain=two.localhost", "; Secure"):
                await page.goto(here + say(f"Set-Cookie:{name}=x; Path=/{more}"))
        await page.goto(here + say("Set-Cookie:tossed=1; Domain=localhost", "Clear-Site-Data:*"))
        set_now = {(one["name"], one["domain"]) for one in await page.context.cookies()}
        assert set_now == {
            *((one["name"], one["domain"]) for one in mine),
            ("tossed", "two.localhost"),
        }
        await page.evaluate("""() => {
          for (const more of ["", "; path=/who", "; Secure"])
            for (const name of ["fngate", "__Host-fngate", ""])
              document.cookie = `${name}=fngate=x; path=/${more}`;
        }""")
        assert await page.evaluate(READ, "/who") == 200
        await page.evaluate("""() => {
          for (let at = 0; at < 200; at++) document.cookie = `s${at}=x; path=/`;  // evicts others
          for (let at = 0; at < 12; at++) document.cookie = `c${at}=${"x".repeat(4000)}; path=/`;
        }""")
        assert await page.evaluate(READ, "/who") == 431
        for address in (f"{host(closed, 'one')}/", f"{closed.url}/ui/"):
            answer = await page.goto(address)
            assert answer is not None
            assert answer.status == 200


async def test_a_ticket_is_not_taken_from_elsewhere(
    closed: ServerProcess, browser: Browser
) -> None:
    """Another page can neither send one in a visitor's name nor frame the page that does; at the
    host of another function it is spent."""
    address = await ticket(closed, "one")
    word = address.partition("#")[2]
    there = host(closed, "one")
    async with viewing("about:blank", browser=browser) as view:
        page = view.page
        await enter(page, closed, "two")
        before = await page.context.cookies()
        await page.evaluate(
            """([url, body]) => fetch(url, {method: "POST", mode: "no-cors", body})""",
            [f"{there}/.fngate/enter", word],
        )
        assert await page.context.cookies() == before
        await page.goto(address)
        await page.locator("h1", has_text="A page").wait_for()
        misled = (await ticket(closed, "one")).replace("one.localhost", "two.localhost")
        await page.goto(misled)
        await page.get_by_text("Not opened: the ticket is unknown").wait_for()
        await page.goto(misled.replace("two.localhost", "one.localhost"))
        await page.get_by_text("Not opened: the ticket is unknown").wait_for()


async def test_the_key_in_the_dashboard_is_out_of_reach(
    server: ServerProcess, browser: Browser
) -> None:
    """A page below /fn/, in the tab that has the dashboard's key, has an origin of its own: it
    reads no storage, sends nothing, and cannot stay, whatever its server answers."""
    places = {"one": host(server, "one"), "site": server.url}
    before = await marks(server)
    async with viewing(f"{server.url}/ui/#key={server.token}", browser=browser) as view:
        page = view.page
        await page.locator(".topbar").wait_for()
        assert await page.evaluate("sessionStorage.length") > 0
        await page.evaluate("() => { location = '/fn/two/'; }")
        await page.locator("h1", has_text="A page").wait_for()
        for attacks in (SANDBOXED, REQUESTS, ELEMENTS):
            assert await attempt(page, attacks, **places) == {}
        await report(page, f"{server.url}/fn/two", f"{server.url}/fn/one/mark/report")
        picture = "<svg xmlns='http://www.w3.org/2000/svg'><script>0</script></svg>"
        for path in (
            say("Content-Type:text/html", "Content-Security-Policy:sandbox allow-same-origin"),
            say(
                "Content-Type:text/html",
                "Content-Security-Policy: sandbox allow-scripts"
                " allow-same-origin, sandbox allow-same-origin allow-scripts",
            ),
            say("Content-Type:image/svg+xml", body=picture),
            say("Content-Type:application/xhtml+xml", body="<x/>"),
            say("Content-Type:text/plain"),
            say("Content-Type:text/html", "Origin-Agent-Cluster:?0", "Accept-CH:DPR"),
        ):
            await page.goto(f"{server.url}/fn/two{path}")
            assert await page.evaluate("self.origin") == "null", path
        await page.goto(f"{server.url}/fn/two" + say("Set-Cookie:a=b; Path=/; Domain=localhost"))
        assert (await cookie_of(page))["path"] == "/fn/two"
        await page.goto(f"{server.url}/fn/two" + say("Refresh:0; url=/ui/"))
        await page.wait_for_url(f"{server.url}/ui/")
        await page.locator(".topbar").wait_for()
    assert await marks(server) == before


async def test_the_dashboard_opens_a_page(closed: ServerProcess, browser: Browser) -> None:
    """In a tab of its own, which cannot reach the dashboard."""
    async with viewing(f"{closed.url}/ui/#key={closed.token}", browser=browser) as view:
        page = view.page
        await page.locator(".topbar").wait_for()
        await page.evaluate("() => { location.hash = '#/fn/one' }")
        button = page.get_by_role("button", name="Open", exact=True)
        await button.wait_for()
        async with page.context.expect_page() as opening:
            await button.click()
        opened = await opening.value
        await opened.locator("h1", has_text="A page").wait_for()
        assert opened.url == f"{host(closed, 'one')}/"
        assert await opened.evaluate("opener === null && document.referrer === ''")
        assert view.complaints == []
