"""The dashboard's files as they are served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from admin.ui import files
from admin.ui.files import INDEX, POLICY, UiPages, make_file, read_files
from gateway.access import Access
from gateway.http.app import ErrorBoundary
from registry.store.keys import KeyRing

FILES = {
    INDEX: make_file(INDEX, b"<p>hello"),
    "index-D1T6di3X.js": make_file("index-D1T6di3X.js", b"hello()"),
}
Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """The routes behind a border that knows this machine's names."""
    app = web.Application()
    UiPages(ErrorBoundary(Access("127.0.0.1", (), KeyRing(), "")), FILES).add_routes(app)
    async with TestClient(TestServer(app)) as client:
        yield client


async def ask(client: Client, path: str, method: str = "GET", **headers: str) -> ClientResponse:
    """Ask for `path` just as it is written."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    url = URL(f"{client.make_url('/').origin()}{path}", encoded=True)
    return await client.session.request(method, url, headers=named, allow_redirects=False)


async def test_the_page_runs_nothing_but_its_own(client: Client) -> None:
    """Every answer has the policy; the page is asked for each time, a hashed name is kept."""
    page = await ask(client, "/ui/")
    script = await ask(client, "/ui/index-D1T6di3X.js")

    assert await page.text() == "<p>hello"
    assert page.headers["Cache-Control"] == "no-cache"
    assert script.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    for answer in (page, script):
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "unsafe" not in POLICY


async def test_the_root_leads_a_browser_to_the_dashboard(client: Client) -> None:
    """A client that asks for JSON alone gets a problem that names what there is, as before."""
    for accept in ("text/html,application/xhtml+xml,*/*;q=0.8", "*/*"):
        answer = await ask(client, "/", Accept=accept)
        assert (answer.status, answer.headers["Location"]) == (302, "ui/")
    refused = await ask(client, "/", Accept="application/json")

    assert refused.status == 404
    assert "dashboard at /ui/" in (await refused.json())["detail"]


@pytest.fixture
async def unbuilt(tmp_path: Path) -> AsyncIterator[Client]:
    """The routes of a server that started without a dashboard; it may appear in tmp_path."""
    app = web.Application()
    boundary = ErrorBoundary(Access("127.0.0.1", (), KeyRing(), ""))
    UiPages(boundary, read_files(tmp_path), tmp_path).add_routes(app)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_the_root_of_a_server_without_a_dashboard_says_so(unbuilt: Client) -> None:
    """No browser is led to a page that is not built."""
    answer = await ask(unbuilt, "/", Accept="text/html")

    assert (answer.status, answer.content_type) == (404, "application/problem+json")


async def test_a_dashboard_built_later_is_served(unbuilt: Client, tmp_path: Path) -> None:
    """`make run` builds it beside the server. Once read, its files stay as they are."""
    assert "make ui" in await (await ask(unbuilt, "/ui/")).text()

    (tmp_path / INDEX).write_text("<p>built")
    assert await (await ask(unbuilt, "/ui/")).text() == "<p>built"
    assert (await ask(unbuilt, "/", Accept="text/html")).status == 302

    (tmp_path / INDEX).write_text("<p>again")
    assert await (await ask(unbuilt, "/ui/")).text() == "<p>built"


async def test_what_is_known_is_not_sent_again(client: Client) -> None:
    """By its tag, also among several and as a weak one."""
    tag = (await ask(client, "/ui/")).headers["ETag"]

    for known in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        answer = await ask(client, "/ui/", If_None_Match=known)
        assert (answer.status, await answer.read()) == (304, b"")
    assert (await ask(client, "/ui/", If_None_Match='"x"')).status == 200


async def test_the_head_is_that_of_the_page(client: Client) -> None:
    """HEAD tells type and length, without a body."""
    answer = await ask(client, "/ui/", "HEAD")

    assert (answer.status, answer.headers["Content-Length"]) == (200, "8")
    assert await answer.read() == b""


async def test_the_folder_is_behind_a_slash(client: Client) -> None:
    """Names in the page are relative to it."""
    answer = await ask(client, "/ui?x=1")

    assert (answer.status, answer.headers["Location"]) == (308, "/ui/?x=1")


@pytest.mark.parametrize(
    "path",
    [
        "/ui/none.js",
        "/ui/../pages.py",
        "/ui/..%2fpages.py",
        "/ui/%2e%2e/pages.py",
        "/ui//etc/passwd",
        "/ui/index.html%00.js",
        "/ui/./index.html/",
    ],
)
async def test_tricks_with_paths_find_nothing(client: Client, path: str) -> None:
    """A name is one of the build's or it is unknown."""
    assert (await ask(client, path)).status == 404


async def test_only_reading_is_possible(client: Client) -> None:
    """Other methods are told which are."""
    answer = await ask(client, "/ui/", "POST")

    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


async def test_a_foreign_host_is_refused(client: Client) -> None:
    """A name that an attacker has bound to this address gets nothing."""
    assert (await ask(client, "/ui/", Host="evil.example")).status == 421


async def test_a_link_from_elsewhere_leads_here(client: Client) -> None:
    """The page is the same for everybody, and needs a key for any datum."""
    assert (await ask(client, "/ui/", Sec_Fetch_Site="cross-site")).status == 200


def test_files_are_read_once_with_their_types(tmp_path: Path) -> None:
    """Names with the content's digest never change; the others are to be asked for."""
    (tmp_path / INDEX).write_text("<p>")
    (tmp_path / "index-D1T6di3X.css").write_text("a{}")
    (tmp_path / "index-D0_zZHnf.js").write_text("1")
    (tmp_path / "icon.svg").write_text("<svg/>")

    found = read_files(tmp_path)

    assert {name: (file.content_type, file.is_immutable) for name, file in found.items()} == {
        INDEX: ("text/html; charset=utf-8", False),
        "index-D1T6di3X.css": ("text/css; charset=utf-8", True),
        "index-D0_zZHnf.js": ("text/javascript; charset=utf-8", True),
        "icon.svg": ("image/svg+xml", False),
    }


def test_other_files_and_folders_are_not_served(tmp_path: Path) -> None:
    """What the build does not make is none of it."""
    (tmp_path / INDEX).write_text("<p>")
    (tmp_path / ".built").write_text("x")
    (tmp_path / "secret.env").write_text("x")
    (tmp_path / "folder.js").mkdir()

    assert list(read_files(tmp_path)) == [INDEX]


def test_the_tag_follows_the_content(tmp_path: Path) -> None:
    """Another build is another answer."""
    (tmp_path / INDEX).write_text("1")
    before = read_files(tmp_path)[INDEX].etag
    (tmp_path / INDEX).write_text("2")

    assert read_files(tmp_path)[INDEX].etag != before


def test_without_a_build_there_is_a_page_that_says_so(tmp_path: Path) -> None:
    """Also where the folder is not there at all."""
    assert b"make ui" in read_files(tmp_path / "none")[INDEX].body


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files stay in memory."""
    (tmp_path / INDEX).write_text("12345")
    monkeypatch.setattr(files, "SIZE_MAX", 4)

    with pytest.raises(ValueError, match="of 4 bytes together, got 1 of 5"):
        read_files(tmp_path)
