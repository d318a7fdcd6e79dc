"""Readers of what arrives in pieces: bodies, events, frames. Cuts make no difference."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import httptools
import msgspec

from gateway.proxy.fields import Field, Fields, Malformed
from gateway.proxy.framing import CHUNKED, ChunkedBody, Data
from gateway.proxy.ports import FilterMode
from gateway.proxy.response_head import ResponseHead
from gateway.proxy.websocket import FrameFollower, close_frame
from gateway.v1.rewriting import ModelAnswer
from gateway.v1.usage import KEPT
from registry.errors import FnError
from registry.field_classes import Direction, fold, is_barred
from runtime_image.contract.link import HEADER, VERSION, Flag, Kind
from runtime_image.link import meta
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack
from runtime_image.link.reception import _checked
from tests.fuzz.subject import KIB, Bound, Subject, chance_of, pieces
from tests.support.head_readings import Reading

CHUNKS: Final = (
    b"5\r\nhello\r\n0\r\n\r\n",
    b"A;a=b;c\r\n0123456789\r\n5\r\nhello\r\n0;x\r\nX-Sum: 1\r\n\r\n",
)
BEFORE: Final = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS: Final = tuple(
    bytes([mode]) + stream
    for mode, stream in enumerate(
        (
            b'data: {"model":"s","choices":[1]}\n\ndata: {"choices":[],"usage":{"a":1}}\n\n'
            b"data: [DONE]\n\n",
            b'event: message_start\r\ndata: {"message":{"model":"s"}}\r\n\r\n: c\r\n\r\n',
            b'data: {"response":{"model":"s"},"model":"s"}\r\rdata: {}\n\r\n',
            b'{"model":"s","usage":{"prompt_tokens":1,"completion_tokens":2}}',
        )
    )
)
HELLO: Final = json.dumps(
    {
        "version": VERSION,
        "token": "t",
        "pid": 1,
        "bound": "b",
        "dial": 1,
        "phases": {},
        "loaded": {},
    }
).encode()
FRAMES: Final = (
    b"".join(
        b"".join(pack(kind, 7, body, meta=b"meta", aux=1))
        for kind, body in ((Kind.PING, b""), (Kind.RESPONSE, b"a body"))
    ),
    HEADER.pack(3, 0, 255, Flag.OPTIONAL, 1, 0) + b"mabc" + b"".join(pack(Kind.PING)),
)
SOCKETS: Final = (
    b"\x81\x05hello\x89\x00" + close_frame(1000, "bye"),
    b"\x02\x7e\x00\x80" + bytes(128) + b"\x80\x7f" + (200).to_bytes(8) + bytes(200),
    b"\x81\x85abcdhello",
)
METAS: Final = (
    meta.pack_request(meta.RequestMeta("application/json", "*/*", 5, "")),
    meta.pack_answer(meta.AnswerMeta("application/json", 1, 2, 3, 4, 5)),
)
CLIENTS: Final = "the-client's"
"""The client's name of the model."""


def _chunks(data: bytes, cuts: tuple[bytes, ...] = ()) -> tuple[int, bytes, bool]:
    """Return how long a chunked body is, its content, and whether it is complete."""
    body, taken = ChunkedBody(), 0
    content: list[Data] = []
    for piece in cuts or (data,):
        count = body.feed(piece, content)
        taken += count
        if count < len(piece):
            break
    return taken, b"".join(content), body.is_complete


def _check_chunks(data: bytes, found: Any) -> None:
    """Pieces make no difference, and llhttp finds the same content and the same end."""
    try:
        in_pieces: Any = _chunks(data, tuple(pieces(data, chance_of(data))))
    except Malformed:
        in_pieces = None
    if isinstance(found, Exception):
        assert in_pieces is None, "only the whole is refused"
        return
    assert in_pieces == found, "pieces make a difference"
    taken, content, is_complete = found
    if not is_complete:
        return
    read = Reading()
    with contextlib.suppress(httptools.HttpParserUpgrade):
        read.parser.feed_data(BEFORE + data[:taken])
    assert read.complete == 1, "llhttp finds another end"
    assert read.bodies == [content], "llhttp reads other content"
    trailers = [fold(name.lower()) for name, _ in read.lines[0][2:]]
    assert not any(is_barred(name, Direction.REQUEST) for name in trailers), "a barred trailer"


def _model_answer(mode: int) -> tuple[ModelAnswer, bool]:
    """Return a filter by the bits of a number, and whether the answer is a stream."""
    answer = ModelAnswer(
        CLIENTS if mode & 4 == 0 else "",
        asks_usage=mode & 8 == 0,
        is_nested=mode & 16 == 0,
    )
    is_stream = mode % 4 != 3
    kind = b"text/event-stream" if is_stream else b"application/json"
    line: Field = (b"Content-Type", kind)
    head = ResponseHead(
        1, 200, b"OK", Fields((line,), (b"content-type",), {b"content-type": kind}), CHUNKED, True
    )
    assert answer.begin(head) is not FilterMode.OFF
    return answer, is_stream


def _events(data: bytes, cuts: tuple[bytes, ...] = ()) -> tuple[bytes, Any]:
    answer, _ = _model_answer(data[0] if data else 0)
    out = [answer.feed(piece) for piece in cuts or (data[1:],)]
    return b"".join((*out, answer.end())), answer.usage


def _check_events(data: bytes, found: Any) -> None:
    """Pieces make no difference, what is to be left as it is stays so, and a JSON answer is the
    same but for its model."""
    mode, stream = data[0] if data else 0, data[1:]
    assert not isinstance(found, Exception), "refused"
    out, usage = found
    in_pieces, usage_then = _events(data, tuple(pieces(stream, chance_of(data))))
    assert in_pieces == out, "pieces make a difference"
    assert len(stream) > KEPT or usage_then == usage
    _, is_stream = _model_answer(mode)
    if mode & 4 and not (is_stream and mode & 8 == 0):
        assert out == stream, "bytes are not passed on as they are"
    if mode & 4 or is_stream:
        return
    try:
        sent = msgspec.json.decode(stream, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return
    got = msgspec.json.decode(out, type=dict[str, msgspec.Raw])
    assert got.keys() == sent.keys()
    for name in got.keys() - {"model", "message", "response"}:
        assert bytes(got[name]) == bytes(sent[name]), f"{name} is another"


def _frames(data: bytes, cuts: tuple[bytes, ...] = ()) -> list[Frame]:
    """Return the frames of a link, as a reader receives them."""
    reader, frames = FrameReader(body_max=128 * KIB), list[Frame]()
    for piece in cuts or (data,):
        rest = piece
        while rest:
            room = reader.buffer()
            count = min(len(room), len(rest))
            assert count, "there is no room"
            room[:count] = rest[:count]
            rest = rest[count:]
            frames += reader.received(count)
    return frames


def _check_frames(data: bytes, found: Any) -> None:
    """Pieces make no difference; what was read is what was packed."""
    try:
        in_pieces: Any = _frames(data, tuple(pieces(data, chance_of(data))))
    except LinkError:
        in_pieces = None
    if isinstance(found, Exception):
        assert in_pieces is None, "only the whole is refused"
        return
    assert in_pieces == found, "pieces make a difference"
    again = b"".join(
        b"".join(pack(one.kind, one.id, one.body, meta=one.meta, flags=one.flags, aux=one.aux))
        for one in found
    )
    assert _frames(again) == found, "packed frames are others"


def _borders(data: bytes, cuts: tuple[bytes, ...] = ()) -> bool | None:
    """Return whether a WebSocket is between two frames, None if that is not followed any more."""
    follower = FrameFollower()
    for piece in cuts or (data,):
        follower.feed(piece)
    return None if follower._is_lost else follower.is_between


def _check_borders(data: bytes, found: Any) -> None:
    """Pieces make no difference, and frames end where RFC 6455 says."""
    in_pieces = _borders(data, tuple(pieces(data, chance_of(data))))
    if found is None:
        return  # many frames at once
    assert in_pieces == found, "pieces make a difference"
    at = 0
    while at + 2 <= len(data):
        size, is_masked = data[at + 1] & 127, data[at + 1] >> 7
        more = {126: 2, 127: 8}.get(size, 0)
        if at + 2 + more > len(data):
            break
        length = int.from_bytes(data[at + 2 : at + 2 + more]) if more else size
        at += 2 + more + 4 * is_masked + length
    assert found == (at == len(data)), "another border"


def _meta(data: bytes) -> list[object]:
    found: list[object] = []
    for read in (meta.unpack_request, meta.unpack_answer):
        with contextlib.suppress(LinkError):
            found.append(read(data))
    if not found:
        raise LinkError("neither")
    return found


def _check_meta(_data: bytes, found: Any) -> None:
    """A meta that was read is packed to one that says the same."""
    for one in () if isinstance(found, Exception) else found:
        if isinstance(one, meta.AnswerMeta):
            assert meta.unpack_answer(meta.pack_answer(one)) == one
        elif max(map(len, (one.content_type, one.accept, one.traceparent))) <= meta.FIELD_MAX:
            assert meta.unpack_request(meta.pack_request(one)) == one


BODIES = (
    Subject("chunks", _chunks, CHUNKS, 64 * KIB, (Malformed,), check=_check_chunks),
    Subject(
        "events",
        _events,
        EVENTS,
        256 * KIB,
        (FnError,),
        check=_check_events,
        lines=Bound(200_000, 2),
    ),
    Subject(
        "frames",
        _frames,
        FRAMES,
        256 * KIB,
        (LinkError,),
        check=_check_frames,
        memory=Bound(2_600 * KIB, 24),
    ),
    Subject(
        "hello",
        lambda data: _checked(Frame(Kind.HELLO, 0, 0, 0, b"", data)),
        (HELLO,),
        256 * KIB,
        (LinkError,),
    ),
    Subject("websocket", _borders, SOCKETS, 64 * KIB, check=_check_borders),
    Subject("meta", _meta, METAS, 16 * KIB, (LinkError,), check=_check_meta),
)
