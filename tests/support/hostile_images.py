"""The hostile image as a function beside a neighbour: another image, with a secret."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from pool_manager.drivers.docker.spec import FUNCTION, PART, SERVER, SIDECAR
from tests.support.both_drivers import HOSTILE, Met
from tests.support.container_server import ContainerServer, container_server
from tests.support.engine import make_image
from tests.support.web_servers import web_image_tag

IMAGE = Path(__file__).parent / "hostile_image"
SHARED = ("hoarding", "host", "kernel", "network", "trying")
"""Modules of the hostile function for models that its image has, too."""
SECRET = "of-the-neighbour-only"
IDS = (4999, 4998)
RECIPE = """
FROM {runtime}
USER root
RUN echo 'hostile:x:4999:4998::/:/bin/sh' >> /etc/passwd && mkdir -m 777 /data \\
    && cp -L $(command -v python3) /suid && chmod 4755 /suid
COPY *.py /attack/
ENV FN_DATA=/ FN_REPLICA=aaaa0001 LOGNAME=hostile
LABEL fngate.part=sidecar fngate.owner=somebody fngate.replica=aaaa0001
EXPOSE 9999
VOLUME /x/../data
HEALTHCHECK --interval=1s CMD false
STOPSIGNAL SIGSTOP
USER hostile
WORKDIR /attack
ENTRYPOINT ["python3", "-u", "serve.py"]
"""
MANIFEST = """
schema = 1
name = "hostile"
[server]
image = "{image}"
port = 8000
ready = "/"
stop_grace_s = 0.2
[server.writable]
"/data" = 8
[scaling]
idle_s = 600
[device]
memory_mib = {memory_mib}
[limits]
drain_s = 0.2
concurrency = {slots}
first_byte_s = 2.0
stall_s = 2.0
max_s = 60.0
"""
WEB = """
schema = 1
name = "web"
[server]
image = "{image}"
port = 8000
ready = "/"
[server.secrets]
TOKEN = "token"
[scaling]
min = 1
"""
CAP_MIB = 256
SLOTS = 4


def make_hostile_image(url: str, runtime_image: str) -> str:
    """Return the tag of the hostile image on the engine at `url`; build it if it is missing."""
    paths = [*(HOSTILE / f"{name}.py" for name in SHARED), *sorted(IMAGE.glob("*.py"))]
    files = {path.name: path.read_bytes() for path in paths}
    return make_image(url, "fngate-hostile-image", RECIPE.format(runtime=runtime_image), files)


@dataclass(slots=True)
class Attacked:
    """A server with the hostile image and its neighbour deployed."""

    server: ContainerServer
    http: aiohttp.ClientSession

    async def attack(self, name: str, **order: Any) -> Met:
        """Run an attack while the neighbour is called repeatedly, and call it once more
        afterwards."""
        async with self.beside_calls():
            return await self.post(f"attack/{name}", order)

    async def post(self, path: str, order: Any) -> Met:
        """Call the hostile image only."""
        return await self._met(self.http.post(f"/fn/hostile/{path}", json=order))

    async def get(self, path: str = "", **options: Any) -> Met:
        """Call the hostile image by GET."""
        return await self._met(self.http.get(f"/fn/hostile/{path}", **options))

    @asynccontextmanager
    async def beside_calls(self) -> AsyncIterator[None]:
        """Call the neighbour while the block runs, and once more; each answer must be right."""
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._call_neighbour(ended))
            try:
                yield
            finally:
                ended.set()
        await self.check()

    async def _call_neighbour(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await self.check()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await ended.wait()

    async def check(self) -> None:
        """Call the neighbour, and the server for its health."""
        for path in ("/fn/web/", "/healthz"):
            async with self.http.get(path) as answer:
                assert answer.status == 200, await answer.read()

    async def _met(self, call: Any) -> Met:
        try:
            async with call as answer:
                return Met(answer.status, dict(answer.headers), await answer.read())
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
            # The body ends too early; or the client has enough of its trailers before that.
            return Met(0, {}, str(error).encode())

    def parts(self, function: str = "hostile") -> dict[str, dict[str, Any]]:
        """Return the containers of a function's replicas by part, as `docker inspect` shows
        them."""
        labels = [(one, one["Config"]["Labels"]) for one in self.server.everything()]
        return {
            has[PART]: one
            for one, has in labels
            if has.get(PART) in (SIDECAR, SERVER) and f"/{function}@" in has[FUNCTION]
        }

    @property
    def pids(self) -> dict[str, int]:
        """Return the host's pid of the first process of each part."""
        return {part: one["State"]["Pid"] for part, one in self.parts().items()}


def said(met: Met) -> Any:
    """Return what an attack has told."""
    assert met.status == 200, met.body[:500]
    return json.loads(met.body)


@contextmanager
def attacked_server(data: Path, engine: str, runtime_image: str) -> Iterator[ContainerServer]:
    """Start a server with both functions; the neighbour is warm."""
    hostile = make_hostile_image(engine, runtime_image)
    web = web_image_tag(engine, runtime_image)
    variables = {"FN_CPU_SLOTS": "4", "FN_PING_S": "1"}
    with container_server(data / "data", engine, runtime_image, **variables) as server:
        _set_secret(server)
        for name, text in (
            ("web", WEB.format(image=web)),
            ("hostile", MANIFEST.format(image=hostile, memory_mib=CAP_MIB, slots=SLOTS)),
        ):
            folder = data / name
            folder.mkdir()
            (folder / "function.toml").write_text(text)
            done = server.fnctl("deploy", str(folder))
            assert done.returncode == 0, done.stderr
        yield server


def _set_secret(server: ContainerServer) -> None:
    body = json.dumps({"name": "token", "value": SECRET}).encode()
    headers = {"Content-Type": "application/json", **server.headers}
    request = urllib.request.Request(f"{server.url}/admin/v1/secrets", body, headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201
