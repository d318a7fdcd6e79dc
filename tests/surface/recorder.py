"""Recorder of the answers, events, headers and files of a server over fake replicas."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from admin.documents.events import LOG_EVENTS, SERVER_EVENTS
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support.caller import Answer
from tests.support.described import check_answer, check_event, described_routes
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.images import FakeImages, image
from tests.support.server import Gate, ServingServer, serving
from tests.surface.shapes import JsonShape

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
"""Patterns of the parts of file names that differ between runs, with their placeholders."""
STREAMS = {"events": SERVER_EVENTS, "logs": LOG_EVENTS}
"""Types of events by the caption of their stream."""
EVERY_HEADER = {"Content-Length", "Content-Type", "Date", "Server"}


class Recorder:
    """Client of one server that records answers by route, events, headers and files."""

    def __init__(self, server: ServingServer, gate: Gate, data: Path) -> None:
        self.server = server
        self.gate = gate
        self.data = data
        self.answers = JsonShape()
        self.events: set[str] = set()
        """Names and fields of the events of streams."""
        self.headers: set[str] = set()
        self.files: set[str] = set()
        self.routes: set[str] = set()
        self.received: dict[str, list[Any]] = {}
        """The data of events by "stream.event"."""
        self._described = described_routes()
        self.values = {"name": "f", "ref": "f"}
        """Values of the parameters of routes."""

    @property
    def bearer(self) -> dict[str, str]:
        """Header with the admin token."""
        return {"Authorization": f"Bearer {self.server.token}"}

    async def request(
        self, route: str, body: Any = None, *, query: str = "", **headers: str
    ) -> Answer:
        """Send one request as the admin and record the answer.

        `route` is "METHOD /path/{name}", without its `query`; in the names of `headers`, `_` stands
        for `-`.
        """
        method, path = route.split()
        for name, value in self.values.items():
            path = path.replace(f"{{{name}}}", value)
        path += f"?{query}" if query else ""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.server.request(method, path, body, {**self.bearer, **given})
        self._record(route if answer.status < 400 else "problem", route, answer)
        return answer

    def _record(self, caption: str, route: str, answer: Answer) -> None:
        self.routes.add(route)
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        if described := self._described.get(route.replace("{ref}", "{name}")):
            check_answer(described, answer.status, kind, answer.body)
        self.headers |= {f"{caption}: {name}" for name in {*answer.headers} - EVERY_HEADER}
        self.headers.add(f"{caption}: Content-Type {kind or '-'}")
        is_described = route.endswith("/openapi.json") or f" {ADMIN}/" in caption
        if kind.endswith("json") and answer.body and not is_described:
            self.answers.add(caption, answer.json())

    async def follow(self, route: str, caption: str) -> None:
        """Record an event stream until it ends or this task is cancelled."""
        path = route.partition(" ")[2].replace("{name}", self.values["name"])
        headers = {**self.bearer, "Accept": "text/event-stream"}
        async with self.server.session.get(self.server.url + path, headers=headers) as stream:
            self.routes.add(route)
            self.headers.add(f"{caption}: Content-Type {stream.content_type}")
            self.headers |= {f"{caption}: {name}" for name in {*stream.headers} - EVERY_HEADER}
            kind = ""
            async for line in stream.content:
                name, _, text = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = f"{caption}.{text}"
                elif name == "data":
                    data = json.loads(text)
                    self.events.add(f"{caption} event {kind.rpartition('.')[2]}")
                    check_event(STREAMS[caption], kind.rpartition(".")[2], text)
                    self.received.setdefault(kind, []).append(data)
                elif name:
                    self.events.add(f"{caption} field {name}")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, checked after each round trip."""
        async with asyncio.timeout(UNTIL_S):
            while not condition():
                await self.server.get("/healthz")

    def has_phase(self) -> bool:
        """Return whether an event showed a function in a phase of its cold start."""
        events = self.received.get("events.functions", ())
        return any(item["phase"] for event in events for item in event["items"])

    def list_files(self) -> None:
        """Record the files of the data folder, with placeholders for ids, hashes, times and
        functions."""
        for path in self.data.rglob("*"):
            name = str(path.relative_to(self.data))
            for pattern, word in NAMES:
                name = re.sub(pattern, word, name)
            if not name.endswith((".new", ".old")):  # replaced within milliseconds
                self.files.add(name + ("/" if path.is_dir() else ""))


@contextlib.asynccontextmanager
async def recorder(folder: Path) -> AsyncIterator[Recorder]:
    """Recorder of a server over fake replicas, whose loads wait for the gate."""
    gate = Gate()
    driver = FakeDriver(Script(load_s=1, signature=SIGNATURE, batch=2), sleep=gate)
    driver.images = images = FakeImages()
    for number in (1, 2):  # one for the API, one for fnctl
        images.there[f"nginx:{number}"] = image(number)
        await images.pin(image(number).id, is_pulled=True)
    async with serving(folder, driver, gpus="none", cpu_slots=2, ballast_mib=1) as server:
        yield Recorder(server, gate, folder / "data")
