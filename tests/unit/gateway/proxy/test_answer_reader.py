"""Reading of heads of answers as they arrive."""

from __future__ import annotations

import pytest

from gateway.proxy.answer_reader import INTERIM_MAX, AnswerReader
from gateway.proxy.response_head import HEAD_MAX, UpstreamError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\n\r\n"


def reader(data: bytes) -> AnswerReader:
    """Return a reader that has got `data`."""
    made = AnswerReader(b"GET")
    made.feed(data)
    return made


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_heads_in_pieces(size: int) -> None:
    """Each head is found when its last byte has arrived, and what follows is kept."""
    data, made, found = INTERIM + INTERIM + HEAD + b"ab", AnswerReader(b"GET"), list[int]()
    for start in range(0, len(data), size):
        made.feed(data[start : start + size])
        while (not found or found[-1] < 200) and (head := made.next_head()) is not None:
            found.append(head.status)

    assert found == [103, 103, 200]
    assert made.take(made.take_rest()) == (b"ab", True)
    assert made.body.is_complete


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nab", "bare CR or LF"),
        (b"HTTP/1.1 200 OK\n", "bare CR or LF"),
        (b"HTTP/1.1 200 OK\r\nA: b\n", "bare CR or LF"),
        (b"HTTP/1.1 200 OK\rA: b\r\r", "bare CR or LF"),
        (b"HTTP/1.1 200 OK\nA: b\n\n" + HEAD, "a status line of HTTP/1.0 or HTTP/1.1"),
        (INTERIM + b"HTTP/1.1 200 OK\n", "bare CR or LF"),
        (b"SSH-2.0-x\r\n", "a status line of HTTP/1.0 or HTTP/1.1"),
        (b"HTTP/2", "a status line of HTTP/1.0 or HTTP/1.1"),
        (b"\x15", "a status line of HTTP/1.0 or HTTP/1.1"),
        (b"HTTP/1.1 903 X\r\n\r\n", "a status from 100 to 599, got 903"),
        (b"HTTP/1.1 200 O" + b"K" * HEAD_MAX, "at most 65536 bytes"),
    ],
)
def test_what_is_no_head_is_refused_at_once(data: bytes, reason: str) -> None:
    """The end of such a head may never come: its sender has sent everything."""
    made = reader(data)
    with pytest.raises(UpstreamError, match=f"expected .*{reason}"):
        list(iter(made.next_head, None))


@pytest.mark.parametrize("data", [b"", b"H", b"HTTP/1.", b"HTTP/1.1 200 OK\r", HEAD[:-1]])
def test_the_beginning_of_a_head_is_waited_for(data: bytes) -> None:
    """Any beginning of a valid head may go on."""
    assert reader(data).next_head() is None
    assert reader(data).head_bytes == len(data)


def test_interim_heads_are_limited() -> None:
    """A server cannot keep a client busy with them."""
    made = reader(INTERIM * (INTERIM_MAX + 1))
    for _ in range(INTERIM_MAX):
        assert made.next_head() is not None
    with pytest.raises(UpstreamError, match=f"at most {INTERIM_MAX} interim"):
        made.next_head()


def test_interim_heads_are_bounded_in_bytes() -> None:
    """Large ones are refused before there are as many as small ones may be."""
    large = b"HTTP/1.1 103 Early Hints\r\nLink: " + b"x" * 8100 + b"\r\n\r\n"
    made = reader(large * 33)
    for _ in range(32):
        assert made.next_head() is not None
    with pytest.raises(UpstreamError, match="interim"):
        made.next_head()
