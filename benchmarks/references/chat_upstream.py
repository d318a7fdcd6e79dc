"""A server of chat completions behind every measured proxy, with known tokens at a known rate.

`python -m benchmarks.references.chat_upstream PORT [--start SECONDS --slow FILE]`, or the file
alone as the command of a function; it prints its port once it listens: SECONDS after its start if
FILE exists, else at once. Of a request it reads `model`, `stream`, `stream_options`, `max_tokens`
(the number of tokens) and `seed`: the milliseconds between two tokens of a stream, because every
proxy passes a seed on. Each token begins with "@" and the monotonic clock's nanoseconds of its
sending.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
LAST = b"data: [DONE]\n\n"
BACKLOG = 4096
PROMPT_TOKENS = 7
FILLING = "x" * 12


def chunk(data: bytes) -> bytes:
    """Encode one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: dict[str, Any]) -> bytes:
    """Encode one event."""
    return b"data: %b\n\n" % json.dumps(document, separators=(",", ":")).encode()


def usage(tokens: int) -> dict[str, int]:
    """Return the usage of an answer."""
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": PROMPT_TOKENS + tokens,
    }


class Connection(asyncio.Protocol):
    """One connection. It trusts its requests: only a benchmark sends them."""

    def __init__(self) -> None:
        self._data = b""
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio callback."""
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio callback: end the stream."""
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """asyncio callback: collect one request and answer it."""
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        if found and len(body) >= int(length or 0):
            self._data = b""
            self._answer(json.loads(body) if body else {})

    def _answer(self, asked: dict[str, Any]) -> None:
        tokens, model = int(asked.get("max_tokens") or 1), asked.get("model", "")
        base = {"id": "chatcmpl-1", "created": 1, "model": model}
        if not asked.get("stream"):
            said = {"role": "assistant", "content": f"@{time.monotonic_ns()} " + FILLING * tokens}
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            document = {**base, "object": "chat.completion", "choices": [choice]}
            body = json.dumps({**document, "usage": usage(tokens)}).encode()
            self._transport.write(WHOLE % (len(body), body))
            return
        chunks = {**base, "object": "chat.completion.chunk"}
        last = LAST
        if (asked.get("stream_options") or {}).get("include_usage"):
            last = event({**chunks, "choices": [], "usage": usage(tokens)}) + LAST
        choice = {"index": 0, "delta": {"content": "@%d " + FILLING}, "finish_reason": None}
        form = event({**chunks, "choices": [choice]})
        self._transport.write(STREAM)
        self._send(form, tokens, int(asked.get("seed") or 0) / 1e3, last)

    def _send(self, form: bytes, left: int, period_s: float, last: bytes) -> None:
        if not left:
            self._transport.write(chunk(last) + b"0\r\n\r\n")
            return
        self._transport.write(chunk(form % time.monotonic_ns()))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(period_s, self._send, form, left - 1, period_s, last)


async def serve(port: int, start_s: float) -> None:
    """Serve until the process ends."""
    await asyncio.sleep(start_s)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--start", type=float, default=0.0)
    parser.add_argument("--slow", type=Path, default=Path("/"))
    given = parser.parse_args()
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    run(serve(given.port, given.start if given.slow.exists() else 0.0))


if __name__ == "__main__":
    main()
