"""Tests of pulls against an engine that says what the test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from pool_manager.drivers.docker import pulls
from pool_manager.drivers.docker.pulls import pull
from pool_manager.images import PullProgress
from registry.errors import DriverError, EngineDown

NGINX = "registry.example:5000/team/nginx:1.27"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The docker config of the user who runs the tests is not read."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


@asynccontextmanager
async def engine(folder: Path, handler: Handler) -> AsyncIterator[str]:
    """Run an engine whose pulls `handler` answers; yield the path of its socket."""
    app = web.Application()
    app.router.add_post("/images/create", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    path = str(folder / "engine.sock")
    await web.UnixSite(runner, path).start()
    try:
        yield path
    finally:
        await runner.cleanup()


def saying(*events: object) -> Handler:
    """Answer with these lines: objects as JSON, bytes as they are."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            line = event if isinstance(event, bytes) else json.dumps(event).encode() + b"\r\n"
            await response.write(line)
        return response

    return handler


def layer(id: str, status: str, current: int = 0, total: int = 0) -> dict[str, object]:
    detail = {"current": current, "total": total} if total else {}
    return {"id": id, "status": status, "progressDetail": detail}


async def progress_of(
    socket: str, reference: str = NGINX, silent_s: float = 30
) -> list[PullProgress]:
    async with aclosing(pull(socket, reference, silent_s=silent_s)) as pulling:
        return [one async for one in pulling]


async def test_progress_is_the_sum_of_layers(tmp_path: Path) -> None:
    """Layers that are there already add nothing; a layer that was downloaded counts whole. One
    request names repository and tag."""
    asked: list[dict[str, str]] = []
    said = saying(
        {"status": "Pulling from team/nginx", "id": "1.27"},
        layer("a", "Already exists"),
        layer("b", "Downloading", 10, 100),
        layer("c", "Downloading", 50, 50),
        layer("b", "Download complete"),
        layer("b", "Pull complete"),
        {"status": "Digest: sha256:ab"},
    )

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(dict(request.query))
        return await said(request)

    async with engine(tmp_path, handler) as socket:
        progress = await progress_of(socket)

    assert asked == [{"fromImage": "registry.example:5000/team/nginx", "tag": "1.27"}]
    assert progress[-1] == PullProgress(150, 150)
    assert all(one.done_bytes <= one.total_bytes for one in progress)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("no basic auth credentials", "docker login registry.example:5000"),
        ("pull access denied for x", "docker login registry.example:5000"),
        ("manifest unknown", "check the image's name and tag"),
        ("dial tcp: lookup registry.example: no such host", "must reach the registry"),
        ("http: server gave HTTP response to HTTPS client", "insecure-registries"),
        ("write /x: no space left on device", "fnctl image prune"),
        ("EOF", "registry.example:5000 broke off"),
        ("download failed after attempts=6: EOF", "registry.example:5000 broke off"),
        ('Get "http://registry.example:5000/v2/": context deadline exceeded', "must reach"),
        ("toomanyrequests: You have reached your pull rate limit", "try again later, or log in"),
        ("x509: certificate signed by unknown authority", "must trust the certificate"),
        ("anything else", "the engine says: anything else"),
    ],
)
async def test_an_error_in_the_stream_is_a_failure(tmp_path: Path, said: str, remedy: str) -> None:
    """The status is 200 by then; an error ends the pull with its remedy."""
    event = {"error": said, "errorDetail": {"message": said}}
    async with engine(tmp_path, saying(layer("a", "Downloading", 1, 2), event)) as socket:
        with pytest.raises(DriverError) as refused:
            await progress_of(socket)
    assert remedy in refused.value.message


async def test_the_name_of_an_image_gives_no_remedy(tmp_path: Path) -> None:
    """Words in the name of the image are no words of the engine's."""
    said = {"error": "anything else about host/not found/denied-timeout"}
    async with engine(tmp_path, saying(said)) as socket:
        with pytest.raises(DriverError, match=r"denied-timeout$"):
            await progress_of(socket, "host/not found/denied-timeout:1")


async def test_a_refused_request_is_a_failure(tmp_path: Path) -> None:
    """The engine's message is shown; a body that is no JSON shows the status."""
    bodies = iter([b'{"message": "toomanyrequests: slow down"}', b"<html>"])

    async def handler(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, body=next(bodies))

    async with engine(tmp_path, handler) as socket:
        with pytest.raises(DriverError, match="toomanyrequests: slow down"):
            await progress_of(socket)
        with pytest.raises(DriverError, match="status 500"):
            await progress_of(socket)


async def test_a_pull_without_progress_ends(tmp_path: Path) -> None:
    """Lines that repeat the same are no progress; neither is silence."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(json.dumps(layer("a", "Downloading", 1, 2)).encode() + b"\n")

    async with engine(tmp_path, handler) as socket:
        with pytest.raises(DriverError, match=r"no progress in 0\.1 s; .*docker pull registry"):
            await progress_of(socket, silent_s=0.1)


async def test_an_engine_that_does_not_answer_ends_the_pull(tmp_path: Path) -> None:
    """The head of the answer is under the same limit."""

    async def handler(_request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with engine(tmp_path, handler) as socket:
        with pytest.raises(DriverError, match="no progress"):
            await progress_of(socket, silent_s=0.1)


@pytest.mark.parametrize("line", [b"no json\n", b"\xff\n", b'{"a": 1'])
async def test_lines_that_are_no_json_are_refused(tmp_path: Path, line: bytes) -> None:
    """Anything but JSON is a failure; a last line without end is left out."""
    async with engine(tmp_path, saying(layer("a", "Downloading", 1, 2), line)) as socket:
        if line.endswith(b"\n"):
            with pytest.raises(DriverError, match="no JSON"):
                await progress_of(socket)
        else:
            assert await progress_of(socket) == [PullProgress(1, 2)]


async def test_a_line_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded, whatever the engine sends."""
    monkeypatch.setattr(pulls, "LINE_MAX", 1000)
    async with engine(tmp_path, saying(b"x" * 5000)) as socket:
        with pytest.raises(DriverError, match="a line without end"):
            await progress_of(socket)


async def test_no_engine_is_said(tmp_path: Path) -> None:
    """Without an engine the error is that of its other calls."""
    with pytest.raises(EngineDown, match="systemctl restart docker"):
        await progress_of(str(tmp_path / "none.sock"))


async def test_a_closed_pull_ends_its_request(tmp_path: Path) -> None:
    """The engine sees the end of the connection, by which it gives the pull up."""
    gone = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps(layer("a", "Downloading", 1, 2)).encode() + b"\n")
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return response

    async with engine(tmp_path, handler) as socket:
        async with aclosing(pull(socket, NGINX)) as pulling:
            assert await anext(pulling) == PullProgress(1, 2)
        async with asyncio.timeout(60):
            await gone.wait()


async def test_a_broken_helper_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential helper that fails ends the pull before the engine is asked."""
    (tmp_path / "config.json").write_text('{"credsStore": "broken"}')
    helper = tmp_path / "docker-credential-broken"
    helper.write_text("#!/bin/sh\necho locked\nexit 1\n")
    helper.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(
        DriverError, match=r"credentials for registry\.example:5000: .* ended with exit code 1"
    ):
        await progress_of(str(tmp_path / "none.sock"))
