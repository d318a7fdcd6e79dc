"""Tests of serving the dashboard's files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from admin.ui import files
from admin.ui.files import INDEX, POLICY, UiPages, make_file, read_files
from gateway.admission.access import Access
from gateway.http.boundary import ErrorBoundary
from registry.store.keys import KeyRing

FILES = {
    INDEX: make_file(INDEX, b"<p>hello"),
    "index-D1T6di3X.js": make_file("index-D1T6di3X.js", b"hello()"),
}
Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Serve the routes behind the checks for host and origin."""
    app = web.Application()
    UiPages(ErrorBoundary(Access("127.0.0.1", (), KeyRing())), FILES).add_routes(app)
    async with TestClient(TestServer(app)) as client:
        yield client


async def ask(client: Client, path: str, method: str = "GET", **headers: str) -> ClientResponse:
    """Request `path` exactly as given."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    url = URL(f"{client.make_url('/').origin()}{path}", encoded=True)
    return await client.session.request(method, url, headers=named, allow_redirects=False)


async def test_the_page_runs_nothing_but_its_own(client: Client) -> None:
    """Every answer has the content security policy; the page is revalidated each time, hashed files
    are cached."""
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
    """`/` redirects a browser to the dashboard; a client that asks for JSON gets a problem with the
    routes."""
    for accept in ("text/html,application/xhtml+xml,*/*;q=0.8", "*/*"):
        answer = await ask(client, "/", Accept=accept)
        assert (answer.status, answer.headers["Location"]) == (302, "ui/")
    refused = await ask(client, "/", Accept="application/json")

    assert refused.status == 404
    assert "dashboard at /ui/" in (await refused.json())["detail"]


@pytest.fixture
async def unbuilt(tmp_path: Path) -> AsyncIterator[Client]:
    """Routes of a server that started without a dashboard, which a test may build in tmp_path."""
    app = web.Application()
    boundary = ErrorBoundary(Access("127.0.0.1", (), KeyRing()))
    UiPages(boundary, read_files(tmp_path), tmp_path).add_routes(app)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_the_root_of_a_server_without_a_dashboard_says_so(unbuilt: Client) -> None:
    """Without a built dashboard `/` does not redirect."""
    answer = await ask(unbuilt, "/", Accept="text/html")

    assert (answer.status, answer.content_type) == (404, "application/problem+json")


async def test_a_dashboard_built_later_is_served(unbuilt: Client, tmp_path: Path) -> None:
    """A dashboard built while the server runs is served; once read, its files stay the same."""
    assert "make ui" in await (await ask(unbuilt, "/ui/")).text()

    (tmp_path / INDEX).write_text("<p>built")
    assert await (await ask(unbuilt, "/ui/")).text() == "<p>built"
    assert (await ask(unbuilt, "/", Accept="text/html")).status == 302

    (tmp_path / INDEX).write_text("<p>again")
    assert await (await ask(unbuilt, "/ui/")).text() == "<p>built"


async def test_a_matching_etag_is_not_modified(client: Client) -> None:
    """A matching ETag, in a list or weak, is answered 304."""
    tag = (await ask(client, "/ui/")).headers["ETag"]

    for known in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        answer = await ask(client, "/ui/", If_None_Match=known)
        assert (answer.status, await answer.read()) == (304, b"")
    assert (await ask(client, "/ui/", If_None_Match='"x"')).status == 200


async def test_the_head_is_that_of_the_page(client: Client) -> None:
    """HEAD has type and length of the page, without a body."""
    answer = await ask(client, "/ui/", "HEAD")

    assert (answer.status, answer.headers["Content-Length"]) == (200, "8")
    assert await answer.read() == b""


async def test_the_folder_is_behind_a_slash(client: Client) -> None:
    """The folder's path without a slash redirects, since the page's links are relative."""
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
    """A path that is not a file of the build is 404, whatever its encoding."""
    assert (await ask(client, path)).status == 404


async def test_only_reading_is_possible(client: Client) -> None:
    """Other methods than GET and HEAD are 405 with Allow."""
    answer = await ask(client, "/ui/", "POST")

    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


async def test_a_foreign_host_is_refused(client: Client) -> None:
    """A foreign Host header is refused, against DNS rebinding."""
    assert (await ask(client, "/ui/", Host="evil.example")).status == 421


async def test_a_link_from_elsewhere_leads_here(client: Client) -> None:
    """A navigation from another site gets the page, which has no data without a key."""
    assert (await ask(client, "/ui/", Sec_Fetch_Site="cross-site")).status == 200


def test_files_are_read_once_with_their_types(tmp_path: Path) -> None:
    """Hashed names are immutable; other files are revalidated. Each has its content type."""
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
    """Only files that the build makes are served."""
    (tmp_path / INDEX).write_text("<p>")
    (tmp_path / ".built").write_text("x")
    (tmp_path / "secret.env").write_text("x")
    (tmp_path / "folder.js").mkdir()

    assert list(read_files(tmp_path)) == [INDEX]


def test_the_tag_follows_the_content(tmp_path: Path) -> None:
    """The ETag follows the content."""
    (tmp_path / INDEX).write_text("1")
    before = read_files(tmp_path)[INDEX].etag
    (tmp_path / INDEX).write_text("2")

    assert read_files(tmp_path)[INDEX].etag != before


def test_without_a_build_there_is_a_page_that_says_so(tmp_path: Path) -> None:
    """Without a build, or without its folder, a page says so."""
    assert b"make ui" in read_files(tmp_path / "none")[INDEX].body


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build with too many or too large files is refused, since all stay in memory."""
    (tmp_path / INDEX).write_text("12345")
    monkeypatch.setattr(files, "SIZE_MAX", 4)

    with pytest.raises(ValueError, match="of 4 bytes together, got 1 of 5"):
        read_files(tmp_path)
