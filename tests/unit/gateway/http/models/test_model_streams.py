"""Streams of models: comments while they wait, and how they end."""

from __future__ import annotations

import asyncio
import json
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.proxy.answer_edit import FILTERED_MAX
from gateway.proxy.framing import encode_chunk
from gateway.v1.rewriting import ModelAnswer
from registry.model.functions import ExchangeLimits, Limits
from registry.model.servers import ModelApi
from tests.support.modelled import (
    CHAT,
    END,
    EVENTS,
    MESSAGES,
    Clock,
    ModelServer,
    answered,
    asks,
    chunked,
    chunks,
    dechunked,
    document,
    event,
    models,
    parsed,
    post,
    read_request,
)
from tests.support.peers import published
from tests.support.proxied import KEY, Gate, Wire, quiet, until, warm

STREAM = {"model": "web", "stream": True}
COMMENT = b": waiting\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of waiting streams."""
    clock = Clock()
    monkeypatch.setattr("gateway.http.models.request.monotonic", clock)
    monkeypatch.setattr("gateway.http.models.router.monotonic", clock)
    return clock


async def held(one: Gate) -> None:
    """Wait until a request is held."""
    await until(lambda: KEY in one.delivery.loads() and one.delivery.loads()[KEY].queued == 1)


@asynccontextmanager
async def commented(
    folder: Path, clock: Clock, server: Any, path: str = CHAT, **more: Any
) -> AsyncIterator[tuple[Gate, Wire, bytes]]:
    """Run a gateway with a cold model, and a stream that has waited for its first comment.

    Yields the gateway, the client's connection behind that comment, and the head.
    """
    async with models(folder, server, is_cold=True, **more) as one:
        wire = await one.connect()
        wire.send(post(path, STREAM))
        await held(one)
        clock.now += 20
        one.sweep()
        head = await wire.head()
        assert await chunks(wire.reader) == (PING if path == MESSAGES else COMMENT)
        yield one, wire, head
        wire.close()
        await one.settled()


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/responses"])
async def test_comments_bridge_a_cold_start(
    tmp_path: Path, is_fast: bool, clock: Clock, path: str
) -> None:
    """A stream gets its head and a comment after comment_after_s, then one each 10 s, then the
    server's events: one head, one end."""
    server = ModelServer(EVENTS + chunked(event(n=1), event(n=2)) + END)
    comment = PING if path == MESSAGES else COMMENT
    async with models(tmp_path, server, is_fast=is_fast, is_cold=True) as one:
        wire = await one.connect()
        wire.send(post(path, STREAM, "X-Request-Id: abc"))
        await held(one)
        got = []
        for seconds in (19.9, 0.1, 9.9, 0.1, 9.9, 0.1):
            clock.now += seconds
            one.sweep()
            got.append(await buffered(wire))
        assert got[0::2] == [b"", b"", b""]
        head, _, first = got[1].partition(b"\r\n\r\n")
        assert [first, got[3], got[5]] == [encode_chunk(comment)] * 3
        answer = parsed(head + b"\r\n\r\n")
        assert answer.status == 200
        assert answer.fields == {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            "x-request-id": "abc",
            "transfer-encoding": "chunked",
            "connection": "close",
        }
        await warm(one)
        content, is_whole = dechunked(await wire.rest())
        assert (content, is_whole) == (event(n=1) + event(n=2), True)
        wire.close()
        await one.settled()


async def buffered(wire: Wire) -> bytes:
    """Return what has arrived, after some turns of the loop."""
    for _ in range(20):
        await asyncio.sleep(0)
    data = b""
    while wire.reader._buffer:  # type: ignore[attr-defined]
        data += await wire.reader.read(2**16)
    return data


@pytest.mark.parametrize("case", ["no stream", "embeddings", "HTTP/1.0", "off", "short"])
async def test_who_gets_no_comments(tmp_path: Path, is_fast: bool, clock: Clock, case: str) -> None:
    """Neither answers that are no streams, nor HTTP/1.0, nor a function that wants none, nor
    requests whose start takes less time."""
    api = ModelApi(comment_after_s=0 if case == "off" else 20)
    server = ModelServer(document(ok=1))
    async with models(tmp_path, server, is_fast=is_fast, is_cold=True, api=api) as one:
        path = "/v1/embeddings" if case == "embeddings" else CHAT
        body = {"model": "web", "stream": case != "no stream"}
        request = post(path, body)
        if case == "HTTP/1.0":
            request = request.replace(b"HTTP/1.1", b"HTTP/1.0")
        wire = await one.connect()
        wire.send(request)
        await held(one)
        clock.now += 19.9 if case == "short" else 5000
        one.sweep()
        assert await buffered(wire) == b""
        await warm(one)
        answer = parsed(await wire.rest())
        assert (answer.status, answer.json) == (200, {"ok": 1})
        wire.close()
        await one.settled()


def refusal(status: int, body: bytes) -> bytes:
    """Return an answer with an error."""
    return b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            refusal(400, b'{"error":\n {"message":"no such tool"}}'),
            {"error": {"message": "no such tool"}},
        ),
        (refusal(400, b'{"error": "no such tool"}'), {"error": "no such tool"}),
        (refusal(500, b"oops"), "the status 500: oops"),
        (refusal(422, b'{"detail": "too long"}'), 'the status 422: {"detail": "too long"}'),
        (refusal(400, b'{"error": null}'), "the status 400"),
        (refusal(400, b'{"error": "'), "the status 400"),
        (b"HTTP/1.1 204 None\r\n\r\n", "the status 204: "),
        (document(choices=[]), "no stream of events"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: 2\r\n\r\n\x1f\x8b",
            "no stream of events",
        ),
    ],
)
async def test_an_error_after_a_comment(
    tmp_path: Path, is_fast: bool, clock: Clock, path: str, reply: bytes, expected: Any
) -> None:
    """The server's refusal is an event: the status was told already."""
    async with commented(tmp_path, clock, ModelServer(reply), path, is_fast=is_fast) as found:
        one, wire, _ = found
        await warm(one)
        content, _ = dechunked(await wire.rest())
        name, data = split_event(content)
        assert name == ("error" if path == MESSAGES else "")
        if isinstance(expected, str):
            assert expected in data["error"]["message"]
            assert ("request_id" in data) == (path == MESSAGES)
        else:
            assert data == expected


def split_event(content: bytes) -> tuple[str, Any]:
    """Return the name and the data of the only event."""
    text = content.decode()
    assert text.endswith("\n\n")
    assert text.count("\n\n") == 1
    fields = dict(line.split(": ", 1) for line in text.strip().split("\n"))
    return fields.get("event", ""), json.loads(fields["data"])


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_start_that_fails_after_a_comment(
    tmp_path: Path, is_fast: bool, clock: Clock, path: str
) -> None:
    """The gateway's error is an event of the protocol, and the stream has no clean end."""
    limits = Limits(wait_s=0.3)
    more: dict[str, Any] = {"is_fast": is_fast, "limits": limits}
    async with commented(tmp_path, clock, ModelServer(b""), path, **more) as (one, wire, _):
        content, is_whole = dechunked(await wire.rest())
        name, data = split_event(content)
        assert name == ("error" if path == MESSAGES else "")
        assert "not started within" in data["error"]["message"]
        assert not is_whole
        assert one.delivery.balance().ended["expired"] == 1


async def test_comments_between_events(tmp_path: Path, is_fast: bool, clock: Clock) -> None:
    """A server that thinks for long between two events, or within one, does not let the client
    wait in silence; a comment never stands within an event."""
    step = asyncio.Queue[bytes]()

    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(EVENTS)
        while piece := await step.get():
            writer.write(piece)

    async with models(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(post(CHAT, STREAM))
        whole = event(text="abc")
        step.put_nowait(encode_chunk(whole) + encode_chunk(whole[:9]))
        head = await wire.head()
        assert b"X-Accel-Buffering: no\r\n" in head
        assert b"Cache-Control: no-cache\r\n" in head
        assert await chunks(wire.reader) == whole
        clock.now += 20
        one.sweep()
        assert await chunks(wire.reader) == COMMENT
        step.put_nowait(encode_chunk(whole[9:]))
        assert await chunks(wire.reader) == whole
        clock.now += 9.9
        one.sweep()
        step.put_nowait(encode_chunk(whole))
        assert await chunks(wire.reader) == whole
        clock.now += 10
        one.sweep()
        assert await chunks(wire.reader) == COMMENT
        step.put_nowait(END)
        step.put_nowait(b"")
        assert await wire.rest() == END
        wire.close()
        await one.settled()


async def test_a_client_that_does_not_read_gets_no_comments(
    tmp_path: Path, is_fast: bool, clock: Clock
) -> None:
    """Comments for a connection that is full would only take memory."""
    async with models(tmp_path, ModelServer(b""), is_fast=is_fast, is_cold=True) as one:
        wire = await one.connect()
        wire.send(post(CHAT, STREAM))
        await held(one)
        [exchange] = one.exchanges.all()
        request: Any = exchange._client
        request.client_paused()
        clock.now += 100
        one.sweep()
        assert await buffered(wire) == b""
        request.client_resumed()
        one.sweep()
        assert (await wire.head()).startswith(b"HTTP/1.1 200 ")
        wire.close()
        await one.settled()


async def test_interim_answers_of_a_server_stay_out(
    tmp_path: Path, is_fast: bool, clock: Clock
) -> None:
    """A 103 after a comment would stand in the middle of the stream."""
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    server = ModelServer(early + EVENTS + chunked(event(n=1)) + END)
    async with commented(tmp_path, clock, server, is_fast=is_fast) as (one, wire, _):
        await warm(one)
        assert dechunked(await wire.rest()) == (event(n=1), True)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("begun", [b"", b"data: {", b'data: {"a": "\\n'])
@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("api", [ModelApi(), ModelApi("served"), ModelApi(usage="as_sent")])
async def test_a_server_that_dies_in_a_stream(
    tmp_path: Path, is_fast: bool, path: str, begun: bytes, is_chunked: bool, api: ModelApi
) -> None:
    """The client gets the whole events, an error event, and no clean end."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        first = event(n=1)
        if is_chunked:
            writer.write(EVENTS + chunked(first, *([begun] if begun else [])))
        else:
            writer.write(EVENTS.replace(b"Transfer-Encoding: chunked\r\n", b"") + first + begun)
        writer.close()

    async with models(tmp_path, serve, is_fast=is_fast, api=api) as one:
        one.sidecar.listens = False
        raw = await one.ask(post(path, STREAM))
        answer = parsed(raw)
        assert answer.status == 200
        content, is_whole = dechunked(answer.body)
        assert not is_whole
        assert content.startswith(event(n=1))
        name, data = split_event(content.removeprefix(event(n=1)))
        assert name == ("error" if path == MESSAGES else "")
        kind = "api_error" if path == MESSAGES else "server_error"
        assert data["error"]["type"] == kind
        await one.settled()
        assert one.delivery.balance().ended["failed"] == 1


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_server_that_is_replaced_in_a_stream(
    tmp_path: Path, is_fast: bool, path: str, is_known: bool
) -> None:
    """The stream ends with the error that says so, whether the cause is known before the
    connection is lost or afterwards."""
    ends = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(EVENTS + chunked(event(n=1)))
        await ends.wait()
        writer.transport.abort()

    async with models(tmp_path, serve, is_fast=is_fast) as one:
        one.sidecar.listens = False
        wire = await one.connect()
        wire.send(post(path, STREAM))
        await wire.head()
        assert await chunks(wire.reader) == event(n=1)
        replica = one.sidecar.endpoint(limit=64)
        cause = {replica.id: "is not answering: its processes are idle"}
        replaced = published(replica, key=KEY, ended=cause, hung=[replica.id])
        if is_known:
            one.delivery.receive_endpoints(replaced)
        ends.set()
        if not is_known:
            await until(lambda: bool(one.delivery._death_causes._deferred))
            one.delivery.receive_endpoints(replaced)
        content, is_whole = dechunked(await wire.rest())
        wire.close()
        assert not is_whole
        _, data = split_event(content)
        said = "the replica died within its answer: it is not answering: its processes are idle"
        assert said in data["error"]["message"]
        if path != MESSAGES:  # the other protocol has no codes
            assert data["error"]["code"] == "replica_hung"
        await one.settled()
        assert one.delivery.balance().ended["failed"] == 1


@pytest.mark.parametrize("api", [ModelApi(), ModelApi("served")])
async def test_a_server_that_dies_in_another_answer(
    tmp_path: Path, is_fast: bool, api: ModelApi
) -> None:
    """An answer that is no stream stays incomplete, as its client sees."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(document(text="a" * 999)[:-99])

    async with models(tmp_path, serve, is_fast=is_fast, api=api) as one:
        answer = parsed(await one.ask(post(CHAT, {"model": "web"})))
        if api.served_model:
            assert answer.fields["transfer-encoding"] == "chunked"
            assert not answer.body.endswith(END)
        else:
            assert len(answer.body) < int(answer.fields["content-length"])
        await one.settled()


@pytest.mark.parametrize("api", [ModelApi(), ModelApi("served"), ModelApi(usage="as_sent")])
async def test_an_event_of_many_bytes(tmp_path: Path, is_fast: bool, api: ModelApi) -> None:
    """An event may have any size; the usage behind it is left out and counted all the same."""
    large = event(b64="A" * 3 * 2**20)
    sent = chunked(event(n=1), large, event(n=2), USAGE)
    async with models(tmp_path, ModelServer(EVENTS + sent + END), is_fast=is_fast, api=api) as one:
        answer = parsed(await one.ask(post(CHAT, STREAM)))
        rest = USAGE if api.usage == "as_sent" else b""
        assert dechunked(answer.body) == (event(n=1) + large + event(n=2) + rest, True)
        await one.settled()
        assert one.delivery.held.bytes == 0


async def test_tiny_events_are_changed_in_steps(
    tmp_path: Path, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step of the event loop changes more than FILTERED_MAX bytes, whatever one read brings, and
    what stands behind a complete answer reaches no other client."""
    sizes: list[int] = []
    feed = ModelAnswer.feed

    def counted(self: ModelAnswer, content: bytes) -> bytes:
        sizes.append(len(content))
        return feed(self, content)

    monkeypatch.setattr(ModelAnswer, "feed", counted)
    tiny = b'data:{"model":"x"}\n\n' * 20_000
    surplus = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    server = ModelServer(EVENTS + encode_chunk(tiny) + END + surplus)
    api = ModelApi("served")
    async with models(tmp_path, server, is_fast=is_fast, api=api) as one:
        for _ in range(2):
            answer = await asks(one, post(CHAT, STREAM))
            assert dechunked(answer.body) == (tiny.replace(b'"x"', b'"web"'), True)
        await one.settled()
        assert not any(frame.flags for frame in one.sidecar.got if frame.kind.name == "END")
    assert max(sizes) <= FILTERED_MAX < sum(sizes)


USAGE = event(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 2})


@pytest.mark.parametrize("asks_itself", [False, True])
async def test_the_usage_that_the_gateway_asks_for(
    tmp_path: Path, is_fast: bool, asks_itself: bool
) -> None:
    """The event with the usage reaches only a client that has asked for it."""
    server = ModelServer(EVENTS + chunked(event(choices=[1]), USAGE, b"data: [DONE]\n\n") + END)
    more = {"stream_options": {"include_usage": True}} if asks_itself else {}
    async with models(tmp_path, server, is_fast=is_fast) as one:
        answer = await asks(one, post(CHAT, {**STREAM, **more}))
        assert server.asked[0].json["stream_options"] == {"include_usage": True}
        kept = USAGE if asks_itself else b""
        expected = event(choices=[1]) + kept + b"data: [DONE]\n\n"
        assert dechunked(answer.body) == (expected, True)
        await one.settled()


async def test_a_deadline_before_the_answer(tmp_path: Path, is_fast: bool) -> None:
    """A server that answers nothing in time is a 504 in the protocol's shape."""

    async def serve(reader: Reader, _writer: Writer) -> None:
        await reader.read()

    limits = ExchangeLimits(first_byte_s=0.0)
    async with models(tmp_path, serve, is_fast=is_fast, exchange=limits) as one:
        wire = await one.connect()
        wire.send(post(MESSAGES, {"model": "web"}))
        await until(lambda: any(each.state.value == "open" for each in one.exchanges.all()))
        await until(lambda: one.sweep() or not one.exchanges.all())
        answer = await answered(wire)
        assert (answer.status, answer.json["error"]["type"]) == (504, "timeout_error")
        wire.close()
        await one.settled()


@pytest.mark.parametrize("ending", ["abort", "drain"])
@pytest.mark.parametrize("when", ["thinking", "streaming", "paused"])
async def test_a_client_that_leaves(tmp_path: Path, is_fast: bool, ending: Any, when: str) -> None:
    """abort: the server's connection is closed at once. drain: the server finishes its answer, its
    usage is read, and its replica is busy until then."""
    release, ended, lost = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        if when != "thinking":
            writer.write(EVENTS + chunked(event(n=1)))
        waiting = asyncio.create_task(release.wait())
        reading = asyncio.create_task(reader.read())
        done, others = await asyncio.wait({waiting, reading}, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        if reading in done:
            lost.set()
            return
        begin = EVENTS if when == "thinking" else b""
        writer.write(begin + chunked(USAGE) + END)
        await writer.drain()
        ended.set()
        await reader.read()

    api = ModelApi(on_disconnect=ending)
    async with models(tmp_path, serve, is_fast=is_fast, api=api) as one:
        wire = await one.connect()
        wire.send(post(CHAT, STREAM))
        if when == "thinking":
            await until(lambda: any(each.state.value == "open" for each in one.exchanges.all()))
        else:
            await wire.head()
            await chunks(wire.reader)
        [exchange] = one.exchanges.all()
        request: Any = exchange._client
        if when == "paused":
            request.client_paused()
        wire.close()
        if ending == "abort":
            await asyncio.wait_for(lost.wait(), 60)
            await one.settled()
            assert one.delivery.balance().ended["cancelled"] == 1
            return
        await until(lambda: request._is_client_gone)
        one.sweep()
        assert one.delivery.loads()[KEY].in_flight == 1
        assert one.gateway.gate.active == 1
        release.set()
        await asyncio.wait_for(ended.wait(), 60)
        await one.settled()
        assert one.delivery.balance().ended["completed"] == 1
        assert request._routed.answer.usage == (1, 2)


@pytest.mark.parametrize("ending", ["abort", "drain"])
async def test_a_client_that_leaves_while_it_is_held(
    tmp_path: Path, is_fast: bool, ending: Any
) -> None:
    """Nothing was sent: there is nothing to finish, and no reason to start a replica."""
    api = ModelApi(on_disconnect=ending)
    async with models(tmp_path, ModelServer(b""), is_fast=is_fast, is_cold=True, api=api) as one:
        wire = await one.connect()
        wire.send(post(CHAT, STREAM))
        await held(one)
        wire.close()
        await one.settled()
        assert one.delivery.balance().ended["cancelled"] == 1


async def test_a_drained_request_is_not_sent_again(tmp_path: Path, is_fast: bool) -> None:
    """Without a client, the loss of its connection is the end of it."""
    got, release, sends = asyncio.Event(), asyncio.Event(), []

    async def serve(reader: Reader, _writer: Writer) -> None:
        await read_request(reader)
        sends.append(1)
        got.set()
        await release.wait()

    api = ModelApi(on_disconnect="drain")
    async with models(tmp_path, serve, is_fast=is_fast, api=api) as one:
        wire = await one.connect()
        wire.send(post(CHAT, STREAM))
        await got.wait()
        one.sidecar.holds = True
        wire.close()
        [exchange] = one.exchanges.all()
        request: Any = exchange._client
        await until(lambda: request._is_client_gone)
        release.set()
        await until(lambda: one.sweep() or not one.exchanges.all())
        await one.settled()
        assert sends == [1]


async def test_a_client_of_an_older_version(tmp_path: Path, is_fast: bool) -> None:
    """HTTP/1.0 has no chunks: a whole stream ends with the connection, another one with a reset."""
    whole = event(n=1), event(n=2)
    dies = False

    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(EVENTS + chunked(*whole) + (b"" if dies else END))

    request = post(CHAT, STREAM).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with models(tmp_path, serve, is_fast=is_fast) as one:
        answer = parsed(await one.ask(request))
        assert (answer.status, answer.body) == (200, b"".join(whole))
        assert "transfer-encoding" not in answer.fields
        dies = True
        with pytest.raises(ConnectionResetError):
            await one.ask(request)
        await one.settled()


async def test_a_half_closed_client_gets_its_stream(
    tmp_path: Path, is_fast: bool, clock: Clock
) -> None:
    """A client that ends its sending right after the request reads comments and events."""
    server = ModelServer(EVENTS + chunked(event(n=1)) + END)
    async with models(tmp_path, server, is_fast=is_fast, is_cold=True) as one:
        wire = await one.connect()
        wire.send(post(CHAT, STREAM))
        wire.writer.write_eof()
        await held(one)
        begun = await buffered(wire)
        clock.now += 20
        one.sweep()
        await warm(one)
        raw = begun + await wire.rest()
        assert raw.startswith(b"HTTP/1.1 200")
        content, is_whole = dechunked(raw.partition(b"\r\n\r\n")[2])
        assert (content, is_whole) == (COMMENT + event(n=1), True)
        wire.close()
        await one.settled()


async def test_a_slow_reader_slows_the_server(tmp_path: Path, is_fast: bool) -> None:
    """A stream is not collected for a client that does not read it."""
    written, count = 0, 3000
    large = event(text="a" * 10_000)

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(EVENTS)
        for _ in range(count):
            writer.write(chunked(large))
            await writer.drain()
            written += len(large)
        writer.write(END)

    async with models(tmp_path, serve, is_fast=is_fast, api=ModelApi("served")) as one:
        wire = await one.connect()
        wire.send(post(CHAT, STREAM))
        await wire.head()
        assert await quiet(lambda: written) < count * len(large)
        content, is_whole = dechunked(await wire.rest())
        assert (len(content), is_whole) == (count * len(large), True)
        wire.close()
        await one.settled()
