"""Odd requests to /v1: refused in their protocol's shape, or passed on with the model that counts.

Two functions echo what their server gets: `awake`, and `asleep`, which only bodies name that are no
valid request. Its server must never start.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from gateway.v1.endpoints import ENDPOINTS, BodyForm, Protocol
from registry.usage import IDLE
from tests.chaos.footprint import memory_kib
from tests.chaos.ledger import Ledger
from tests.support.odd_bodies import (
    MODEL,
    OTHER,
    OddBody,
    form_models_of,
    huge_json,
    models_of,
    odd_form,
    odd_json,
)
from tests.support.odd_http import pieces
from tests.support.process_server import ServerProcess, server_process
from tests.support.raw_http import Connection, Got, NoHttp, ask, chunks, connected
from tests.support.worker_server import worker_pids

AT_ONCE = 32
ANSWER_S = 60.0
LIE_S = 0.2
"""Seconds that a connection with a wrong length waits for an answer."""
HUGE_EACH = 1000
"""One of so many bodies is of several MiB."""
GROWTH_MAX_KIB = 96 * 1024
SERVED = "served/model"
ECHO = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(b"")

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body):
        kinds = self.headers.get_all("Content-Type") or []
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Got-Type", "|".join(kinds))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

with open(sys.argv[2], "a") as starts:
    starts.write("x")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""
GOOD = json.dumps({"model": "awake", "messages": []}).encode()
JSON_TYPES = (
    *(b"application/json",) * 6,
    *(b"", b"text/plain", b"application/x-www-form-urlencoded", b"application/json; charset=utf-7"),
    *(
        b"multipart/form-data; boundary=B1",
        b"application/json; charset=utf-16",
        b"x",
        b";",
        b"\xff",
    ),
)
CODINGS = (*(b"",) * 40, b"identity", b"gzip", b"br", b"gzip, gzip", b"x", b"\xff")
QUERIES = (
    *(b"",) * 30,
    b"?",
    b"?a=b",
    b"?model=OTHER",
    b"?a=b&mod%65l=OTHER",
    b"?Model",
    b"?model;x",
)
FRAMINGS = (*("length",) * 14, *("chunked",) * 4, "short", "long", "both", "none", "odd", "twice")
REFUSED = frozenset({400, 404, 408, 411, 413, 415, 417, 431})
PATHS = tuple(ENDPOINTS.values())
UNKNOWN = (b"/chat", b"/chat/completions/", b"//chat/completions", b"/responses/x", b"/", b"/files")


class Request(NamedTuple):
    """One request. `is_right`: its framing is; a call on the same connection may follow.

    `is_valid`: its body may be valid, and names `awake`.
    """

    data: bytes
    body: bytes
    protocol: Protocol
    form: BodyForm
    is_right: bool
    is_valid: bool


def make_request(random: Random) -> Request:
    """Return a request that is odd in some way, or in none."""
    endpoint = random.choice(PATHS)
    form = random.choice(endpoint.forms)
    made = _make_body(random, form)
    is_valid = _may_be_valid(made, form)
    body = made.body.replace(MODEL.encode(), b"awake" if is_valid else b"asleep")
    path, protocol = endpoint.path, endpoint.protocol
    if random.random() < 0.02:
        path, protocol = random.choice(UNKNOWN), Protocol.OPENAI
    target = b"/v1" + path + random.choice(QUERIES)
    if random.random() < 0.05:
        target = b"http://127.0.0.1" + target  # aiohttp reads it
    lines = [b"POST %b HTTP/1.1" % target, b"Host: 127.0.0.1"]
    coding = random.choice(CODINGS)
    if coding:
        lines.append(b"Content-Encoding: " + coding)
        body = gzip.compress(body) if coding == b"gzip" else body
    if made.content_type:
        lines.append(b"Content-Type: " + made.content_type)
    framing = random.choice(FRAMINGS)
    framed, fields = _framed(random, framing, body)
    data = b"\r\n".join([*lines, *fields, b"", b""]) + framed
    is_right = framing in ("length", "chunked")
    return Request(data, body, protocol, form, is_right, is_valid)


def _make_body(random: Random, form: BodyForm) -> OddBody:
    if form is BodyForm.MULTIPART:
        return odd_form(random)
    if random.random() < 1 / HUGE_EACH:
        return OddBody(huge_json(random, random.choice((1, 2, 4, 33))), b"application/json")
    return OddBody(odd_json(random), random.choice(JSON_TYPES))


def _may_be_valid(made: OddBody, form: BodyForm) -> bool:
    try:
        if form is BodyForm.JSON:
            return bool(models_of(made.body))
        return bool(form_models_of(made.body, made.content_type))
    except ValueError:
        return False


def _framed(random: Random, framing: str, body: bytes) -> tuple[bytes, list[bytes]]:
    """Return the body as it is sent, and the fields that frame it."""
    size = len(body)
    length = b"Content-Length: %d"
    coded = b"Transfer-Encoding: chunked"
    if framing == "length":
        return body, [length % size]
    if framing in ("chunked", "both"):
        most = random.choice((1, 2, 1000)) if size < 20_000 else 60_000
        coding = chunks(body[at : at + most] for at in range(0, size, most))
        return coding, [coded, length % size] if framing == "both" else [coded]
    if framing == "short":
        return body, [length % (size // 2)]
    if framing == "long":
        return body, [length % (size + random.choice((1, 100, 10**6)))]
    if framing == "twice":
        return body, [length % size, length % (size + 1)]
    if framing == "none":
        return body, []
    odd = (b"-1", b"+5", b"0x10", b"", b"1,1", b"9" * 17, b"9" * 30, b"1 1", b"\xb2")
    return body, [b"Content-Length: " + random.choice(odd)]


@dataclass
class Scene:
    """A server on `port`, and what came back."""

    port: int
    seed: int
    ledger: Ledger
    counts: Counter[str] = field(default_factory=Counter)

    async def run(self, number: int) -> None:
        """Send one request, and a good one after it."""
        random = Random(f"{self.seed}/{number}")
        asked = make_request(random)
        async with connected(self.port) as connection:
            got = await self._send(connection, asked, random)
            text = "" if got is None else self._check(got, asked)
            if text:
                shown = asked.data[:600]
                self.ledger.violated(f"seed {self.seed}/{number}: {text}: {got} to {shown!r}")
            is_open = got is not None and got.end == "whole" and not got.closes
            if asked.is_right and is_open:
                self.counts["on the same connection"] += 1
                await connection.send(_good())
                await self._check_good(number, await connection.answer())
        if number % 20 == 0:
            await self._check_good(number, await ask(self.port, "POST", _CHAT, GOOD))

    async def _send(self, connection: Connection, asked: Request, random: Random) -> Got | None:
        """Send a request, in pieces if it is short; return the answer."""
        is_short = len(asked.data) < 4000
        parts = pieces(random, asked.data) if is_short else (asked.data,)
        sending = asyncio.ensure_future(self._write(connection, list(parts)))
        try:
            return await connection.answer("POST", ANSWER_S if asked.is_right else LIE_S)
        except NoHttp as error:
            # aiohttp's answer to what it cannot read as HTTP.
            if asked.is_right or "HTTP/1.0 400 Bad Request" not in str(error):
                self.ledger.violated(f"no HTTP: {error}")
            self.counts["400 of aiohttp"] += 1
            return None
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def _write(self, connection: Connection, parts: list[bytes]) -> None:
        for part in parts:
            await connection.send(part)
            await asyncio.sleep(0)

    async def _check_good(self, number: int, got: Got) -> None:
        sent = bytes(got.body)
        if got.status != 200 or models_of(sent) != {SERVED}:
            self.ledger.violated(f"seed {self.seed}/{number}: a good call: {got}")

    def _check(self, got: Got, asked: Request) -> str:
        """Return what is wrong with an answer, "" for nothing."""
        self.counts[f"{got.status} {got.end}"] += 1
        if got.end != "whole":
            return "" if not asked.is_right else "no whole answer"
        if got.status == 200:
            return self._check_passed(got, asked)
        if got.status not in REFUSED:
            return "neither passed nor refused"
        return _check_shape(got, asked.protocol)

    def _check_passed(self, got: Got, asked: Request) -> str:
        """Return what is wrong with what the server got."""
        if not asked.is_valid:
            return "an invalid body was passed on"
        body, kind = bytes(got.body), got.get("got-type")
        if asked.form is BodyForm.JSON:
            models: Any = models_of(body)
            is_right = kind == "application/json"
        else:
            models = set(form_models_of(body, kind.encode()))
            is_right = kind.startswith("multipart/form-data; boundary=")
        if models != {SERVED} or not is_right:
            return f"the server got the models {models} as {kind}"
        return ""


def _check_shape(got: Got, protocol: Protocol) -> str:
    """Return what is wrong with the shape of an error, "" for nothing."""
    try:
        document = got.json()
    except ValueError:
        return "an error that is no JSON"
    if protocol is Protocol.ANTHROPIC:
        is_right = set(document) == {"type", "error", "request_id"} and document["request_id"]
        is_right = is_right and set(document["error"]) == {"type", "message"}
    else:
        is_right = set(document) == {"error"}
        is_right = is_right and set(document["error"]) == {"message", "type", "param", "code"}
    if not is_right or got.get("content-type") != "application/json":
        return f"an error in another shape than {protocol.value}'s"
    return "" if document["error"]["message"].isprintable() else "an error with control characters"


_CHAT = "/v1/chat/completions"


def _good() -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
    return head % len(GOOD) + GOOD


@contextmanager
def echoing(data: Path, *options: str, **variables: str) -> Iterator[ServerProcess]:
    """Run a server with both functions; `awake` is warm."""
    with server_process(data / "data", *options, environment=variables) as server:
        for name in ("awake", "asleep"):
            _deploy(server, data, name)
        assert server.fnctl("scale", "awake", "--min", "1").returncode == 0
        yield server


def _deploy(server: ServerProcess, data: Path, name: str) -> None:
    folder = data / name
    folder.mkdir()
    (folder / "echo.py").write_text(ECHO)
    starts = _starts_file(data, name)
    (folder / "function.toml").write_text(
        f'schema = 1\nname = "{name}"\n[server]\n'
        f'command = ["python3", "echo.py", "${{PORT}}", "{starts}"]\n'
        f'[openai]\nserved_model = "{SERVED}"\n[limits]\nconcurrency = 64\n'
    )
    done = server.fnctl("deploy", str(folder), "--trust")
    assert done.returncode == 0, done.stderr


def _starts_file(data: Path, name: str) -> Path:
    return data / f"{name}.starts"


async def run(data: Path, seed: int, count: int = 100_000, workers: int = 1) -> Ledger:
    """Send `count` odd requests."""
    ledger = Ledger("odd bodies to /v1", {"seed": seed, "requests": count})
    options = ("--workers", str(workers), "--cpu-slots", "3")
    # While this process checks the largest bodies, it sends nothing.
    patient = {"FN_HEAD_READ_S": str(ANSWER_S), "FN_BODY_READ_S": str(ANSWER_S)}
    with echoing(data, *options, **patient) as server:
        port = urlsplit(server.url).port
        assert port is not None
        scene = Scene(port, seed, ledger)
        await _run_all(scene, range(count // 10))
        early_kib, asleep = _memory_kib(server), _starts_file(data, "asleep").read_text()
        await _run_all(scene, range(count // 10, count))
        grown = _memory_kib(server) - early_kib
        ledger.figures["KiB grown"] = grown
        ledger.require(grown < GROWTH_MAX_KIB, f"the gateway grew by {grown} KiB")
        starts = len(_starts_file(data, "asleep").read_text())
        ledger.require(
            starts == 1, f"a function without a valid request woke: {len(asleep)}, {starts}"
        )
        _check_labels(ledger, (await ask(port, "GET", "/metrics")).body.decode())
        for line in list(server.complaints)[:20]:
            ledger.violated(f"the server's log: {line.rstrip()[-2000:]}")
        told = [line for line in server.log if OTHER in line or "\x00" in line]
        ledger.require(not told, f"the log has what clients sent: {told[:2]}")
    ledger.figures |= dict(sorted(scene.counts.items()))
    return ledger


async def _run_all(scene: Scene, numbers: range) -> None:
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            await scene.run(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


def _check_labels(ledger: Ledger, text: str) -> None:
    """Only functions that exist are values of labels, and the name for what no function held."""
    found = {
        value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for name, value in sample.labels.items()
        if name == "function"
    }
    ledger.require(found <= {"awake", "asleep", "", IDLE}, f"labels of functions: {found}")


def _memory_kib(server: ServerProcess) -> int:
    assert server.process is not None
    supervisor = server.process.pid
    return sum(memory_kib(pid, "Rss") for pid in worker_pids(supervisor) or [supervisor])
