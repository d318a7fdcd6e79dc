"""HTTP client of a server: function calls, admin API, whole deploys."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

MANIFEST = "function.toml"
UNTIL_S = 90.0
"""Max seconds to wait for any condition before the test fails."""
WAIT_S = 10
"""Seconds per long poll."""


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: status, headers, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the decoded JSON body."""
        return json.loads(self.body)

    @property
    def problem(self) -> dict[str, Any]:
        """Return the problem document (RFC 9457); fails if the answer is none."""
        kind = self.headers.get("Content-Type", "")
        assert kind == "application/problem+json", (self.status, kind, self.body[:200])
        document: dict[str, Any] = self.json()
        assert document["status"] == self.status, document
        return document


class Caller:
    """Client of the server at `url`. `token` is its admin token."""

    def __init__(self, url: str, token: str, session: ClientSession) -> None:
        self.url = url
        self.token = token
        self.session = session

    async def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request. A dict or list is sent as JSON, anything else (bytes, files)
        unchanged."""
        given = dict(headers or {})
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        async with self.session.request(
            method, self.url + path, data=body, headers=given, skip_auto_headers=["Content-Type"]
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **headers: str) -> Answer:
        """Send a GET. Header names are written with _ for -."""
        return await self.request("GET", path, None, _spelled(headers))

    async def call(self, name: str, body: Any = None, **headers: str) -> Answer:
        """Send POST /fn/NAME. Header names are written with _ for -."""
        return await self.request("POST", f"/fn/{name}", body, _spelled(headers))

    async def admin(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request under /admin/v1 with the admin token."""
        bearer = {"Authorization": f"Bearer {self.token}"}
        return await self.request(method, f"/admin/v1{path}", body, bearer)

    async def readiness(self) -> Answer:
        """Send GET /readyz with the admin token."""
        return await self.request("GET", "/readyz", None, {"Authorization": f"Bearer {self.token}"})

    async def deploy(
        self,
        source: Path | Mapping[str, bytes],
        *,
        name: str = "",
        manifest: str | None = None,
        **overrides: Any,
    ) -> dict[str, Any]:
        """Deploy over the admin API as `fnctl` does; return the operation's result.

        `source`: a model file, a folder, or contents by path. `manifest` replaces its
        function.toml. `overrides`: those of a deploy request (min, max, idle_s, timeout_s, ...).
        Fails with the server's reason if the deploy is refused.
        """
        answer = await self.try_deploy(source, name=name, manifest=manifest, **overrides)
        operation: dict[str, Any] = answer.json()
        assert operation.get("state") == "done", operation
        result: dict[str, Any] = operation["result"]
        return result

    async def try_deploy(
        self,
        source: Path | Mapping[str, bytes],
        *,
        name: str = "",
        manifest: str | None = None,
        breaking: bool = False,
        **overrides: Any,
    ) -> Answer:
        """Deploy as above, but return the finished operation or the first refusal."""
        files = _files(source)
        text = files.pop(MANIFEST, b"").decode() or None
        listed = []
        for path, content in files.items():
            sha256 = hashlib.sha256(content).hexdigest()
            listed.append({"path": path, "size": len(content), "sha256": sha256})
            answer = await self.admin("PUT", f"/blobs/{sha256}", io.BytesIO(content))
            if answer.status >= 300:
                return answer
        name = name or _name(source, files)
        request: dict[str, Any] = {"files": listed, "manifest": manifest or text}
        request |= {"overrides": overrides, "model": next(iter(files)), "trust": True}
        request["breaking"] = breaking
        answer = await self.admin("POST", f"/functions/{name}/revisions", request)
        return await self.ended(answer.json()) if answer.status < 300 else answer

    async def ended(self, operation: Mapping[str, Any]) -> Answer:
        """Wait for the end of an operation; return it."""
        path, phase = f"/operations/{operation['id']}", ""
        async with asyncio.timeout(UNTIL_S):
            while True:
                answer = await self.admin("GET", f"{path}?wait={WAIT_S}&phase={phase}")
                if answer.status != 200 or answer.json()["state"] != "running":
                    return answer
                phase = answer.json()["phase"]

    async def function(self, name: str) -> dict[str, Any]:
        """Return the admin API's view of a function: state, held, in_flight, ready, ..."""
        document: dict[str, Any] = (await self.admin("GET", f"/functions/{name}")).json()
        return document

    async def until(self, asks: Callable[[], Awaitable[bool]]) -> None:
        """Poll until `asks` returns True, with one HTTP round trip between polls."""
        async with asyncio.timeout(UNTIL_S):
            while not await asks():
                await self.get("/healthz")

    async def until_shown(self, name: str, **wanted: Any) -> None:
        """Wait until the admin API shows these fields: `held=2`, `state="warm"`, ..."""

        async def asks() -> bool:
            shown = await self.function(name)
            return all(shown[key] == value for key, value in wanted.items())

        await self.until(asks)


def _spelled(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def _files(source: Path | Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the contents by bundle path. A single file is the model."""
    if isinstance(source, Mapping):
        return dict(source)
    if source.is_file():
        return {source.name: source.read_bytes()}
    found = sorted(path for path in source.rglob("*") if path.is_file())
    return {str(path.relative_to(source)): path.read_bytes() for path in found}


def _name(source: Path | Mapping[str, bytes], files: Mapping[str, bytes]) -> str:
    stem = source.stem if isinstance(source, Path) else Path(next(iter(files))).stem
    return stem.replace("_", "-")
