"""Tests of the page about the routes in a real browser: without a key, searched, opened, looked
at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import expect

from tests.support.browser import Scheme, browsing, need_browser, viewing
from tests.support.fake_driver.driver import FakeDriver
from tests.support.server import ServingServer, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

FITS = "() => document.documentElement.scrollWidth <= window.innerWidth"
LOOKS: tuple[tuple[Scheme, int], ...] = (("light", 1440), ("dark", 1440), ("light", 360))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """A server with a key, so that nobody gets in without one."""
    need_browser()
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        await server.admin("POST", "/keys", {"scopes": ["read"]})
        yield server


async def test_the_page_needs_no_key_and_describes_every_route(server: ServingServer) -> None:
    """/docs leads to a page that needs no key, lists every route of the document, finds routes by
    words, and shows parameters, bodies, answers and a command of the one that is opened."""
    paths = (await server.get("/openapi.json")).json()["paths"]
    count = sum(map(len, paths.values()))
    async with viewing(f"{server.url}/docs") as view:
        page = view.page
        await expect(page.locator("details.route")).to_have_count(count)
        await page.get_by_label("Find a route").fill("create key POST /keys")
        await expect(page.locator("details.route")).to_have_count(1)
        route = page.locator("details.route")
        await route.locator("summary").click()
        await expect(route.locator("pre").first).to_have_text(
            '{ scopes: string[], note?: string, priority?: "high" | "normal" }'
        )
        await expect(route.locator(".answers")).to_contain_text("wrong_scope")
        command = route.get_by_label("Command for POST /admin/v1/keys")
        await expect(command).to_contain_text(f"{server.url}/admin/v1/keys")
        await expect(command).to_contain_text("Bearer $KEY")
        await page.get_by_label("Find a route").fill("no such words")
        await expect(page.get_by_text("No route has these words.")).to_be_visible()
        await page.get_by_role("link", name="Sign in").click()
        await expect(page.get_by_label("Access key")).to_be_visible()
        await page.get_by_role("link", name="Routes of this server").click()
        await expect(page.locator("details.route")).to_have_count(count)
        assert view.complaints == []
        assert view.hosts == {urlsplit(server.url).netloc}


async def test_the_dashboard_leads_to_it(server: ServingServer) -> None:
    """With a key the page is a tab of the dashboard."""
    async with viewing(f"{server.url}/ui/#key={server.token}") as view:
        await view.page.get_by_role("link", name="API", exact=True).click()
        await expect(view.page.locator("details.route").first).to_be_visible()
        await expect(view.page.locator(".topbar [aria-current]")).to_have_text("API")
        await expect(view.page.locator(".connection")).to_have_text("live")


async def test_it_can_be_read_by_everybody(server: ServingServer) -> None:
    """No serious finding of accessibility and no sideways scrolling, light, dark and narrow, with
    large routes open."""
    async with browsing() as browser:
        for scheme, width in LOOKS:
            async with viewing(f"{server.url}/docs", width, 900, scheme, browser) as view:
                routes = view.page.locator("details.route")
                await expect(routes.first).to_be_visible()
                for path in ("/fn/{name}", "/admin/v1/functions/{name}"):
                    shown = routes.filter(has=view.page.get_by_text(path, exact=True))
                    await shown.first.locator("summary").click()
                assert await view.faults() == [], (scheme, width)
                assert await view.page.evaluate(FITS), (scheme, width)
