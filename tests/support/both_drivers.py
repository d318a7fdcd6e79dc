"""A hostile function next to an innocent one, over containers or processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from functions.digits import train
from tests.chaos.footprint import PROBE, memory_kib
from tests.support.container_server import container_server
from tests.support.process_server import ServerProcess, server_process

DIGITS = Path(train.__file__).parent
HOSTILE = Path(__file__).parent / "hostile"
SEVEN = (DIGITS / "seven.png").read_bytes()
PING_S = "1"


@dataclass(slots=True)
class Met:
    """One HTTP answer. `said`: the hostile function's report."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        """Return the hostile function's report; fails if the answer has none."""
        assert self.status == 200, self.body[:500]
        return json.loads(self.body)["outputs"]["said"]

    @property
    def code(self) -> str:
        """Return the code of a well-formed problem document; "" for a 200."""
        if self.status == 200:
            return ""
        assert self.headers["Content-Type"] == "application/problem+json", self.headers
        problem = json.loads(self.body)
        assert problem["status"] == self.status
        return str(problem["code"])


@dataclass(slots=True)
class Siege:
    """A server with both functions deployed and called once."""

    server: ServerProcess
    http: aiohttp.ClientSession
    innocent: list[Met] = field(default_factory=list)

    async def attack(self, name: str = "", **order: Any) -> Met:
        """Call the hostile function while the innocent one is called repeatedly, and once more
        afterwards. Every answer of the innocent function must be right."""
        calls = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._call_innocent(calls))
            try:
                met = await self.call(**({"attack": name} if name else {}), **order)
            finally:
                calls.set()
        await self._check_innocent()
        return met

    async def call(self, **order: Any) -> Met:
        """Call the hostile function only."""
        return await self._post("hostile", {"json": {"inputs": {"order": order}}})

    async def _call_innocent(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            await self._check_innocent()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await is_over.wait()

    async def _check_innocent(self) -> None:
        met = await self._post("digits", {"data": SEVEN, "headers": {"Content-Type": "image/png"}})
        assert met.status == 200, met.body
        assert json.loads(met.body)["outputs"]["label"] == [7]

    async def _post(self, name: str, what: dict[str, Any]) -> Met:
        async with self.http.post(f"/fn/{name}", **what) as answer:
            return Met(answer.status, dict(answer.headers), await answer.read())

    def log_since(self, mark: str) -> list[dict[str, Any]]:
        """Return the server's JSON log lines after the line `mark`."""
        lines = list(self.server.log)
        at = lines.index(mark) + 1 if mark in lines else 0
        return [json.loads(line) for line in lines[at:] if line.startswith("{")]

    @property
    def mark(self) -> str:
        """Return the log's last line."""
        return self.server.log[-1] if self.server.log else ""

    @property
    def rss_mib(self) -> float:
        """Return the server's current resident memory."""
        assert self.server.process is not None
        return memory_kib(self.server.process.pid, "Rss") / 1024


@contextmanager
def besieged(driver: str, data: Path, url: str = "", image: str = "") -> Iterator[ServerProcess]:
    """Start a server over `driver` with both functions; the innocent one is warm."""
    variables = {"FN_PING_S": PING_S, "FN_CPU_SLOTS": "2", **PROBE}
    with (
        container_server(data, url, image, **variables)
        if driver == "docker"
        else server_process(data, environment=variables)
    ) as server:
        for folder in (DIGITS, HOSTILE):
            done = server.fnctl("deploy", str(folder), "--trust", "--min", "0")
            assert done.returncode == 0, done.stderr
        assert server.fnctl("scale", "digits", "--min", "1").returncode == 0
        yield server


@asynccontextmanager
async def siege(server: ServerProcess) -> AsyncIterator[Siege]:
    """Open a client session to the server."""
    async with server.session() as http:
        yield Siege(server, http)
