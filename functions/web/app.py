"""Small web application: JSON routes, an upload, server-sent events and a WebSocket.

It knows nothing of fngate: `uvicorn app:app` serves it alone just as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import PlainTextResponse, StreamingResponse

app = FastAPI(title="web")
TICKS_MAX = 1000
ITEMS = ("apple", "banana", "cherry")


@app.get("/health")
def health() -> dict[str, str]:
    """Answer the readiness probe."""
    return {"status": "ok"}


@app.get("/")
def index() -> PlainTextResponse:
    """Say what is here."""
    return PlainTextResponse("GET /items?q=a  POST /count  GET /ticks?n=5  WebSocket /shout\n")


@app.get("/items")
def items(q: str = "") -> dict[str, list[str]]:
    """Return the items whose name contains `q`."""
    return {"items": [name for name in ITEMS if q in name]}


@app.get("/items/{number}")
def item(number: int) -> dict[str, str]:
    """Return one item, or 404: an error of the application, which fngate passes on as it is."""
    if not 0 <= number < len(ITEMS):
        raise HTTPException(404, f"there are {len(ITEMS)} items")
    return {"item": ITEMS[number]}


@app.post("/count")
async def count(request: Request) -> dict[str, int]:
    """Count bytes and lines of a body of any size, while it arrives."""
    size = lines = 0
    async for piece in request.stream():
        size += len(piece)
        lines += piece.count(b"\n")
    return {"bytes": size, "lines": lines}


@app.get("/ticks")
async def ticks(n: int = 5, pause_s: float = 0.2) -> StreamingResponse:
    """Send `n` server-sent events, one each `pause_s` seconds."""
    return StreamingResponse(tick(min(n, TICKS_MAX), pause_s), media_type="text/event-stream")


async def tick(n: int, pause_s: float) -> AsyncIterator[str]:
    """Yield the events. It ends early when the client goes: the stream is cancelled."""
    for at in range(n):
        if at:
            await asyncio.sleep(pause_s)
        yield f"event: tick\ndata: {json.dumps({'tick': at})}\n\n"
    yield "event: end\ndata: {}\n\n"


@app.websocket("/shout")
async def shout(socket: WebSocket) -> None:
    """Answer each message in capitals, until the client hangs up."""
    await socket.accept()
    try:
        while True:
            await socket.send_text((await socket.receive_text()).upper())
    except WebSocketDisconnect:
        pass
