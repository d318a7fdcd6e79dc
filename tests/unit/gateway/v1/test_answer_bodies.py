"""What of an answer passes at once, and what a server's last chunk becomes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gateway.dispatch.held import HeldBytes
from gateway.http.reservations import BodyBudget
from gateway.proxy.ports import FilterMode
from gateway.v1.answer_bodies import HELD_MAX
from gateway.v1.rewriting import ModelAnswer
from gateway.v1.usage import TokenUsage
from registry.errors import UpstreamFailed
from tests.fuzz.oracles import measured
from tests.support.event_grammar import read
from tests.unit.gateway.v1.test_rewriting import EVENTS, JSON, USAGE, chunk, head, through

NDJSON = "application/x-ndjson"
PLAIN = b'{"id":"c1","object":"chat.completion.chunk","created":1,"model":"s","choices":[],'
LINES_MAX = 250_000
"""About 20 ms."""


def begun(kind: str, model: str = "a", *, asks_usage: bool = True, **more: Any) -> ModelAnswer:
    """Return a filter of an answer whose head has come."""
    answer = ModelAnswer(model, asks_usage=asks_usage, is_nested=False, **more)
    answer.begin(head(kind))
    return answer


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        # OpenAI, vLLM, TGI
        (PLAIN + b'"usage":{"prompt_tokens":1}}', b""),
        # Ollama
        (PLAIN + b'"system_fingerprint":"fp_ollama","usage":{"prompt_tokens":1}}', b""),
        # SGLang writes members without a value, too.
        (PLAIN + b'"usage":{"prompt_tokens":1},"sglext":null}', b""),
        # llama.cpp
        (
            PLAIN + b'"usage":{"prompt_tokens":1},"timings":{"prompt_n":1}}',
            PLAIN + b'"timings":{"prompt_n":1}}',
        ),
        # vLLM with metrics of each request
        (PLAIN + b'"metrics":{"a":1}, "usage":{} }', PLAIN + b'"metrics":{"a":1} }'),
        # Servers with the usage in their last choice
        (
            b'{"choices":[{"finish_reason":"stop"}],"usage":{"a":{}}}',
            b'{"choices":[{"finish_reason":"stop"}]}',
        ),
        (b'{"usage":{}, "error":{}}', b'{ "error":{}}'),
        (b'{"usage":{"a":1},"usage":{"b":2},"x":1}', b'{"x":1}'),
        (b'{"usage":{}}', b"{}"),
        *[
            (same, same)
            for same in (
                b'{"choices":[],"usage":null}',
                b'{"choices":[],"x":{"usage":{}}}',
                b'{"choices":[],"usage":{}} {}',
                b'{"choices":[],"usage":{}',
                b'{"choices":[],"usage":{},}',
                b'{"choices":[],"us\\u0061ge":{}}',
            )
        ],
    ],
)
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_the_usage_is_left_out_and_nothing_else(sent: bytes, got: bytes, end: bytes) -> None:
    """The whole event goes only if the client would not have got it at all."""
    for kind, before, after in ((EVENTS, b"data: ", end), (NDJSON, b"", b"\n")):
        answer = begun(kind, "")
        assert through(answer, before + sent + after) == (before + got + after if got else b"")


@pytest.mark.parametrize("model", ["", "a"])
@pytest.mark.parametrize(
    "piece",
    [
        *(b": keep-alive\n\n", b": keep-alive\n", b": keep", b"\n", b"\r", b"id: 7\n"),
        *(b"retry: 1\n", b"data: [DONE]\n", b"data: x", b'data: {"a":1}\n', b"\xff\xfe"),
        *(b'event: x\ndata: {"a":1}\n', b"data: [{}]\r", b"data:\n\n"),
    ],
)
def test_what_is_not_changed_passes_at_once(piece: bytes, model: str) -> None:
    """Nothing waits for the end of a stream, or for an end of the event that never comes."""
    answer = begun(EVENTS, model)
    assert answer.feed(piece) == piece


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_of_data_without_an_empty_line_pass_at_once(end: bytes) -> None:
    """Clients that read lines get each with its edits; no comment or error stands in an event."""
    answer = begun(EVENTS)
    line = b'data: {"model":"%b","n":[1]}' + end
    for _ in range(3):
        assert answer.feed(line % b"s") == line % b"a"
        assert not answer.is_between_events
    assert answer.failed(UpstreamFailed("x")).startswith(b"\n\ndata: ")


@pytest.mark.parametrize("kind", [JSON, NDJSON, "application/jsonl", "application/stream+json"])
def test_blank_lines_and_whole_lines_of_json_pass_at_once(kind: str) -> None:
    """Servers keep a connection alive with blank lines, or write an object per line."""
    answer = begun(kind)
    assert answer.feed(b"\n") == b"\n"
    assert answer.feed(b"  ") == b"  "
    assert answer.feed(b'{"model":"s"}\n') == b'{"model":"a"}\n'
    assert through(answer, b'{"x":{"model":"s"},', b'"model":"s"}') == (
        b'{"x":{"model":"s"},"model":"a"}'
    )


def test_a_json_text_that_is_no_object_passes() -> None:
    """Also where what follows looks like one."""
    answer = begun(JSON)
    assert answer.feed(b'[{"model":"s"},\n') == b'[{"model":"s"},\n'
    assert answer.feed(b'{"model":"s"}\n') == b'{"model":"s"}\n'


def test_an_object_of_several_lines_is_changed() -> None:
    """Pretty printing makes no difference."""
    text = json.dumps({"x": {"model": "s"}, "model": "s"}, indent=1).encode()
    expected = json.dumps({"x": {"model": "s"}, "model": "a"}, indent=1).encode()
    assert through(begun(JSON), *text.splitlines(keepends=True)) == expected


@pytest.mark.parametrize("kind", [NDJSON, EVENTS])
def test_what_follows_a_long_object_is_changed_again(kind: str) -> None:
    """A long one passes in parts, with the server's name of the model."""
    before, end = (b"data: ", b"\n\n") if kind == EVENTS else (b"", b"\n")
    long = before + b'{"model":"s","x":"%b"}' % (b"A" * HELD_MAX) + end
    last = before + b'{"choices":[],"usage":{"prompt_tokens":4}}' + end
    answer = begun(kind)
    given = answer.feed(long[:-9])
    assert given == long[:-9]
    rest = before + b'{"model":"%b"}' + end
    assert through(answer, long[-9:] + rest % b"s" + last) == long[-9:] + rest % b"a"
    assert answer.usage == TokenUsage(4, 0)


@pytest.mark.parametrize("kind", [EVENTS, JSON, NDJSON])
def test_what_has_no_room_in_memory_passes(kind: str) -> None:
    """Held bytes count; where there is no memory, an object passes as it is."""
    held = HeldBytes(100)
    answer = begun(kind, memory=BodyBudget(held, time.monotonic))
    text = (b"data: " if kind == EVENTS else b"") + b'{"model":"s","x":"%b' % (b"A" * 60)
    assert answer.feed(text) == b""
    assert held.bytes == len(text)
    assert answer.feed(b"A" * 99) == text + b"A" * 99
    assert held.bytes == 0
    assert answer.feed(b'"}\n\n' + text) == b'"}\n\n' + (b"" if kind != JSON else text)
    answer.close()
    assert held.bytes == 0


def test_a_dropped_event_leaves_its_id() -> None:
    """The id is that of the next event, and the comment stands where it stood."""
    answer = begun(EVENTS)
    event = b'id: 7\n: c\nevent: x\ndata: {"choices":[],"usage":{}}\n\n'
    assert through(answer, event, b"data: [DONE]\n\n") == b"id: 7\n: c\ndata: [DONE]\n\n"


def test_a_type_behind_a_dropped_line_is_that_of_the_data_that_follow() -> None:
    """A type goes with its event, whichever line of that is left out."""
    usage = b'data: {"choices":[],"usage":{}}\n'
    given = through(begun(EVENTS), usage + b'event: m\ndata: {"a":1}\n\n')
    assert given.startswith(b'event: m\ndata: {"a":1}\n\n')
    pieces = (usage + b"event: m\n", b"\n", b"data: b\n\n")
    assert through(begun(EVENTS), *pieces) == b"data: b\n\n"


@pytest.mark.parametrize("other", [b": c\r", b"id: 7\r", b"x\r"])
def test_a_line_that_is_moved_takes_no_end_of_the_event(other: bytes) -> None:
    """The data of an object on several lines are written anew: behind CR, an LF ends no event."""
    given = through(begun(EVENTS), b'data: {"model":"s",\n' + other + b'data: "b":1}\n\n')
    expected = b'data: {"model":"a",\ndata: "b":1}\n' + other + b"\r"
    assert read(given).events == read(expected).events


def test_a_dropped_line_of_json_leaves_no_half_of_its_end() -> None:
    """A read may end between CR and LF; a further LF is a blank line of the server."""
    answer = begun(NDJSON)
    line = b'{"choices":[],"usage":{}}\r'
    assert [answer.feed(one) for one in (line, b"", b"\n", b"\n")] == [b"", b"", b"", b"\n"]
    assert answer.feed(line) + answer.feed(b'{"a":1}\r') == b'{"a":1}\r'
    assert answer.feed(b"\n") == b"\n"


@pytest.mark.parametrize(
    "text",
    [
        b"data: {" + b"\ndata: [" * 20_000,
        b"data: {" + b"\nx" * 20_000,
        b'data: {"usage":{}' + b',"a":[]' * 20_000,
        (b'data: {"usage":{},"a":[' + b"[]," * 5000 + b"[]]}\n") * 3,
    ],
)
def test_hostile_events_take_bounded_steps(text: bytes) -> None:
    """Each line is read once, and of an object so many brackets."""

    def passed() -> bytes:
        return through(begun(EVENTS), text)

    assert measured(passed).lines < 3 * LINES_MAX
    assert passed() == text


def test_an_identity_coding_is_none() -> None:
    """RFC 9110 section 8.4.1: only what is coded cannot be read."""
    answer = ModelAnswer("asked", asks_usage=True)
    assert answer.begin(head(EVENTS, "Content-Encoding: identity")) is FilterMode.CHANGE
    assert through(answer, chunk("a"), chunk("", usage=USAGE, choices=[])) == chunk(
        "a", model="asked"
    )
