"""Tests of replicas that violate the link protocol: clients must not be affected."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.data_links import Delivered
from gateway.delivery import Delivery
from gateway.links import IDLE_FRAMES_MAX
from runtime_image.contract.link import FAILED_MAX, STARTED_MAX, VERSION, Kind
from tests.support.peers import ANSWER, Client, Peer, published

LIES: dict[str, Callable[[Peer, int], object]] = {
    "an unknown id": lambda peer, id: peer.answer(id + 1),
    "an unknown id returned": lambda peer, id: peer.send(Kind.NOT_STARTED, id + 1, aux=1),
    "an unlisted content type": lambda peer, id: peer.answer(id, meta=b"\x03" + ANSWER[1:]),
    "a header of its own": lambda peer, id: peer.answer(id, meta=ANSWER + b"\r\nSet-Cookie: a=b"),
    "missing times": lambda peer, id: peer.answer(id, meta=ANSWER[:-4]),
    "a JSON part longer than the answer": lambda peer, id: peer.answer(id, b"{}", aux=3),
    "an error that is not JSON": lambda peer, id: peer.send(Kind.FAILED, id, b"{"),
    "an error that is not an object": lambda peer, id: peer.send(Kind.FAILED, id, b"[]"),
    "an error nested too deeply": lambda peer, id: peer.send(Kind.FAILED, id, b"[" * 100_000),
    "an error that is too long": lambda peer, id: peer.send(
        Kind.FAILED, id, b" " * (FAILED_MAX + 1)
    ),
    "too many started ids": lambda peer, _id: peer.send(Kind.STARTED, body=bytes(STARTED_MAX + 4)),
    "too many STARTED frames": lambda peer, id: (
        peer.send(Kind.STARTED, body=struct.pack("<I", id))
        or [peer.send(Kind.STARTED) for _ in range(IDLE_FRAMES_MAX)]
    ),
    "truncated ids": lambda peer, _id: peer.send(Kind.STARTED, body=b"123"),
    "a second greeting": lambda peer, _id: peer.send(Kind.HELLO, aux=VERSION),
    "a control frame": lambda peer, _id: peer.send(Kind.PING),
    "WINDOW for one request": lambda peer, id: peer.send(Kind.WINDOW, id),
    "a reserved kind": lambda peer, id: peer.send(Kind.PART, id),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
async def test_a_protocol_violation_ends_the_link_not_the_call(
    delivery: Delivery, peer: Peer, client: Client, lie: Callable[[Peer, int], object]
) -> None:
    """The link ends, no violating frame affects a client, and the call is sent again."""
    delivery.submit(client.call(b"1"))
    request = await peer.next(Kind.REQUEST)
    lie(peer, request.id)
    await peer.lost.get()
    await peer.greet()
    again = await peer.next(Kind.REQUEST)
    peer.answer(again.id, b"right")
    outcome = await client.outcomes.get()

    assert isinstance(outcome, Delivered)
    assert outcome.body == b"right"


@pytest.mark.parametrize(
    "greeting",
    [
        {"kind": Kind.HELLO, "aux": VERSION + 1},
        {"kind": Kind.RESPONSE, "id": 1, "meta": ANSWER},
        {"kind": Kind.GOAWAY},
    ],
)
async def test_a_replica_that_does_not_greet_is_sent_nothing(
    delivery: Delivery, client: Client, tmp_path: Path, greeting: dict[str, Any]
) -> None:
    """Another version, or a frame before HELLO, ends the link; the call keeps its place."""
    async with Peer(tmp_path / "r1").listening() as peer:
        delivery.submit(client.call())
        delivery.receive_endpoints(published(peer.endpoint()))
        await peer.next(Kind.HELLO)
        peer.send(**greeting)
        await peer.lost.get()
        await peer.greet()
        await peer.next(Kind.REQUEST)
        delivery.receive_endpoints(published())

    assert client.outcomes.empty()
