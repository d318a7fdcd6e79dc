"""WebSockets: opening handshakes, borders of frames, close frames."""

from __future__ import annotations

import itertools

import pytest

from gateway.proxy.request_head import RequestHead, parse_request_head
from gateway.proxy.response_head import ResponseHead, UpstreamError, parse_response_head
from gateway.proxy.websocket import (
    POLICY_VIOLATION,
    FrameFollower,
    accept_of,
    check_handshake,
    close_frame,
    is_handshake,
    is_switched,
)
from registry.errors import BadRequest

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The example of RFC 6455 section 1.3."""
ASKED = {
    b"Host": b"a.example:80",
    b"Upgrade": b"websocket",
    b"Connection": b"keep-alive, Upgrade",
    b"Sec-WebSocket-Key": KEY,
    b"Sec-WebSocket-Version": b"13",
}
SWITCHED = {
    b"Upgrade": b"WebSocket",
    b"Connection": b"upgrade",
    b"Sec-WebSocket-Accept": ACCEPT,
}


def request(line: bytes = b"GET /fn/web/ws HTTP/1.1", **changed: bytes | None) -> RequestHead:
    """Parse a handshake with changed fields; None removes one, _ stands for -."""
    return parse_request_head(message(line, ASKED, changed))


def answer(line: bytes = b"HTTP/1.1 101 Switching", **changed: bytes | None) -> ResponseHead:
    """Parse the answer to a handshake with changed fields."""
    return parse_response_head(message(line, SWITCHED, changed), b"GET")


def message(line: bytes, fields: dict[bytes, bytes], changed: dict[str, bytes | None]) -> bytes:
    """Join a head."""
    other = {name.replace("_", "-").encode(): value for name, value in changed.items()}
    lines = [
        b"%b: %b" % (name, value)
        for name, value in {**fields, **other}.items()
        if value is not None
    ]
    return b"\r\n".join((line, *lines, b"", b""))


def test_a_handshake() -> None:
    """Its key is returned."""
    assert is_handshake(request()) is True
    assert check_handshake(request()) == KEY


def test_the_example_of_the_standard() -> None:
    """The key of RFC 6455 section 1.3 is accepted with its answer."""
    assert accept_of(KEY) == ACCEPT


@pytest.mark.parametrize(
    "changed",
    [{"Upgrade": None}, {"Upgrade": b"h2c"}, {"Connection": None}, {"Connection": b"keep-alive"}],
)
def test_other_requests_are_no_handshake(changed: dict[str, bytes | None]) -> None:
    """Upgrade has to name websocket, and Connection has to name Upgrade."""
    assert is_handshake(request(**changed)) is False


def test_http_1_0_has_no_handshake() -> None:
    """RFC 6455 section 4.1 needs HTTP/1.1."""
    assert is_handshake(request(b"GET / HTTP/1.0")) is False


@pytest.mark.parametrize("upgrade", [b"WebSocket", b"h2c, websocket"])
def test_upgrade_is_a_list_without_case(upgrade: bytes) -> None:
    """Other protocols may be offered beside it."""
    assert is_handshake(request(Upgrade=upgrade)) is True


@pytest.mark.parametrize(
    ("line", "changed", "word"),
    [
        (b"POST / HTTP/1.1", {}, "GET"),
        (b"GET / HTTP/1.1", {"Content_Length": b"0"}, "without a body"),
        (b"GET / HTTP/1.1", {"Transfer_Encoding": b"chunked"}, "without a body"),
        (b"GET / HTTP/1.1", {"Sec_WebSocket_Version": None}, "13"),
        (b"GET / HTTP/1.1", {"Sec_WebSocket_Version": b"8"}, "13"),
        (b"GET / HTTP/1.1", {"Sec_WebSocket_Version": b"13, 8"}, "13"),
        (b"GET / HTTP/1.1", {"Sec_WebSocket_Key": None}, "16 bytes"),
        (b"GET / HTTP/1.1", {"Sec_WebSocket_Key": b""}, "16 bytes"),
        (b"GET / HTTP/1.1", {"Sec_WebSocket_Key": KEY[:-1]}, "16 bytes"),
        (b"GET / HTTP/1.1", {"Sec_WebSocket_Key": KEY + b"="}, "16 bytes"),
        (b"GET / HTTP/1.1", {"Sec_WebSocket_Key": b"A" * 21 + b"B=="}, "16 bytes"),
        (b"GET / HTTP/1.1", {"Sec_WebSocket_Key": b"-" * 21 + b"A=="}, "16 bytes"),
    ],
)
def test_malformed_handshakes_are_refused(
    line: bytes, changed: dict[str, bytes | None], word: str
) -> None:
    """The text says what was expected."""
    with pytest.raises(BadRequest, match=word):
        check_handshake(request(line, **changed))


def test_the_answer_that_opens() -> None:
    """101 with the accept of the key."""
    assert is_switched(answer(), KEY) is True


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("line", [b"HTTP/1.1 200 OK", b"HTTP/1.1 426 Upgrade", b"HTTP/1.1 100 C"])
def test_ordinary_answers(line: bytes, key: bytes | None) -> None:
    """Any other status is passed on as an ordinary answer."""
    assert is_switched(answer(line), key) is False


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"Upgrade": None}, "Upgrade: websocket"),
        ({"Upgrade": b"h2c"}, "Upgrade: websocket"),
        ({"Upgrade": b"websocket, h2c"}, "Upgrade: websocket"),
        ({"Connection": None}, "Connection: Upgrade"),
        ({"Connection": b"close"}, "Connection: Upgrade"),
        ({"Sec_WebSocket_Accept": None}, "Accept"),
        ({"Sec_WebSocket_Accept": ACCEPT.lower()}, "Accept"),
        ({"Sec_WebSocket_Accept": ACCEPT + b", " + ACCEPT}, "Accept"),
    ],
)
def test_another_101_is_no_answer(changed: dict[str, bytes | None], word: str) -> None:
    """It would leave client and server with different protocols."""
    with pytest.raises(UpstreamError, match=word):
        is_switched(answer(**changed), KEY)


def test_a_101_that_nobody_asked_for() -> None:
    """It is refused, however right it looks."""
    with pytest.raises(UpstreamError, match="asked for"):
        is_switched(answer(), None)


def frame(size: int, mask: bool = False) -> bytes:
    """Return a binary frame with `size` bytes of content."""
    bit, keys = (0x80, b"mask") if mask else (0, b"")
    if size < 126:
        head = bytes([0x82, bit | size])
    elif size < 1 << 16:
        head = bytes([0x82, bit | 126]) + size.to_bytes(2)
    else:
        head = bytes([0x82, bit | 127]) + size.to_bytes(8)
    return head + keys + b"x" * size


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000, 1 << 20])
def test_the_borders_of_frames_are_followed(piece: int) -> None:
    """However the bytes are cut, it is known where a frame ends; frames of all three lengths."""
    sizes = (0, 1, 125, 126, 70_000 if piece > 7 else 300, 0)
    whole = b"".join(frame(size, mask=size == 126) for size in sizes)
    ends = list(itertools.accumulate(len(frame(size, mask=size == 126)) for size in sizes))
    follower = FrameFollower()

    for at in range(0, len(whole), piece):
        follower.feed(whole[at : at + piece])
        assert follower.is_between is (min(at + piece, len(whole)) in ends), at


def test_many_small_frames_in_one_piece_are_followed() -> None:
    """The border after tens of thousands of frames is known, and each frame of data counts."""
    follower = FrameFollower()
    follower.feed(frame(0) * 30_000)

    assert follower.is_between is True
    assert follower.data_moved == 30_000


@pytest.mark.parametrize(
    "data",
    [
        b"\x89\x7e\x00\x80" + b"x" * 128,
        b"\x09\x00",
        b"\x82\x7f" + b"\xff" * 8,
    ],
    ids=["long ping", "fragmented ping", "64 bits"],
)
def test_what_is_no_frame_counts_as_data(data: bytes) -> None:
    """After bytes that no endpoint may send no border is known, and everything counts."""
    follower = FrameFollower()
    follower.feed(data)
    before = follower.data_moved
    follower.feed(b"\x89\x00")

    assert follower.is_between is False
    assert follower.data_moved > before > 0


def test_a_close_frame() -> None:
    """It has the code and the reason, in the form of RFC 6455 section 5.5.1."""
    assert close_frame(POLICY_VIOLATION, "gone") == b"\x88\x06\x03\xf0gone"
    with pytest.raises(ValueError, match="at most 125"):
        close_frame(POLICY_VIOLATION, "x" * 124)
