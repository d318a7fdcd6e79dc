"""Heads of /v1 that are known: what was decided about one is right after every change, and both
client sides understand such requests alike, at the first arrival and at the next ones."""

from __future__ import annotations

import json
import re
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from registry.catalog import Catalog
from registry.model.functions import ExchangeLimits, Limits
from registry.model.keys import Key
from registry.model.servers import ModelApi, PathRules
from registry.openness import Openness
from registry.store.keys import KeyRing, fingerprint
from tests.property.test_exchange_differential import Request, Seen, Server, ask
from tests.support.doses import amount
from tests.support.modelled import (
    CHAT,
    END,
    EVENTS,
    MESSAGES,
    chunked,
    document,
    event,
    models,
    read_request,
)
from tests.support.proxied import Gate, server_function

SECRETS = tuple(f"fn_{letter * 43}" for letter in "ab")
SCOPES = (("invoke",), ("invoke:web",), ("invoke:digits",), ("admin",))
NAMES = (*("web",) * 4, "web@1", "web/chat", "nobody", "digits")
APIS = (ModelApi(), ModelApi("served"), ModelApi("served", usage="as_sent"), ModelApi("web"))
STEPS, SEEDS = 80, amount(6, 60)
KEY_LINES = (
    *(b"Authorization: Bearer %b" % one.encode() for one in SECRETS),
    *(b"X-Api-Key: %b" % one.encode() for one in SECRETS),
    *(b"Fn-Key: %b" % one.encode() for one in SECRETS),
    *(b"X-Other: %b" % SECRETS[1].encode(), b"Authorization: Basic eDp5", b"Cookie: a=b"),
)
OTHER_KEYS = tuple(b"X-Other: a %b b" % one.encode() for one in SECRETS)
TRACE = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-%016x-01"
LINES = (
    *(b"Accept-Encoding: gzip", b"User-Agent: x", b"X-Two: 1\r\nX-Two: 2", b"Via: 1.1 x"),
    *(b"Content-Type: application/json", b"Origin: https://a.example", b"TE: trailers"),
    *(b"Prefer: wait=3", b"Priority: u=1", b"Expect: 100-continue", b"Content-Encoding: gzip"),
    *(b"X-Request-Id: mine", b"X-Request-Id: not ok", b"traceparent: 01-x", b"X-Next: a\r\n b"),
    TRACE % 7,
)
TARGETS = (
    *[CHAT.encode()] * 6,
    *[MESSAGES.encode()] * 2,
    *(b"/v1/embeddings", b"/v1/responses", b"/v1/completions?a=b", b"/v1/completions?model=x"),
    *(b"/v1/audio/speech", b"/v1/nothing", b"/v1/models", b"/v1//completions"),
)
SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
ASKING = b'{"include_usage":true}'
OWN_ID = b"own-%d"
"""Ids of requests that the client has chosen."""
USUAL = tuple(
    b'{"model": "web", "n": 0%b}' % more
    for more in (b"", b', "stream": true', b', "stream": true, "stream_options": ' + ASKING)
)
"""Bodies to one model, of which the last two are one to its server."""
ADDRESSES = ("127.0.0.1", "127.0.0.1", "127.0.0.2")
_ID = re.compile(rb'"request_id":"[^"]*"')


class Recorder:
    """The server of a model, which records what it got and answers with it."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, str]] = []

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        """Serve one connection."""
        while True:
            asked = await read_request(reader)
            fields = asked.fields
            if not fields["x-request-id"].startswith("own-"):
                del fields["x-request-id"]  # the gateway's own
            said = {"model": asked.json["model"], "line": asked.line, "fields": fields}
            self.got.append((json.dumps(said).encode(), asked.body.decode()))
            if asked.json.get("stream") is not True:
                writer.write(document(**said))
                continue
            tokens = {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}
            last = event(model=said["model"], choices=[], **tokens)
            events = event(choices=[1], **said), last
            if asked.json.get("n"):
                writer.write(EVENTS + chunked(*events) + END)
            else:
                writer.write(SIZED % len(b"".join(events)) + b"".join(events))


def body_of(random: Random) -> bytes:
    """Return a body; nearly all are requests for some model."""
    said: dict[str, Any] = {"model": random.choice(NAMES), "n": random.randrange(2)}
    said["x"] = "a" * random.choice((1, 3000))
    if random.random() < 0.5:
        said["stream"] = True
    if random.random() < 0.5:
        said["stream_options"] = random.choice([None, {"include_usage": True}, {"a": 1}])
    if random.random() < 0.1:
        said["previous_response_id"] = "r"
    body = json.dumps(said).encode()
    return random.choice([body] * 12 + [body[:-1], b"{}", b'{"model": "w\xff"}', b""])


def head_of(random: Random) -> list[bytes]:
    """Return the lines of a head but for the body's length."""
    host = random.choice([b"Host: localhost"] * 8 + [b"Host: example.org", b"Host: gpu.example"])
    line = b"%b %b HTTP/1.%d" % (b"POST", random.choice(TARGETS), random.random() < 0.9)
    more = random.sample(KEY_LINES, random.choice((0, 1, 1, 2)))
    more += random.sample(LINES, random.choice((0, 0, 1, 2)))
    return [line, host, *more, b"Connection: close"]


def usual_head(random: Random) -> list[bytes]:
    """Return the lines of a head as most clients repeat it. It may be that of a page, and have a
    second key, also where it does not count."""
    line = b"POST %b HTTP/1.1" % CHAT.encode()
    more = random.sample(KEY_LINES[: 3 * len(SECRETS)], random.choice((0, 1, 1, 1, 2)))
    more += [random.choice(OTHER_KEYS)] if random.random() < 0.6 else []
    more += [b"Origin: https://a.example"] if random.random() < 0.2 else []
    return [line, b"Host: localhost", *more, b"Connection: close"]


def request_of(lines: list[bytes], body: bytes, random: Random) -> Request:
    """Return a request with these lines in its head and ids of its own, whose body may be
    chunked."""
    own = (*(b"X-Request-Id:%b%b" % (space, OWN_ID) for space in (b" ", b"  ")), TRACE)
    number = random.randrange(1, 5)
    lines = [*lines, *(one % number for one in own if random.random() < 0.15)]
    if random.random() < 0.8:
        framed = [*lines, b"Content-Length: %d" % len(body), b"", body]
    else:
        chunks = chunked(body) if body else b""
        framed = [*lines, b"Transfer-Encoding: chunked", b"", chunks + END]
    data = b"\r\n".join(framed)
    cut = len(data) if random.random() < 0.7 else random.randrange(len(lines[0]) + 2, len(data))
    return Request((data[:cut], data[cut:]) if cut < len(data) else (data,), has_bad_body=False)


def change(random: Random, ring: KeyRing, catalog: Catalog) -> None:
    """Make one change of the keys, the openness or the functions of a server."""
    secret = random.choice(SECRETS)
    made = server_function(
        ExchangeLimits(),
        PathRules(deny=("/v1/embeddings",) if random.random() < 0.3 else ()),
        Limits(queue=random.randrange(1, 9)),
        "",
        ("https://a.example",) if random.random() < 0.3 else (),
        random.choice([*APIS, None]),
    )
    match random.randrange(7):
        case 0 | 1:
            ring.put(Key(secret[3:9], fingerprint(secret), random.choice(SCOPES)))
        case 2:
            ring.remove(Key(secret[3:9], fingerprint(secret), ()))
        case 3:
            ring.decide(random.choice([Openness.OPEN, Openness.OPEN, Openness.CLOSED]))
        case 4:
            if catalog.find("web") is not None:
                catalog.remove("web")
        case 5:
            catalog.put(made)
        case 6:  # another alias, another host's name
            aliases = random.choice([(), ("nobody",), ("web/chat",)])
            if catalog.find("web") is not None and made.revision.server is not None:
                catalog.put(replace(made, function=replace(made.function, aliases=aliases)))


Gates = tuple[Gate, Gate]
Changes = tuple[Callable[[], None], Callable[[], None]] | tuple[None, None]


async def both_do(
    gates: Gates,
    servers: tuple[Recorder, Recorder],
    request: Request,
    address: str = ADDRESSES[0],
    changes: Changes = (None, None),
) -> Seen:
    """Check that two gateways do the same with a request; return what. `changes`: of each gateway,
    between the pieces of the request."""
    seen = [
        await ask(one, cast("Server", server), request, address, changed)
        for one, server, changed in zip(gates, servers, changes, strict=True)
    ]
    left, right = (one._replace(body=_ID.sub(b"", one.body)) for one in seen)
    assert left == right, f"{request.data[:2000]!r}\n{left}\n{right}"
    return left


def change_of(one: Gate, seed: float) -> Callable[[], None]:
    """Return a change of a gateway, the same for the same seed."""
    invoker = one.gateway.invoker
    return lambda: change(Random(seed), invoker.access.ring, invoker.catalog)


async def changed_world(folder: Path, random: Random) -> tuple[int, set[bytes]]:
    """Check that a gateway that remembers heads does what one does that decides anew about each
    request. Return how many heads were known, summed over all requests, and the statuses."""
    servers, known, statuses = (Recorder(), Recorder()), 0, set[bytes]()
    async with (
        models(folder / "a", servers[0], is_fast=True) as one,
        models(folder / "b", servers[1], is_fast=True) as fresh,
    ):
        gates = one, fresh
        heads = [*(usual_head(random) for _ in range(4)), *(head_of(random) for _ in range(2))]
        bodies = [*USUAL, *(body_of(random) for _ in range(3))]  # few, so that routes are known
        for step in range(STEPS):
            if step and random.random() < 0.3:
                seed = random.random()
                for each in gates:
                    change_of(each, seed)()
            lines, address = random.choice(heads), random.choice(ADDRESSES)
            for _ in range(3):
                fresh.gateway.parts.heads._known.clear()
                request = request_of(lines, random.choice(bodies), random)
                seed = random.random()
                changes = (change_of(one, seed), change_of(fresh, seed))
                is_changed = random.random() < 0.3
                seen = await both_do(
                    gates, servers, request, address, changes if is_changed else (None, None)
                )
                known += len(one.gateway.parts.heads._known)
                statuses.add(seen.status)
        for each in gates:
            await each.settled()
    return known, statuses


async def test_what_is_known_holds_after_each_change(tmp_path: Path) -> None:
    """What a gateway remembers is right at once after changes of what it depends on."""
    known, statuses = 0, set[bytes]()
    for seed in range(SEEDS):
        more, found = await changed_world(tmp_path / str(seed), Random(seed))
        known, statuses = known + more, statuses | found
    assert known > SEEDS
    assert {b"200", b"400", b"401", b"404"} <= statuses


@pytest.mark.slow
async def test_both_client_sides_agree(tmp_path: Path) -> None:
    """The fast path, which remembers heads, does what aiohttp's side does, which has no memory."""
    servers, statuses = (Recorder(), Recorder()), dict[bytes, int]()
    async with (
        models(tmp_path / "f", servers[0], is_fast=True) as fast,
        models(tmp_path / "p", servers[1], is_fast=False) as plain,
    ):
        for number in range(amount(150, 3_000)):
            random = Random(f"sides {number}")
            lines = head_of(random)
            for _ in range(3):
                request = request_of(lines, body_of(random), random)
                seen = await both_do((fast, plain), servers, request)
                statuses[seen.status] = statuses.get(seen.status, 0) + 1
        assert len(fast.gateway.parts.heads._known)
        assert {b"200", b"400", b"403", b"404", b"405", b"415", b"421"} <= statuses.keys()
        for each in (fast, plain):
            await each.settled()
