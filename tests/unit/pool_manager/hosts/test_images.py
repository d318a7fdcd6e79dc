"""Images that one engine sends to another; both are stand-ins behind Unix sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from aiohttp import web

from pool_manager.hosts import images
from pool_manager.hosts.images import HostImages
from registry.errors import DriverError, EngineDown

ID = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
REFERENCE = "fngate/cpu:1"
SIZE = 300_000


class Engine:
    """Images by id with their tags, over the engine's API. `after_load`: the id that an image has
    once it is loaded. `gate`: loads wait for it, and exports before their first byte."""

    def __init__(self, url: str, processors: str = "x86_64") -> None:
        self.url = url
        self.processors = processors
        self.tags: dict[str, str] = {}
        self.ids: set[str] = set()
        self.loads: list[int] = []
        self.removed: list[str] = []
        self.after_load = ID
        self.refusal = ""
        self.gate = asyncio.Event()
        self.gate.set()

    def has(self, id: str, *tags: str) -> None:
        """Have an image."""
        self.ids.add(id)
        self.tags.update(dict.fromkeys(tags, id))

    def routes(self) -> list[web.RouteDef]:
        """Return the operations that are used."""
        return [
            web.get("/info", self.info),
            web.get("/images/{name:.+}/json", self.inspect),
            web.get("/images/{name:.+}/get", self.export),
            web.post("/images/load", self.load),
            web.post("/images/{name:.+}/tag", self.tag),
            web.delete("/images/{name:.+}", self.remove),
        ]

    async def info(self, _request: web.Request) -> web.Response:
        return web.json_response({"Architecture": self.processors})

    async def inspect(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        id = self.tags.get(name, name)
        if id not in self.ids:
            return web.Response(status=404)
        return web.json_response({"Id": id, "Size": SIZE, "Architecture": "amd64"})

    async def export(self, request: web.Request) -> web.StreamResponse:
        await self.gate.wait()
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"x" * SIZE)
        return answer

    async def load(self, request: web.Request) -> web.Response:
        if self.refusal:
            detail = {"errorDetail": {"message": self.refusal}, "error": self.refusal}
            return web.Response(text=f'{{"status": "Loading"}}\r\n{json.dumps(detail)}\r\n')
        await self.gate.wait()
        self.loads.append(len(await request.read()))
        self.ids.add(self.after_load)
        return web.json_response({"stream": "Loaded"})

    async def tag(self, request: web.Request) -> web.Response:
        if request.match_info["name"] not in self.ids:
            return web.Response(status=404)
        self.tags[f"{request.query['repo']}:{request.query['tag']}"] = request.match_info["name"]
        return web.Response(status=201)

    async def remove(self, request: web.Request) -> web.Response:
        self.removed.append(request.match_info["name"])
        return web.json_response([])


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[Engine]:
    app = web.Application(client_max_size=10 * SIZE)
    app.add_routes(engine.routes())
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, engine.url.removeprefix("unix://")).start()
    try:
        yield engine
    finally:
        engine.gate.set()
        await runner.cleanup()


class Rig:
    """This machine's engine, the host's, and what was shown of transfers."""

    def __init__(self, here: Engine, there: Engine) -> None:
        self.here, self.there = here, there
        self.images = HostImages("gpu2", here.url, there.url, "owner")
        self.shown: list[tuple[int, int]] = []

    def progress(self, done: int, total: int) -> None:
        self.shown.append((done, total))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with TemporaryDirectory(prefix="fn-") as folder:
        here = Engine(f"unix://{Path(folder, 'here')}")
        there = Engine(f"unix://{Path(folder, 'there')}", "amd64")
        async with serving(here), serving(there):
            yield Rig(here, there)


async def test_a_missing_runtime_image_is_sent_and_tagged(rig: Rig) -> None:
    """It is sent once; the one that it replaces goes, and its own tag keeps it from a prune."""
    rig.here.has(ID, REFERENCE)
    rig.there.has(OTHER, "fngate/runtime:cpu.owner")
    assert not await rig.images.has_runtime(REFERENCE)

    for _ in range(2):
        assert await rig.images.provide_runtime("cpu", REFERENCE, rig.progress) == ID

    assert rig.there.loads == [SIZE]
    assert rig.there.tags == {"fngate/runtime:cpu.owner": ID}
    assert rig.there.removed == [OTHER]
    assert rig.shown[-1] == (SIZE, SIZE)
    assert await rig.images.has_runtime(REFERENCE)


async def test_the_hosts_own_runtime_image_is_used_if_there_is_no_other(rig: Rig) -> None:
    """Without one anywhere, the text says what to build where."""
    rig.there.has(OTHER, REFERENCE)
    assert await rig.images.provide_runtime("cpu", REFERENCE, rig.progress) == OTHER

    with pytest.raises(DriverError, match=r"host gpu2 lacks .* fnctl image build gpu"):
        await rig.images.provide_runtime("cuda", "fngate/cuda:1", rig.progress)


async def test_starts_together_wait_for_one_transfer(rig: Rig) -> None:
    """The second finds the image there."""
    rig.here.has(ID)
    rig.there.gate.clear()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(rig.images.send(ID, rig.progress))
        await asyncio.sleep(0)
        rig.there.gate.set()

    assert rig.there.loads == [SIZE]


async def test_an_image_is_pinned_for_this_server(rig: Rig) -> None:
    """An image that the host has is pinned, also twice and also one that another server sent; an
    image that it lacks is refused."""
    with pytest.raises(DriverError, match="cannot tag an image on host gpu2"):
        await rig.images.pin(ID)
    rig.there.has(ID)
    for _ in range(2):
        await rig.images.pin(ID)

    assert rig.there.tags == {f"fngate/pinned:{'a' * 64}.owner": ID}


async def test_an_image_that_cannot_be_sent_has_a_reason(rig: Rig) -> None:
    """Of the image, of the host's processors, of its engine and of how it keeps images."""
    with pytest.raises(DriverError, match="this machine has no image"):
        await rig.images.send(ID, rig.progress)
    rig.here.has(ID)
    rig.there.processors = "aarch64"
    with pytest.raises(DriverError, match="gpu2 is arm64, the image is for amd64"):
        await rig.images.send(ID, rig.progress)
    rig.there.processors = "x86_64"
    rig.there.refusal = "no space left on device"
    with pytest.raises(DriverError, match=r"gpu2 refuses an image: no space left on device$"):
        await rig.images.send(ID, rig.progress)
    rig.there.refusal, rig.there.after_load = "", OTHER
    with pytest.raises(DriverError, match=r"gpu2 stores the image .* under another id"):
        await rig.images.send(ID, rig.progress)


async def test_an_engine_that_does_not_answer(rig: Rig) -> None:
    """That of this machine says nothing about the host's, which is an event of its own."""
    rig.there.has(OTHER, REFERENCE)
    away = HostImages("gpu2", f"{rig.here.url}-none", rig.there.url, "owner")
    assert await away.provide_runtime("cpu", REFERENCE, rig.progress) == OTHER
    with pytest.raises(DriverError) as raised:
        await away.send(ID, rig.progress)
    assert not isinstance(raised.value, EngineDown)

    rig.here.has(ID)
    gone = HostImages("gpu2", rig.here.url, f"{rig.there.url}-none", "owner")
    with pytest.raises(EngineDown):
        await gone.send(ID, rig.progress)


async def test_a_transfer_in_which_nothing_moves_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host does not store what it has got."""
    monkeypatch.setattr(images, "UNPACK_S", 0.05)
    rig.here.has(ID)
    rig.there.gate.clear()

    with pytest.raises(DriverError, match="gpu2 takes no more of the image"):
        await rig.images.send(ID, rig.progress)


async def test_an_engine_may_pack_an_image_for_long(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes all layers to a file before it sends the first byte."""
    monkeypatch.setattr(images, "SILENT_S", 0.3)
    rig.here.has(ID)
    rig.here.gate.clear()
    asyncio.get_running_loop().call_later(0.6, rig.here.gate.set)

    await rig.images.send(ID, rig.progress)

    assert rig.there.loads == [SIZE]


async def test_an_engine_that_never_sends_an_image_is_named(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host is not at fault."""
    monkeypatch.setattr(images, "PACK_S", 0.05)
    rig.here.has(ID)
    rig.here.gate.clear()

    with pytest.raises(DriverError, match="the engine of this machine sends no more of the image"):
        await rig.images.send(ID, rig.progress)
