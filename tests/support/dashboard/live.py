"""The dashboard in a real browser on a real server, with a function whose cold starts a test
controls."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from playwright.async_api import Locator, expect

from tests.support.browser import WAIT_MS, Scheme, View, viewing
from tests.support.process_server import ServerProcess

DIGITS: Final = Path(__file__).parents[3] / "functions" / "digits"
HANDLER: Final = """
import threading
from pathlib import Path

SHUT = Path({shut!r})

def load(ctx):
    print("loading", flush=True)
    while SHUT.exists():
        threading.Event().wait(0.01)

def predict(inputs, ctx):
    print({word!r}, len(inputs["image"]), flush=True)
    return ctx.run(inputs)
"""

expect.set_options(timeout=WAIT_MS)


class GatedDigits:
    """functions/digits with a handler that logs each run and loads only while the gate is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "digits"
        self._shut = folder / "shut"
        shutil.copytree(DIGITS, self.folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))

    def shut(self) -> None:
        """Block all loads from now on."""
        self._shut.touch()

    def open(self) -> None:
        """Release all blocked loads."""
        self._shut.unlink()

    def deploy(self, server: ServerProcess, word: str = "looked at") -> None:
        """Deploy with a handler that prints `word` and the row count at each run."""
        handler = HANDLER.format(shut=str(self._shut), word=word)
        (self.folder / "handler.py").write_text(handler)
        done = server.fnctl("deploy", str(self.folder), "--trust")
        assert done.returncode == 0, done.stderr + done.stdout


@asynccontextmanager
async def dashboard(
    server: ServerProcess,
    path: str = "#/",
    *,
    key: str = "",
    width: int = 1440,
    scheme: Scheme = "light",
) -> AsyncIterator[View]:
    """Open the page at `path` with the administrator's key or `key`. On exit require a single
    document, no complaints and no requests to other hosts."""
    async with viewing(f"{server.url}/ui/#key={key or server.token}", width, scheme=scheme) as view:
        await expect(view.page.locator(".connection")).to_have_text("live")
        await view.page.evaluate("path => { window.isFirst = true; location.hash = path }", path)
        yield view
        assert await view.page.evaluate("() => window.isFirst === true"), "the page was loaded anew"
        # Images created by the page itself (blob:) have no host.
        assert view.hosts - {""} == {urlsplit(server.url).netloc}
    # The browser logs failed requests and broken connections to the console by itself.
    assert [text for text in view.complaints if "Failed to load resource" not in text] == []


def row_of(view: View, name: str) -> Locator:
    """Return the function's row on the overview."""
    link = view.page.get_by_role("link", name=name, exact=True)
    return view.page.locator(".function-row", has=link)


async def act(view: View, title: str) -> None:
    """Click one of the buttons that act on the page's function."""
    await view.page.locator(".fn-actions").get_by_role("button", name=title).click()
