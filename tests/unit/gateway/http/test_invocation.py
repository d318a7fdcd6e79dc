"""Tests of an invocation apart from any HTTP; its whole way stands in test_invoke."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from gateway.http.admission import NOT_CORRELATED, Correlation
from gateway.http.context import Invoker
from gateway.http.invocation import Invocation
from gateway.observing.access_log import AccessEvent
from gateway.observing.records import RequestRecord
from gateway.observing.tracing import Tracer
from gateway.replies import Reply
from registry.errors import ReplicaDied, UnknownFunction
from runtime_image.contract.link import Flag, Kind
from runtime_image.link.meta import unpack_request
from tests.support.peers import Peer
from tests.unit.gateway.http.test_admission import head

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Front

GOOD = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'
CALL = head(content_type="application/json")._replace(host="127.0.0.1")


async def test_one_that_is_withdrawn_never_was(front: Front) -> None:
    """It leaves the door, is answered by nobody and counted nowhere."""
    replies: list[Reply] = []
    invocation = Invocation(front.gateway.invoker, CALL, replies.append)
    assert invocation.admit(CALL) == 64 * 2**20
    assert front.gateway.gate.active == 1
    invocation.release()

    assert (front.gateway.gate.active, replies) == (0, [])
    assert b'fngate_requests_total{function="digits"' not in front.metrics.render()


async def test_one_that_is_refused_can_be_told_why(front: Front) -> None:
    """`fail` answers with the problem, and the door is left."""
    replies: list[Reply] = []
    invocation = Invocation(front.gateway.invoker, CALL._replace(ref="no"), replies.append)
    with pytest.raises(UnknownFunction) as caught:
        invocation.admit("any key")
    invocation.fail(caught.value)

    assert [reply.status for reply in replies] == [404]
    assert front.gateway.gate.active == 0


async def test_who_leaves_is_not_answered(front: Front, peer: Peer) -> None:
    """The replica hears of it, and what it answers all the same goes nowhere."""
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


async def test_one_that_a_defect_answered_is_not_answered_again(
    front: Front, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection may serve another request by the time its call comes to an end."""
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


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"


def told(front: Front) -> list[AccessEvent]:
    """The events there are; no more can come."""
    assert front.gateway.invoker.access_log is not None
    front.gateway.invoker.access_log.close()
    return front.events


def tracing(front: Front, traced: list[RequestRecord]) -> tuple[Invoker, Tracer]:
    """The same gateway, whose traced requests come to `traced`."""
    tracer = Tracer(0.0, lambda records, _left_out: traced.extend(records), Random(7))
    return front.gateway.invoker._replace(tracer=tracer), tracer


async def test_who_leaves_is_told_of_once(front: Front, peer: Peer) -> None:
    """Whatever his replica, or his connection, still does."""
    correlation = Correlation("mine", "")
    invocation = Invocation(front.gateway.invoker, CALL, lambda _reply: None, correlation)
    invocation.admit(CALL)
    invocation.run(GOOD)
    request = await peer.next(Kind.REQUEST)
    invocation.cancel()
    invocation.cancel()
    peer.answer(request.id)
    await front.delivery.wait_idle()

    (record,) = told(front)
    assert (record.outcome, record.status, record.request_id) == ("client_left", 0, "mine")
    assert (record.replica, record.sends, record.bytes_in) == ("r1", 1, len(GOOD))


async def test_one_that_is_withdrawn_is_told_of_by_whoever_reads_it(front: Front) -> None:
    """Not here: it would be told of twice."""
    invocation = Invocation(front.gateway.invoker, CALL, lambda _reply: None)
    invocation.admit(CALL)
    invocation.release()

    assert told(front) == []


async def test_one_that_was_answered_cannot_leave(front: Front) -> None:
    """aiohttp's task may be cancelled in the turn of its answer."""
    invocation = Invocation(front.gateway.invoker, CALL, lambda _reply: None)
    invocation.fail(UnknownFunction("no such thing"))
    invocation.cancel()

    assert [record.outcome for record in told(front)] == ["unknown_function"]


async def test_every_answer_says_by_which_id_its_request_is_known(front: Front) -> None:
    """The client's, else one of ours."""
    replies: list[Reply] = []
    for given in (NOT_CORRELATED, Correlation("mine", "")):
        invocation = Invocation(front.gateway.invoker, CALL, replies.append, given)
        invocation.fail(UnknownFunction("no such thing"))
        assert dict(replies[-1].headers)["X-Request-Id"] == invocation.request_id

    assert invocation.request_id == "mine"
    assert dict(replies[0].headers)["X-Request-Id"].startswith("ours-")


async def test_a_trace_goes_on_to_the_replica(front: Front, peer: Peer) -> None:
    """Below our own span if it is recorded, else as it came; its id is told in any case."""
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
    assert [one.trace_id for one in told(front)] == [PARENT[3:35]] * 2


async def test_traces_alone_make_records_of_what_is_traced(front: Front) -> None:
    """Without an access log."""
    traced: list[RequestRecord] = []
    invoker, tracer = tracing(front, traced)
    for given in (NOT_CORRELATED, Correlation("", PARENT + "1")):
        invocation = Invocation(invoker._replace(access_log=None), CALL, lambda _reply: None, given)
        invocation.fail(UnknownFunction("no such thing"))
    tracer.close()

    assert [record.outcome for record in traced] == ["unknown_function"]
    assert traced[0].journey is not None
    assert told(front) == []
