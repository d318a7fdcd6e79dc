"""Answers on their way to the client."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.proxy.fields import Fields
from gateway.proxy.ports import FilterMode
from gateway.proxy.response_head import ResponseHead, parse_response_head
from gateway.v1.answer_bodies import HELD_MAX
from gateway.v1.rewriting import ModelAnswer
from gateway.v1.usage import KEPT, TokenUsage
from registry.errors import UpstreamFailed

EVENTS, JSON = "text/event-stream; charset=utf-8", "application/json"


def head(kind: str, *more: str, status: int = 200) -> ResponseHead:
    """Return the head of an answer."""
    lines = [f"HTTP/1.1 {status} OK", f"Content-Type: {kind}", *more, "Content-Length: 1"]
    return parse_response_head("\r\n".join([*lines, "", ""]).encode(), b"POST")


def chunk(text: str, **more: Any) -> bytes:
    """Return an event of a chat completion."""
    data = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "served"}
    choices = [{"index": 0, "delta": {"content": text}}]
    return f"data: {json.dumps({**data, 'choices': choices, **more})}\n\n".encode()


def through(answer: ModelAnswer, *pieces: bytes) -> bytes:
    """Return what the client gets."""
    return b"".join([*map(answer.feed, pieces), answer.end()])


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
STREAM = b"".join(
    [
        b": a comment\n\n",
        chunk("", usage=None),
        chunk('a "model": "served" in a text', usage=None),
        chunk("\n\n", usage=None),
        chunk("é", usage=None),
        chunk("", usage=USAGE, choices=[]),
        b"data: [DONE]\n\n",
    ]
)


PARTS = st.sampled_from(
    [
        *(chunk("", usage=USAGE, choices=[]), chunk("a", model="served"), b"data: [DONE]\n\n"),
        *(b"data: {\n\n", b": comment\n", b"event: x\n", b"\n", b"\r", b"\r\n", b"x", b"\xff"),
        *(b'data: {"model": 1}\r\r', b'data:{"response": {"model": "served"}}\r\n\r\n', b"data: "),
        b'{"choices": [], "usage": {}, "model": "served"}',
    ]
)


@given(
    parts=st.lists(PARTS, max_size=12),
    cuts=st.lists(st.integers(0, 2**12), max_size=12),
    model=st.sampled_from(["", "asked"]),
    asks_usage=st.booleans(),
    kind=st.sampled_from([EVENTS, JSON]),
    held_max=st.sampled_from([HELD_MAX, 200, 30]),
    dies=st.booleans(),
)
@example([chunk("a"), b"\n"], [], "", True, EVENTS, HELD_MAX, False)
def test_an_answer_is_the_same_however_it_arrives(
    parts: list[bytes],
    cuts: list[int],
    model: str,
    asks_usage: bool,
    kind: str,
    held_max: int,
    dies: bool,
) -> None:
    """Whatever the server sends, the client's bytes do not depend on how it is cut, also where an
    event is too long. Without a name to replace and usage to take out, they are the server's."""
    body = b"".join(parts)
    places = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    pieces = [body[a:b] for a, b in pairwise(places)]
    is_plain = not model and (kind == JSON or not asks_usage)
    dies = dies and not (is_plain and held_max < HELD_MAX)  # a long event passes in parts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.v1.answer_bodies.HELD_MAX", held_max)
        found = [
            outcome(ModelAnswer(model, asks_usage=asks_usage), kind, each, dies=dies)
            for each in ([body], pieces, [body[at : at + 1] for at in range(len(body))])
        ]
    if is_plain and dies:  # an empty line between two events may be lost with what follows it
        found = [(re.sub(rb"[\r\n]+", b"\n", given), usage) for given, usage in found]
    assert found[1:] == found[:1] * 2
    if is_plain and not dies:
        assert found[0][0] == body


def outcome(
    answer: ModelAnswer, kind: str, pieces: list[bytes], *, dies: bool
) -> tuple[bytes, TokenUsage | None]:
    """Return all that a client gets of an answer, and the usage, None if it broke off."""
    answer.begin(head(kind))
    given = b""
    try:
        for piece in pieces:
            given += answer.feed(piece)
    except UpstreamFailed as error:
        return given + answer.failed(error), None
    if dies:
        return given + answer.failed(UpstreamFailed("it died")), None
    return given + answer.end(), answer.usage


@given(
    cuts=st.lists(st.integers(0, len(STREAM)), max_size=12), ends=st.sampled_from(["\n", "\r\n"])
)
def test_a_stream_is_the_same_however_it_arrives(cuts: list[int], ends: str) -> None:
    """Name and usage are found where the server's writes cut events anywhere."""
    stream = STREAM.replace(b"\n", ends.encode())
    places = [0, *sorted(cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(places)]
    answer = ModelAnswer("asked", asks_usage=True)
    assert answer.begin(head(EVENTS)) is FilterMode.CHANGE
    found = through(answer, *pieces)
    expected = STREAM.replace(b'1, "model": "served"', b'1, "model": "asked"')
    without = [one for one in expected.split(b"\n\n") if b'"choices": []' not in one]
    assert found == b"\n\n".join(without).replace(b"\n", ends.encode())
    assert answer.usage == TokenUsage(7, 3)


def test_the_usage_that_a_client_asked_for_stays() -> None:
    """Where the client has asked, the stream passes in whole events, and is read."""
    answer = ModelAnswer("", asks_usage=False)
    assert answer.begin(head(EVENTS)) is FilterMode.CHANGE
    assert through(answer, STREAM) == STREAM
    assert answer.usage == TokenUsage(7, 3)


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices": [], "prompt_filter_results": []}\n\n',
        b'data: {"choices": [], "usage": null}\n\n',
        b'data: {"choices": [{"delta": {"content": "\\"choices\\": []"}}], "usage": null}\n\n',
        b'data: {"choices": [], "usage": {}, broken\n\n',
    ],
)
def test_only_the_event_with_the_usage_alone_is_taken_out(event: bytes) -> None:
    """Other events without choices are the server's, and the client's."""
    answer = ModelAnswer("", asks_usage=True)
    answer.begin(head(EVENTS))
    assert through(answer, event) == event


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (
            JSON,
            '{"id": 1, "model": "s", "x": {"model": "s"}}',
            '{"id": 1, "model": "a", "x": {"model": "s"}}',
        ),
        (JSON, '{"model": null}', '{"model": null}'),
        (JSON, '["model"]', '["model"]'),
        (JSON, '{"model": "s', '{"model": "s'),
        ("application/problem+json", '{"model":"s"}', '{"model":"a"}'),
        (
            EVENTS,
            'event: response.created\ndata: {"response":{"id":"r","model":"s"}}\n\n',
            'event: response.created\ndata: {"response":{"id":"r","model":"a"}}\n\n',
        ),
        (
            EVENTS,
            'event: message_start\ndata: {"type":"message_start","message":{"model":"s"}}\n\n',
            'event: message_start\ndata: {"type":"message_start","message":{"model":"a"}}\n\n',
        ),
        (
            EVENTS,
            'data: {"model":"s","response":{"model":"s"}}\n\ndata: {"model":"s"}\n\n',
            'data: {"model":"a","response":{"model":"a"}}\n\ndata: {"model":"a"}\n\n',
        ),
        (EVENTS, 'data: {"model":"s"}', 'data: {"model":"a"}'),
    ],
)
def test_the_clients_name_of_the_model_stands_in_the_answer(
    kind: str, text: str, expected: str
) -> None:
    """Only at the top level and in `response` and `message`, where the protocols have it."""
    answer = ModelAnswer("a", asks_usage=False)
    assert answer.begin(head(kind)) is FilterMode.CHANGE
    assert through(answer, text.encode()) == expected.encode()


@pytest.mark.parametrize(
    "answer_head",
    [
        head(JSON, status=400),
        head(JSON, "Content-Encoding: gzip"),
        head("audio/mpeg"),
        head("text/plain"),
    ],
)
def test_what_cannot_be_read_passes(answer_head: ResponseHead) -> None:
    """Errors, coded bodies and sound belong to the client."""
    answer = ModelAnswer("a", asks_usage=True)
    assert answer.begin(answer_head) is FilterMode.OFF
    assert answer.usage is None


def test_a_long_answer_passes_with_the_servers_name() -> None:
    """Only so much of an answer is held; the usage at its end is read all the same."""
    answer = ModelAnswer("a", asks_usage=False)
    answer.begin(head(JSON))
    text = b'{"model":"s","data":"' + b"A" * HELD_MAX + b'","usage":{"prompt_tokens":4}}'
    assert through(answer, text[:99], text[99:-20], text[-20:]) == text
    assert answer.usage == TokenUsage(4, 0)


MESSAGES = (
    b'data: {"message":{"usage":{"input_tokens":25,"output_tokens":1}}}\n\n'
    + b'event: x\ndata: {"delta":{"text":"'
    + b"A" * 3 * KEPT
    + b'"}}\n\n'
    + b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":15}}\n\n'
)


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (EVENTS, MESSAGES, TokenUsage(25, 15)),
        (JSON, b'{"usage":{"input_tokens":3,"output_tokens":4}}', TokenUsage(3, 4)),
        (JSON, b'{"usage":{"total_tokens":9}}', TokenUsage(9, 0)),
        (JSON, b'{"usage":{"prompt_tokens":3,"total_tokens":3}}', TokenUsage(3, 0)),
        (
            JSON,
            b'{"usage": { "prompt_tokens_details": {"a": [1]}, "prompt_tokens": 3}}',
            TokenUsage(3, 0),
        ),
        (JSON, b'{"x": "\\"usage\\": {\\"prompt_tokens\\": 3}"}', None),
        (JSON, b'{"usage":{"prompt_tokens":-3}}', None),
        (JSON, b'{"usage":{"prompt_tokens":1e400}}', None),
        (JSON, b'{"usage":{"prompt_tokens":"3"}}', None),
        (JSON, b'{"usage":{"prompt_tokens":3', None),
        (JSON, b'{"usage":{"prompt_tokens":' + b"[" * 9000 + b"}}", None),
        (JSON, b'{"usage":{}}', None),
        (JSON, b"{}", None),
    ],
)
def test_the_usage_is_the_servers(kind: str, body: bytes, expected: TokenUsage | None) -> None:
    """Every form of the protocols is read, and nothing that is not there is made up."""
    answer = ModelAnswer("", asks_usage=False)
    answer.begin(head(kind))
    through(answer, body)
    assert answer.usage == expected
    assert isinstance(head(kind).fields, Fields)
