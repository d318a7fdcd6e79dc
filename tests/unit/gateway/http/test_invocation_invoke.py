"""Tests of a request's whole path through the gateway."""

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
from gateway.metrics.counters import TEXT
from registry.model.functions import Limits
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
    """Start a call while the test plays the replica."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.create_task(front.call(body, {**JSON, **named}))


def limited(front: Front, **limits: Any) -> None:
    """Give digits other limits."""
    front.catalog.put_function(nouns.function(limits=Limits(**limits)))


async def test_an_answer_is_passed_on_unchanged(front: Front, peer: Peer) -> None:
    """The body is the replica's; every header is the gateway's own."""
    call = calling(front)
    peer.answer((await peer.next(Kind.REQUEST)).id, b'{"outputs": {}}')
    status, document, headers = await call

    assert (status, document) == (200, {"outputs": {}})
    assert (headers["Fn-Revision"], headers["Content-Type"]) == ("digits@1", "application/json")
    assert headers["Server-Timing"].startswith('replica;desc="r1", queue;dur=')
    assert "Inference-Header-Content-Length" not in headers
    assert "Preference-Applied" not in headers


async def test_a_warm_request_is_not_parsed(front: Front, peer: Peer) -> None:
    """The replica gets body and headers as the client sent them, even invalid ones."""
    call = calling(
        front, b"\xff nonsense", Accept="x/y", traceparent=TRACED, Content_Type="odd/type"
    )
    request = await peer.next(Kind.REQUEST)
    peer.answer(request.id)
    await call

    assert request.body == b"\xff nonsense"
    assert unpack_request(request.meta) == ("odd/type", "x/y", -1, TRACED)
    assert request.flags == Flag.TRACE
    front.gateway.invoker.key_times.flush()
    assert front.past.arrivals == [("default", "digits")]


async def test_json_lengths_are_passed_both_ways(front: Front, peer: Peer) -> None:
    """Inference-Header-Content-Length is passed on in the request and in the answer."""
    call = calling(front, b"{}1234", Inference_Header_Content_Length="2")
    request = await peer.next(Kind.REQUEST)
    octets = pack_answer(unpack_answer(ANSWER)._replace(content_type="application/octet-stream"))
    peer.answer(request.id, b"{}1234", aux=2, meta=octets)
    _, _, headers = await call

    assert unpack_request(request.meta).json_length == 2
    assert headers["Inference-Header-Content-Length"] == "2"


@pytest.mark.parametrize("length", ["-1", "two", "9" * 12])
async def test_an_invalid_json_length_is_refused(front: Front, length: str) -> None:
    """The 400 names header and value."""
    headers = {**JSON, "Inference-Header-Content-Length": length}
    status, problem, _ = await front.call(GOOD, headers)

    assert status == 400
    assert problem["detail"] == (
        f"Inference-Header-Content-Length: expected a number, got {length!r}"
    )


async def test_a_cold_request_is_checked_before_it_is_demand(front: Front) -> None:
    """Invalid input for a cold function gets 400 and wakes no pool."""
    status, problem, _ = await front.call(b"{}", JSON)

    assert (status, problem["code"]) == (400, "bad_input")
    assert front.delivery.loads() == {}


async def test_a_request_that_waited_gets_the_receipt_of_the_cold_start(
    front: Front, tmp_path: Any
) -> None:
    """Server-Timing has the cold start's phases; the manager got the demand."""
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
    """Each code maps to a status; its message is the problem's detail, and its outcome is
    counted."""
    call = calling(front)
    request = await peer.next(Kind.REQUEST)
    peer.send(Kind.FAILED, request.id, failed(code=code, message="why"))
    found, problem, _ = await call

    assert (found, problem["detail"]) == (status, "why")
    outcome = problem["code"].encode()
    assert b'reason="' + outcome + b'"} 1.0' in TEXT.encode(front.metrics)


async def test_the_functions_limits_apply_to_its_calls(front: Front, peer: Peer) -> None:
    """The function's timeout is sent to the replica, and its queue limit applies."""
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


async def test_a_disconnect_cancels_the_request(front: Front, peer: Peer) -> None:
    """The replica gets CANCEL at once."""
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
async def test_a_started_call_is_rerun_where_allowed(
    front: Front, peer: Peer, limits: dict[str, Any], handler: str, reruns: bool
) -> None:
    """A model without handler has no effects and is rerun; a handler only if its manifest allows
    it. Every send is counted."""
    revision = nouns.revision(handler=handler)
    front.catalog.put(type(nouns.deployed())(nouns.function(), revision, nouns.profile()))
    limited(front, **limits)
    call = calling(front)
    request = await peer.next(Kind.REQUEST)
    peer.send(Kind.STARTED, body=request.id.to_bytes(4, "little"))
    peer.answer(2**31)  # an unknown id: the gateway closes the link
    await peer.lost.get()
    await peer.greet()
    if reruns:
        peer.answer((await peer.next(Kind.REQUEST)).id)

    assert (await call)[0] == (200 if reruns else 502)
    page = TEXT.encode(front.metrics).decode()
    assert f"fngate_request_sends_sum{LABELS} {2 if reruns else 1}.0" in page
    assert ('reason="died"' in page) == reruns


async def test_an_applied_preference_is_named(front: Front, peer: Peer) -> None:
    """Preference-Applied has the wait that was applied."""
    call = calling(front, Prefer="wait=5000")
    peer.answer((await peer.next(Kind.REQUEST)).id)

    assert (await call)[2]["Preference-Applied"] == "wait=600"


async def test_unknown_names_are_not_counted(front: Front) -> None:
    """Unknown function names make no series, because their number has no bound."""
    status, _, _ = await front.call(GOOD, ref="nobody")

    assert status == 404
    assert b"nobody" not in TEXT.encode(front.metrics)


async def test_a_defect_is_hidden_and_counted(front: Front) -> None:
    """An unexpected exception gets a 500 problem without its text."""

    def break_down(_pool: str) -> None:
        raise ZeroDivisionError("the insides")

    front.delivery.is_cold = break_down  # type: ignore[assignment,method-assign]  # a defect
    status, problem, _ = await front.call(GOOD, JSON)

    assert (status, problem["code"]) == (500, "internal")
    assert problem["detail"] == "see the server's log"
    assert b'reason="internal"} 1.0' in TEXT.encode(front.metrics)


async def test_a_held_call_names_the_revision_that_answered_it(
    front: Front, tmp_path: Path
) -> None:
    """A call held for digits@1 and answered by digits@2 after a move names digits@2."""
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
    """A call of digits@1 is answered by digits@1 although the traffic moved."""
    follow_traffic(front.catalog, front.delivery)
    front.catalog.put(nouns.deployed(number=2))
    call = asyncio.create_task(front.call(GOOD, JSON, ref="digits@1"))
    peer.answer((await peer.next(Kind.REQUEST)).id)
    status, _, headers = await call

    assert (status, headers["Fn-Revision"]) == (200, "digits@1")


@pytest.mark.parametrize("ref", ["digits", "digits@1"])
async def test_a_function_removed_during_the_upload_is_404(front: Front, ref: str) -> None:
    """The answer comes at once, because no replica would ever start."""

    async def body() -> AsyncIterator[bytes]:
        yield GOOD[:5]
        front.catalog.remove("digits")
        yield GOOD[5:]

    status, problem, _ = await front.call(body(), JSON, ref=ref)

    assert (status, problem["code"]) == (404, "unknown_function")
    assert not front.delivery.loads()


async def test_a_revision_removed_during_the_upload_is_404(front: Front) -> None:
    """A revision may be removed as the oldest when another one is deployed."""
    front.catalog.put(nouns.deployed(number=2))

    async def body() -> AsyncIterator[bytes]:
        yield GOOD[:5]
        front.catalog.remove_revisions("digits", [1])
        yield GOOD[5:]

    status, problem, _ = await front.call(body(), JSON, ref="digits@1")

    assert (status, problem["code"]) == (404, "unknown_revision")


async def test_every_request_leaves_one_event(front: Front, peer: Peer) -> None:
    """Each request, refused ones included, has one event with its outcome, replica and times."""
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
    """A large body arrives unchanged, with Content-Length or chunked."""
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


async def test_a_cancel_in_the_turn_of_the_answer_strands_no_call(
    front: Front,
) -> None:
    """The other queued calls are answered."""
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


async def test_a_cancel_during_the_check_submits_no_call(
    front: Front,
) -> None:
    """A cancel in the turn in which the check ends submits no call and empties the gate."""
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
    invocation._check = None  # as when the future is done but its callback has not run yet
    invocation.cancel()
    await asyncio.wait([checked])
    await asyncio.sleep(0)

    assert front.delivery.loads() == {}
    assert front.gateway.gate.active == 0


async def test_expect_continue_is_answered(front: Front, peer: Peer) -> None:
    """100 Continue is sent before the body, as aiohttp does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(front.url).port)
    head = b"POST /fn/digits HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    writer.write(head + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{}")
    peer.answer((await peer.next(Kind.REQUEST)).id)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()
