"""Tests of a request's whole way through the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from gateway.delivery import follow_traffic
from gateway.http.invocation import Invocation
from registry.model import Limits
from runtime_image.contract.link import Flag, Kind
from runtime_image.link.meta import pack_answer, unpack_answer, unpack_request
from tests.support import nouns
from tests.support.peers import ANSWER, KEY, Peer, failed, published
from tests.unit.gateway.http.test_invocation import CALL

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Front

GOOD = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'
TRACED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
JSON = {"Content-Type": "application/json"}
LABELS = '{function="digits",namespace="default"}'


def calling(front: Front, body: bytes = GOOD, **headers: str) -> asyncio.Task[Any]:
    """A call that goes on while the test plays the replica."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.create_task(front.call(body, {**JSON, **named}))


def limited(front: Front, **limits: Any) -> None:
    """Give digits other limits."""
    front.catalog.put_function(nouns.function(limits=Limits(**limits)))


async def test_an_answer_is_passed_on_as_it_came(front: Front, peer: Peer) -> None:
    """The body is the replica's, every header is the gateway's own."""
    call = calling(front)
    peer.answer((await peer.next(Kind.REQUEST)).id, b'{"outputs": {}}')
    status, document, headers = await call

    assert (status, document) == (200, {"outputs": {}})
    assert (headers["Fn-Revision"], headers["Content-Type"]) == ("digits@1", "application/json")
    assert headers["Server-Timing"].startswith('replica;desc="r1", queue;dur=')
    assert "Inference-Header-Content-Length" not in headers
    assert "Preference-Applied" not in headers


async def test_a_warm_request_is_not_looked_into(front: Front, peer: Peer) -> None:
    """The replica gets bytes and headers as the client sent them, even nonsense."""
    call = calling(
        front, b"\xff nonsense", Accept="x/y", traceparent=TRACED, Content_Type="odd/type"
    )
    request = await peer.next(Kind.REQUEST)
    peer.answer(request.id)
    await call

    assert request.body == b"\xff nonsense"
    assert unpack_request(request.meta) == ("odd/type", "x/y", -1, TRACED)
    assert request.flags == Flag.TRACE
    assert front.past.arrivals == [("default", "digits")]


async def test_a_binary_answer_says_where_its_json_ends(front: Front, peer: Peer) -> None:
    """The lengths of the protocol's headers are passed both ways."""
    call = calling(front, b"{}1234", Inference_Header_Content_Length="2")
    request = await peer.next(Kind.REQUEST)
    octets = pack_answer(unpack_answer(ANSWER)._replace(content_type="application/octet-stream"))
    peer.answer(request.id, b"{}1234", aux=2, meta=octets)
    _, _, headers = await call

    assert unpack_request(request.meta).json_length == 2
    assert headers["Inference-Header-Content-Length"] == "2"


@pytest.mark.parametrize("length", ["-1", "two", "9" * 12])
async def test_a_length_that_is_none_is_refused(front: Front, length: str) -> None:
    """400 names header and value."""
    headers = {**JSON, "Inference-Header-Content-Length": length}
    status, problem, _ = await front.call(GOOD, headers)

    assert status == 400
    assert problem["detail"] == (
        f"Inference-Header-Content-Length: expected a number, got {length!r}"
    )


async def test_a_cold_request_is_checked_before_anything_is_demanded(front: Front) -> None:
    """Bad input for a cold function gets 400 and no waiter."""
    status, problem, _ = await front.call(b"{}", JSON)

    assert (status, problem["code"]) == (400, "bad_input")
    assert front.delivery.loads() == {}


async def test_a_request_that_waited_gets_the_receipt_of_the_cold_start(
    front: Front, tmp_path: Any
) -> None:
    """The phases stand in Server-Timing; the manager was told that somebody waits."""
    call = calling(front)
    assert (await front.manager.heard()).revisions[KEY].queued == 1
    async with Peer(tmp_path / "r1").listening() as peer:
        front.delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        peer.answer((await peer.next(Kind.REQUEST)).id, flags=Flag.FIRST)
        _, _, headers = await call
        front.delivery.receive_endpoints(published())

    timing = headers["Server-Timing"]
    assert timing.startswith('cold;desc="digits@1 on cpu:0"')
    assert "load;dur=5.000" in timing
    assert "first_run;dur=" in timing


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("bad_input", 400),
        ("unsupported_type", 415),
        ("not_acceptable", 406),
        ("function_failed", 500),
        ("execution_timeout", 504),
        ("answer_too_large", 502),
        ("no_such_code", 500),
    ],
)
async def test_an_error_of_the_replica_is_answered(
    front: Front, peer: Peer, code: str, status: int
) -> None:
    """Each code has its status; its text is the problem's detail and its outcome is counted."""
    call = calling(front)
    request = await peer.next(Kind.REQUEST)
    peer.send(Kind.FAILED, request.id, failed(code=code, message="why"))
    found, problem, _ = await call

    assert (found, problem["detail"]) == (status, "why")
    outcome = problem["code"].encode()
    assert b'reason="' + outcome + b'"} 1.0' in front.metrics.render()


async def test_the_limits_of_the_function_travel_with_its_calls(front: Front, peer: Peer) -> None:
    """Its own timeout is the replica's; its own queue length bounds who waits."""
    limited(front, timeout_s=2.5, queue=1)
    first, second = calling(front), calling(front)
    requests = [await peer.next(Kind.REQUEST) for _ in range(2)]
    waiting = calling(front)
    while not front.delivery.loads()[KEY].queued:
        await front.ask("GET", "/healthz")
    status, problem, headers = await front.call(GOOD, JSON)
    for request in requests:
        peer.answer(request.id)
    peer.answer((await peer.next(Kind.REQUEST)).id)
    await asyncio.wait([first, second, waiting])

    assert [request.aux for request in requests] == [2500, 2500]
    assert (status, problem["code"]) == (429, "queue_full")
    assert int(headers["Retry-After"]) >= 1


async def test_a_client_that_leaves_takes_its_request_back(front: Front, peer: Peer) -> None:
    """The replica is told at once."""
    call = calling(front)
    request = await peer.next(Kind.REQUEST)
    call.cancel()
    await asyncio.wait([call])

    cancelled = await peer.next(Kind.CANCEL)
    peer.send(Kind.CANCELLED, cancelled.id)

    assert cancelled.id == request.id
    await front.delivery.wait_idle()
    while front.gateway.gate.active:
        await front.ask("GET", "/healthz")


@pytest.mark.parametrize(
    ("limits", "handler", "reruns"),
    [
        ({"retry": "auto"}, "", True),
        ({"retry": "auto"}, "handler.py", False),
        ({"retry": "always"}, "handler.py", True),
        ({"retry": "never"}, "", False),
    ],
)
async def test_what_had_started_is_run_again_where_that_is_harmless(
    front: Front, peer: Peer, limits: dict[str, Any], handler: str, reruns: bool
) -> None:
    """A model alone has no effects; a handler may have, unless its manifest says otherwise. Every
    other try is counted."""
    revision = nouns.revision(handler=handler)
    front.catalog.put(type(nouns.deployed())(nouns.function(), revision, nouns.profile()))
    limited(front, **limits)
    call = calling(front)
    request = await peer.next(Kind.REQUEST)
    peer.send(Kind.STARTED, body=request.id.to_bytes(4, "little"))
    peer.answer(2**31)  # an unknown id ends the link
    await peer.lost.get()
    await peer.greet()
    if reruns:
        peer.answer((await peer.next(Kind.REQUEST)).id)

    assert (await call)[0] == (200 if reruns else 502)
    page = front.metrics.render().decode()
    assert f"fngate_request_sends_sum{LABELS} {2 if reruns else 1}.0" in page
    assert ('reason="died"' in page) == reruns


async def test_a_preference_that_was_applied_is_named(front: Front, peer: Peer) -> None:
    """The answer says which wait counted."""
    call = calling(front, Prefer="wait=5000")
    peer.answer((await peer.next(Kind.REQUEST)).id)

    assert (await call)[2]["Preference-Applied"] == "wait=600"


async def test_what_nobody_is_allowed_is_not_counted(front: Front) -> None:
    """Names that are no functions make no metric: their number has no bound."""
    status, _, _ = await front.call(GOOD, ref="nobody")

    assert status == 404
    assert b"nobody" not in front.metrics.render()


async def test_a_defect_is_hidden_and_counted(front: Front) -> None:
    """500 without anything of the exception, as a problem document like all else."""

    def break_down(_namespace: str, _name: str) -> None:
        raise ZeroDivisionError("the insides")

    front.past.arrived = break_down  # type: ignore[assignment,method-assign]  # a port that breaks
    status, problem, _ = await front.call(GOOD, JSON)

    assert (status, problem["code"]) == (500, "internal")
    assert problem["detail"] == "see the server's log"
    assert b'reason="internal"} 1.0' in front.metrics.render()


async def test_a_held_call_names_the_revision_that_answered_it(
    front: Front, tmp_path: Path
) -> None:
    """It was meant for digits@1 and is served by digits@2, which has the traffic by now."""
    follow_traffic(front.catalog, front.delivery)
    moved = nouns.deployed(number=2)
    async with Peer(tmp_path / "r2").listening() as peer:
        call = calling(front)
        await front.manager.heard()

        front.catalog.put(moved)
        front.delivery.receive_endpoints(published(peer.endpoint(), key=moved.revision.key))
        await peer.greet()
        peer.answer((await peer.next(Kind.REQUEST)).id)
        status, _, headers = await call

    assert (status, headers["Fn-Revision"]) == (200, "digits@2")


async def test_a_call_that_names_a_revision_is_not_moved(front: Front, peer: Peer) -> None:
    """digits@1 answers what was addressed to digits@1, with the traffic elsewhere."""
    follow_traffic(front.catalog, front.delivery)
    front.catalog.put(nouns.deployed(number=2))
    call = asyncio.create_task(front.call(GOOD, JSON, ref="digits@1"))
    peer.answer((await peer.next(Kind.REQUEST)).id)
    status, _, headers = await call

    assert (status, headers["Fn-Revision"]) == (200, "digits@1")


@pytest.mark.parametrize("ref", ["digits", "digits@1"])
async def test_a_function_that_went_while_the_body_came_holds_nobody(
    front: Front, ref: str
) -> None:
    """404 at once: nobody would ever start it."""

    async def body() -> AsyncIterator[bytes]:
        yield GOOD[:5]
        front.catalog.remove("digits")
        yield GOOD[5:]

    status, problem, _ = await front.call(body(), JSON, ref=ref)

    assert (status, problem["code"]) == (404, "unknown_function")
    assert not front.delivery.loads()


async def test_a_revision_that_went_while_the_body_came_holds_nobody(front: Front) -> None:
    """As when it is the oldest of many and another is deployed."""
    front.catalog.put(nouns.deployed(number=2))

    async def body() -> AsyncIterator[bytes]:
        yield GOOD[:5]
        front.catalog.remove_revisions("digits", [1])
        yield GOOD[5:]

    status, problem, _ = await front.call(body(), JSON, ref="digits@1")

    assert (status, problem["code"]) == (404, "unknown_revision")


async def test_every_request_leaves_one_event(front: Front, peer: Peer) -> None:
    """What it was, who answered, how long it took; refused ones of a function, too."""
    call = calling(front)
    peer.answer((await peer.next(Kind.REQUEST)).id)
    await call
    await front.call(GOOD, {**JSON, "Inference-Header-Content-Length": "x"})
    await front.call(GOOD, JSON, ref="nobody")
    assert front.gateway.invoker.access_log is not None
    front.gateway.invoker.access_log.close()

    answered, refused, unknown = front.events
    assert (answered.outcome, answered.revision, answered.replica) == ("ok", "digits@1", "r1")
    assert (answered.status, answered.bytes_in, answered.sends) == (200, len(GOOD), 1)
    assert (unknown.outcome, unknown.function, unknown.revision) == (
        "unknown_function",
        "nobody",
        "",
    )
    assert answered.ms >= answered.queue_ms >= 0
    assert (refused.outcome, refused.function, refused.replica) == ("bad_request", "digits", "")


async def test_a_large_body_reaches_the_replica_as_it_was_sent(front: Front, peer: Peer) -> None:
    """With its length told, and in chunks."""
    large = bytes(range(256)) * 1000

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 100_000):
            yield large[start : start + 100_000]

    for body in (large, chunks()):
        call = asyncio.create_task(front.call(body, JSON))
        request = await peer.next(Kind.REQUEST)
        peer.answer(request.id)
        assert request.body == large
        assert (await call)[0] == 200


async def test_a_client_that_leaves_in_the_turn_of_its_answer_strands_nobody(
    front: Front,
) -> None:
    """The others who wait are answered, whatever becomes of its own answer."""
    calls = [calling(front) for _ in range(4)]
    while front.delivery.loads().get(KEY) is None or front.delivery.loads()[KEY].queued < 4:
        await front.ask("GET", "/healthz")
    calls[0].cancel()
    while front.gateway.gate.active == 4:
        front.delivery.receive_endpoints(published(state="failing", retry_after_s=5.0))
        await asyncio.sleep(0)
    answers = [(await call)[0] for call in calls[1:]]

    assert answers == [503, 503, 503]
    assert front.gateway.gate.active == 0


async def test_who_leaves_while_a_large_body_is_checked_is_not_submitted(
    front: Front,
) -> None:
    """Also in the very turn in which the check ends: nothing is held, and no place is kept."""
    body = json.dumps({"inputs": {"x": [[0.5] * 4] * 10_000}}).encode()
    invocation = Invocation(front.gateway.invoker, CALL, lambda _reply: None)
    invocation.admit(CALL)
    view = invocation.buffer(len(body))
    assert view is not None
    view[:] = body
    invocation.run(body)
    checked = invocation._check
    assert checked is not None
    checked.add_done_callback(lambda _done: None)
    invocation._check = None  # as when the future is done, and its callback not yet called
    invocation.cancel()
    await asyncio.wait([checked])
    await asyncio.sleep(0)

    assert front.delivery.loads() == {}
    assert front.gateway.gate.active == 0


async def test_who_expects_to_be_asked_for_the_body_is_asked(front: Front, peer: Peer) -> None:
    """100 Continue comes before the body is sent, as aiohttp does it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(front.url).port)
    head = b"POST /fn/digits HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    writer.write(head + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{}")
    peer.answer((await peer.next(Kind.REQUEST)).id)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()
