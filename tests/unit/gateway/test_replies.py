"""Tests of replies: their bytes, and `Server-Timing`."""

from __future__ import annotations

from typing import Any

from gateway.replies import (
    CLOSE,
    PIECE,
    Receipt,
    Reply,
    Writer,
    exchange_timing,
    server_timing,
)
from registry.exchange import place_of
from runtime_image.link.meta import AnswerMeta

HEAD = (
    b"HTTP/1.1 404 Not Found\r\nContent-Type: a/b\r\nContent-Length: 2\r\n"
    b"Date: Thu, 01 Jan 1970 00:00:07 GMT\r\nServer: fngate\r\n"
    b"X-Content-Type-Options: nosniff\r\nContent-Security-Policy: sandbox\r\n\r\n"
)


def test_a_small_reply_is_one_piece() -> None:
    """A small reply is one buffer: status line, headers in order, length, date, body."""
    writer = Writer(lambda: 7.9)
    assert writer.pieces(Reply(404, (("Content-Type", "a/b"),), b"no")) == [HEAD + b"no"]


def test_the_date_header_follows_the_clock() -> None:
    """The date header changes with the second, and not within one."""
    now = [0.0]
    writer = Writer(lambda: now[0])
    reply = Reply(200, (), b"")
    first = writer.pieces(reply)
    now[0] = 0.99
    assert writer.pieces(reply) == first
    now[0] = 1.0
    assert b"00:00:01 GMT" in bytes(writer.pieces(reply)[0])


def test_a_large_body_is_not_copied() -> None:
    """A large body is a piece of its own: the same object."""
    body = bytearray(PIECE)
    head, piece = Writer(lambda: 0.0).pieces(Reply(200, (), body))
    assert piece is body
    assert bytes(head).endswith(b"\r\n\r\n")


def test_a_reply_may_end_its_connection() -> None:
    """A reply with the header `Connection: close` closes its connection."""
    assert Reply(408, (CLOSE,), b"").closes
    assert not Reply(200, (), b"").closes


def test_ready_lines_are_written_as_headers_are() -> None:
    """Headers that are lines already stand before the others, in the bytes and in `fields`."""
    writer, kept = Writer(lambda: 7.9), (("A", "b: c"), ("D", ""))
    ready = Reply(200, (CLOSE,), b"x", "A: b: c\r\nD: \r\n")
    plain = Reply(200, (*kept, CLOSE), b"x")
    assert writer.pieces(ready) == writer.pieces(plain)
    assert ready.fields == plain.fields == [*kept, CLOSE]
    assert ready.closes


META = AnswerMeta("application/json", 1500, 20, 3000, 7, 4)


def receipt(**changes: Any) -> Receipt:
    """Return the receipt of a warm answer, with changes."""
    fields: dict[str, Any] = {
        "revision": "digits@3",
        "replica": "a1",
        "devices": ("cpu:0",),
        "queue_ms": 0.25,
        "phases": {},
        "is_first": False,
        "meta": META,
    }
    return Receipt(**{**fields, **changes})


def test_a_warm_answer_lists_queue_and_run() -> None:
    """The header names the replica and each part of its work in milliseconds."""
    assert server_timing(receipt()) == (
        'replica;desc="a1", queue;dur=0.250, decode;dur=1.500, batch;dur=0.020;desc="4 rows",'
        " compute;dur=3.000, encode;dur=0.007"
    )


def test_a_cold_answer_lists_its_phases_in_order() -> None:
    """The entry `cold` names revision and device; the phases follow in order of time."""
    phases = {"load": 4.0, "place": 0.5, "start": 20.0, "nonsense": 9.0}
    cold = receipt(phases=phases, is_first=True)

    assert cold.is_cold
    assert server_timing(cold) == (
        'cold;desc="digits@3 on cpu:0", replica;desc="a1", queue;dur=0.250, place;dur=0.500,'
        ' start;dur=20.000, load;dur=4.000, decode;dur=1.500, batch;dur=0.020;desc="4 rows",'
        " first_run;dur=3.000, encode;dur=0.007"
    )


def test_a_replica_on_several_gpus_is_named_by_their_number() -> None:
    """A cold start on several GPUs names how many, of models and of servers alike."""
    cold = receipt(devices=("GPU-a", "GPU-b", "GPU-c", "GPU-d"), phases={"load": 4.0})

    assert server_timing(cold).startswith('cold;desc="digits@3 on 4 GPUs", ')
    assert exchange_timing(cold, 1.0).startswith('cold;desc="digits@3 on 4 GPUs", ')


def test_a_replica_without_a_device_names_none() -> None:
    """The place of a replica without a device is empty."""
    assert place_of(()) == ""


def test_a_request_that_joined_a_warm_replica_was_not_cold() -> None:
    """A receipt without phases has no entry `cold`."""
    assert not receipt().is_cold
    assert "cold" not in server_timing(receipt())


def test_an_answer_from_another_host_names_it() -> None:
    """The entry `host` stands before the replica; for this machine there is none."""
    far = receipt(host="gpu2")

    assert server_timing(far) == f'host;desc="gpu2", {server_timing(receipt())}'
    assert server_timing(far._replace(phases={"load": 4.0})).startswith(
        'cold;desc="digits@3 on cpu:0", host;desc="gpu2", replica;desc="a1", '
    )
    assert exchange_timing(far, 2.0) == (
        'host;desc="gpu2", replica;desc="a1", queue;dur=0.250, first_byte;dur=2.000'
    )
    assert "host" not in exchange_timing(receipt(), 2.0)
