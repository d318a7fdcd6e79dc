"""Tests of hosts on the dashboard in a real browser, with a scripted server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.browser import Scheme, View, need_browser, viewing
from tests.support.dashboard.server import KEY, READER, Dashboard, serving_dashboard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

GROUP = ".host-group"


@pytest.fixture(autouse=True)
def _browser() -> None:
    need_browser()


@asynccontextmanager
async def hosts(
    *, path: str = "#/", key: str = KEY, scheme: Scheme = "light", width: int = 1440
) -> AsyncIterator[tuple[Dashboard, View]]:
    """Open the page at `path` of a server with 8 devices on this machine and three other hosts;
    afterwards the browser must have reported no errors."""
    async with serving_dashboard(8, 8, hosts=3) as dashboard:
        async with viewing(f"{dashboard.url}/ui/#key={key}", width, scheme=scheme) as view:
            await view.page.locator(".function-row").first.wait_for()
            await view.page.evaluate("path => { location.hash = path }", path)
            yield dashboard, view
        assert view.complaints == []


async def test_devices_are_grouped_by_host() -> None:
    """The server's own machine is first; a lost host shows its reason; a removed one disappears."""
    async with hosts() as (dashboard, view):
        names = view.page.locator(f"{GROUP} h3")
        assert await names.all_inner_texts() == ["local", "gpu2", "gpu3", "gpu4"]
        lost = view.page.get_by_role("region", name="Host gpu3")
        assert await lost.locator(".device").count() == 2

        dashboard.tell(dashboard.world.lose("gpu3", "no answer for 6 s"))
        await lost.get_by_text("unreachable").wait_for()
        await lost.get_by_text("no answer for 6 s").wait_for()
        dashboard.tell(dashboard.world.remove_host("gpu3"))

        await lost.wait_for(state="detached")
        assert await names.all_inner_texts() == ["local", "gpu2", "gpu4"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_host_has_a_page_with_its_checks(scheme: Scheme) -> None:
    """The group links to it; an administrator can run the checks, and sees each remedy."""
    async with hosts(scheme=scheme) as (dashboard, view):
        await view.page.get_by_role("link", name="gpu2", exact=True).click()
        await view.page.get_by_role("heading", name="gpu2").wait_for()
        await view.page.get_by_text("nn@gpu2.example").wait_for()
        await view.page.get_by_text("412 GiB free").wait_for()
        await view.page.get_by_text("digits@3: 40 % of 97 MiB").wait_for()
        await view.page.get_by_text("/var/run/docker.sock").wait_for()

        await view.page.get_by_role("button", name="Check").click()

        await view.page.get_by_text("1 of 2 checks failed").wait_for()
        await view.page.get_by_text("AllowStreamLocalForwarding yes").wait_for()
        assert await view.count(".device") == 2
        assert "POST /admin/v1/hosts/gpu2/check" in dashboard.requests
        assert await view.faults() == []


@pytest.mark.parametrize("width", [360, 1280])
async def test_checks_have_room_for_their_text(width: int) -> None:
    """On a phone the text of a check stands below its name, else beside it; the remedy is below."""
    async with hosts(path="#/host/gpu2", width=width) as (_, view):
        await view.page.get_by_role("button", name="Check").click()
        failed = view.page.locator(".host-checks li").nth(1)
        await failed.wait_for()
        parts = (".state", ".host-check-name", ".host-check-found", ".host-check-todo")
        boxes = [await failed.locator(part).bounding_box() for part in parts]
        state, name, found, todo = [box for box in boxes if box]

    assert state["x"] < name["x"]
    assert found["width"] >= 200
    assert todo["x"] == found["x"]
    assert todo["y"] >= found["y"] + found["height"]
    assert (found["y"] > name["y"]) == (width == 360)
    assert (found["x"] == name["x"]) == (width == 360)


async def test_a_reader_sees_hosts_without_their_logins() -> None:
    """A key with the scope read asks for neither settings nor checks; nothing widens a phone's
    page."""
    async with hosts(path="#/host/gpu2", key=READER, width=390) as (dashboard, view):
        await view.page.get_by_role("heading", name="gpu2").wait_for()

        assert await view.count("button:text-is('Check')") == 0
        assert not [one for one in dashboard.requests if "/hosts/" in one]
        assert await view.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


async def test_the_page_of_an_unknown_host_shows_the_error() -> None:
    """A host that was removed leaves a page with a way back."""
    async with hosts(path="#/host/gpu9") as (_, view):
        await view.page.get_by_text("There is no such host.").wait_for()
