"""What of a client's fields reaches the server of a function, and back: by every way to it."""

from __future__ import annotations

from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from registry.model.keys import Key
from registry.model.servers import ModelApi, PathRules
from registry.store.keys import fingerprint
from tests.support.modelled import CHAT, ModelServer, asks, document, models, post
from tests.support.proxied import gate

KEY = "fn_" + "k" * 43
CLOSE = b"Connection: close\r\n"
HANDSHAKE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
STRANGE = (
    *(b"SCRIPT_NAME: /x", b"Script-Name: /x", b"PATH_INFO: /admin", b"X-Original-URL: /admin"),
    *(b"X-Forwarded-Prefix: /evil", b"X_Any: evil", b"X.Script.Name: /x", b"X-Sendfile-Type: evil"),
    b"X-Api-Key: " + KEY.encode(),
    b"Authorization: Token " + KEY.encode(),
    b"X-Request-Id: " + KEY.encode(),
)
"""Fields of which no server may get any."""
PASSED = (b"X-Any: a=b", b"X_Let_Through: c", b"X-Api-Key2: fn_" + b"o" * 43)
LINES = b"".join(line + b"\r\n" for line in (*STRANGE, *PASSED))
ASKED = {
    "path": (b"GET /fn/web/x HTTP/1.1\r\nHost: 127.0.0.1\r\n", CLOSE),
    "own host": (b"GET /x HTTP/1.1\r\nHost: web.localhost\r\n", CLOSE),
    "websocket": (b"GET /fn/web/x HTTP/1.1\r\nHost: 127.0.0.1\r\n", HANDSHAKE),
}


def serving(seen: list[bytes], answer: bytes) -> Callable[[Reader, Writer], Awaitable[None]]:
    """Return a server that notes heads and answers each with `answer`."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)

    return serve


def environment(head: bytes) -> dict[str, list[str]]:
    """Return the variables that a server of the CGI family (RFC 3875) makes of a request's head.

    As gunicorn does, it takes SCRIPT_NAME and PATH_INFO from fields of these names.
    """
    found: dict[str, list[str]] = {}
    for line in head.decode("latin-1").split("\r\n")[1:-2]:
        name, _, value = line.partition(": ")
        plain = "".join(one if one.isalnum() else "_" for one in name.upper())
        plain = plain if plain in ("SCRIPT_NAME", "PATH_INFO") else f"HTTP_{plain}"
        found.setdefault(plain, []).append(value)
    return found


@pytest.mark.parametrize("way", ASKED)
async def test_fields_of_a_class_reach_no_server(tmp_path: Path, is_fast: bool, way: str) -> None:
    """Neither below /fn/, nor at the function's own host, nor with a handshake."""
    seen: list[bytes] = []
    serve = serving(seen, b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n")
    begin, end = ASKED[way]
    fields = ("x_let_through",)
    async with gate(tmp_path, serve, is_fast=is_fast, fields=fields) as one:
        one.gateway.invoker.access.ring.put(Key("k", fingerprint(KEY), ("invoke",)))
        own = b"Fn-Key: %b\r\n" % KEY.encode()
        if way == "own host":
            own += b"Sec-Fetch-Site: none\r\n"
        assert (await one.ask(begin + LINES + own + end + b"\r\n")).startswith(b"HTTP/1.1 400 No")
        [head] = seen
        assert not [line for line in STRANGE if line in head]
        assert all(line in head for line in PASSED)
        assert KEY.encode() not in head
        variables = environment(head)
        assert not {"SCRIPT_NAME", "PATH_INFO", "HTTP_SCRIPT_NAME"} & variables.keys()
        prefix = [] if way == "own host" else ["/fn/web"]
        assert variables.get("HTTP_X_FORWARDED_PREFIX", []) == prefix
        await one.settled()


async def test_fields_of_a_class_reach_no_model(tmp_path: Path, is_fast: bool) -> None:
    """The servers behind /v1 get what those below /fn/ get."""
    server = ModelServer(document())
    api = ModelApi()
    lines = [line.decode() for line in (*STRANGE, *PASSED) if b"Authorization" not in line]
    lines.append(f"Fn-Key: {KEY}")
    async with models(tmp_path, server, is_fast=is_fast, api=api, keys={KEY: ("invoke",)}) as one:
        answer = await asks(one, post(CHAT, {"model": "web"}, *lines))
        assert answer.status == 200
        [asked] = server.asked
        got = {f"{name}: {value}".lower() for name, value in asked.fields.items()}
        assert not {line.decode().lower() for line in STRANGE} & got
        assert {"x-any", "x-api-key2"} <= asked.fields.keys()
        assert KEY not in "".join(asked.fields.values())
        await one.settled()


async def test_a_denied_path_has_no_second_name(tmp_path: Path, is_fast: bool) -> None:
    """A server that cuts SCRIPT_NAME from the path gets none: /x/admin stays /x/admin."""
    seen: list[bytes] = []
    serve = serving(seen, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    rules = PathRules(deny=("/admin*",))
    async with gate(tmp_path, serve, is_fast=is_fast, paths=rules) as one:
        rest = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + CLOSE
        assert (await one.ask(b"GET /fn/web/admin" + rest + b"\r\n"))[9:12] == b"403"
        for name in (b"SCRIPT_NAME", b"script-name", b"Script.Name", b"X-Script-Name"):
            head = b"GET /fn/web/x/admin" + rest + name + b": /x\r\n\r\n"
            assert (await one.ask(head))[9:12] == b"200"
        assert not [head for head in seen if b"SCRIPT" in head.upper()]
        assert all(head.startswith(b"GET /x/admin HTTP/1.1\r\n") for head in seen)
        await one.settled()


async def test_a_denied_path_is_no_destination(tmp_path: Path, is_fast: bool) -> None:
    """WebDAV's MOVE writes to a second path, which `deny` counts in every form."""
    seen: list[bytes] = []
    serve = serving(seen, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    async with gate(tmp_path, serve, is_fast=is_fast, paths=PathRules(deny=("/admin*",))) as one:
        for value, status in (
            (b"http://127.0.0.1/fn/web/admin/x", b"403"),
            (b"/fn/web/admin", b"403"),
            (b"//other/admin?a", b"403"),
            (b"http://127.0.0.1/fn/web/a/../admin", b"400"),
            (b"http://127.0.0.1/fn/web/%2561dmin", b"400"),
            (b"/fn/w%65b/%61dmin", b"403"),
            (b"https://public/outer/fn/web/admin", b"403"),
            (b"\\\\other\\admin", b"403"),
            (b"http://127.0.0.1/fn/web/b", b"200"),
        ):
            begin = b"MOVE /fn/web/a HTTP/1.1\r\nHost: 127.0.0.1\r\n" + CLOSE
            assert (await one.ask(begin + b"Destination: %b\r\n\r\n" % value))[9:12] == status
        assert [b"Destination: http://127.0.0.1/fn/web/b\r\n" in head for head in seen] == [True]
        await one.settled()


async def test_a_known_head_holds_until_the_keys_change(tmp_path: Path) -> None:
    """A value that becomes a key is not forwarded from then on, and one that was a key is."""
    seen: list[bytes] = []
    serve = serving(seen, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    key = Key("k", fingerprint(KEY), ("invoke",))
    own = "fn_" + "c" * 43
    request = (
        f"GET /fn/web/x HTTP/1.1\r\nHost: 127.0.0.1\r\nFn-Key: {own}\r\nX-Api-Key: {KEY}\r\n\r\n"
    )
    async with gate(tmp_path, serve, keys={own: ("invoke",)}) as one:
        ring, wire = one.gateway.invoker.access.ring, await one.connect()

        async def passes() -> set[bool]:
            """Return whether X-Api-Key reaches the server, of requests that become known."""
            seen.clear()
            for _ in range(4):
                wire.send(request.encode())
                assert (await wire.answer())[0].startswith(b"HTTP/1.1 200 OK")
            assert one.fast is not None
            assert len(one.fast.parts.heads._known) == 1
            return {KEY.encode() in head for head in seen}

        assert await passes() == {True}
        ring.put(key)
        assert await passes() == {False}
        ring.remove(key)
        assert await passes() == {True}
        wire.close()
        await one.settled()


@pytest.mark.parametrize("way", ["path", "own host"])
async def test_orders_to_a_proxy_reach_no_client(tmp_path: Path, is_fast: bool, way: str) -> None:
    """nginx would serve a file of its own for X-Accel-Redirect, in the answer or before it. An
    answer that has it behind its body, where some join trailers with the head, is cut."""
    order = b"X-Accel-Redirect: /private\r\nX-Sendfile: /etc/passwd\r\n"
    interim = b"HTTP/1.1 103 Early\r\n" + order + b"Link: </a>\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\n" + order + b"X-Any: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    begin, end = ASKED[way]
    ends = [b"1\r\na\r\n0\r\n" + order + b"\r\n", b"1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n"]

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(interim + final + ends[-1])

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        got = await one.ask(begin + end + b"\r\n")
        assert b"Link: </a>" in got
        assert b"X-Any: a" in got
        assert got.endswith(b"1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n")
        assert b"X-Accel" not in got
        assert b"X-Sendfile" not in got
        ends.pop()
        wire = await one.connect()
        wire.send(begin + end + b"\r\n")
        cut = bytearray()
        with suppress(ConnectionError):
            while data := await wire.reader.read(65_536):
                cut += data
        assert b"X-Accel" not in cut
        assert b"X-Sendfile" not in cut
        assert not cut.endswith(b"\r\n0\r\n\r\n")
        wire.close()
        await one.settled()
