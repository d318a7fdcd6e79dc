"""Pictures of the dashboard over a real server: `python -m tests.support.dashboard.pictures`.

The server runs the ready-made functions on three CPU slots. Two are called for a minute, the third
falls asleep after a while. Nothing is made up or retouched. Needs Chromium and a built dashboard
(`make ui`).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import math
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.async_api import Browser, Page, async_playwright

from tests.support.browser import CHROMIUM, FLAGS, Scheme
from tests.support.process_server import ServerProcess, server_process

ROOT: Final = Path(__file__).parents[3]
FUNCTIONS: Final = ROOT / "functions"
IMAGES: Final = ROOT / "docs" / "images"
WIDTH, HEIGHT, SCALE = 1280, 540, 1.5
COLOURS: Final = 64
"""Size of the palette that a picture is reduced to."""
WORK_S: Final = 62.0
"""Duration of the load: the dashboard draws the rates of the last minute."""
BODIES: Final = {
    "commands": ("commands/left.wav", "audio/wav", 0.25, WORK_S),
    "digits": ("digits/seven.png", "image/png", 0.02, WORK_S),
    "filetype": ("digits/two.png", "application/octet-stream", 0.1, 35.0),
}
"""Body, content type, seconds between two calls and duration of the load, by function."""


async def call(server: ServerProcess, name: str) -> None:
    """Call the function `name` at a changing rate; put it to sleep if its load ends early."""
    path, kind, pause_s, seconds = BODIES[name]
    body = (FUNCTIONS / path).read_bytes()
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with server.session() as session:
        while (passed := loop.time() - began) < seconds:
            headers = {"Content-Type": kind}
            async with session.post(f"/fn/{name}", data=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
            await asyncio.sleep(pause_s * (1.6 + math.sin(passed / 4)))
        if seconds < WORK_S:
            async with session.post(f"/admin/v1/functions/{name}/sleep") as answer:
                assert answer.ok, await answer.text()


async def opened(browser: Browser, server: ServerProcess, scheme: Scheme) -> Page:
    """Return a page with the overview in the colours of `scheme`, with every function in sight."""
    page = await browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT},
        device_scale_factor=SCALE,
        color_scheme=scheme,
    )
    await page.goto(f"{server.url}/ui/#key={server.token}")
    for name in BODIES:
        await page.get_by_text(name, exact=True).first.wait_for()
    return page


def reduced(png: bytes) -> bytes:
    """Return the picture with a palette of `COLOURS` colours, as a much smaller PNG."""
    file = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


async def photograph(server: ServerProcess) -> dict[str, bytes]:
    """Return the overview after `WORK_S` seconds of load, as a PNG by colour scheme."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, "--hide-scrollbars"]
        )
        pages = {
            "light": await opened(browser, server, "light"),
            "dark": await opened(browser, server, "dark"),
        }
        async with asyncio.TaskGroup() as group:
            for name in BODIES:
                group.create_task(call(server, name))
        taken = {scheme: await page.screenshot() for scheme, page in pages.items()}
        await browser.close()
        return taken


def take(folder: Path) -> None:
    """Start a server, let it work and write `dashboard-light.png` and `dashboard-dark.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        server_process(Path(data) / "data", environment={"FN_CPU_SLOTS": "3"}) as server,
    ):
        for name in BODIES:
            server.fnctl_json("deploy", str(FUNCTIONS / name))
        for scheme, png in asyncio.run(photograph(server)).items():
            (folder / f"dashboard-{scheme}.png").write_bytes(reduced(png))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.dashboard.pictures")
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES)
    given = parser.parse_args()
    if not CHROMIUM.exists():
        parser.error(f"{CHROMIUM} is missing")
    take(given.folder)


if __name__ == "__main__":
    main()
