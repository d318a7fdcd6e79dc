"""A server of OpenAI's and Anthropic's protocols: `python chat.py --port PORT`.

Standard library only. `answers.py` and `plain.py` have its answers and the orders in a request's
text that direct them. GET /counts tells what was served, GET /last the last request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import email.parser
import json
import os
import signal
import sys
import time
from typing import Any, NamedTuple

import answers
import plain
from answers import Answer, Body, Orders, count, event, orders_of, sound_of, text_of
from wire import HEAD_MAX, LAST_CHUNK, Client, Cut, Gone, Request, read_request

BACKLOG = 1024
ANSWERS = {
    "/chat/completions": answers.chat,
    "/completions": answers.completion,
    "/responses": answers.response,
    "/embeddings": plain.embeddings,
    "/rerank": plain.rerank,
    "/moderations": plain.moderation,
    "/images/generations": plain.image,
    "/images/edits": plain.image,
    "/audio/transcriptions": plain.transcription,
    "/audio/translations": plain.transcription,
    "/messages": answers.message,
    "/messages/count_tokens": plain.token_count,
}
SPEECH = "/audio/speech"
GOLDEN = "A gate holds every call until its model wakes."
"""Beginning of the text of golden samples, which fngate asks by itself. They are counted apart."""
SPOKEN = ("system", "messages", "prompt", "input", "query", "documents")
"""Members of a request with its text, in their order."""


class Asked(NamedTuple):
    """One request of the protocols, and the time that its answer takes."""

    path: str
    body: Body
    text: str
    orders: Orders
    token_s: float


class Chat:
    """The server."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._tally = {"calls": 0, "failed": 0, "left": 0, "input_tokens": 0, "output_tokens": 0}
        self._failures: dict[str, int] = {}
        self._last: Body = {}
        self._counts = -1
        if given.counts:
            self._counts = os.open(given.counts, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    async def serve(self) -> None:
        """Listen and serve until the process ends."""
        await asyncio.sleep(self._given.start)
        made = asyncio.start_server(
            self._connected, self._given.host, self._given.port, limit=HEAD_MAX, backlog=BACKLOG
        )
        async with await made as server:
            sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
            sys.stdout.flush()
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(Gone, OSError):
            while True:
                request = await read_request(reader, writer)
                client = Client(reader, writer)
                try:
                    await self._exchange(request, client)
                finally:
                    is_kept = await client.release()
                if not is_kept:
                    break
        writer.close()

    async def _exchange(self, request: Request, client: Client) -> None:
        if request.method != "POST":
            await self._tell(request, client)
            return
        path = request.path.removeprefix(self._given.base)
        try:
            body = _parsed(request)
        except ValueError as error:
            await self._fail(client, path, 400, f"the body cannot be read: {error}")
            return
        self._last = {"path": request.path, "fields": request.fields, "bytes": len(request.body)}
        self._last["body"] = {name: one for name, one in body.items() if name != "file"}
        text = " ".join(filter(None, (text_of(body.get(name)) for name in SPOKEN)))
        if self._given.corrupt and os.access(self._given.corrupt, os.F_OK):
            text = text[::-1]
        orders = orders_of(text)
        rate = self._given.rate if orders.rate < 0 else orders.rate
        asked = Asked(path, body, text, orders, 1 / rate if rate else 0.0)
        await client.pause(asked.orders.think)
        if not await self._refused(client, asked):
            await self._answer(client, asked)

    async def _tell(self, request: Request, client: Client) -> None:
        """Answer a GET."""
        model = {"id": self._given.model, "object": "model", "owned_by": "chat"}
        model["created"] = answers.CREATED
        said: dict[str, Body] = {
            "/counts": dict(self._tally),
            "/last": self._last,
            "/health": {},
            f"{self._given.base}/models": {"object": "list", "data": [model]},
        }
        found = said.get(request.path)
        await client.reply(404 if found is None else 200, json.dumps(found).encode())

    async def _refused(self, client: Client, asked: Asked) -> bool:
        """Answer with an error, where the request asks for one or cannot be answered."""
        orders, model = asked.orders, asked.body.get("model")
        if asked.path not in ANSWERS and asked.path != SPEECH:
            await self._fail(client, asked.path, 404, f"no endpoint {asked.path}")
        elif self._given.model and model != self._given.model:
            await self._fail(client, asked.path, 404, f"The model `{model}` does not exist.")
        elif orders.fail and self._fails(asked):
            more = {"Retry-After": f"{orders.retry_after:g}"} if orders.retry_after else {}
            await self._fail(client, asked.path, orders.fail, "as the request orders", more)
        else:
            return False
        return True

    def _fails(self, asked: Asked) -> bool:
        times = self._failures[asked.text] = self._failures.get(asked.text, 0) + 1
        return not asked.orders.fail_times or times <= asked.orders.fail_times

    async def _fail(
        self, client: Client, path: str, status: int, text: str, more: dict[str, str] | None = None
    ) -> None:
        self._count(path, "failed", 0, 0)
        await client.reply(status, json.dumps(_error(path, status, text)).encode(), more=more)

    async def _answer(self, client: Client, asked: Asked) -> None:
        if asked.path == SPEECH:
            sound = sound_of(asked.text)
            await client.reply(200, sound, f"audio/{asked.body.get('response_format', 'mp3')}")
            self._count(asked.path, "calls", count(asked.text), 0)
            return
        try:
            made = ANSWERS[asked.path](asked.body, asked.text)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            await self._fail(client, asked.path, 400, f"{type(error).__name__}: {error}")
            return
        sent = self._stream if asked.body.get("stream") in (True, "true") else self._whole
        try:
            last = await sent(client, asked, made)
        except Gone as error:
            if not isinstance(error, Cut):
                self._count(asked.path, "left", 0, 0)
            raise
        if last:
            # Counted before its end: a client that has the answer finds it counted.
            place = "golden" if asked.text.startswith(GOLDEN) else asked.path
            self._count(place, "calls", made.input, made.output)
            await client.send(last)

    async def _whole(self, client: Client, asked: Asked, made: Answer) -> bytes:
        """Send the head of an answer; return its body, b"" if it has broken off."""
        await client.pause(asked.token_s * made.output)
        kind, body = "application/json", json.dumps(made.document).encode()
        if asked.body.get("response_format") == "text" and "text" in made.document:
            kind, body = "text/plain; charset=utf-8", made.document["text"].encode()
        orders = asked.orders
        if orders.die == 0:
            self._die(asked)
        client.head(200, kind, {"Content-Length": str(len(body))})
        if max(orders.die, orders.cut, orders.hang) >= 0:
            await client.send(body[: len(body) // 2])
            await self._break_off(client, asked)
            return b""
        return body

    async def _stream(self, client: Client, asked: Asked, made: Answer) -> bytes:
        """Send the events; return the last chunks, b"" if the stream has broken off. Without pauses
        several events go in one chunk."""
        orders, number = asked.orders, 0
        places = (orders.die, orders.cut, orders.hang, orders.error)
        if orders.die == 0:
            self._die(asked)
        client.begin_chunks()
        pending: list[bytes] = []
        for has_token, data in made.events:
            if has_token:
                if number in places:
                    if pending:
                        await client.chunk(b"".join(pending))
                    await self._break_off(client, asked)
                    return b""
                number += 1
                if asked.token_s:
                    await client.pause(asked.token_s)
            pending.append(data)
            if asked.token_s or len(pending) >= self._given.burst:
                await client.chunk(b"".join(pending))
                pending.clear()
        if pending:
            await client.chunk(b"".join(pending))
        return LAST_CHUNK

    async def _break_off(self, client: Client, asked: Asked) -> None:
        """End an answer in its middle as the request orders."""
        orders = asked.orders
        if orders.error >= 0:
            self._count(asked.path, "failed", 0, 0)
            error = _error(asked.path, 500, "as the request orders")
            await client.chunk(event(error, "error" if "message" in asked.path else ""))
            await client.send(LAST_CHUNK)
            return
        if orders.hang >= 0:
            await client.pause(3600)
        # What was sent is to arrive before the end.
        await client.pause(0.02)
        if orders.die >= 0:
            self._die(asked)
        self._count(asked.path, "failed", 0, 0)
        raise Cut

    def _die(self, asked: Asked) -> None:
        self._count(asked.path, "died", 0, 0)
        os.kill(os.getpid(), signal.SIGKILL)

    def _count(self, path: str, end: str, input: int, output: int) -> None:
        """Count a call: `calls` are whole, `failed`, `left` by the client, or `died`."""
        self._tally[end] = self._tally.get(end, 0) + 1
        self._tally["input_tokens"] += input
        self._tally["output_tokens"] += output
        if self._counts >= 0:
            line = {"at": time.time(), "path": path, "end": end, "pid": os.getpid()}
            line |= {"input": input, "output": output}
            os.write(self._counts, json.dumps(line).encode() + b"\n")


def _parsed(request: Request) -> Body:
    """Return the members of a body, or the fields of a form. Raises ValueError."""
    kind = request.fields.get("content-type", "")
    if kind.startswith("multipart/"):
        head = f"Content-Type: {kind}\r\n\r\n".encode()
        form = email.parser.BytesParser().parsebytes(head + request.body)
        parts = form.get_payload()
        if not isinstance(parts, list):
            raise ValueError("no form")
        fields: Body = {}
        for part in parts:
            name = str(part.get_param("name", "", "content-disposition"))
            data: Any = part.get_payload(decode=True)
            fields[name] = data if part.get_filename() is not None else data.decode()
        return fields
    made = json.loads(request.body)
    if not isinstance(made, dict):
        raise ValueError("no object")
    return made


def _error(path: str, status: int, text: str) -> Body:
    kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
    if path.startswith("/messages"):
        kind = {404: "not_found_error", **kinds}.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": text}}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": text, "type": kind, "param": None, "code": None}}


def main() -> None:
    """Serve until TERM."""
    parser = argparse.ArgumentParser(prog="chat.py")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--base", default="/v1", help="path of the endpoints")
    parser.add_argument("--model", default="", help="the only model; all others get 404")
    parser.add_argument("--rate", type=float, default=0.0, help="tokens per second; 0: no pauses")
    parser.add_argument("--burst", type=int, default=1, help="events in a chunk, without pauses")
    parser.add_argument("--start", type=float, default=0.0, help="seconds until it listens")
    parser.add_argument("--corrupt", help="file that makes all answers wrong while it exists")
    parser.add_argument("--counts", help="file that gets a line of JSON for each call")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    asyncio.run(Chat(parser.parse_args()).serve())


if __name__ == "__main__":
    main()
