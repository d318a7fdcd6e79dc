"""WebSockets at /v1/realtime, through both client sides: routes, keys, subprotocols, ends."""

from __future__ import annotations

from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path
from typing import Any

import pytest

from registry.model.functions import ExchangeLimits
from registry.model.servers import ModelApi
from registry.upstream_keys import UpstreamKey
from tests.support.modelled import Asked, answered, asks, head, models, read_request
from tests.support.peers import KnownPast
from tests.support.proxied import KEY, Gate, Wire, until, warm

KEYS = {
    "fn_all-key": ("invoke",),
    "fn_web-key": ("invoke:web",),
    "fn_digits-key": ("invoke:digits",),
}
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
SWITCHED = (
    b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSet-Cookie: a=b\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n%b\r\n"
)
OFFER = "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.%s, openai-beta.realtime-v1"


class Realtime:
    """A server that takes WebSockets, and answers with the bytes that it gets. `chosen`: lines of
    its 101. `asked` has the heads of its handshakes."""

    def __init__(self, chosen: bytes = b"") -> None:
        self.asked: list[Asked] = []
        self._answer = SWITCHED % chosen

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        """Serve one connection."""
        self.asked.append(await read_request(reader))
        writer.write(self._answer)
        while data := await reader.read(1000):
            writer.write(data)


async def opened(one: Gate, path: str, *fields: str) -> tuple[Wire, list[str]]:
    """Open a WebSocket; return its connection and the lines of its 101."""
    wire = await one.connect()
    wire.send(head(path, *UPGRADE, *fields, method="GET"))
    line, *lines = (await wire.head()).decode().split("\r\n")
    assert line.startswith("HTTP/1.1 101 "), line
    return wire, lines


@pytest.mark.parametrize("model", ["web", "web@1", "gpt%2Fsmall:1"])
@pytest.mark.parametrize(
    ("api", "seen"),
    [
        (ModelApi(), "/v1/realtime?a=1&model={model}&b"),
        (ModelApi(served_model="org/m 1"), "/v1/realtime?a=1&model=org%2Fm%201&b"),
        (ModelApi(base="/api/v1"), "/api/v1/realtime?a=1&model={model}&b"),
    ],
)
async def test_what_the_server_gets(
    tmp_path: Path, is_fast: bool, model: str, api: ModelApi, seen: str
) -> None:
    """Its own name of the model; frames pass both ways."""
    server = Realtime()
    async with models(tmp_path, server, is_fast=is_fast, api=api) as one:
        wire, _ = await opened(one, f"/v1/realtime?a=1&model={model}&b")
        wire.send(b"\x82\x02hi")

        assert await wire.exactly(4) == b"\x82\x02hi"
        assert [asked.line for asked in server.asked] == [
            f"GET {seen.format(model=model)} HTTP/1.1"
        ]
        wire.close()
        await one.settled()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([], 401),
        (["Authorization: Bearer fn_web-key"], 101),
        (["Fn-Key: fn_web-key"], 101),
        ([OFFER % "fn_web-key"], 101),
        ([OFFER % "fn_all-key"], 101),
        ([OFFER % "fn_wrong"], 401),
        ([OFFER % ""], 401),
        ([OFFER % "fn_digits-key"], 404),
        (["x-api-key: fn_web-key"], 401),
        (["x-api-key: fn_web-key", "anthropic-version: 2023-06-01"], 401),
        (["Authorization: Bearer fn_web-key", OFFER % "fn_web-key"], 101),
        (["Authorization: Bearer fn_all-key", OFFER % "fn_web-key"], 401),
        ([OFFER % "fn_web-key", "Sec-WebSocket-Protocol: openai-insecure-api-key.fn_all-key"], 401),
        ([OFFER % "fn_web-key", "Origin: http://evil.example"], 403),
        ([OFFER % "fn_web-key", "Origin: http://127.0.0.1"], 101),
    ],
)
async def test_keys(tmp_path: Path, is_fast: bool, fields: list[str], status: int) -> None:
    """One key counts, and no server gets it."""
    server = Realtime()
    async with models(tmp_path, server, is_fast=is_fast, keys=KEYS) as one:
        wire = await one.connect()
        path = "/v1/realtime?model=web"
        wire.send(head(path, *UPGRADE, "Cookie: c=1", *fields, method="GET"))
        raw = await wire.head()

        assert raw.startswith(b"HTTP/1.1 %d " % status)
        assert len(server.asked) == (status == 101)
        for asked in server.asked:
            assert "key" not in str(asked.fields).replace("sec-websocket-key", "")
            assert not {"authorization", "fn-key", "cookie"} & asked.fields.keys()
            offered = asked.fields.get("sec-websocket-protocol")
            is_offer = any("openai-beta" in field for field in fields)
            assert offered == ("realtime, openai-beta.realtime-v1" if is_offer else None)
        assert b"key." not in raw
        wire.close()
        await one.settled()
        assert "fn_" not in str(one.events)


@pytest.mark.parametrize(
    "request_",
    [
        head("/fn/web/v1/realtime?model=web", *UPGRADE, OFFER % "fn_web-key", method="GET"),
        head("/v1/models", OFFER % "fn_web-key", "Connection: close", method="GET"),
        head("/v1/chat/completions", OFFER % "fn_web-key", "Connection: close"),
    ],
)
async def test_a_subprotocol_is_no_key_elsewhere(
    tmp_path: Path, is_fast: bool, request_: bytes
) -> None:
    """It is a credential of this endpoint alone."""
    async with models(tmp_path, Realtime(), is_fast=is_fast, keys=KEYS) as one:
        wire = await one.connect()
        wire.send(request_)

        assert (await wire.head()).startswith(b"HTTP/1.1 401 ")
        wire.close()
        await one.settled()


async def test_any_key_where_none_is_needed(tmp_path: Path, is_fast: bool) -> None:
    """Clients insist on one. No server gets it either."""
    server = Realtime()
    async with models(tmp_path, server, is_fast=is_fast) as one:
        wire, _ = await opened(one, "/v1/realtime?model=web", OFFER % "sk-none")

        assert server.asked[0].fields["sec-websocket-protocol"] == (
            "realtime, openai-beta.realtime-v1"
        )
        wire.close()
        await one.settled()


async def test_the_key_of_the_server(tmp_path: Path, is_fast: bool) -> None:
    """It takes the place of the caller's."""
    server, api = Realtime(), ModelApi(upstream_key="hf")
    async with models(tmp_path, server, is_fast=is_fast, api=api, keys=KEYS) as one:
        one.gateway.invoker.upstream_keys.put(UpstreamKey("hf", "value"))
        wire, _ = await opened(one, "/v1/realtime?model=web", OFFER % "fn_web-key")

        assert server.asked[0].fields["authorization"] == "Bearer value"
        wire.close()
        await one.settled()


@pytest.mark.parametrize(
    ("chosen", "offer", "agreed"),
    [
        (b"", [], []),
        (b"", [OFFER % "a"], ["realtime"]),
        (b"", ["Sec-WebSocket-Protocol: other"], []),
        (b"", ["Sec-WebSocket-Protocol: openai-insecure-api-key.a"], []),
        (b"Sec-WebSocket-Protocol: realtime\r\n", [OFFER % "a"], ["realtime"]),
        (
            b"sec-websocket-protocol: openai-beta.realtime-v1\r\n",
            [OFFER % "a"],
            ["openai-beta.realtime-v1"],
        ),
    ],
)
async def test_the_agreed_subprotocol(
    tmp_path: Path, is_fast: bool, chosen: bytes, offer: list[str], agreed: list[str]
) -> None:
    """One that the client has offered, and never its key; a server that names none speaks
    `realtime`, as browsers want to hear. Cookies do not pass."""
    async with models(tmp_path, Realtime(chosen), is_fast=is_fast) as one:
        wire, lines = await opened(one, "/v1/realtime?model=web", *offer)

        pairs = [(name.lower(), value) for name, _, value in (x.partition(": ") for x in lines)]
        assert [value for name, value in pairs if name == "sec-websocket-protocol"] == agreed
        assert "set-cookie" not in dict(pairs)
        wire.close()
        await one.settled()


@pytest.mark.parametrize(
    ("chosen", "offer"),
    [
        (b"other", [OFFER % "a"]),
        (b"openai-insecure-api-key.a", [OFFER % "a"]),
        (b"Realtime", [OFFER % "a"]),
        (b"realtime, openai-beta.realtime-v1", [OFFER % "a"]),
        (b"realtime", []),
    ],
)
async def test_a_subprotocol_that_was_not_offered(
    tmp_path: Path, is_fast: bool, chosen: bytes, offer: list[str]
) -> None:
    """Is no answer to this handshake."""
    server = Realtime(b"Sec-WebSocket-Protocol: %b\r\n" % chosen)
    async with models(tmp_path, server, is_fast=is_fast) as one:
        got = await asks(one, head("/v1/realtime?model=web", *UPGRADE, *offer, method="GET"))

        assert (got.status, got.json["error"]["code"]) == (502, "upstream_failed")
        assert "of those that were offered" in got.json["error"]["message"]
        await one.settled()


@pytest.mark.parametrize(
    ("request_", "status", "code", "said"),
    [
        (head("/v1/realtime?model=web", method="GET"), 400, "bad_request", "Upgrade: websocket"),
        (head("/v1/realtime", *UPGRADE, method="GET"), 400, "bad_request", "expected one model"),
        (head("/v1/realtime?model=no", *UPGRADE, method="GET"), 404, "model_not_found", "'no'"),
        (
            head("/v1/realtime?model=digits", *UPGRADE, method="GET"),
            *(404, "model_not_found", "GET /v1/models lists them"),
        ),
        (
            head("/v1/realtime?model=web", *UPGRADE[:2], UPGRADE[3], method="GET"),
            *(400, "bad_request", "Sec-WebSocket-Version: expected 13"),
        ),
        (
            head("/v1/realtime?model=web", *UPGRADE, "Content-Length: 1", method="GET") + b"x",
            *(400, "bad_request", "without a body"),
        ),
        (
            head("/v1/realtime?model=web", *UPGRADE, "anthropic-version: 1", method="POST"),
            *(405, "method_not_allowed", "/v1/realtime: expected GET, got POST"),
        ),
        (
            head("/v1/realtime?model=web", method="DELETE"),
            *(405, "method_not_allowed", "/v1/realtime: expected GET, got DELETE"),
        ),
        (head("/v1/%72ealtime?model=web", *UPGRADE, method="GET"), 404, "unknown", "no route"),
        (head("/v1/realtime/x?model=web", *UPGRADE, method="GET"), 404, "unknown", "no route"),
    ],
)
async def test_errors(
    tmp_path: Path, is_fast: bool, request_: bytes, status: int, code: str, said: str
) -> None:
    """They have OpenAI's shape, and name what was expected. No server gets such a request."""
    server = Realtime()
    async with models(tmp_path, server, is_fast=is_fast) as one:
        got = await asks(one, request_.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))

        assert (got.status, got.json["error"]["code"]) == (status, code)
        assert said in got.json["error"]["message"]
        assert got.fields["x-request-id"]
        assert not server.asked
        await one.settled()


async def test_a_connection_serves_on_after_an_error(tmp_path: Path, is_fast: bool) -> None:
    """A request that is no handshake has nothing behind its head."""
    async with models(tmp_path, Realtime(), is_fast=is_fast) as one:
        wire = await one.connect()
        for _ in range(2 if is_fast else 1):
            wire.send(head("/v1/realtime?model=web", method="GET"))
            first, body = await wire.answer()
            assert first.startswith(b"HTTP/1.1 400 ")
            assert b"invalid_request_error" in body
        wire.close()
        await one.settled()


async def test_a_server_that_refuses(tmp_path: Path, is_fast: bool) -> None:
    """Its answer passes as it is."""

    async def refuse(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\nX-Why: no\r\n\r\nnope")

    async with models(tmp_path, refuse, is_fast=is_fast) as one:
        got = await asks(one, head("/v1/realtime?model=web", *UPGRADE, method="GET"))

        assert (got.status, got.fields["x-why"], got.body) == (403, "no", b"nope")
        await one.settled()


async def test_a_cold_model_is_waited_for(tmp_path: Path, is_fast: bool) -> None:
    """The handshake is held, and wakes it."""
    async with models(tmp_path, Realtime(), is_fast=is_fast, is_cold=True) as one:
        wire = await one.connect()
        wire.send(head("/v1/realtime?model=web", *UPGRADE, method="GET"))
        await until(lambda: bool(one.delivery.loads().get(KEY)))
        await warm(one)

        assert (await wire.head()).startswith(b"HTTP/1.1 101 ")
        wire.close()
        await one.settled()


async def test_websockets_that_do_not_wake(tmp_path: Path, is_fast: bool) -> None:
    """As everywhere."""
    exchange = ExchangeLimits(websockets="ignore")
    more: dict[str, Any] = {"is_fast": is_fast, "is_cold": True, "exchange": exchange}
    async with models(tmp_path, Realtime(), **more) as one:
        wire = await one.connect()
        wire.send(head("/v1/realtime?model=web", *UPGRADE, method="GET"))
        got = await answered(wire)

        assert (got.status, got.json["error"]["code"]) == (503, "asleep")
        wire.close()
        await one.settled()


async def test_a_revoked_key_ends_its_websockets(tmp_path: Path, is_fast: bool) -> None:
    """Whichever field it came in."""
    async with models(tmp_path, Realtime(), is_fast=is_fast, keys=KEYS) as one:
        wire, _ = await opened(one, "/v1/realtime?model=web", OFFER % "fn_web-key")
        ring = one.gateway.invoker.access.ring
        ring.remove(next(key for key in ring.all() if key.id == "web-ke"))

        assert await wire.rest() == b"\x88\x15\x03\xf0the key was removed"
        wire.close()
        await one.settled()


async def test_usage(tmp_path: Path, is_fast: bool) -> None:
    """A WebSocket is one call of its key, whose tokens are unknown."""
    async with models(tmp_path, Realtime(), is_fast=is_fast, keys=KEYS) as one:
        wire, _ = await opened(one, "/v1/realtime?model=web", OFFER % "fn_web-key")
        wire.close()
        await one.settled()

        past = one.gateway.invoker.history
        assert isinstance(past, KnownPast)
        (row,) = past.usage
        assert (row.key_id, row.name) == ("web-ke", "web")
        assert (row.tokens_in, row.tokens_out, row.calls, row.unknown) == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("origin", "status"), [("https://app.example", 101), ("https://other.example", 403)]
)
async def test_pages_of_listed_origins(
    tmp_path: Path, is_fast: bool, origin: str, status: int
) -> None:
    """Those that the model's function lists."""
    more: dict[str, Any] = {"keys": KEYS, "origins": ("https://app.example",)}
    async with models(tmp_path, Realtime(), is_fast=is_fast, **more) as one:
        wire = await one.connect()
        fields = (*UPGRADE, OFFER % "fn_web-key", f"Origin: {origin}", "Sec-Fetch-Site: cross-site")
        wire.send(head("/v1/realtime?model=web", *fields, method="GET"))

        assert (await wire.head()).startswith(b"HTTP/1.1 %d " % status)
        wire.close()
        await one.settled()


async def test_the_host_that_its_server_sees(tmp_path: Path, is_fast: bool) -> None:
    """As at every other way in."""
    server = Realtime()
    async with models(tmp_path, server, is_fast=is_fast, host="loopback") as one:
        wire, _ = await opened(one, "/v1/realtime?model=web", "Origin: http://127.0.0.1")

        assert server.asked[0].fields["host"] == f"127.0.0.1:{one.sidecar.port}"
        assert server.asked[0].fields["origin"] == "http://127.0.0.1"
        wire.close()
        await one.settled()
