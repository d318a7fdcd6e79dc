"""Tests of applications with pages in containers, in a real browser: they are woken by a visit,
work by their WebSockets, and sleep when they are closed. `make test-apps` runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Page, WebSocket

from pool_manager.drivers.docker.spec import PART
from tests.chaos.footprint import until
from tests.support.browser import need_browser, viewing
from tests.support.container_server import ContainerServer, container_server
from tests.support.page_images import page_image

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

SLOW_MS = 90_000
UNTIL_S = 60.0
IDLE_S = 2
JUPYTER = """
schema = 1
name = "jupyter"

[server]
image = "{image}"
command = [
  "jupyter", "lab", "--no-browser", "--ip=127.0.0.1", "--port=${{PORT}}",
  "--ServerApp.allow_remote_access=True",
  "--IdentityProvider.token=",
  "--ServerApp.root_dir=/work",
]
port = 8888
ready = "/api"

[server.env]
HOME = "/tmp"

[server.mounts]
work = "{notebooks}:/work:rw"

[device]
memory_mib = 1024

[scaling]
idle_s = {idle_s}

[limits]
max_s = {max_s}
drain_s = 1
"""


@pytest.fixture(autouse=True)
def _browser() -> None:
    need_browser(dashboard=False)


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the notebooks, which the user of the image may write to."""
    folder = tmp_path_factory.mktemp("notebooks")
    folder.chmod(0o777)
    return folder


@pytest.fixture(scope="module")
def server(
    engine: str, runtime_image: str, notebooks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ContainerServer]:
    """A server that needs keys for calls."""
    data = tmp_path_factory.mktemp("pages") / "data"
    variables = {"FN_STANDBYS": "0", "FN_MOUNT_ROOTS": str(notebooks)}
    with container_server(data, engine, runtime_image, **variables) as server:
        server.fnctl_json("key", "add", "--scope", "invoke:jupyter")
        yield server


def deploy(server: ContainerServer, folder: Path, manifest: str) -> None:
    """Deploy a function."""
    (folder / "function.toml").write_text(manifest)
    done = server.fnctl("deploy", str(folder))
    assert done.returncode == 0, done.stderr


def ticket(server: ContainerServer, name: str, path: str = "/") -> str:
    """Return an address that lets a browser in, as `fnctl open` prints it."""
    return str(server.fnctl_json("open", name, "--path", path)["url"])


async def asleep(server: ContainerServer) -> bool:
    """Wait until no replica is left."""

    async def is_over() -> bool:
        found = await asyncio.to_thread(server.everything)
        return not any(PART in one["Config"]["Labels"] for one in found)

    return await until(is_over, UNTIL_S)


class Lab:
    """JupyterLab in a page. `sockets`: how many WebSockets the page has opened to a kernel."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.sockets = 0
        page.set_default_timeout(SLOW_MS)
        page.on("websocket", self._opened)

    def _opened(self, socket: WebSocket) -> None:
        self.sockets += "/api/kernels/" in socket.url

    async def create(self) -> None:
        """Create a notebook, and wait for its kernel."""
        await self.page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
        await self.page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()

    async def run(self, code: str) -> None:
        """Run the code in the last cell; a new one follows."""
        await self.page.locator(".jp-Notebook .jp-CodeCell .cm-content").last.click()
        await self.page.keyboard.type(code)
        await self.page.keyboard.press("Shift+Enter")

    async def says(self, output: str) -> None:
        """Wait for an output of a cell."""
        await self.page.locator(".jp-OutputArea-output pre", has_text=output).first.wait_for()

    async def save(self) -> None:
        """Save the notebook for the first time, under the name that it has."""
        await self.page.keyboard.press("Control+s")
        async with self.page.expect_response(
            lambda got: got.request.method == "PUT" and "/api/contents/" in got.url
        ) as saving:
            await self.page.get_by_role("button", name="Rename and Save").click()
        assert (await saving.value).status == 200


def jupyter(engine: str, notebooks: Path, max_s: int) -> str:
    """Return the manifest of JupyterLab."""
    image = page_image(engine, "jupyterlab", "jupyterlab", {})
    return JUPYTER.format(image=image, notebooks=notebooks, idle_s=IDLE_S, max_s=max_s)


async def test_a_notebook_sleeps_when_it_is_closed_and_wakes_on_a_visit(
    server: ContainerServer, engine: str, notebooks: Path, tmp_path: Path
) -> None:
    """A ticket opens JupyterLab from zero; a cell runs, longer than the function may be idle; the
    closed page sleeps; the next visit needs no ticket and finds the saved notebook, whose kernel is
    a new one."""
    deploy(server, tmp_path, jupyter(engine, notebooks, 3600))
    assert await asleep(server)
    async with viewing("about:blank") as view:
        lab = Lab(view.page)
        await view.page.goto(ticket(server, "jupyter", "/lab"), timeout=SLOW_MS)
        await lab.create()
        await lab.run("import os, time")
        await lab.run(f"time.sleep({3 * IDLE_S}); print(6 * 7, os.getuid())")
        await lab.says("42 1000")
        await lab.save()
        told = server.fnctl("why", "jupyter").stdout
        assert "/api/kernels/" in told
        await view.page.close()
        assert await asleep(server)

        again = Lab(await view.page.context.new_page())
        address = f"http://jupyter.localhost:{server.url.rpartition(':')[2]}"
        await again.page.goto(f"{address}/lab/tree/Untitled.ipynb", timeout=SLOW_MS)
        await again.says("42 1000")
        await again.page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()
        await again.run("print('time' in globals())")
        await again.says("False")
    assert await asleep(server)


async def test_a_cell_outlives_its_connections(
    server: ContainerServer, engine: str, notebooks: Path, tmp_path: Path
) -> None:
    """WebSockets are cut after max_s; JupyterLab connects again, and the output of a cell that runs
    meanwhile is whole."""
    deploy(server, tmp_path, jupyter(engine, notebooks, 4))
    async with viewing("about:blank") as view:
        lab = Lab(view.page)
        await view.page.goto(ticket(server, "jupyter", "/lab"), timeout=SLOW_MS)
        await lab.create()
        await lab.run("import time")
        code = "for n in range(20): print(n, end=' ', flush=True); time.sleep(0.5)"
        await lab.run(code)
        await lab.says(" ".join(map(str, range(20))))
        assert lab.sockets >= 3
