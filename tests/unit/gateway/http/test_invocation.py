"""Tests of an invocation apart from any HTTP; its whole way stands in test_invoke."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.answers.reply import Reply
from gateway.http.invocation import Invocation
from registry.errors import ReplicaDied, UnknownFunction
from runtime_image.contract.link import Kind
from tests.support.peers import Peer
from tests.unit.gateway.http.test_head import head

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Front

GOOD = b'{"inputs": {"x": [[1, 2, 3, 4]]}}'
CALL = head(content_type="application/json")._replace(host="127.0.0.1")


async def test_one_that_is_withdrawn_never_was(front: Front) -> None:
    """It leaves the door, is answered by nobody and counted nowhere."""
    replies: list[Reply] = []
    invocation = Invocation(front.gateway.invoker, CALL, replies.append)
    assert invocation.admit(CALL) == 64 * 2**20
    assert front.gateway.door.inside == 1
    invocation.withdraw()

    assert (front.gateway.door.inside, replies) == (0, [])
    assert b'fngate_requests_total{function="digits"' not in front.metrics.render()


async def test_one_that_is_refused_can_be_told_why(front: Front) -> None:
    """`fail` answers with the problem, and the door is left."""
    replies: list[Reply] = []
    invocation = Invocation(front.gateway.invoker, CALL._replace(ref="no"), replies.append)
    with pytest.raises(UnknownFunction) as caught:
        invocation.admit("any key")
    invocation.fail(caught.value)

    assert [reply.status for reply in replies] == [404]
    assert front.gateway.door.inside == 0


async def test_who_leaves_is_not_answered(front: Front, peer: Peer) -> None:
    """The replica hears of it, and what it answers all the same goes nowhere."""
    replies: list[Reply] = []
    invocation = Invocation(front.gateway.invoker, CALL, replies.append)
    invocation.admit(CALL)
    invocation.run(GOOD)
    request = await peer.next(Kind.REQUEST)
    invocation.leave()
    await peer.next(Kind.CANCEL)
    peer.answer(request.id)
    await front.delivery.wait_idle()

    assert (replies, front.gateway.door.inside) == ([], 0)


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
    invocation._done(ReplicaDied("it comes to its end all the same"))

    assert [reply.status for reply in replies] == [500]
    assert front.gateway.door.inside == 0
