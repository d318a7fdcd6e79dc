"""A real browser: headless Chromium of the system, driven by Playwright, which downloads none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from playwright.async_api import Page, async_playwright

from tests.support.engine import refuse

CHROMIUM: Final = Path("/usr/bin/chromium")
FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DASHBOARD: Final = Path(__file__).parent.parent.parent / "admin" / "dashboard"
AXE: Final = DASHBOARD / "node_modules" / "axe-core" / "axe.min.js"
"""Looks for what keeps people with a screen reader, a keyboard or weak eyes out."""
WAIT_MS: Final = 15_000

Scheme = Literal["light", "dark"]


@dataclass
class View:
    """One page of a browser, and what it complained of and asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and errors that nobody caught."""
    hosts: set[str] = field(default_factory=set)
    """Whom it has asked for anything."""

    async def count(self, selector: str) -> int:
        """How many elements there are."""
        return await self.page.locator(selector).count()

    async def until(self, expression: str, argument: Any = None) -> None:
        """Wait until JavaScript's `expression` is true in the page."""
        await self.page.wait_for_function(expression, arg=argument, timeout=WAIT_MS)

    async def faults(self) -> list[str]:
        """What axe finds that is serious or worse: rule, and where it is broken."""
        await self.page.evaluate(AXE.read_text("utf-8"))
        found = await self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]


def need_browser() -> None:
    """Skip the test where there is no Chromium or no built dashboard; in CI, fail."""
    for path, remedy in ((CHROMIUM, "apt-get install chromium"), (AXE, "make ui")):
        if not path.exists():
            refuse(f"{path} is not there: {remedy}")


@asynccontextmanager
async def viewing(
    url: str, width: int = 1440, height: int = 900, scheme: Scheme = "light"
) -> AsyncIterator[View]:
    """A page at `url` in a window of so many CSS pixels, in a browser of its own."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        try:
            context = await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            view = View(await context.new_page())
            watch(view)
            await view.page.goto(url)
            yield view
        finally:
            await browser.close()


def watch(view: View) -> None:
    """Note down whatever the page complains of and asks for, from now on."""
    page = view.page

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            view.complaints.append(f"{message.type}: {message.text}")

    page.on("console", said)
    page.on("pageerror", lambda error: view.complaints.append(f"not caught: {error}"))
    page.on("request", lambda request: view.hosts.add(urlsplit(request.url).netloc))
