"""Repeated heads of requests and answers: what is remembered, and when it is forgotten."""

from __future__ import annotations

import re
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.http import head_memory, known_heads
from gateway.proxy.known_answers import KNOWN_MAX
from registry.model.functions import ExchangeLimits, Limits
from registry.model.servers import PathRules
from registry.store.keys import fingerprint
from tests.support.proxied import Gate, Wire, gate, server_function

HOST = b"Host: 127.0.0.1\r\n"
KEY = "fn_key-of-a-caller"
POST = b"POST /fn/web/x HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n"


async def echo(reader: Reader, writer: Writer) -> None:
    """Answer each request, whose body has two bytes, with its head and its body."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(2) if b"Content-Length: 2" in head else b""
        text = head + body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))


def known(one: Gate) -> int:
    """Return the number of known heads."""
    assert one.fast is not None
    return len(one.fast.parts.heads._known)


async def ask(wire: Wire, request: bytes) -> tuple[bytes, bytes]:
    """Return the answer to a request, without its id and its times."""
    wire.send(request)
    head, body = await wire.answer()
    return without(head), without(body)


def without(head: bytes) -> bytes:
    """Return a head without the values that differ in each request."""
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith((b"Server-T", b"X-Request-")))


async def test_a_repeated_head_is_treated_as_at_first(tmp_path: Path) -> None:
    """The third request with the same head, which is known, gives the same as the first one."""
    async with gate(tmp_path, echo) as one:
        wire = await one.connect()
        answers = [await ask(wire, POST + b"ab") for _ in range(4)]
        assert known(one) == 1
        assert len(set(answers)) == 1
        assert answers[0][1].endswith(b"\r\n\r\nab")
        wire.send(POST + b"a")
        wire.send(b"b" + POST + b"cd")
        assert [(await wire.answer())[1][-2:] for _ in range(2)] == [b"ab", b"cd"]
        wire.close()
        await one.settled()
        log = one.gateway.invoker.access_log
        assert log is not None
        log.flush()
        log.close()
        logged = [(event.outcome, event.status, event.bytes_in) for event in one.events]
        assert logged == [("ok", 200, 2)] * 6


async def test_queries_and_lengths_are_those_of_the_request(tmp_path: Path) -> None:
    """Heads that differ in nothing else are one known head."""

    async def echo_any(reader: Reader, writer: Writer) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"\r\nContent-Length: (\d+)\r\n\r\n", head)
            text = head + await reader.readexactly(int(found[1]) if found else 0)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))

    async with gate(tmp_path, echo_any) as one:
        wire = await one.connect()
        for query, body in ((b"", b"ab"), (b"?a=1", b"c"), (b"?", b"d" * 9), (b"?b", b"e" * 99)):
            request = POST.replace(b"/x", b"/x" + query).replace(b": 2", b": %d" % len(body))
            wire.send(request + body)
            head, answer = await wire.answer()
            assert head.startswith(b"HTTP/1.1 200 ")
            assert answer.startswith(b"POST /x" + query + b" HTTP/1.1\r\n")
            assert answer.endswith(b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            for odd in (b"Content-Length: ", b"Content-Length: 02", b"Content-Length: 2, 2"):
                refused = await one.ask(POST.replace(b"Content-Length: 2", odd) + b"ab")
                assert refused.startswith(b"HTTP/1.1 400 ")
        assert known(one) == 1
        long = POST.replace(b"/x", b"/x?" + b"y" * 40_000)
        assert (await one.ask(long)).startswith(b"HTTP/1.1 431 ")
        wire.close()


async def test_ids_and_times_are_those_of_the_request(tmp_path: Path) -> None:
    """Each request has an id of its own, which the server gets, too."""
    async with gate(tmp_path, echo) as one:
        wire = await one.connect()
        ids = set()
        for _ in range(4):
            wire.send(POST + b"ab")
            head, body = await wire.answer()
            line = next(line for line in head.split(b"\r\n") if line.startswith(b"X-Request-Id: "))
            assert line in body.split(b"\r\n")
            assert b'Server-Timing: replica;desc="web", queue;dur=' in head
            ids.add(line)
        assert len(ids) == 4
        wire.close()


async def test_a_known_head_is_that_of_one_address(tmp_path: Path) -> None:
    """The server gets the address of each client, and nothing that was decided about another."""
    async with gate(tmp_path, echo) as one:
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.1"):
            wire = await one.connect(address)
            for _ in range(4):
                _, body = await ask(wire, POST + b"ab")
                assert f"\r\nX-Forwarded-For: {address}\r\n".encode() in body
            wire.close()
        assert known(one) == 2


async def test_a_body_of_length_zero_is_whole(tmp_path: Path) -> None:
    """Such a request waits for nothing of its client, and both connections serve the next one."""
    async with gate(tmp_path, echo) as one:
        wire = await one.connect()
        for _ in range(4):
            head, _ = await ask(wire, POST.replace(b": 2", b": 0"))
            assert b"\r\nConnection: keep-alive\r\n" in head
        wire.close()
        await one.settled()
        assert one.sidecar.requested() == 1


async def test_ids_of_the_client_are_kept(tmp_path: Path) -> None:
    """The client's own id goes to the server and back, its trace to the server, known or not."""
    trace = b"00-" + b"a1" * 16 + b"-" + b"b2" * 8 + b"-01"
    async with gate(tmp_path, echo) as one:
        wire = await one.connect()
        for number in range(4):
            own = b"X-Request-Id: mine-%d\r\n" % number
            traced = b"traceparent: " + trace.replace(b"a1", b"c%d" % number) + b"\r\n"
            wire.send(POST[:-2] + own + traced + b"\r\nab")
            head, body = await wire.answer()
            assert b"\r\n" + own in head
            assert body.count(own) == body.count(traced) == 1
            _, body = await ask(wire, POST + b"ab")
            assert b"traceparent" not in body
        assert known(one) == 1
        for odd in (b"X-Request-Id: no id\r\n", b"traceparent: 00-0\r\n"):
            for _ in range(4):
                head, body = await ask(wire, POST[:-2] + odd + b"\r\nab")
                assert b"no id" not in head + body
        assert known(one) == 1
        wire.close()


async def test_a_removed_key_is_refused_at_once(tmp_path: Path) -> None:
    """A known head is not admitted after its key was removed."""
    async with gate(
        tmp_path, echo, keys={KEY: ("invoke:web",), "fn_another-key": ("read",)}
    ) as one:
        wire = await one.connect()
        request = POST[:-2] + b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\nab"
        for _ in range(3):
            assert (await ask(wire, request))[0].startswith(b"HTTP/1.1 200 ")
        assert known(one) == 1
        ring = one.gateway.invoker.access.ring
        ring.remove(next(key for key in ring.all() if key.sha256 == fingerprint(KEY)))
        assert (await ask(wire, request))[0].startswith(b"HTTP/1.1 401 ")
        assert known(one) == 0
        wire.close()


async def test_new_rules_hold_at_once(tmp_path: Path) -> None:
    """A known head is decided about again after its function's settings changed."""
    async with gate(tmp_path, echo) as one:
        wire = await one.connect()
        for _ in range(3):
            assert (await ask(wire, POST + b"ab"))[0].startswith(b"HTTP/1.1 200 ")
        catalog = one.gateway.invoker.catalog
        before = catalog.resolve("web")
        denying = server_function(ExchangeLimits(), PathRules(deny=("/x",)), Limits(), "")
        catalog.put(replace(before, revision=denying.revision))
        assert (await ask(wire, POST + b"ab"))[0].startswith(b"HTTP/1.1 403 ")
        wire.close()


async def test_a_draining_gate_closes_after_known_heads(tmp_path: Path) -> None:
    """During a drain every answer is the last of its connection; a closed gate refuses."""
    async with gate(tmp_path, echo) as one:
        wire, other = await one.connect(), await one.connect()
        for _ in range(3):
            await ask(wire, POST + b"ab")
            await ask(other, POST + b"ab")
        one.gateway.gate.headers = (("Connection", "close"),)
        head, _ = await ask(wire, POST + b"ab")
        assert b"\r\nConnection: close\r\n" in head
        one.gateway.gate.is_open = False
        assert (await ask(other, POST + b"ab"))[0].startswith(b"HTTP/1.1 503 ")
        one.gateway.gate.is_open = True
        one.gateway.gate.headers = ()
        for each in (wire, other):
            each.close()


async def test_what_is_remembered_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither heads, nor marks of heads seen once, nor a server's heads grow without limit."""
    monkeypatch.setattr(head_memory, "MEMORY_MAX", 13)
    monkeypatch.setattr(head_memory, "SEEN_MAX", 5)
    numbers = iter(range(10**6))

    async def dated(reader: Reader, writer: Writer) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            writer.write(b"HTTP/1.1 200 OK\r\nX: %d\r\nContent-Length: 0\r\n\r\n" % next(numbers))

    async with gate(tmp_path, dated) as one:
        wire = await one.connect()
        assert one.fast is not None
        heads = one.fast.parts.heads
        for number in range(20):
            for _ in range(2):
                head, _ = await ask(wire, POST.replace(b"/x", b"/%d" % number) + b"ab")
                assert b"\r\nX: " in head
                assert (len(heads) <= 13, len(heads._seen) <= 5) == (True, True)
        for _ in range(10):
            await ask(wire, POST + b"ab")
        for each, _ in heads._known.values():
            assert each.plan.answers is not None
            assert len(each.plan.answers._known) <= KNOWN_MAX
        long = POST[:-2] + b"X: " + b"y" * known_heads.HEAD_MAX + b"\r\n\r\nab"
        before = set(heads._known)
        for _ in range(3):
            await ask(wire, long)
        assert set(heads._known) == before
        wire.close()
