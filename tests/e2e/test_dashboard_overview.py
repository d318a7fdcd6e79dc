"""Tests of the dashboard's overview in a real browser, with a scripted server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from benchmarks.dashboard import RATE, measure
from tests.support.browser import Scheme, View, need_browser, viewing
from tests.support.dashboard.server import KEY, READER, Dashboard, serving_dashboard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROW = ".function-row"


@pytest.fixture(autouse=True)
def _browser() -> None:
    need_browser()


@asynccontextmanager
async def overview(
    functions: int = 20,
    devices: int = 4,
    *,
    width: int = 1440,
    scheme: Scheme = "light",
    key: str = KEY,
) -> AsyncIterator[tuple[Dashboard, View]]:
    """Open the overview with its snapshot; afterwards the browser must have reported no errors."""
    async with serving_dashboard(functions, devices) as dashboard:
        async with viewing(f"{dashboard.url}/ui/#key={key}", width, scheme=scheme) as view:
            await view.until("n => document.querySelectorAll('.function-row').length >= n", 1)
            yield dashboard, view
            assert view.hosts == {urlsplit(dashboard.url).netloc}
        # The browser's own console reports a stream that the server cut.
        cut = "Failed to load resource"
        assert [text for text in view.complaints if cut not in text] == []


async def test_a_thousand_functions_are_few_rows() -> None:
    """Of a thousand functions all are counted and only the visible rows are in the page."""
    async with overview(1000, 100) as (_, view):
        grid = view.page.get_by_role("grid", name="Functions")
        assert await grid.get_attribute("aria-rowcount") == "1001"
        assert await view.count(ROW) < 60
        assert await view.count(".device") == 100

        await view.page.evaluate("() => window.scrollTo(0, 20000)")
        await view.until("() => Number(document.querySelector('.function-row').ariaRowIndex) > 300")

        assert await view.count(ROW) < 60


async def test_the_key_leaves_the_address_at_once() -> None:
    """The key leaves the address for the tab's session, and a reload does not ask again."""
    async with overview() as (_, view):
        assert await view.page.evaluate("() => location.href.includes('dev-key')") is False
        assert await view.page.evaluate("() => document.cookie") == ""

        await view.page.reload()

        await view.page.locator(ROW).first.wait_for()


async def test_changes_show_without_a_reload() -> None:
    """A function's phases and state, and a removal, show without a reload."""
    async with overview() as (dashboard, view):
        await view.page.evaluate("() => { window.sameDocument = true; }")
        row = view.page.locator(ROW, has=view.page.get_by_role("link", name="digits", exact=True))
        dashboard.tell(dashboard.world.rest("digits"))
        await row.locator(".state.cold").wait_for()

        dashboard.tell(dashboard.world.wake("digits"))
        await row.get_by_text("place").wait_for()
        dashboard.tell(dashboard.world.warm("digits"))
        await row.get_by_text("warm 1/").wait_for()
        dashboard.tell(dashboard.world.error("digits"))
        await row.locator(".error-code").wait_for()
        dashboard.tell(dashboard.world.remove("digits"))

        await row.wait_for(state="detached")
        assert await view.page.evaluate("() => window.sameDocument")


async def test_a_replica_spans_its_gpus() -> None:
    """Each of its cards has its chip with the place among them; pointing at one marks them all."""
    async with overview() as (dashboard, view):
        dashboard.tell(dashboard.world.rest("digits"))
        dashboard.tell(dashboard.world.wake("digits", gpus=3))
        chips = view.page.locator(".chip", has_text="digits@1")
        await chips.nth(2).wait_for()
        assert [text.split()[1:4] for text in await chips.all_inner_texts()] == [
            [str(at), "of", "3"] for at in (1, 2, 3)
        ]
        assert await view.count(".chip.is-pointed") == 0

        await chips.nth(1).hover()
        await view.until("() => document.querySelectorAll('.chip.is-pointed').length === 3")
        await view.page.mouse.move(0, 0)
        await view.until("() => !document.querySelector('.chip.is-pointed')")
        await chips.nth(2).locator("a").focus()
        await view.until("() => document.querySelectorAll('.chip.is-pointed').length === 3")
        assert await view.faults() == []

        await chips.nth(0).locator("a").click()
        panel = view.page.get_by_role("region", name="Replicas")
        await panel.get_by_text("3 GPUs").wait_for()
        names = panel.get_by_role("list", name="GPUs of this replica")
        assert await names.get_by_role("listitem").count() == 3


async def test_a_server_that_does_not_answer_is_in_the_colours_of_failing() -> None:
    """Its state stays `warm`; its row, its page and its chip show the trouble with the reason."""
    why = "it refuses connections (connection refused)"
    async with overview() as (dashboard, view):
        world = dashboard.world
        dashboard.tell(world.rest("web"))
        dashboard.tell(world.warm("web"))
        (mine,) = [one for one in world.replicas.values() if one["function"] == "web"]
        dashboard.tell([("replicas", {"items": [{**mine, "trouble": why}]})])
        dashboard.tell(world.change("web", trouble=why, reason=f"not answering: {why}"))

        row = view.page.locator(ROW, has=view.page.get_by_role("link", name="web", exact=True))
        await row.locator(".state.failing", has_text="warm 1/").wait_for()
        await row.locator(".is-trouble", has_text="not answering").wait_for()
        await view.page.locator(".chip .mark.failing").wait_for()
        assert await view.faults() == []

        await row.get_by_role("link", name="web", exact=True).click()
        await view.page.get_by_role("status").locator(".state.failing").first.wait_for()
        panel = view.page.get_by_role("region", name="Replicas")
        await panel.locator(".is-trouble", has_text=why).wait_for()


async def test_a_parked_function_is_between_warm_and_cold() -> None:
    """Its row, its filter and its replica's chip have a mark of their own; its device is free for
    others and shows what is kept of it. Its page says what the replica keeps, and wakes it."""
    async with overview() as (dashboard, view):
        world = dashboard.world
        assert await view.page.get_by_role("button", name="parked 0").count() == 1
        dashboard.tell([*world.rest("web"), *world.warm("web"), *world.park("web"), world.beat()])

        row = view.page.locator(ROW, has=view.page.get_by_role("link", name="web", exact=True))
        await row.locator(".state.parked").wait_for()
        await view.page.get_by_role("button", name="parked 1").click()
        await view.until("() => document.querySelectorAll('.function-row').length === 1")
        chip = view.page.locator(".chip", has_text="web@")
        await chip.locator(".mark.parked").wait_for()
        card = view.page.locator(".device", has=chip)
        await card.get_by_text("320 MiB kept by parked ones").wait_for()
        assert await view.faults() == []

        await row.get_by_role("link", name="web", exact=True).click()
        panel = view.page.get_by_role("region", name="Replicas")
        await panel.get_by_text("keeps 320 MiB of").wait_for()
        actions = view.page.get_by_role("group", name="Actions of web")
        park = actions.get_by_role("button", name="Park", exact=False).first
        assert await park.get_attribute("title") == "it is parked"
        assert await view.faults() == []
        await actions.get_by_role("button", name="Unpark").click()
        await view.page.get_by_text("web is warm after 2.1 s").wait_for()
        await view.page.get_by_role("status").locator(".state.warm").first.wait_for()
        assert dashboard.requests.count("POST /admin/v1/functions/web/unpark") == 1


async def test_idle_replicas_without_a_cpu_slot_are_kept_in_memory() -> None:
    """They are on no card; a line above the cards has them, until a call gives them a slot."""
    async with overview() as (dashboard, view):
        world = dashboard.world
        dashboard.tell([*world.rest("digits"), *world.warm("digits")])
        (mine,) = [one for one in world.replicas.values() if one["function"] == "digits"]
        slot = next(one for one in world.devices.values() if one["kind"] == "cpu")
        others = [one for one in slot["replicas"] if one != mine["id"]]
        dashboard.tell([("replicas", {"items": [{**mine, "device": slot["id"]}]})])
        dashboard.tell([("devices", {"items": [{**slot, "replicas": others}]})])
        kept = view.page.locator(".kept")
        await kept.get_by_text("kept in memory").wait_for()
        await kept.locator(".chip", has_text="digits@1").wait_for()
        assert await view.faults() == []

        busy = [*others, mine["id"]]
        dashboard.tell([("devices", {"items": [{**slot, "replicas": busy}]})])

        await kept.locator(".chip", has_text="digits@1").wait_for(state="detached")


async def test_time_runs_down_between_events() -> None:
    """Countdowns advance between events."""
    async with overview() as (dashboard, view):
        now_s = dashboard.world.now_s
        fields = {"state": "warm", "ready": 1, "sleeps_at_s": now_s + 100, "rate": 0.0}
        dashboard.tell([dashboard.world.beat(), *dashboard.world.change("digits", **fields)])
        row = view.page.locator(ROW, has=view.page.get_by_role("link", name="digits", exact=True))
        cell = row.locator(".cell.sleeps")
        await cell.get_by_text("1:3").wait_for()
        first = await cell.inner_text()

        await view.until("was => document.body.innerText.indexOf(was) < 0", first)


async def test_a_lost_stream_is_said_and_taken_up() -> None:
    """After a lost stream the data is marked stale, and the missed events follow."""
    async with overview() as (dashboard, view):
        dashboard.tell([dashboard.world.beat()])
        dashboard.cut(stays_away=True)
        status = view.page.locator(".connection")
        await status.get_by_text("reconnecting").wait_for()
        await view.until("() => document.documentElement.classList.contains('is-stale')")
        dashboard.tell(dashboard.world.change("digits", held=77))

        dashboard.come_back()
        await view.page.get_by_text("77", exact=True).first.wait_for()
        dashboard.tell([dashboard.world.beat()])

        await status.get_by_text("live").wait_for()
        assert dashboard.streams == 2
        assert await view.count("html.is-stale") == 0


async def test_a_restarted_server_leaves_the_reader_where_he_was() -> None:
    """After a restart the list is kept with scroll position and focus; only removed functions
    disappear."""
    async with overview(200) as (dashboard, view):
        await view.page.locator(f"{ROW}[tabindex='0']").focus()
        await view.page.keyboard.press("End")
        await view.until("() => document.activeElement.ariaRowIndex === '201'")
        name = "() => document.activeElement.querySelector('a').innerText"
        last = await view.page.evaluate(name)
        place = await view.page.evaluate("() => window.scrollY")
        dashboard.world.remove("faces")

        dashboard.restart()
        await view.until("() => document.querySelector('[role=grid]').ariaRowCount === '200'")

        assert await view.page.evaluate(name) == last
        assert abs(await view.page.evaluate("() => window.scrollY") - place) < 100


async def test_the_keyboard_is_enough() -> None:
    """The keyboard reaches search, rows, a function's page, and the menu of actions."""
    async with overview(200) as (_, view):
        keyboard = view.page.keyboard
        await keyboard.press("/")
        await keyboard.type("digits")
        await view.until("() => document.querySelectorAll('.function-row').length === 10")
        assert "q=digits" in view.page.url

        await keyboard.press("Escape")
        await view.until("() => document.querySelectorAll('.function-row').length > 10")
        # While the pointer is on the list its rows keep their order, and so their numbers.
        await view.page.locator(ROW).first.hover()
        await view.page.locator(f"{ROW}[tabindex='0']").focus()
        for key, index in (("End", "201"), ("ArrowUp", "200"), ("Home", "2"), ("ArrowDown", "3")):
            await keyboard.press(key)
            await view.until("n => document.activeElement.ariaRowIndex === n", index)

        await keyboard.press("Tab")
        await keyboard.press("Enter")
        await view.page.get_by_role("menu").wait_for()
        await keyboard.press("Escape")
        await view.until("() => document.activeElement.classList.contains('actions-button')")
        await keyboard.press("Shift+Tab")
        await keyboard.press("Enter")

        await view.until("() => location.hash.startsWith('#/fn/')")


async def test_search_filter_and_order_are_in_the_address() -> None:
    """An address with search, filter and order shows the same list to everyone."""
    async with overview(200) as (_, view):
        await view.page.get_by_role("columnheader", name="Function").get_by_role("button").click()
        await view.page.get_by_role("group", name="States").get_by_text("warm").click()
        await view.until("() => location.hash === '#/?state=warm&sort=name'")
        rows = await view.count(ROW)

        await view.page.reload()
        await view.page.locator(ROW).first.wait_for()

        assert await view.count(ROW) == rows
        assert await view.count(f"{ROW} .state.cold") == 0


async def test_actions_ask_where_they_hurt() -> None:
    """Deletion needs the function's name, changed scaling is sent, and the outcome is shown."""
    async with overview() as (dashboard, view):
        page = view.page
        await page.get_by_role("button", name="Actions of digits", exact=True).click()
        await page.get_by_role("menuitem", name="Delete").click()
        delete = page.get_by_role("dialog").get_by_role("button", name="Delete")
        assert await delete.is_disabled()
        await page.keyboard.press("Escape")
        assert "digits" in dashboard.world.functions

        await page.get_by_role("button", name="Actions of digits", exact=True).click()
        await page.get_by_role("menuitem", name="Scale").click()
        most = page.get_by_label("Maximum replicas")
        await most.fill("x")
        await page.get_by_text("expected a whole number").wait_for()
        await most.fill("7")
        await page.get_by_role("button", name="Change").click()
        await page.get_by_text("0 to 7 replicas").wait_for()
        assert dashboard.world.functions["digits"]["max"] == 7

        await page.get_by_role("button", name="Actions of digits", exact=True).click()
        await page.get_by_role("menuitem", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("textbox").fill("digits")
        await delete.click()
        await page.get_by_text("digits is deleted").wait_for()
        assert "digits" not in dashboard.world.functions


async def test_disabled_actions_show_the_reason() -> None:
    """With a read-only key actions are disabled with the reason."""
    async with overview(key=READER) as (_, view):
        await view.page.get_by_role("button", name="Actions of digits", exact=True).click()
        item = view.page.get_by_role("menuitem", name="Warm up")

        assert await item.get_attribute("aria-disabled") == "true"
        assert "needs the scope deploy" in str(await item.get_attribute("title"))


async def test_a_wrong_key_is_asked_for_again() -> None:
    """A refused key is asked for again with the reason and forgotten; signing out ends the
    stream."""
    async with (
        serving_dashboard() as dashboard,
        viewing(f"{dashboard.url}/ui/#key=wrong") as view,
    ):
        await view.page.get_by_text("the key is unknown").wait_for()
        assert await view.page.evaluate("() => sessionStorage.length") == 0

        await view.page.get_by_label("Access key").fill(KEY)
        await view.page.keyboard.press("Enter")
        await view.page.locator(ROW).first.wait_for()
        await view.page.get_by_role("button", name="Sign out").click()

        await view.page.get_by_label("Access key").wait_for()
        assert await view.page.evaluate("() => sessionStorage.length") == 0


@pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), (1440, "dark"), (360, "light"), (360, "dark")]
)
async def test_the_overview_is_accessible(width: int, scheme: Scheme) -> None:
    """axe finds nothing serious in light and dark, in a window and on a phone."""
    async with overview(60, 8, width=width, scheme=scheme) as (dashboard, view):
        dashboard.tell([*dashboard.world.fail("digits"), *dashboard.world.error("faces")])
        dashboard.tell([dashboard.world.beat()])
        await view.page.locator(".error-code, .state.failing").first.wait_for()

        assert await view.faults() == []
        across = "() => document.documentElement.scrollWidth <= window.innerWidth"
        assert await view.page.evaluate(across)


async def test_a_dose_of_the_benchmark() -> None:
    """A short run of the benchmark, with a thousand functions and fifty events a second,
    completes."""
    measured = await measure(seconds=6)

    assert measured.events >= 6 * RATE
    assert measured.quiet["tasks"] > 0
    assert measured.touched["tasks"] > 0
    assert measured.nodes < 10_000
