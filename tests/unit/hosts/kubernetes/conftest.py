"""An API server that answers what a test says, over TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hosts.kubernetes.access import Access
from hosts.kubernetes.client import ApiLimits, KubernetesClient
from tests.support.small_authority import Identity, authority, issued

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScriptedApi:
    """Listens on a port of its own with a certificate of its own authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """The files of a service account."""
        self.answers: list[Answer] = []
        """What is answered, one after the other; the last one again and again."""
        self.requests: list[web.Request] = []
        self.bodies: list[Any] = []
        """The JSON body of each request, None without one."""
        self.port = 0
        self.authority = authority("cluster")
        self._runner: web.AppRunner | None = None

    def mount(self) -> None:
        """Write the files of the service account."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "token").write_text("secret\n")
        (self.folder / "ca.crt").write_text(self.authority.pem)
        (self.folder / "namespace").write_text("fngate")

    async def start(self, signer: Identity | None = None) -> None:
        """Listen, with a certificate of `signer`."""
        issued(signer or self.authority, "localhost").write(self.folder.parent, "api")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder.parent / "api.pem")
        app = web.Application(client_max_size=1 << 20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the listener and all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def says(self, *answers: Answer) -> None:
        """Set what is answered from now on."""
        self.answers = list(answers)

    def access(self) -> Access:
        """Return how it is reached."""
        return Access(self.folder, "localhost", self.port)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        body = await request.read()
        self.bodies.append(json.loads(body) if body else None)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return await answer(request)


def gives(value: Any, status: int = 200, **headers: str) -> Answer:
    """Answer with JSON."""

    async def answer(request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return web.json_response(value, status=status, headers=named)

    return answer


def says(text: str | bytes, status: int = 200, **headers: str) -> Answer:
    """Answer with a text, or bytes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = text.encode() if isinstance(text, str) else text
        return web.Response(body=body, status=status, headers=named)

    return answer


def refuses(code: int, reason: str, message: str = "no", **headers: str) -> Answer:
    """Answer with a Status, as the API server does."""
    status = {"kind": "Status", "status": "Failure", "reason": reason, "message": message}
    return gives(status | {"code": code}, code, **headers)


def streams(*pieces: bytes, until: asyncio.Event | None = None, breaks: bool = False) -> Answer:
    """Answer with pieces, then wait, then end the answer, or break the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if until is not None:
            await until.wait()
        if breaks:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def waits(event: asyncio.Event, then: Answer) -> Answer:
    """Answer when an event is set."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await event.wait()
        return await then(request)

    return answer


def pod(name: str, version: str = "1", **metadata: Any) -> dict[str, Any]:
    """Return a Pod, as the API server writes it."""
    about = {"name": name, "uid": f"uid-{name}", "resourceVersion": version, **metadata}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": about, "strange": [{}]}


def listing(*objects: dict[str, Any], version: str = "10", following: str = "") -> dict[str, Any]:
    """Return a page of a list."""
    about = {"resourceVersion": version, "continue": following}
    return {"kind": "PodList", "apiVersion": "v1", "metadata": about, "items": list(objects)}


def line(type: str, object: dict[str, Any]) -> bytes:
    """Return a line of a watch."""
    return json.dumps({"type": type, "object": object}).encode() + b"\n"


def bookmark(version: str) -> bytes:
    """Return a bookmark, which has no name."""
    about = {"resourceVersion": version, "creationTimestamp": None}
    return line("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": about})


def queries(requests: Iterable[web.Request]) -> list[dict[str, str]]:
    """Return the query of each request."""
    return [dict(request.query) for request in requests]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ScriptedApi]:
    """Yield an API server."""
    made = ScriptedApi(tmp_path / "account")
    made.mount()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def make_client(api: ScriptedApi) -> AsyncIterator[Callable[..., KubernetesClient]]:
    """Yield what makes clients with limits; chance is always 0."""
    made: list[KubernetesClient] = []

    def make(**limits: Any) -> KubernetesClient:
        made.append(KubernetesClient(api.access(), ApiLimits(**limits), lambda: 0.0))
        return made[-1]

    yield make
    for client in made:
        await client.close()
