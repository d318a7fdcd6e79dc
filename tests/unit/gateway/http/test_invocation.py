"""Tests of an invocation without HTTP; test_invocation_invoke covers the whole path."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from gateway.admission.calls import NOT_CORRELATED, Correlation
from gateway.admission.credentials import DIRECT, Credential
from gateway.body_memory import BODY_MIN
from gateway.cold_checks.cold_check import IN_LOOP_MAX
from gateway.data_links import HeldCall
from gateway.dispatch.call import Priority
from gateway.dispatch.held import HeldBytes
from gateway.http.context import Invoker
from gateway.http.invocation import Invocation
from gateway.http.reservations import BodyBudget
from gateway.metrics.counters import TEXT
from gateway.observing.access_log import AccessEvent
from gateway.observing.records import RequestRecord
from gateway.observing.tracing import Tracer
from gateway.replies import Reply
from registry.errors import ReplicaDied, UnknownFunction
from runtime_image.contract.link import Flag, Kind
from runtime_image.link.meta import unpack_request
from tests.support.peers import Peer, failed
from tests.unit.gateway.admission.test_calls import head
from tests.unit.gateway.http.conftest import TOKEN

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Front

GOOD = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'
OIP = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}'
CALL = head(content_type="application/json")._replace(host="127.0.0.1")


async def test_a_released_invocation_leaves_nothing(front: Front) -> None:
    """A released invocation leaves the gate, gets no reply and is not counted."""
    replies: list[Reply] = []
    invocation = Invocation(front.gateway.invoker, CALL, replies.append)
    assert invocation.admit(CALL) == 64 * 2**20
    assert front.gateway.gate.active == 1
    invocation.release()

    assert (front.gateway.gate.active, replies) == (0, [])
    assert b'fngate_requests_total{function="digits"' not in TEXT.encode(front.metrics)


async def test_a_refused_invocation_can_fail_with_its_problem(front: Front) -> None:
    """`fail` replies with the problem and leaves the gate."""
    replies: list[Reply] = []
    invocation = Invocation(front.gateway.invoker, CALL._replace(ref="no"), replies.append)
    with pytest.raises(UnknownFunction) as caught:
        invocation.admit("any key")
    invocation.fail(caught.value)

    assert [reply.status for reply in replies] == [404]
    assert front.gateway.gate.active == 0


async def test_a_cancelled_invocation_gets_no_reply(front: Front, peer: Peer) -> None:
    """The replica gets CANCEL, and its answer is dropped."""
    replies: list[Reply] = []
    invocation = Invocation(front.gateway.invoker, CALL, replies.append)
    invocation.admit(CALL)
    invocation.run(GOOD)
    request = await peer.next(Kind.REQUEST)
    invocation.cancel()
    await peer.next(Kind.CANCEL)
    peer.answer(request.id)
    await front.delivery.wait_idle()

    assert (replies, front.gateway.gate.active) == ([], 0)


@pytest.mark.parametrize("ending", ["answer", "failure", "cancel"])
@pytest.mark.parametrize("version", [None, ""])
async def test_the_time_of_a_call_is_that_of_its_key(
    front: Front, peer: Peer, ending: str, version: str | None
) -> None:
    """However a call ends that was sent, in every protocol; a refused one has none."""
    key, invoker = Credential(TOKEN), front.gateway.invoker
    asked = CALL._replace(credential=key, version=version)
    body = GOOD if version is None else OIP
    replied = asyncio.Event()
    invocation = Invocation(invoker, asked, lambda _: replied.set())
    invocation.admit(asked)
    invocation.run(body)
    request = await peer.next(Kind.REQUEST)
    if ending == "cancel":
        invocation.cancel()
    elif ending == "failure":
        peer.send(Kind.FAILED, request.id, failed(code="bad_input", title="no"))
        await replied.wait()
    else:
        peer.answer(request.id)
        await replied.wait()
    invoker.key_times.flush()

    [row] = front.past.usage
    assert (row.key_id, row.name, row.calls) == (invoker.access.ring.token_id, "digits", 0)
    assert row.busy_ms >= 1


async def test_a_defect_is_answered_once(
    front: Front, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later outcome is dropped, because the connection may serve another request by then."""
    replies: list[Reply] = []
    invocation = Invocation(front.gateway.invoker, CALL, replies.append)
    invocation.admit(CALL)

    def break_down(_call: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(front.delivery, "send_now", break_down)
    invocation.run(GOOD)
    invocation._on_outcome(ReplicaDied("it comes to its end all the same"))

    assert [reply.status for reply in replies] == [500]
    assert front.gateway.gate.active == 0


@pytest.mark.parametrize(
    ("given", "version", "wait_s", "priority", "by"),
    [
        ({"timeout": 2_000_000, "priority": 1}, "", 2.0, Priority.HIGH, Credential(TOKEN)),
        ({"timeout": 2_000_000, "priority": 1}, "", 2.0, Priority.NORMAL, DIRECT),
        ({"timeout": 10**12, "priority": 7}, "", 30.0, Priority.LOW, DIRECT),
        ({"timeout": 1, "priority": 1}, None, 30.0, Priority.NORMAL, DIRECT),
        ({}, "", 30.0, Priority.NORMAL, DIRECT),
    ],
)
async def test_parameters_of_the_protocol_shorten_the_wait(
    front: Front,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, int],
    version: str | None,
    wait_s: float,
    priority: Priority,
    by: Credential,
) -> None:
    """`timeout` and `priority` in a body count at /v2 only; no body prolongs the wait budget, and
    none makes a call high whose caller may not."""
    calls: list[HeldCall] = []
    monkeypatch.setattr(front.delivery, "send_now", lambda call: calls.append(call) or True)
    asked = CALL._replace(version=version, prefer="wait=30", credential=by)
    invocation = Invocation(front.gateway.invoker, asked, lambda _reply: None)
    invocation.admit(asked)
    invocation.run(json.dumps({"inputs": [], "parameters": given}).encode())
    invocation.release()

    (call,) = calls
    assert call.wait_until_s - call.arrived_s == pytest.approx(wait_s)
    assert call.priority == priority


async def test_wrong_parameters_of_the_protocol_wake_nothing(front: Front) -> None:
    """A request with a timeout of another type is refused before it is a call."""
    replies: list[Reply] = []
    asked = CALL._replace(version="")
    invocation = Invocation(front.gateway.invoker, asked, replies.append)
    invocation.admit(asked)
    invocation.run(b'{"inputs": [], "parameters": {"timeout": "1"}}')
    assert [reply.status for reply in replies] == [400]
    assert front.delivery.loads() == {}


async def test_a_body_that_is_copied_for_its_check_counts_twice(front: Front) -> None:
    """Both copies count while the body is checked; one that can never fit twice is not checked."""
    budget, large = front.gateway.invoker.body_budget, b"[" * (IN_LOOP_MAX + 1)
    invocation = Invocation(front.gateway.invoker, CALL, lambda _reply: None)
    invocation.admit(CALL)
    invocation.run(large)
    assert budget.held.bytes == 2 * len(large)
    invocation.cancel()
    assert budget.held.bytes == 0

    budget = BodyBudget(HeldBytes(2 * len(large) - 1), time.monotonic)
    invocation = Invocation(
        front.gateway.invoker._replace(body_budget=budget), CALL, lambda _reply: None
    )
    invocation.admit(CALL)
    invocation.run(large)
    assert front.delivery.loads() != {}
    assert front.delivery.held.bytes == len(large)
    invocation.cancel()


async def test_a_body_in_its_own_file_counts_once_and_ends_with_its_refusal(front: Front) -> None:
    """No error, and no callback that waits for the garbage collector, keeps a refused body."""
    invoker, replies = front.gateway.invoker, asyncio.Queue[Reply]()
    invocation = Invocation(invoker, CALL, replies.put_nowait)
    invocation.admit(CALL)
    view = invocation.room(2 * BODY_MIN)
    assert view is not None
    view[:] = b" " * len(view)
    gc.disable()
    try:
        invocation.run(view[:BODY_MIN])
        del view
        assert (invoker.body_budget.held.bytes, len(invoker.body_budget.memories)) == (BODY_MIN, 1)
        reply = await replies.get()
        invoker.cold_check.close()  # its thread holds the body for a moment longer
        assert (invoker.body_budget.held.bytes, len(invoker.body_budget.memories)) == (0, 0)
    finally:
        gc.enable()
    assert reply.status == 400


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"


def logged_events(front: Front) -> list[AccessEvent]:
    """Return the events of the access log and close it."""
    assert front.gateway.invoker.access_log is not None
    front.gateway.invoker.access_log.close()
    return front.events


def tracing(front: Front, traced: list[RequestRecord]) -> tuple[Invoker, Tracer]:
    """Return an invoker whose traced requests go to `traced`, and its tracer."""
    tracer = Tracer(0.0, lambda records, _left_out: traced.extend(records), Random(7))
    return front.gateway.invoker._replace(tracer=tracer), tracer


async def test_a_cancelled_invocation_is_logged_once(front: Front, peer: Peer) -> None:
    """A second cancel and the replica's late answer add no event."""
    correlation = Correlation("mine", "")
    invocation = Invocation(front.gateway.invoker, CALL, lambda _reply: None, correlation)
    invocation.admit(CALL)
    invocation.run(GOOD)
    request = await peer.next(Kind.REQUEST)
    invocation.cancel()
    invocation.cancel()
    peer.answer(request.id)
    await front.delivery.wait_idle()

    (record,) = logged_events(front)
    assert (record.outcome, record.status, record.request_id) == ("client_left", 0, "mine")
    assert (record.replica, record.sends, record.bytes_in) == ("r1", 1, len(GOOD))


async def test_a_released_invocation_is_not_logged(front: Front) -> None:
    """The HTTP front end that released it logs it; a second event would be a duplicate."""
    invocation = Invocation(front.gateway.invoker, CALL, lambda _reply: None)
    invocation.admit(CALL)
    invocation.release()

    assert logged_events(front) == []


async def test_an_answered_invocation_cannot_be_cancelled(front: Front) -> None:
    """aiohttp may cancel its task in the same turn as the answer."""
    invocation = Invocation(front.gateway.invoker, CALL, lambda _reply: None)
    invocation.fail(UnknownFunction("no such thing"))
    invocation.cancel()

    assert [record.outcome for record in logged_events(front)] == ["unknown_function"]


async def test_every_answer_has_its_request_id(front: Front) -> None:
    """The id is the client's, or else a generated one."""
    replies: list[Reply] = []
    for given in (NOT_CORRELATED, Correlation("mine", "")):
        invocation = Invocation(front.gateway.invoker, CALL, replies.append, given)
        invocation.fail(UnknownFunction("no such thing"))
        assert dict(replies[-1].fields)["X-Request-Id"] == invocation.request_id

    assert invocation.request_id == "mine"
    assert dict(replies[0].fields)["X-Request-Id"].startswith("ours-")


async def test_a_trace_goes_on_to_the_replica(front: Front, peer: Peer) -> None:
    """The replica gets the gateway's span as parent if the trace is sampled, else the client's
    header; the log has the trace id in both cases."""
    traced: list[RequestRecord] = []
    invoker, tracer = tracing(front, traced)
    sent = []
    for end in "01":
        given = Correlation("", PARENT + end)
        invocation = Invocation(invoker, CALL, lambda _reply: None, given)
        invocation.admit(CALL)
        invocation.run(GOOD)
        request = await peer.next(Kind.REQUEST)
        assert request.flags & Flag.TRACE
        sent.append(unpack_request(request.meta).traceparent)
        peer.answer(request.id)
    await front.delivery.wait_idle()
    tracer.close()

    (record,) = traced
    assert record.trace is not None
    assert (record.trace.parent_id, record.trace_id) == ("b7ad6b7169203331", PARENT[3:35])
    assert sent == [PARENT + "0", record.trace.traceparent]
    assert [one.trace_id for one in logged_events(front)] == [PARENT[3:35]] * 2


async def test_without_an_access_log_traced_requests_are_recorded(front: Front) -> None:
    """Without an access log only traced requests are recorded."""
    traced: list[RequestRecord] = []
    invoker, tracer = tracing(front, traced)
    for given in (NOT_CORRELATED, Correlation("", PARENT + "1")):
        invocation = Invocation(invoker._replace(access_log=None), CALL, lambda _reply: None, given)
        invocation.fail(UnknownFunction("no such thing"))
    tracer.close()

    assert [record.outcome for record in traced] == ["unknown_function"]
    assert traced[0].journey is not None
    assert logged_events(front) == []
