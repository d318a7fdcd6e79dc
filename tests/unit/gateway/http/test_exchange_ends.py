"""How exchanges end: refused, evicted, given up by either side, at shutdown."""

from __future__ import annotations

import asyncio
import gc
import json
import operator
import re
import weakref
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from functools import partial
from pathlib import Path

import pytest

from gateway.dispatch.call import Priority
from gateway.http.exchange_client import ExchangeClient
from gateway.http.exchange_route import RoutedClient
from gateway.metrics.counters import TEXT
from gateway.metrics.key_times import KeyTime, KeyTimes
from gateway.proxy.exchange import Exchange
from gateway.settings import GatewaySettings
from registry.catalog import Change
from registry.key_form import KeyPriority
from registry.model.functions import ExchangeLimits, Limits
from registry.model.keys import Key
from registry.store.keys import fingerprint
from tests.support.peers import published
from tests.support.proxied import KEY, Gate, Wire, gate, quiet, until, warm

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /fn/web/x HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
POST = b"POST /fn/web/x HTTP/1.1\r\n" + HOST
_VARIES = re.compile(rb"(?i)(?:x-request-id|server-timing|date): [^\r]*")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def code(answer: bytes) -> str:
    """Return the code of a problem document."""
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["code"])


async def silent(reader: Reader, _writer: Writer) -> None:
    """Read everything, and answer nothing."""
    await reader.read()


async def held(one: Gate, count: int = 1) -> None:
    """Wait until so many calls are held."""
    await until(lambda: KEY in one.delivery.loads() and one.delivery.loads()[KEY].queued == count)


async def test_the_time_of_an_exchange_is_that_of_its_key(
    tmp_path: Path, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a head that was seen before, and not of a request that no server got."""
    times: list[float] = []
    add = KeyTimes.add

    def recorded(key_times: KeyTimes, time: KeyTime, seconds: float) -> None:
        times.append(seconds)
        add(key_times, time, seconds)

    monkeypatch.setattr(KeyTimes, "add", recorded)

    async def answering(reader: Reader, writer: Writer) -> None:
        while await reader.readline():
            if (await reader.readuntil(b"\r\n\r\n")).strip():
                writer.write(OK)

    async with gate(tmp_path, answering, is_fast=is_fast) as one:
        await warm(one)
        times.clear()
        for _ in range(2):
            assert (await one.ask(GET)).startswith(b"HTTP/1.1 200 ")
        assert (await one.ask(GET.replace(b"/web/", b"/none/"))).startswith(b"HTTP/1.1 404 ")
        invoker = one.gateway.invoker
        invoker.key_times.flush()
        rows = invoker.history.usage  # type: ignore[attr-defined]
    assert {(row.key_id, row.name, row.calls) for row in rows} == {("", "web", 0)}
    assert len(times) == 2
    assert min(times) > 0


async def test_a_full_queue(tmp_path: Path, is_fast: bool) -> None:
    """A request beyond the function's queue gets 429 at once."""
    async with gate(tmp_path, silent, is_fast=is_fast, is_cold=True, limits=Limits(queue=1)) as one:
        wire = await one.connect()
        wire.send(GET)
        await held(one)
        assert code(await one.ask(GET)) == "queue_full"
        wire.close()
        await one.settled()


async def test_the_priority_high_needs_a_key_that_has_it(tmp_path: Path, is_fast: bool) -> None:
    """Without one, and with a key that has it not, `Priority: u=0` is normal; low needs none."""
    async with gate(tmp_path, silent, is_fast=is_fast, is_cold=True) as one:
        ring = one.gateway.invoker.access.ring

        async def priority(fields: bytes) -> Priority:
            wire = await one.connect()
            wire.send(GET.replace(HOST, HOST + fields))
            await held(one)
            (exchange,) = one.exchanges.all()
            call = exchange.facts[2]
            assert call is not None
            wire.close()
            await until(lambda: not one.exchanges.all())
            return call.priority

        assert await priority(b"Priority: u=0\r\n") is Priority.NORMAL
        assert await priority(b"Priority: u=7\r\n") is Priority.LOW
        high = Key("h", fingerprint("fn_h"), ("invoke",), priority=KeyPriority.HIGH)
        for key in (Key("n", fingerprint("fn_n"), ("invoke",)), high):
            ring.put(key)
        by = b"Priority: u=0\r\nAuthorization: Bearer fn_%b\r\n"
        assert await priority(by % b"n") is Priority.NORMAL
        assert await priority(by % b"h") is Priority.HIGH
        await one.settled()


async def test_a_held_upload_is_evicted_for_others(tmp_path: Path, is_fast: bool) -> None:
    """When the memory for bodies is needed, a held request whose body still arrives gets 429."""
    async with gate(tmp_path, silent, is_fast=is_fast, is_cold=True) as one:
        wire = await one.connect()
        wire.send(POST + b"Content-Length: 90000\r\n\r\n" + bytes(80_000))
        await until(lambda: one.delivery.held.bytes >= 80_000)
        one.gateway.invoker.body_budget.make_room(256 * 2**20)
        head, body = await wire.answer()
        assert head.startswith(b"HTTP/1.1 429 ")
        assert json.loads(body)["code"] == "body_evicted"
        wire.close()
        await one.settled()


async def test_half_a_head_is_evicted_for_others(tmp_path: Path) -> None:
    """Bytes of half a head count, and are given up when the memory is needed."""
    async with gate(tmp_path, silent) as one:
        wire = await one.connect()
        wire.send(b"GET /fn/web/x HTTP/1.1\r\nX: " + b"y" * 20_000)
        await until(lambda: one.delivery.held.bytes >= 20_000)
        one.gateway.invoker.body_budget.make_room(256 * 2**20)
        assert code(await wire.rest()) == "body_evicted"
        wire.close()
        await one.settled()


async def test_a_malformed_body(tmp_path: Path, is_fast: bool) -> None:
    """Malformed chunks get 400 and end the server's work."""
    ended = asyncio.Event()

    async def serve(reader: Reader, _writer: Writer) -> None:
        try:
            await reader.read()
        finally:
            ended.set()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await until(lambda: any(each.state.value == "open" for each in one.exchanges.all()))
        wire.send(b"nonsense\r\n")
        assert code(await wire.rest()) == "bad_request"
        await asyncio.wait_for(ended.wait(), 60)
        wire.close()
        await one.settled()


async def test_a_body_that_stops_arriving(tmp_path: Path, is_fast: bool) -> None:
    """A client that sends nothing more of its body gets 408, and the slot is free."""
    settings = GatewaySettings(port=0, fast_front=is_fast, body_read_s=0.0)
    async with gate(tmp_path, silent, is_fast=is_fast, settings=settings) as one:
        wire = await one.connect()
        wire.send(POST + b"Connection: close\r\nContent-Length: 100\r\n\r\nabc")
        await until(lambda: any(each.state.value == "open" for each in one.exchanges.all()))
        await until(lambda: one.sweep() or not one.exchanges.all())
        head, body = await wire.answer()
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["code"] == "body_timeout"
        wire.close()
        await one.settled()


async def test_a_client_that_leaves_in_its_upload(tmp_path: Path, is_fast: bool) -> None:
    """An upload that ends too early is no request: the server sees a reset or an end."""
    got = asyncio.Event()
    ended = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"abc")
        got.set()
        try:
            await reader.read()
        finally:
            ended.set()
        writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(POST + b"Content-Length: 100\r\n\r\nabc")
        await got.wait()
        wire.close()
        await asyncio.wait_for(ended.wait(), 60)
        await one.settled()
        assert one.delivery.balance().ended["cancelled"] == 1


async def test_a_half_closed_client_gets_its_answer(tmp_path: Path, is_fast: bool) -> None:
    """A client that ends its stream right after the request still reads the answer."""
    release = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await release.wait()
        writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(GET)
        wire.writer.write_eof()
        await until(lambda: any(each.state.value == "open" for each in one.exchanges.all()))
        release.set()
        assert (await wire.rest()).endswith(b"\r\n\r\nok")
        wire.close()
        await one.settled()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("keep", [b"close", b"keep-alive"])
@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_half_closed_client_gets_its_answer_and_nothing_else(
    tmp_path: Path, is_fast: bool, is_cold: bool, version: bytes, keep: bytes
) -> None:
    """Its bytes are those of a client that did not end its sending, also where the function was
    cold; no interim answer is among them."""
    request = b"GET /fn/web/x HTTP/%b\r\n%bConnection: %b\r\n\r\n" % (version, HOST, keep)

    async def serve(reader: Reader, writer: Writer) -> None:
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            await release.wait()
            writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast, is_cold=is_cold) as one:
        received = []
        for ends in (True, False):
            release = asyncio.Event()
            wire = await one.connect()
            wire.send(request)
            if ends:
                wire.writer.write_eof()
                await until(lambda: any(_has_ended(each) for each in one.exchanges.all()))
            if is_cold and ends:
                await warm(one)
            release.set()
            received.append(b"\r\n".join(await wire.answer()))
            wire.close()
        await one.settled()
    begun, other = (re.sub(_VARIES, b"", raw) for raw in received)
    assert begun == other
    assert begun.startswith(b"HTTP/1.1 200 ")
    assert begun.endswith(b"ok")


async def test_a_server_that_repeats_100_continue(tmp_path: Path, is_fast: bool) -> None:
    """A client that waits for it gets one, every other client none."""
    again = b"HTTP/1.1 100 Continue\r\n\r\n"

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(3 * again)
        await reader.readexactly(1)
        writer.write(2 * again + OK)

    for version, fields, expected in (
        (b"1.1", b"Expect: 100-continue\r\n", 1),
        (b"1.1", b"", 0),
        (b"1.0", b"Expect: 100-continue\r\n", 0),
    ):
        line = b"POST /fn/web/x HTTP/%b\r\n" % version
        end = b"Connection: close\r\nContent-Length: 1\r\n\r\n"
        async with gate(tmp_path / f"{version!r}{expected}", serve, is_fast=is_fast) as one:
            wire = await one.connect()
            wire.send(line + HOST + fields + end)
            if expected:
                assert await wire.head() == again
            wire.send(b"a")
            wire.writer.write_eof()
            received = await wire.rest()
            assert received.startswith(b"HTTP/1.1 200 ")
            assert received.endswith(b"ok")
            assert b" 100 " not in received
            wire.close()
            await one.settled()


def _has_ended(exchange: Exchange) -> bool:
    """Return whether the gateway has seen the end of its client's sending."""
    client = exchange._client
    if isinstance(client, RoutedClient):
        return client._handler._is_ended
    assert isinstance(client, ExchangeClient)
    return client._is_closed_by_client


async def test_a_half_closed_client_that_is_gone_is_noticed(tmp_path: Path) -> None:
    """A client that closed both ends while its request was held does not keep its place."""
    async with gate(tmp_path, silent, is_cold=True) as one:
        wire = await one.connect()
        wire.send(GET)
        await held(one)
        wire.writer.write_eof()
        (exchange,) = one.exchanges.all()
        await until(lambda: getattr(exchange._client, "_is_closed_by_client", False))
        wire.writer.transport.abort()
        await until(lambda: one.sweep() or not one.exchanges.all())
        await one.settled()


async def test_an_answer_to_a_client_that_does_not_read_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of an incomplete answer waits for a slow reader only for a while."""
    monkeypatch.setattr("gateway.http.exchange_client.CUT_S", 0.01)
    written = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            writer.write(bytes(2**20))
            written += 2**20
            await writer.drain()

    async with gate(tmp_path, serve, exchange=ExchangeLimits(max_s=0.0)) as one:
        wire = await one.connect()
        wire.send(GET)
        await wire.head()
        await quiet(lambda: written)
        one.sweep()
        await one.settled()
        assert one.fast is not None
        connections = one.fast.connections
        await until(lambda: not connections)
        wire.close()


@pytest.mark.parametrize("framing", ["Content-Length: 9", "Transfer-Encoding: chunked", "X: y"])
@pytest.mark.parametrize("way", ["known", "told later", "never told", "client leaves"])
async def test_a_replica_that_is_replaced_within_an_answer(
    tmp_path: Path, is_fast: bool, framing: str, way: str
) -> None:
    """Its client gets a cut connection, never a clean end; the access log has the cause."""
    ends = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n2\r\nab\r\n" % framing.encode())
        await ends.wait()

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        one.sidecar.listens = False
        if way == "never told":
            one.delivery._death_causes._timeout_s = 0.0
        wire = await one.connect()
        wire.send(GET)
        await wire.head()
        await wire.exactly(7)
        replica = one.sidecar.endpoint(limit=64)
        ended = {replica.id: "is not answering"}
        replaced = published(replica, key=KEY, ended=ended, hung=[replica.id])
        if way == "known":
            one.delivery.receive_endpoints(replaced)
        ends.set()
        if way in ("told later", "client leaves"):
            await until(lambda: bool(one.delivery._death_causes._deferred))
        if way == "told later":
            one.delivery.receive_endpoints(replaced)
        if way != "client leaves" and "X" in framing:
            with pytest.raises(ConnectionResetError):
                await wire.rest()
        elif way != "client leaves":
            assert await wire.rest() == b""
        wire.close()
        await one.settled()
        log = one.gateway.invoker.access_log
        assert log is not None
        log.flush()
        log.close()
        wanted = {"never told": "replica_died", "client leaves": "client_left"}
        assert one.events[-1].outcome == wanted.get(way, "replica_hung")
        assert one.events[-1].status == 200


async def test_shutdown_refuses_and_drains(tmp_path: Path, is_fast: bool) -> None:
    """A closed gate refuses new exchanges; the one that is open ends in its own time."""
    release = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await release.wait()
        writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(GET)
        await until(lambda: any(each.state.value == "open" for each in one.exchanges.all()))
        closing = asyncio.create_task(one.gateway.gate.close())
        await until(lambda: not one.gateway.gate.is_open)
        assert code(await one.ask(GET)) == "shutting_down"
        release.set()
        assert (await wire.rest()).endswith(b"ok")
        await asyncio.wait_for(closing, 60)
        wire.close()
        await one.settled()


async def test_a_refused_connection_is_tried_again(tmp_path: Path) -> None:
    """A server that accepts no connection for a moment costs time, and no request."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    async with gate(tmp_path, serve) as one:
        port, one.sidecar.port = one.sidecar.port, 1
        wire = await one.connect()
        wire.send(GET)
        await until(lambda: "OPEN" in one.sidecar.kinds())
        one.sidecar.port = port
        assert (await wire.rest()).endswith(b"ok")
        wire.close()
        await one.settled()


async def test_a_removed_function_leaves_no_numbers(tmp_path: Path) -> None:
    """An exchange that ends after its function was removed does not count below zero."""
    async with gate(tmp_path, silent) as one:
        wire = await one.connect()
        wire.send(GET)
        await until(lambda: any(each.state.value == "open" for each in one.exchanges.all()))
        metrics = one.gateway.invoker.metrics
        metrics.on_change(Change("remove", "default", "web", None, None))
        wire.close()
        await one.settled()
        assert 'fngate_exchanges_open{function="web"' not in TEXT.encode(metrics).decode()


async def test_requests_wait_for_a_slot_in_turn(tmp_path: Path, is_fast: bool) -> None:
    """Held requests get their answers when the sidecar grants connections."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        one.sidecar.holds = True
        wires: list[Wire] = [await one.connect() for _ in range(5)]
        for wire in wires:
            wire.send(GET)
        await until(lambda: one.sidecar.requested() == 5)
        wires.pop().close()
        await until(lambda: "END" in one.sidecar.kinds())
        one.sidecar.release()
        for wire in wires:
            assert (await wire.rest()).endswith(b"ok")
            wire.close()
        await one.settled()


async def test_a_cold_function_starts_for_a_request_with_a_long_body(tmp_path: Path) -> None:
    """A POST that was held is sent whole, and its kept bytes are given back."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(300_000)
        writer.write(OK)

    async with gate(tmp_path, serve, is_cold=True) as one:
        wire = await one.connect()
        wire.send(POST + b"Content-Length: 300000\r\n\r\n" + bytes(300_000))
        await until(lambda: one.delivery.held.bytes == 300_000)
        await warm(one)
        assert (await wire.answer())[1] == b"ok"
        assert one.delivery.held.bytes == 0
        wire.close()
        await one.settled()


async def test_an_exchange_that_is_over_is_freed_at_once(tmp_path: Path) -> None:
    """Nothing of it refers to itself, which would leave each exchange to the garbage collector."""
    answers = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await answers.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with gate(tmp_path, late) as one:
        wire = await one.connect()
        gc.disable()
        try:
            for _ in range(3):  # the third answer has a known head, and is whole with it
                answers.clear()
                wire.send(b"GET /fn/web/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                await until(lambda: len(one.exchanges) == 1)
                known = weakref.WeakSet(one.exchanges.all())
                answers.set()
                await wire.answer()
                await until(partial(operator.not_, known))
        finally:
            gc.enable()
        wire.close()
        await one.settled()
