"""Right behaviours by path: what a correct server may do."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable

from tally import Tally
from wire import PIECE, Exchange

Handler = Callable[[Exchange, Tally], Awaitable[None]]
INSTANCE = os.urandom(8).hex()
"""Differs in each process of the server; process ids may be equal, in namespaces of their own."""
PATTERN = bytes(range(256)) * (PIECE // 256)


async def ready(exchange: Exchange, tally: Tally) -> None:
    """Answer that the server is ready."""
    await exchange.answer(b"ready\n")


async def show(exchange: Exchange, tally: Tally) -> None:
    """Answer the request as it was received, with its body's digest."""
    body = await exchange.whole()
    request = exchange.request
    await exchange.json(
        {
            "method": request.method,
            "target": request.target,
            "fields": request.fields,
            "trailers": exchange.trailers,
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
            "instance": INSTANCE,
        }
    )


async def echo(exchange: Exchange, tally: Tally) -> None:
    """Send the body back while it arrives; its digest is the trailer."""
    digest = hashlib.sha256()
    is_counted = exchange.request.length >= 0
    exchange.go_on()
    fields = {"Content-Type": "application/octet-stream"}
    if is_counted:
        exchange.head(200, {**fields, "Content-Length": str(exchange.request.length)})
    else:
        exchange.chunked({**fields, "Trailer": "X-Digest"})
    async for piece in exchange.body():
        digest.update(piece)
        await (exchange.send(piece) if is_counted else exchange.chunk(piece))
    if not is_counted:
        await exchange.end(f"X-Digest: {digest.hexdigest()}\r\n")


async def sized(exchange: Exchange, tally: Tally) -> None:
    """Answer `n` bytes of a pattern with their length."""
    await _drop(exchange)
    left = exchange.request.number("n", 1 << 20)
    exchange.head(200, {"Content-Length": str(left)})
    if exchange.request.method != "HEAD":
        while left:
            await exchange.send(PATTERN[: min(left, PIECE)])
            left -= min(left, PIECE)


async def chunked(exchange: Exchange, tally: Tally) -> None:
    """Answer `n` chunks of `size` bytes, one in `ms`."""
    await _drop(exchange)
    exchange.chunked()
    for _ in range(exchange.request.number("n", 10)):
        await exchange.chunk(PATTERN[: exchange.request.number("size", 100)])
        await _pause(exchange)
    await exchange.end()


async def trailers(exchange: Exchange, tally: Tally) -> None:
    """Answer chunks with trailer fields."""
    await _drop(exchange)
    exchange.chunked({"Trailer": "X-Sum"})
    await exchange.chunk(b"body")
    await exchange.end("X-Sum: 4\r\n")


async def sse(exchange: Exchange, tally: Tally) -> None:
    """Send `n` events of `size` bytes, one in `ms`, numbered, then [DONE]."""
    await _drop(exchange)
    exchange.chunked({"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    filling = "x" * exchange.request.number("size", 0)
    for number in range(exchange.request.number("n", 10)):
        await exchange.chunk(f"data: {number} {filling}\n\n".encode())
        await _pause(exchange)
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.end()


async def slow_write(exchange: Exchange, tally: Tally) -> None:
    """Send head and body byte by byte, `n` bytes with `ms` between them."""
    count = exchange.request.number("n", 100)
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {count}\r\n\r\n"
    for byte in head.encode() + PATTERN[:count]:
        await exchange.send(bytes([byte]))
        await _pause(exchange)


async def slow_read(exchange: Exchange, tally: Tally) -> None:
    """Read the body with `ms` between the pieces; answer its digest."""
    digest, count = hashlib.sha256(), 0
    async for piece in exchange.body():
        digest.update(piece)
        count += len(piece)
        await _pause(exchange)
    await exchange.json({"bytes": count, "sha256": digest.hexdigest()})


async def early(exchange: Exchange, tally: Tally) -> None:
    """Answer before the body is read, then close, or read on if `read` is set."""
    await exchange.answer(b"too large\n", 413, {"Connection": "close"})
    exchange.is_over = True
    if "read" in exchange.request.query:
        await exchange.whole()
    else:
        await exchange.close()


async def refuses(exchange: Exchange, tally: Tally) -> None:
    """Answer 417 instead of 100, and read no body."""
    await exchange.answer(b"", 417, {"Connection": "close"})
    await exchange.close()


async def hints(exchange: Exchange, tally: Tally) -> None:
    """Send two interim answers before the final one."""
    await _drop(exchange)
    exchange.head(103, {"Link": "</style.css>; rel=preload"})
    exchange.head(103, {"Link": "</code.js>; rel=preload"})
    await exchange.answer(b"hinted\n")


async def status(exchange: Exchange, tally: Tally) -> None:
    """Answer the status `code`, without a body where the status has none."""
    await _drop(exchange)
    code = exchange.request.number("code", 200)
    if code in (204, 304):
        exchange.head(code, {"X-Said": str(code)})
    else:
        await exchange.answer(f"status {code}\n".encode(), code, {"X-Said": str(code)})


async def concurrency(exchange: Exchange, tally: Tally) -> None:
    """Hold the exchange for `ms`; answer how many were open, now and at most."""
    tally.entered()
    try:
        await _drop(exchange)
        await _pause(exchange, 50)
        found = {"now": tally.open, "max": tally.open_max, "token": exchange.request.get("token")}
        await exchange.json(found)
    finally:
        tally.left()


async def sleep(exchange: Exchange, tally: Tally) -> None:
    """Answer after `ms`."""
    await _drop(exchange)
    await _pause(exchange, 1000)
    await exchange.answer(exchange.request.get("token", "slept").encode())


async def old(exchange: Exchange, tally: Tally) -> None:
    """Answer as HTTP/1.0, ended by the connection's end."""
    await _drop(exchange)
    await exchange.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nold ")
    await _pause(exchange, 10)
    await exchange.send(b"and whole\n")
    await exchange.close()


async def until_end(exchange: Exchange, tally: Tally) -> None:
    """Answer the token, and once more after `ms`; the answer ends with the connection."""
    await _drop(exchange)
    token = exchange.request.get("token")
    exchange.head(200, {"Content-Type": "text/plain", "Connection": "close"})
    await exchange.send(f"{token} ".encode())
    await _pause(exchange, 10)
    await exchange.send(token.encode())
    await exchange.close()


async def half_close(exchange: Exchange, tally: Tally) -> None:
    """Answer until the end of the sending direction only, and keep reading."""
    await _drop(exchange)
    exchange.is_over = True
    await exchange.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf")
    exchange.writer.write_eof()
    while await exchange.reader.read(PIECE):
        pass


async def told(exchange: Exchange, tally: Tally) -> None:
    """Answer the tally; `tokens` adds them, `reset` empties it afterwards."""
    query = exchange.request.query
    body = json.dumps(tally.to_json(tokens="tokens" in query)).encode()
    if "reset" in query:
        tally.reset()
    await exchange.answer(body, fields={"Content-Type": "application/json"})


async def _drop(exchange: Exchange) -> None:
    async for _ in exchange.body():
        pass


async def _pause(exchange: Exchange, default_ms: int = 0) -> None:
    if milliseconds := exchange.request.number("ms", default_ms):
        await asyncio.sleep(milliseconds / 1e3)


PATHS: dict[str, Handler] = {
    "/": ready,
    "/ready": ready,
    "/show": show,
    "/echo": echo,
    "/sized": sized,
    "/chunked": chunked,
    "/trailers": trailers,
    "/sse": sse,
    "/slow-write": slow_write,
    "/slow-read": slow_read,
    "/early": early,
    "/refuses": refuses,
    "/hints": hints,
    "/status": status,
    "/concurrency": concurrency,
    "/sleep": sleep,
    "/old": old,
    "/until-end": until_end,
    "/half-close": half_close,
    "/tally": told,
}
