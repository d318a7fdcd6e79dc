"""Simulated server function: its details, and the answers of its server."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from aiohttp import web

SERVER: Final = {
    "command": ["uvicorn", "app:app", "--host", "127.0.0.1", "--port", "${PORT}"],
    "env": ["WEB_CONCURRENCY"],
    "port": 0,
    "ready": "/health",
    "network": "none",
    "start_s": 60.0,
    "stop_grace_s": 10.0,
    "samples": [{"path": "/events?n=3", "method": "GET", "headers": {}, "body": "", "status": 200}],
    "secrets": {},
    "mounts": [],
    "fields": [],
    "paths": {"wake": ["/items/*", "POST /v1/*"], "free": ["/static/*"], "deny": ["/admin/*"]},
}
EXCHANGE: Final = {
    "concurrency": 32,
    "first_byte_s": 300.0,
    "stall_s": 0.0,
    "max_s": 600.0,
    "drain_s": 600.0,
    "websockets": "count",
}
LISTED: Final = 50
SIGNATURE: Final[dict[str, Any]] = {"kind": "http", "inputs": [], "outputs": []}


def detail(line: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return GET /functions/{name} of a server function with one revision."""
    name, number = line["name"], int(line["revision"].partition("@")[2])
    return {
        **line,
        "limits": {"timeout_s": 60, "wait_s": 55, "queue": 2000, "body_mib": 64, "retry": "auto"},
        "aliases": ["openai/gpt-4o:mini", "a" * 200, *(f"alias-{n}" for n in range(10))],
        "signature": SIGNATURE,
        "content_types": [],
        "inputs": {},
        "output": {"tensor": "", "labels": [], "top_k": 0},
        "batching": {"mode": "off", "max_size": 0, "wait_ms": 0.0},
        "device": {"kind": "any", "memory_mib": 0, "share": 1.0},
        "server": SERVER,
        "exchange": EXCHANGE,
        "sample": "zeros",
        "revisions": [_revision(number)],
        "previous": None,
        "cold_starts": [],
        "example": f"curl {origin}/fn/{name}/",
    }


def connected(state: str, now_s: float) -> dict[str, Any]:
    """Return the part of GET /functions/{name}/why about open exchanges: none unless it is warm,
    else 1,000, of which the first 50 are listed."""
    if state != "warm":
        return {"connected": [], "connections": {"counting": 0, "free": 0}, "awake": ""}
    kinds = ("websocket", "events", "request")
    items = [
        {
            "key": f"{at:012x}",
            "note": "the lab" if at % 3 else "",
            "kind": kinds[at % 3],
            "since_s": now_s - 4000 + 70 * at,
            "path": f"/api/kernels/{at:08x}/channels" + "/deeper" * (at % 7),
            "counts": at < LISTED - 5,
        }
        for at in range(LISTED)
    ]
    return {
        "connected": items,
        "connections": {"counting": 995, "free": 5},
        "awake": "995 open exchanges keep it awake",
    }


def usage(name: str, *, days: int) -> dict[str, Any]:
    """Return GET /usage?by=key of a function in the last day and `days` before it. Only `web` was
    called at /v1, with twelve keys."""
    number, names = days + 1, ("tokens_in", "tokens_out", "calls", "unknown")
    keys = 12 if name == "web" else 0
    items = [
        {
            "key": f"{at:012x}" if at else "",
            "note": "the shop" if at == 2 else "",
            "removed": at == 1,
            **dict(zip(names, (99_000 // (at + 1), 12_345, 40 + at, at % 2), strict=True)),
        }
        for at in range(keys)
    ]
    for item in items:
        item |= {each: item[each] * number for each in names}
    total = {each: sum(int(str(item[each])) for item in items) for each in names}
    return {"by": "key", "items": items, "left_out": 0, "total": total, "next": None}


def _revision(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "traffic": True,
        "bundle": "5f2a0c11d8e94b37",
        "engine": "server",
        "model": "",
        "handler": "",
        "size": 4_311,
        "created_s": 1_790_000_000.0,
        "signature": SIGNATURE,
        "profile": {
            "device_kind": "cpu",
            "load_ms": 912.4,
            "memory_mib": 49.0,
            "latency_ms": {},
            "batchable": False,
            "why_not": "",
            "batch_max": 1,
            "profiled": True,
            "note": "",
            "prepared": None,
            "why_not_prepared": "",
        },
        "batch_max": 1,
        "batching": "off",
    }


async def exchange(
    request: web.Request, tick: asyncio.Semaphore, ended: asyncio.Semaphore
) -> web.StreamResponse:
    """Answer as the server would: events for /events, a redirect for /away, else an echo."""
    path = "/" + request.match_info["path"]
    if path == "/away":
        return web.Response(status=307, headers={"Location": "/fn/web/"})
    if path != "/events":
        told = {"method": request.method, "path": path, "query": request.query_string}
        return web.json_response(told, headers={"X-App": "echo"})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    try:
        for at in range(int(request.query.get("n", "3"))):
            await tick.acquire()
            event = f"event: tick\ndata: {json.dumps({'n': at, 'word': '<b>bold</b>'})}\n\n"
            await response.write(event.encode())
    finally:
        ended.release()
    return response
