"""A function's life on a server, from its first deploy to its removal, with every route asked."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from admin.advice.advice import Row
from admin.views import occupancy_json
from pool_manager.core.state import Device
from pool_manager.ports import GpuView
from pool_manager.reports import Occupancy
from registry.model import Arrivals, Use
from tests.support.operator import MODEL
from tests.surface.http import routes
from tests.surface.live import ADMIN, UNTIL_S, Scene, scene
from tests.surface.shapes import fields_of
from tests.surface.speaking import Speech
from tests.surface.storage import schema

BODY: dict[str, Any] = {"inputs": {"x": [[1.0]]}}
MANIFEST = 'schema = 1\nmodel = "m.onnx"\n[labels]\nteam = "a"\n'
FUNCTION = f"{ADMIN}/functions/{{name}}"
READ = (
    f"GET {ADMIN}/functions",
    f"GET {FUNCTION}",
    f"GET {FUNCTION}/revisions",
    f"GET {FUNCTION}/why",
    f"GET {FUNCTION}/logs",
    f"GET {FUNCTION}/errors",
    f"GET {FUNCTION}/sample",
    f"GET {FUNCTION}/timeline",
    f"GET {FUNCTION}/advice",
    f"GET {ADMIN}/timeline",
    f"GET {ADMIN}/pools",
    f"GET {ADMIN}/replicas",
    f"GET {ADMIN}/devices",
    f"GET {ADMIN}/session",
    f"GET {ADMIN}/backup",
    f"GET {ADMIN}/operations",
    f"GET {ADMIN}/nothing",
    "GET /fn/{name}",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /ui/{file}",
)


@dataclass(frozen=True)
class Told:
    """Everything that was seen."""

    scene: Scene
    speech: Speech
    tables: list[str]

    def answers(self) -> list[str]:
        """Routes with the types of their answers, key by key. Raises AssertionError where a GET or
        POST route was left out."""
        there = {one.rsplit(" ", 1)[0] if one.count(" ") > 1 else one for one in routes()}
        asked = {one for one in there if one.startswith(("GET", "POST"))}
        left_out = sorted(asked - self.scene.asked)
        assert not left_out, f"nothing is known of the answers of {', '.join(left_out)}"
        rows = fields_of(f"GET {FUNCTION}/advice.rows[]", Row)
        return [*self.scene.answers.lines(), *rows]

    def events(self) -> list[str]:
        """Events by name, key by key."""
        return self.scene.events.keys()

    def values(self) -> list[str]:
        """What operations were seen to be in, which they are one after the other."""
        told = self.scene.kinds["events.operation"]
        return [f"operation {key} {one[key]}" for one in told for key in ("phase", "state", "kind")]


async def tell() -> Told:
    """All of it, and the verbs of `fnctl` at the end."""
    # Short, for sockets lie in it.
    with capture_logs(), tempfile.TemporaryDirectory(prefix="fn-") as folder:
        async with scene(Path(folder)) as seen:
            events = asyncio.create_task(seen.follow(f"GET {ADMIN}/events", "events"))
            try:
                await seen.until(lambda: "events.ready" in seen.kinds)
                await _deploy(seen)
                await _wake(seen)
                await _record(seen)
                await _read(seen)
                speech = Speech(seen.server.url, seen.server.token, seen.data)
                await _change(seen, speech)
                await seen.until(lambda: "events.gone" in seen.kinds)
                seen.look()
            finally:
                events.cancel()
                await asyncio.wait([events])
        await asyncio.to_thread(speech.restore)
        seen.look()
        tables = schema(seen.data / "fngate.db")
    return Told(seen, speech, tables)


async def _deploy(seen: Scene) -> None:
    for content in (MODEL, MODEL * 2):
        digest = hashlib.sha256(content).hexdigest()
        seen.values["sha256"] = digest
        await seen.ask(f"PUT {ADMIN}/blobs/{{sha256}}", content)
        await seen.ask(f"HEAD {ADMIN}/blobs/{{sha256}}")
        files = [{"path": "m.onnx", "size": len(content), "sha256": digest}]
        request = {"files": files, "manifest": MANIFEST}
        answer = await seen.ask(f"POST {FUNCTION}/revisions", request)
        seen.values["id"] = answer.json()["id"]
        ended = await seen.server.ended(answer.json())
        assert ended.json()["state"] == "done", ended.json()
        await seen.ask(f"GET {ADMIN}/operations/{{id}}")


async def _wake(seen: Scene) -> None:
    """A call that waits for a replica, and beside it one that does not want to wait."""
    await seen.ask("GET /fn/{name}")
    seen.gate.shut()
    waiting = asyncio.create_task(seen.ask("POST /fn/{name}", BODY))
    await seen.server.until_shown("f", state="waking")
    assert (await seen.ask("POST /fn/{name}", BODY, Prefer="wait=0")).status == 503
    await seen.ask(f"GET {FUNCTION}")
    await seen.ask(f"GET {ADMIN}/functions")
    await seen.until(lambda: seen.has("functions", "phase", None))
    seen.gate.open()
    assert (await waiting).status == 200
    assert (await seen.ask("POST /fn/{name}", BODY, Prefer="wait=9")).status == 200
    assert (await seen.ask("POST /fn/{name}", BODY, Content_Encoding="br")).status == 415
    assert (await seen.ask("PUT /fn/{name}", BODY)).status == 405


async def _record(seen: Scene) -> None:
    """What the history has only after minutes; and what is told only a second later."""
    history, minute_s = seen.server.server.store.history, int(time.time()) // 60 * 60
    history.record(Use("default", "f", 2, "cpu:0", minute_s, 1.0, 1.0, 1.0))
    history.record(Arrivals("default", "f", minute_s, 2))

    async def is_told() -> bool:
        await history.flush()
        why = (await seen.ask(f"GET {FUNCTION}/why")).json()
        errors = (await seen.ask(f"GET {FUNCTION}/errors")).json()
        shown = (await seen.ask(f"GET {FUNCTION}")).json()
        known = shown["p50_ms"], shown["sleeps_at_s"]
        return None not in known and bool(
            why["cold_starts"] and why["intervals"] and errors["items"]
        )

    await seen.until_answered(is_told)
    for kind in ("error", "cold_start", "beat"):
        await seen.until(lambda kind=kind: f"events.{kind}" in seen.kinds)


async def _read(seen: Scene) -> None:
    await seen.server.server.store.backups.copy_if_due()
    seen.look()
    seen.values["file"] = ""
    key = await seen.ask(f"POST {ADMIN}/keys", {"scopes": ["read"], "note": "n"})
    await seen.ask(f"GET {ADMIN}/keys")
    for route in READ:
        await seen.ask(route)
    await seen.ask("GET /", Accept="application/json")
    seen.answers.add(f"GET {ADMIN}/devices.items[]", occupancy_json(_gpu(), 0.5))
    seen.values["id"] = key.json()["id"]
    await seen.ask(f"DELETE {ADMIN}/keys/{{id}}")


def _gpu() -> Occupancy:
    """A device of which everything is known."""
    view = GpuView("GPU", "0", "9.0", "580", 2.0, 1.0, 0.0, 0.5)
    return Occupancy(Device("GPU-a", "cuda", 2.0), "taken", "", ("r",), 1.0, view)


async def _change(seen: Scene, speech: Speech) -> None:
    await seen.ask(f"POST {FUNCTION}/warm")
    etag = (await seen.ask(f"GET {FUNCTION}")).headers["ETag"]
    await seen.ask(f"PATCH {FUNCTION}", {"max": 2}, If_Match=etag)
    await seen.ask(f"PATCH {FUNCTION}", {"max": 2}, If_Match=etag)
    rollback = await seen.ask(f"POST {FUNCTION}/rollback", {})
    seen.values["id"] = rollback.json()["id"]
    await seen.server.ended(rollback.json())
    await seen.ask(f"GET {ADMIN}/operations/{{id}}")
    await seen.ask(f"DELETE {ADMIN}/operations/{{id}}")
    await asyncio.to_thread(speech.verbs)
    await seen.ask(f"POST {FUNCTION}/sleep")
    logs = asyncio.create_task(seen.follow(f"GET {FUNCTION}/logs", "logs"))
    await seen.until(lambda: "logs.lines" in seen.kinds)
    await seen.ask(f"DELETE {FUNCTION}")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(logs, UNTIL_S)
