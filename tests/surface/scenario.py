"""Scenario: one function from its first deploy to its removal, with a request to every route."""

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

from admin.store import admin_token
from registry.model.devices import Use
from registry.model.history import Arrivals
from registry.usage import UsageRow
from tests.support.operator import MODEL
from tests.surface.cli_output import CliOutput, make_environment
from tests.surface.protocol import routes
from tests.surface.recorder import ADMIN, UNTIL_S, Recorder, recorder
from tests.surface.storage import schema

BODY: dict[str, Any] = {"inputs": {"x": [[1.0]]}}
MANIFEST = 'schema = 1\nmodel = "m.onnx"\n[labels]\nteam = "a"\n'
MODEL_API = 'schema = 1\n[server]\ncommand = "serve ${PORT}"\n[openai]\n'
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
    "GET /fn/{ref}/openapi.json",
    "GET /openapi.json",
    "GET /docs",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /ui/{file}",
)


@dataclass(frozen=True)
class Recorded:
    """Results of a run: the server's records, the verbs of `fnctl`, the database's tables."""

    server: Recorder
    cli: CliOutput
    tables: list[str]

    def answers(self) -> list[str]:
        """List keys and types by route, without those of the admin API. Raise AssertionError for a
        GET or POST route without a request."""
        every = {" ".join(line.split()[:2]) for line in routes()}
        missing = {one for one in every if one.startswith(("GET", "POST"))} - self.server.routes
        assert not missing, f"not requested: {', '.join(sorted(missing))}"
        return self.server.answers.lines()

    def operation_states(self) -> list[str]:
        """List the values of operations, which pass through them in a fixed order.

        A phase's first word: behind it stands what is awaited for long, on a busy machine.
        """
        events = self.server.received["events.operation"]
        keys = ("phase", "state", "kind")
        return [
            f"operation {key} {event[key].partition(' ')[0]}" for event in events for key in keys
        ]


async def run() -> Recorded:
    """Run the scenario, then `fnctl restore` on the stopped server's folder."""
    # Not pytest's folder, because the length of a socket's path is limited.
    with capture_logs(), tempfile.TemporaryDirectory(prefix="fn-") as folder:
        async with recorder(Path(folder)) as server:
            cli = CliOutput(server.server.url, server.server.token, server.data)
            events = asyncio.create_task(server.follow(f"GET {ADMIN}/events", "events"))
            try:
                await server.until(lambda: "events.ready" in server.received)
                await _deploy(server)
                await _wake(server)
                await _wait_for_history(server)
                await _read(server)
                await _change(server, cli)
                await server.until(lambda: "events.gone" in server.received)
                await asyncio.to_thread(cli.run_rotation)
                server.server.token = admin_token(server.data)
                await server.request(f"POST {ADMIN}/access/token")
                server.list_files()
            finally:
                events.cancel()
                await asyncio.wait([events])
        await asyncio.to_thread(cli.run_restore)
        server.list_files()
        return Recorded(server, cli, schema(server.data / "fngate.db"))


async def _deploy(server: Recorder) -> None:
    for content in (MODEL, MODEL * 2):
        digest = hashlib.sha256(content).hexdigest()
        server.values["sha256"] = digest
        await server.request(f"PUT {ADMIN}/blobs/{{sha256}}", content)
        await server.request(f"HEAD {ADMIN}/blobs/{{sha256}}")
        files = [{"path": "m.onnx", "size": len(content), "sha256": digest}]
        request = {"files": files, "manifest": MANIFEST}
        answer = await server.request(f"POST {FUNCTION}/revisions", request)
        server.values["id"] = answer.json()["id"]
        ended = await server.server.ended(answer.json())
        assert ended.json()["state"] == "done", ended.json()
        await server.request(f"GET {ADMIN}/operations/{{id}}")


async def _wake(server: Recorder) -> None:
    """Send a call that waits for a cold start, one that refuses to wait, and three with other
    results."""
    await server.request("GET /fn/{name}")
    server.gate.shut()
    waiting = asyncio.create_task(server.request("POST /fn/{name}", BODY))
    await server.server.until_shown("f", state="waking")
    assert (await server.request("POST /fn/{name}", BODY, Prefer="wait=0")).status == 503
    await server.request(f"GET {FUNCTION}")
    await server.request(f"GET {ADMIN}/functions")
    await server.until(server.has_phase)
    server.gate.open()
    assert (await waiting).status == 200
    assert (await server.request("POST /fn/{name}", BODY, Prefer="wait=9")).status == 200
    assert (await server.request("POST /fn/{name}", BODY, Content_Encoding="br")).status == 415
    assert (await server.request("PUT /fn/{name}", BODY)).status == 405


async def _wait_for_history(server: Recorder) -> None:
    """Add records that the history gets only after minutes; wait for those it gets within a
    second."""
    history, minute_s = server.server.server.store.history, int(time.time()) // 60 * 60
    history.record(Use("default", "f", 2, "cpu:0", minute_s, 1.0, 1.0, 1.0, 3.0))
    history.record(Arrivals("default", "f", minute_s, 2))
    usage = server.server.server.store.usage
    usage.add(UsageRow("", "default", "f", minute_s // 3600 * 3600, 1, 1, 1, 1, 1))
    await usage.flush()

    async def is_recorded() -> bool:
        await history.flush()
        why = (await server.request(f"GET {FUNCTION}/why")).json()
        errors = (await server.request(f"GET {FUNCTION}/errors")).json()
        shown = (await server.request(f"GET {FUNCTION}")).json()
        is_known = None not in (shown["p50_ms"], shown["sleeps_at_s"])
        return is_known and bool(why["cold_starts"] and why["intervals"] and errors["items"])

    await server.server.until(is_recorded)
    for kind in ("error", "cold_start", "beat"):
        await server.until(lambda kind=kind: f"events.{kind}" in server.received)


async def _read(server: Recorder) -> None:
    await server.server.server.store.backups.copy_if_due()
    server.list_files()
    server.values["file"] = ""
    key = await server.request(f"POST {ADMIN}/keys", {"scopes": ["read"], "note": "n"})
    await server.request(f"GET {ADMIN}/keys")
    await server.request(f"GET {ADMIN}/access")
    await server.request(f"PATCH {ADMIN}/access", {"openness": "closed"})
    await server.request(f"POST {ADMIN}/secrets", {"name": "f", "value": "v"})
    await server.request(f"GET {ADMIN}/secrets")
    await server.request(f"DELETE {ADMIN}/secrets/{{name}}")
    await _read_aliases(server)
    await server.request(f"POST {FUNCTION}/prepare", {"now": True})
    await _read_hosts(server)
    await server.request(f"POST {ADMIN}/images/prune")
    await _read_environments(server)
    for by in ("key", "function"):
        await server.request(f"GET {ADMIN}/usage", query=f"by={by}")
        await server.request(f"GET {ADMIN}/cost", query=f"by={by}")
    for route in READ:
        await server.request(route)
    await server.request("GET /", Accept="application/json")
    server.values["id"] = key.json()["id"]
    await server.request(f"DELETE {ADMIN}/keys/{{id}}")


async def _read_hosts(server: Recorder) -> None:
    """Add a host that does not answer, look at it, and remove it."""
    host = {"address": "127.0.0.1:1", "name": "f", "labels": {"zone": "a"}}
    await server.request(f"POST {ADMIN}/hosts", host, query="unchecked=true")
    await server.request(f"GET {ADMIN}/hosts")
    await server.request(f"GET {ADMIN}/hosts/{{name}}")
    await server.request(f"PATCH {ADMIN}/hosts/{{name}}", {"draining": True})
    await server.request(f"POST {ADMIN}/hosts/{{name}}/check")
    await server.until(
        lambda: any(
            item["name"] == "f" for e in server.received["events.hosts"] for item in e["items"]
        )
    )
    await server.request(f"DELETE {ADMIN}/hosts/{{name}}")
    await server.until(lambda: any("hosts" in e for e in server.received.get("events.gone", ())))


async def _read_environments(server: Recorder) -> None:
    """Look at an environment that no function names, and remove it."""
    server.values["id"] = make_environment(server.data)
    await server.request(f"GET {ADMIN}/environments")
    await server.request(f"GET {ADMIN}/environments/{{id}}")
    await server.request(f"DELETE {ADMIN}/environments/{{id}}")
    make_environment(server.data)
    await server.request(f"POST {ADMIN}/environments/prune")


async def _read_aliases(server: Recorder) -> None:
    """Add an alias to a model, `m`, which stays."""
    await server.server.deploy({"app.py": b""}, name="m", manifest=MODEL_API)
    await server.request(f"POST {ADMIN}/aliases", {"function": "m", "alias": "a"})
    await server.request(f"POST {ADMIN}/aliases", {"function": "f", "alias": "a"})
    await server.request(f"GET {ADMIN}/aliases")
    server.values["rest"] = "chat/completions"
    assert (await server.request("POST /v1/{rest}", {"model": "none"})).status == 404
    assert (await server.request("GET /v1/realtime")).status == 400
    await server.request(f"DELETE {ADMIN}/aliases", query="alias=a")


async def _change(server: Recorder, cli: CliOutput) -> None:
    await server.request(f"POST {FUNCTION}/warm")
    assert (await server.request(f"POST {FUNCTION}/tickets", {})).status == 400
    etag = (await server.request(f"GET {FUNCTION}")).headers["ETag"]
    await server.request(f"PATCH {FUNCTION}", {"max": 2}, If_Match=etag)
    await server.request(f"PATCH {FUNCTION}", {"max": 2}, If_Match=etag)
    rollback = await server.request(f"POST {FUNCTION}/rollback", {})
    server.values["id"] = rollback.json()["id"]
    await server.server.ended(rollback.json())
    await server.request(f"GET {ADMIN}/operations/{{id}}")
    await server.request(f"DELETE {ADMIN}/operations/{{id}}")
    await asyncio.to_thread(cli.run_verbs)
    await server.request(f"POST {FUNCTION}/sleep")
    for verb in ("park", "unpark"):
        assert (await server.request(f"POST {FUNCTION}/{verb}")).status == 409
    logs = asyncio.create_task(server.follow(f"GET {FUNCTION}/logs", "logs"))
    await server.until(lambda: "logs.lines" in server.received)
    await server.request(f"DELETE {FUNCTION}")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(logs, UNTIL_S)
