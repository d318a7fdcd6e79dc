"""Calls a server over HTTP as clients do: functions, admin API, whole deploys."""

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
"""How long anything that a test waits for may take before the test fails."""
WAIT_S = 10
"""Seconds of one long poll."""


@dataclass(frozen=True)
class Answer:
    """What came back: status, headers, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; only its members are worth comparing."""
        return json.loads(self.body)

    @property
    def problem(self) -> dict[str, Any]:
        """The problem document (RFC 9457). Fails where the answer is none."""
        kind = self.headers.get("Content-Type", "")
        assert kind == "application/problem+json", (self.status, kind, self.body[:200])
        document: dict[str, Any] = self.json()
        assert document["status"] == self.status, document
        return document


class Caller:
    """Calls the server at `url` over HTTP. `token` is its admin token."""

    def __init__(self, url: str, token: str, session: ClientSession) -> None:
        self.url = url
        self.token = token
        self.session = session

    async def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; a dict or list is sent as JSON, all else (bytes, files, ...) as it is."""
        given = dict(headers or {})
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        async with self.session.request(
            method, self.url + path, data=body, headers=given, skip_auto_headers=["Content-Type"]
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **headers: str) -> Answer:
        """GET; `headers` are spelled with _ for -."""
        return await self.request("GET", path, None, _spelled(headers))

    async def call(self, name: str, body: Any = None, **headers: str) -> Answer:
        """POST /fn/NAME; `headers` are spelled with _ for -."""
        return await self.request("POST", f"/fn/{name}", body, _spelled(headers))

    async def admin(self, method: str, path: str, body: Any = None) -> Answer:
        """A request under /admin/v1 with the admin token."""
        bearer = {"Authorization": f"Bearer {self.token}"}
        return await self.request(method, f"/admin/v1{path}", body, bearer)

    async def deploy(
        self,
        source: Path | Mapping[str, bytes],
        *,
        name: str = "",
        manifest: str | None = None,
        **overrides: Any,
    ) -> dict[str, Any]:
        """Deploy as `fnctl` does, over the admin API; the result of the operation.

        `source` is a model file, a folder, or files by path; `manifest` takes the place of its
        function.toml. `overrides` are those of a deploy request: min, max, idle_s, timeout_s, ...
        Fails with the server's reason where it is refused.
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
        """As `deploy`; the ended operation, or the first answer that refused something."""
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
        """An operation when it has ended."""
        path, phase = f"/operations/{operation['id']}", ""
        async with asyncio.timeout(UNTIL_S):
            while True:
                answer = await self.admin("GET", f"{path}?wait={WAIT_S}&phase={phase}")
                if answer.status != 200 or answer.json()["state"] != "running":
                    return answer
                phase = answer.json()["phase"]

    async def function(self, name: str) -> dict[str, Any]:
        """What the admin API shows of a function: state, held, in_flight, ready, ..."""
        document: dict[str, Any] = (await self.admin("GET", f"/functions/{name}")).json()
        return document

    async def until(self, asks: Callable[[], Awaitable[bool]]) -> None:
        """Ask until the answer is yes; each time one round trip of HTTP passes."""
        async with asyncio.timeout(UNTIL_S):
            while not await asks():
                await self.get("/healthz")

    async def until_shown(self, name: str, **wanted: Any) -> None:
        """Wait until the admin API shows this of a function: `held=2`, `state="warm"`, ..."""

        async def asks() -> bool:
            shown = await self.function(name)
            return all(shown[key] == value for key, value in wanted.items())

        await self.until(asks)


def _spelled(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def _files(source: Path | Mapping[str, bytes]) -> dict[str, bytes]:
    """Contents by bundle path, the model first where there is only one file."""
    if isinstance(source, Mapping):
        return dict(source)
    if source.is_file():
        return {source.name: source.read_bytes()}
    found = sorted(path for path in source.rglob("*") if path.is_file())
    return {str(path.relative_to(source)): path.read_bytes() for path in found}


def _name(source: Path | Mapping[str, bytes], files: Mapping[str, bytes]) -> str:
    stem = source.stem if isinstance(source, Path) else Path(next(iter(files))).stem
    return stem.replace("_", "-")
