"""A server with everything in it but models, to be asked for all that it can tell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from pool_manager.drivers.fake import FakeDriver, Script
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support.caller import Answer
from tests.support.server import Gate, ServingServer, serving
from tests.surface.shapes import Seen

TENSOR = TensorSpec("x", "FP32", (-1, 1))
SIGNATURE = Signature("tensors", (TENSOR,), (TENSOR,))
UNTIL_S = 30.0
ADMIN = "/admin/v1"
NAMES = (
    (r"\b[0-9a-f]{64}\b", "{sha256}"),
    (r"\b[0-9a-f]{8}\b", "{id}"),
    (r"\b\d{8}T\d{6}Z\b", "{time}"),
    (r"^blobs/[0-9a-f]{2}\b", "blobs/{xx}"),
    (r"^logs/[fgh]\b", "logs/{name}"),
    (r"^replicas/{id}/.+", "replicas/{id}/{path}"),
)
EVERY_HEADER = {"Content-Length", "Content-Type", "Date", "Server"}


class Scene:
    """What was seen of one server: answers by route, events, headers, files."""

    def __init__(self, server: ServingServer, gate: Gate, data: Path) -> None:
        self.server = server
        self.gate = gate
        self.data = data
        self.answers = Seen()
        self.events = Seen()
        self.headers: set[str] = set()
        self.files: set[str] = set()
        self.asked: set[str] = set()
        self.kinds: dict[str, list[Any]] = {}
        self.values = {"name": "f"}
        """What stands for the parts of a route that are in braces."""

    @property
    def bearer(self) -> dict[str, str]:
        """The header of an administrator."""
        return {"Authorization": f"Bearer {self.server.token}"}

    async def ask(self, route: str, body: Any = None, **headers: str) -> Answer:
        """One request to a "METHOD /path/{name}", as the admin; its answer counts."""
        method, path = route.split()
        for name, value in self.values.items():
            path = path.replace(f"{{{name}}}", value)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.server.request(method, path, body, {**self.bearer, **given})
        self.note(route if answer.status < 400 else "problem", route, answer)
        return answer

    def note(self, caption: str, route: str, answer: Answer) -> None:
        """An answer counts."""
        self.asked.add(route)
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        self.headers |= {f"{caption}: {name}" for name in {*answer.headers} - EVERY_HEADER}
        self.headers.add(f"{caption}: Content-Type {kind or '-'}")
        if kind.endswith("json") and answer.body:
            self.answers.add(caption, answer.json())

    async def follow(self, route: str, caption: str) -> None:
        """Collect an event stream until its end, or until this is cancelled."""
        path = route.partition(" ")[2].replace("{name}", self.values["name"])
        headers = {**self.bearer, "Accept": "text/event-stream"}
        async with self.server.session.get(self.server.url + path, headers=headers) as stream:
            self.asked.add(route)
            self.headers.add(f"{caption}: Content-Type {stream.content_type}")
            self.headers |= {f"{caption}: {name}" for name in {*stream.headers} - EVERY_HEADER}
            kind = ""
            async for line in stream.content:
                name, _, text = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = f"{caption}.{text}"
                elif name == "data":
                    data = json.loads(text)
                    self.events.add(kind, data)
                    self.kinds.setdefault(kind, []).append(data)
                elif name:
                    self.events.add(f"{caption} field {name}", None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what an event stream tells."""
        async with asyncio.timeout(UNTIL_S):
            while not condition():
                await self.server.get("/healthz")

    async def until_answered(self, asks: Callable[[], Awaitable[bool]]) -> None:
        """Ask until it is so."""
        async with asyncio.timeout(UNTIL_S):
            while not await asks():
                pass

    def has(self, kind: str, key: str, *unlike: Any) -> bool:
        """Whether a thing of that kind was told of whose value is none of these."""
        told = (item for data in self.kinds.get(f"events.{kind}", ()) for item in data["items"])
        return any(item[key] not in unlike for item in told)

    def look(self) -> None:
        """Which files there are now, without ids, hashes and the names of functions."""
        for path in self.data.rglob("*"):
            name = str(path.relative_to(self.data))
            for pattern, word in NAMES:
                name = re.sub(pattern, word, name)
            if not name.endswith((".new", ".old")):  # there for a moment
                self.files.add(name + ("/" if path.is_dir() else ""))


@contextlib.asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    """A server over fake replicas whose loading waits for a gate."""
    gate = Gate()
    driver = FakeDriver(Script(load_s=1, signature=SIGNATURE, batch=2), sleep=gate)
    async with serving(folder, driver, gpus="none", cpu_slots=2) as server:
        yield Scene(server, gate, folder / "data")
