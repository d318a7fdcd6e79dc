"""Functions' own hosts on a real server with one gateway process and with several."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.support import page_app
from tests.support.process_server import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ASKS = 24
"""Requests on connections of their own: the kernel spreads them over the gateway processes."""


@pytest.fixture(params=["1", "2"], ids=["one-process", "workers"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with the function `web`."""
    app = tmp_path / "app"
    app.mkdir()
    shutil.copy(page_app.__file__, app / "app.py")
    with server_process(tmp_path / "data", "--workers", request.param) as server:
        command = f"{sys.executable} app.py ${{PORT}}"
        server.fnctl_json("deploy", str(app), "--name", "web", "--command", command, "--trust")
        yield server


class Browser:
    """A client that sends what a browser sends to a function's own host."""

    def __init__(self, server: ServerProcess, session: aiohttp.ClientSession) -> None:
        self._url = server.url
        self._session = session
        self.host = f"web.localhost:{urlsplit(server.url).port}"
        self.cookie = ""

    async def ask(self, path: str, method: str = "GET", body: str = "") -> tuple[int, str]:
        """Return status and text of an answer; keeps the cookie that it sets."""
        headers = {"Host": self.host, "Cookie": self.cookie, "Connection": "close"}
        if method == "POST":
            headers["Origin"] = f"http://{self.host}"
        async with self._session.request(
            method, self._url + path, headers=headers, data=body or None
        ) as answer:
            given = answer.headers.get("Set-Cookie", "")
            self.cookie = given.partition(";")[0] or self.cookie
            return answer.status, await answer.text()

    async def statuses(self) -> set[int]:
        """Return the statuses of many requests on connections of their own."""
        return {status for status, _ in [await self.ask("/") for _ in range(ASKS)]}


async def test_a_cookie_is_valid_in_every_process(server: ServerProcess) -> None:
    """From one ticket on until its key is removed, and after a restart of the server."""
    key = server.fnctl_json("key", "add", "--scope", "invoke:web")
    assert server.fnctl("open", "web", "--key", "fn_nonsense", "--print").returncode != 0
    address = server.fnctl_json("open", "web", "--key", key["secret"], "--path", "/lab")["url"]
    word = address.partition("#")[2]
    async with aiohttp.ClientSession() as session:
        browser = Browser(server, session)
        assert await browser.statuses() == {401}
        status, page = await browser.ask("/.fngate/enter")
        assert (status, "location.hash" in page) == (200, True)
        assert await browser.ask("/.fngate/enter", "POST", word) == (200, '{"path":"/lab"}')
        assert await browser.statuses() == {200}
        assert (await browser.ask("/.fngate/enter", "POST", word))[0] == 401

        server.port = int(urlsplit(server.url).port or 0)
        server.stop()
        server.start()
        assert await browser.statuses() == {200}
        kept = browser.cookie
        for _ in range(4):
            assert (await browser.ask("/.fngate/leave", "POST"))[0] == 200
            assert browser.cookie == "fngate="
        browser.cookie = kept
        server.fnctl_json("key", "rm", key["id"])
        server.fnctl_json("key", "add", "--scope", "read")
        assert await browser.statuses() == {401}


async def test_no_route_of_the_server_is_on_that_host(server: ServerProcess) -> None:
    """Neither the admin API nor the dashboard, in any process; the private socket neither."""
    async with aiohttp.ClientSession() as session:
        browser = Browser(server, session)
        for path in ("/admin/v1/session", "/ui/", "/metrics", "/fn/web"):
            for _ in range(4):
                assert "<h1>A page</h1>" in (await browser.ask(path))[1]
        browser.host = "nobody.localhost"
        for path in ("/admin/v1/session", "/ui/", "/", "/.fngate/enter"):
            assert (await browser.ask(path))[0] == 421


async def test_why_names_who_is_connected(server: ServerProcess) -> None:
    """Open exchanges of all processes, with the key that they were sent with."""
    key = server.fnctl_json("key", "add", "--scope", "invoke:web", "--note", "the lab")
    headers = {"Fn-Key": key["secret"]}
    async with aiohttp.ClientSession(headers=headers) as session, asyncio.TaskGroup() as group:
        begun = asyncio.Semaphore(0)
        leave = asyncio.Event()

        async def follow() -> None:
            async with session.get(f"{server.url}/fn/web/events?token=secret") as stream:
                assert await stream.content.readline() == b"data: begun\n"
                begun.release()
                await leave.wait()

        for _ in range(4):
            group.create_task(follow())
        for _ in range(4):
            await begun.acquire()
        why = server.fnctl_json("why", "web")
        text = server.fnctl("why", "web").stdout
        leave.set()
    assert why["connections"] == {"counting": 4, "free": 0}
    assert why["awake"] == "4 open exchanges keep it awake"
    for one in why["connected"]:
        shown = {name: one[name] for name in ("key", "note", "kind", "path", "counts")}
        assert shown == {
            "key": key["id"],
            "note": "the lab",
            "kind": "events",
            "path": "/events",
            "counts": True,
        }
    assert "connected: 4 open exchanges keep it awake" in text
    assert "events  the lab  /events" in text
    assert "secret" not in text


async def test_an_open_page_lets_the_function_sleep(tmp_path: Path) -> None:
    """With `websockets = "ignore"` its WebSocket is cut when the function sleeps, and its attempts
    to connect again wake nothing; a request does."""
    app = tmp_path / "app"
    app.mkdir()
    shutil.copy(page_app.__file__, app / "app.py")
    command = f"{sys.executable} app.py ${{PORT}}"
    (app / "function.toml").write_text(
        f"schema = 1\nname = 'web'\n[server]\ncommand = '{command}'\n[scaling]\nidle_s = 0.5\n"
        "[limits]\nwebsockets = 'ignore'\n"
    )
    with server_process(tmp_path / "data") as server:
        server.fnctl_json("deploy", str(app), "--trust")
        host = f"web.localhost:{urlsplit(server.url).port}"
        headers = {"Host": host, "Origin": f"http://{host}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(server.url) as answer:
                assert answer.status == 200
            async with session.ws_connect(f"{server.url}/ws") as socket:
                assert await socket.receive_str() == "hello"
                ended = await socket.receive(timeout=30)
                assert (ended.type, ended.data) == (aiohttp.WSMsgType.CLOSE, 1001)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{server.url}/ws")
            assert refused.value.status == 503
            assert server.fnctl_json("why", "web")["state"] == "cold"
            async with session.get(server.url) as answer:
                assert answer.status == 200
