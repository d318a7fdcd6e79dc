"""Wrong behaviours by path: what a broken or hostile server may do."""

from __future__ import annotations

import asyncio
import os
import sys

from answers import Handler
from tally import Tally
from wire import PIECE, Exchange, encode_head

MIB = 1 << 20
LINE = b"x" * 1023 + b"\n"


async def reset(exchange: Exchange, tally: Tally) -> None:
    """End the connection with RST before the answer."""
    await exchange.whole()
    exchange.reset()


async def reset_body(exchange: Exchange, tally: Tally) -> None:
    """End the connection with RST in the middle of a body with a length."""
    await exchange.whole()
    exchange.head(200, {"Content-Length": "1000"})
    await exchange.send(b"part")
    await asyncio.sleep(0.05)
    exchange.reset()


async def fin(exchange: Exchange, tally: Tally) -> None:
    """End the connection with FIN before the answer."""
    await exchange.whole()
    await exchange.close()


async def fin_head(exchange: Exchange, tally: Tally) -> None:
    """End the connection with FIN in the middle of the head."""
    await exchange.whole()
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    await exchange.close()


async def fin_body(exchange: Exchange, tally: Tally) -> None:
    """End the connection with FIN in the middle of a body with a length."""
    await exchange.whole()
    exchange.head(200, {"Content-Length": "1000"})
    await exchange.send(b"part")
    await exchange.close()


async def no_last_chunk(exchange: Exchange, tally: Tally) -> None:
    """End the connection with FIN instead of the last chunk."""
    await exchange.whole()
    exchange.chunked()
    await exchange.chunk(b"data: 0\n\n")
    await exchange.close()


async def bad_chunk(exchange: Exchange, tally: Tally) -> None:
    """Send a chunk size that is none."""
    await exchange.whole()
    exchange.chunked()
    await exchange.chunk(b"good")
    await exchange.send(b"zz\r\nbad\r\n0\r\n\r\n")


async def two_lengths(exchange: Exchange, tally: Tally) -> None:
    """Answer with two different lengths."""
    await exchange.whole()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 9\r\n\r\n"
    await exchange.send(head + b"four nine")


async def length_and_chunks(exchange: Exchange, tally: Tally) -> None:
    """Answer with a length and as chunks."""
    await exchange.whole()
    exchange.chunked({"Content-Length": "4"})
    await exchange.chunk(b"four")
    await exchange.end()


async def endless_head(exchange: Exchange, tally: Tally) -> None:
    """Send `mib` MiB of headers."""
    await exchange.whole()
    await exchange.send(b"HTTP/1.1 200 OK\r\n")
    line = (b"X-Filling: " + b"x" * 1000 + b"\r\n") * 64
    for _ in range(exchange.request.number("mib", 1024) * MIB // len(line)):
        await exchange.send(line)
    await exchange.send(b"Content-Length: 0\r\n\r\n")


async def never(exchange: Exchange, tally: Tally) -> None:
    """Read the request and never answer."""
    await exchange.whole()
    await exchange.reader.read(1)
    await exchange.close()


async def never_reads(exchange: Exchange, tally: Tally) -> None:
    """Neither read the body nor answer, until the connection breaks."""
    exchange.is_over = True
    exchange.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(exchange.request.number("ms", 600_000) / 1e3)
    exchange.reset()


async def switches(exchange: Exchange, tally: Tally) -> None:
    """Answer 101 although nothing was asked for."""
    await exchange.whole()
    exchange.head(101, {"Upgrade": "other", "Connection": "Upgrade"})
    await exchange.send(b"other protocol")


async def head_body(exchange: Exchange, tally: Tally) -> None:
    """Answer with a body, also to HEAD.

    In one piece: a body that comes later than its head cannot be told from the next answer.
    """
    await exchange.whole()
    await exchange.send(encode_head(200, {"Content-Length": "9"}) + b"unwelcome")


async def body_of_204(exchange: Exchange, tally: Tally) -> None:
    """Answer 204 with a length and a body, in one piece."""
    await exchange.whole()
    await exchange.send(encode_head(204, {"Content-Length": "9"}) + b"unwelcome")


async def two_answers(exchange: Exchange, tally: Tally) -> None:
    """Answer twice in one write."""
    await exchange.whole()
    second = b"second of " + exchange.request.get("token").encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
    await exchange.send(answer % (5, b"first") + answer % (len(second), second))


async def late_answer(exchange: Exchange, tally: Tally) -> None:
    """Answer, and once more after `ms` without a request."""
    await exchange.whole()
    await exchange.answer(b"first")
    await asyncio.sleep(exchange.request.number("ms", 20) / 1e3)
    await exchange.answer(b"second of " + exchange.request.get("token").encode())


async def garbage(exchange: Exchange, tally: Tally) -> None:
    """Answer bytes that are no HTTP."""
    await exchange.whole()
    await exchange.send(b"\x16\x03\x01\x02\x00 SSH-2.0-none\r\n\r\n")
    await exchange.close()


async def raw(exchange: Exchange, tally: Tally) -> None:
    """Answer the request's body as it is, then `end`: fin, rst or keep."""
    body = await exchange.whole()
    size = exchange.request.number("size", PIECE) or PIECE
    for start in range(0, len(body), size):
        await exchange.send(body[start : start + size])
        if size < len(body):
            await asyncio.sleep(0)
    end = exchange.request.query.get("end", "fin")
    if end == "rst":
        exchange.reset()
    elif end == "fin":
        await exchange.close()


async def crash(exchange: Exchange, tally: Tally) -> None:
    """End the server's process with exit code 3."""
    await exchange.whole()
    os._exit(3)


async def crash_body(exchange: Exchange, tally: Tally) -> None:
    """End the server's process in the middle of an answer."""
    await exchange.whole()
    exchange.chunked()
    await exchange.chunk(b"data: 0\n\n")
    await asyncio.sleep(0.05)
    os._exit(3)


async def eat(exchange: Exchange, tally: Tally) -> None:
    """Use `mib` MiB of memory, written so that it is resident, and keep them."""
    await exchange.whole()
    for _ in range(exchange.request.number("mib", 1024)):
        EATEN.append(b"\x01" * MIB)
        await asyncio.sleep(0)
    await asyncio.sleep(exchange.request.number("ms", 0) / 1e3)
    await exchange.answer(b"eaten\n")


async def talk(exchange: Exchange, tally: Tally) -> None:
    """Write `mib` MiB of log lines."""
    await exchange.whole()
    for _ in range(exchange.request.number("mib", 16)):
        os.write(sys.stderr.fileno(), LINE * (MIB // len(LINE)))
        await asyncio.sleep(0)
    await exchange.answer(b"talked\n")


EATEN: list[bytes] = []
PATHS: dict[str, Handler] = {
    "/reset": reset,
    "/reset-body": reset_body,
    "/fin": fin,
    "/fin-head": fin_head,
    "/fin-body": fin_body,
    "/no-last-chunk": no_last_chunk,
    "/bad-chunk": bad_chunk,
    "/two-lengths": two_lengths,
    "/length-and-chunks": length_and_chunks,
    "/endless-head": endless_head,
    "/never": never,
    "/never-reads": never_reads,
    "/switches": switches,
    "/head-body": head_body,
    "/body-of-204": body_of_204,
    "/two-answers": two_answers,
    "/late-answer": late_answer,
    "/garbage": garbage,
    "/raw": raw,
    "/crash": crash,
    "/crash-body": crash_body,
    "/eat": eat,
    "/talk": talk,
}
