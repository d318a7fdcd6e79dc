"""Tests of data links: frames to and from replicas, and the outcomes of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.data_links import Delivered, HeldCall, Outcome
from gateway.delivery import Delivery
from gateway.dispatch.call import Call
from gateway.links import CONNECT_TRIES
from registry.errors import Poison, QueueFull, ReplicaDied
from runtime_image.contract.errors import RequestError
from runtime_image.contract.link import SPOKEN, Flag, Kind, NotStarted
from runtime_image.link.meta import AnswerMeta, RequestMeta, unpack_request
from tests.support.peers import (
    Client,
    Peer,
    failed,
    published,
)


async def test_a_request_carries_what_the_codecs_need(
    delivery: Delivery, peer: Peer, client: Client
) -> None:
    """A request frame carries types, JSON length, trace and timeout beside the body."""
    meta = RequestMeta("application/octet-stream", "*/*", 17, "00-abc-def-01")
    delivery.submit(client.call(b"x" * 100_000, meta=meta, timeout_s=1.5))

    request = await peer.next(Kind.REQUEST)

    assert (unpack_request(request.meta), request.aux) == (meta, 1500)
    assert (bytes(request.body), request.flags) == (b"x" * 100_000, Flag.TRACE)


async def test_a_request_error_reaches_its_call(
    delivery: Delivery, peer: Peer, client: Client
) -> None:
    """An error that the replica reports for one request is the outcome of that request."""
    delivery.submit(client.call())
    request = await peer.next(Kind.REQUEST)
    peer.send(Kind.FAILED, request.id, failed(code="bad_input", message="m", input="x"))

    outcome = await client.outcomes.get()

    assert isinstance(outcome, RequestError)
    assert (outcome.code, outcome.message, outcome.input) == ("bad_input", "m", "x")


async def test_an_unrequested_cancelled_frame_fails_the_call(
    delivery: Delivery, peer: Peer, client: Client
) -> None:
    """CANCELLED for a request that was not cancelled fails the call; the caller does not hang."""
    delivery.submit(client.call())
    peer.send(Kind.CANCELLED, (await peer.next(Kind.REQUEST)).id)

    outcome = await client.outcomes.get()

    assert isinstance(outcome, ReplicaDied)
    assert outcome.message == "the replica cancelled the request"


async def test_an_answer_carries_json_length_and_first_run(
    delivery: Delivery, peer: Peer, client: Client
) -> None:
    """An answer carries the length of its JSON part and the mark of a first run."""
    delivery.submit(client.call())
    request = await peer.next(Kind.REQUEST)
    peer.answer(request.id, b'{"a":1}rest', aux=7, flags=Flag.FIRST)

    outcome = await client.outcomes.get()

    assert isinstance(outcome, Delivered)
    assert (outcome.json_length, outcome.is_first, outcome.meta.rows) == (7, True, 1)


async def test_a_full_replica_gets_the_request_again_when_it_has_room(
    delivery: Delivery, peer: Peer, client: Client
) -> None:
    """NOT_STARTED requeues the request; WINDOW sends it again under a new id."""
    delivery.submit(client.call(b"1"))
    first = await peer.next(Kind.REQUEST)
    peer.send(Kind.NOT_STARTED, first.id, aux=NotStarted.FULL)
    peer.send(Kind.WINDOW)

    again = await peer.next(Kind.REQUEST)

    assert again.body == first.body
    assert again.id != first.id


async def test_a_draining_replica_gets_no_new_request(
    delivery: Delivery, peer: Peer, client: Client
) -> None:
    """After GOAWAY accepted requests are still answered, and the pool counts as cold."""
    delivery.submit(client.call(b"1"))
    accepted = await peer.next(Kind.REQUEST)
    peer.send(Kind.GOAWAY, aux=accepted.id)
    peer.answer(accepted.id)
    assert isinstance(await client.outcomes.get(), Delivered)

    assert delivery.is_cold("default/digits@1")
    delivery.submit(client.call(b"2"))
    assert delivery.loads()["default/digits@1"].queued == 1


async def test_a_lost_link_reconnects_and_resends_its_calls(
    delivery: Delivery, peer: Peer, client: Client
) -> None:
    """After a reconnect a request that had not started is sent again unchanged; one that had
    started is sent with the flag ALONE."""
    delivery.submit(client.call(b"1"))
    delivery.submit(client.call(b"2"))
    begun = await peer.next(Kind.REQUEST)
    await peer.next(Kind.REQUEST)
    peer.send(Kind.STARTED, body=begun.id.to_bytes(4, "little"))
    peer.answer(2**31)  # unknown id: the gateway closes the link, after it read STARTED
    await peer.lost.get()
    await peer.greet()

    again = [await peer.next(Kind.REQUEST) for _ in range(2)]

    assert [(frame.body, frame.flags) for frame in again] == [(b"1", Flag.ALONE), (b"2", 0)]


async def test_a_body_that_ends_every_link_becomes_poison(
    delivery: Delivery, peer: Peer, client: Client
) -> None:
    """A request that runs while its link is lost three times fails as poison."""
    delivery.submit(client.call(b"deadly"))
    for death in range(3):
        if death:
            await peer.greet()
        request = await peer.next(Kind.REQUEST)
        peer.send(Kind.STARTED, body=request.id.to_bytes(4, "little"))
        peer.answer(2**31)
        await peer.lost.get()

    assert isinstance(await client.outcomes.get(), Poison)


async def unreachable(logs: Sequence[Any], times: int) -> None:
    """Wait until `times` attempts to connect have failed."""
    async with asyncio.timeout(60):
        while len(logs) < times:  # noqa: ASYNC110 - a list of log lines has no event
            await asyncio.sleep(0)
    assert {line["event"] for line in logs} == {"a replica cannot be reached"}


async def test_a_replica_that_does_not_listen_yet_is_tried_again(
    delivery: Delivery, client: Client, tmp_path: Path
) -> None:
    """The gateway retries a replica that the manager lists shortly before its socket listens."""
    peer = Peer(tmp_path / "r1")
    delivery.submit(client.call())
    with capture_logs() as logs:
        delivery.receive_endpoints(published(peer.endpoint()))
        await unreachable(logs, 1)
    async with peer.listening():
        await peer.greet()
        await peer.next(Kind.REQUEST)
        delivery.receive_endpoints(published())


@pytest.mark.slow  # all attempts are made, with a pause before each
async def test_a_replica_that_never_listens_is_given_up_until_it_is_listed_again(
    delivery: Delivery, client: Client, tmp_path: Path
) -> None:
    """The number of connection attempts is bounded; the next message of the manager resets it."""
    peer = Peer(tmp_path / "r1")
    delivery.submit(client.call())
    with capture_logs() as logs:
        delivery.receive_endpoints(published(peer.endpoint()))
        await unreachable(logs, CONNECT_TRIES)
    async with peer.listening():
        assert peer.frames.empty()
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.greet()
        delivery.receive_endpoints(published())


async def test_a_replica_that_is_listed_again_keeps_its_link(
    delivery: Delivery, peer: Peer, client: Client
) -> None:
    """New data about a connected replica takes effect without a second connection."""
    delivery.receive_endpoints(published(peer.endpoint(devices=("cpu:7",))))
    delivery.submit(client.call())
    peer.answer((await peer.next(Kind.REQUEST)).id)

    outcome = await client.outcomes.get()

    assert isinstance(outcome, Delivered)
    assert outcome.devices == ("cpu:7",)


@pytest.mark.parametrize("link", SPOKEN)
async def test_a_replica_is_greeted_in_its_own_link_version(
    delivery: Delivery, client: Client, tmp_path: Path, link: int
) -> None:
    """An earlier server may have started it; it answers calls like any other."""
    async with Peer(tmp_path / "r9").listening() as old:
        delivery.receive_endpoints(published(old.endpoint(link=link)))
        await old.greet(link)
        delivery.submit(client.call())
        old.answer((await old.next(Kind.REQUEST)).id)

        assert isinstance(await client.outcomes.get(), Delivered)


async def test_a_replica_that_is_no_longer_listed_is_not_connected_to_again(
    delivery: Delivery, peer: Peer, client: Client
) -> None:
    """A delisted replica whose link ended is not reconnected; its calls go to another replica."""
    delivery.submit(client.call())
    await peer.next(Kind.REQUEST)
    delivery.receive_endpoints(published())
    peer.hang_up()
    await peer.lost.get()
    async with Peer(peer.path.with_name("r2")).listening() as other:
        delivery.receive_endpoints(published(other.endpoint()))
        await other.greet()
        await other.next(Kind.REQUEST)
        delivery.receive_endpoints(published())

    assert peer.frames.empty()


async def test_closed_links_are_not_reconnected(delivery: Delivery, peer: Peer) -> None:
    """A gateway that closes its links does not reconnect; the replica keeps serving other
    gateways."""
    with capture_logs() as logs:
        await delivery.close()
        await peer.lost.get()

    assert [entry["event"] for entry in logs] == ["a data link ended"]


META = RequestMeta("application/json", "", -1, "")


def call(outcomes: list[Outcome]) -> HeldCall:
    """Return a call that appends its outcome to `outcomes`."""
    return HeldCall("default/f@1", META, b"", 0.0, 1.0, 1.0, done=outcomes.append)


def test_a_held_call_passes_its_outcome_on() -> None:
    """A held call satisfies the dispatcher's Call interface and passes its outcome to `done`."""
    outcomes: list[Outcome] = []
    error = QueueFull("full")
    held = call(outcomes)

    held.done(error)

    assert isinstance(held, Call)
    assert outcomes == [error]


def test_calls_with_equal_contents_are_not_equal() -> None:
    """Calls compare by identity, not by content."""
    assert call([]) != call([])


def test_an_answer_is_immutable() -> None:
    """A delivered answer cannot be modified."""
    meta = AnswerMeta("application/json", 0, 0, 0, 0, 1)
    answer = Delivered(meta, 0, b"{}", False, "r", ("cpu:0",), 0.0, {})

    with pytest.raises(AttributeError):
        answer.body = b""  # type: ignore[misc]  # the refusal is tested
