"""The system's headless Chromium, driven by Playwright. No browser is downloaded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, async_playwright

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
"""axe-core: finds accessibility defects for screen readers, keyboard use and low vision."""
WAIT_MS: Final = 15_000

Scheme = Literal["light", "dark"]


@dataclass
class View:
    """One browser page, with its console complaints and the hosts it contacted."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Console errors and warnings, and uncaught exceptions."""
    hosts: set[str] = field(default_factory=set)
    """Hosts that the page sent requests to."""

    async def count(self, selector: str) -> int:
        """Return the number of matching elements."""
        return await self.page.locator(selector).count()

    async def until(self, expression: str, argument: Any = None) -> None:
        """Wait until the JavaScript `expression` is true in the page."""
        await self.page.wait_for_function(expression, arg=argument, timeout=WAIT_MS)

    async def faults(self) -> list[str]:
        """Return axe findings of impact serious or critical: rule and elements."""
        await self.page.evaluate(AXE.read_text("utf-8"))
        found = await self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]


def need_browser(*, dashboard: bool = True) -> None:
    """Skip the test if Chromium or, unless it is not needed, the built dashboard is missing; in CI,
    fail."""
    for path, remedy in ((CHROMIUM, "apt-get install chromium"), (AXE, "make ui")):
        if not path.exists() and (dashboard or path is not AXE):
            refuse(f"{path} is not there: {remedy}")


@asynccontextmanager
async def browsing(*flags: str) -> AsyncIterator[Browser]:
    """Start a browser, which `viewing` calls of one event loop may share. `flags`: further ones."""
    async with async_playwright() as playwright:
        args = [*FLAGS, *flags]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=args)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def viewing(
    url: str,
    width: int = 1440,
    height: int = 900,
    scheme: Scheme = "light",
    browser: Browser | None = None,
) -> AsyncIterator[View]:
    """Open `url` in a window of this size in CSS pixels, of a new browser by default. The window
    shares nothing with other ones of the browser."""
    async with nullcontext(browser) if browser else browsing() as there:
        context = await there.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        try:
            view = View(await context.new_page())
            watch(view)
            await view.page.goto(url)
            yield view
        finally:
            await context.close()


def watch(view: View) -> None:
    """Record all complaints and requests of the page from now on."""
    page = view.page

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            view.complaints.append(f"{message.type}: {message.text}")

    page.on("console", said)
    page.on("pageerror", lambda error: view.complaints.append(f"not caught: {error}"))
    page.on("request", lambda request: view.hosts.add(urlsplit(request.url).netloc))
