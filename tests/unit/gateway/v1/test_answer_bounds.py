"""What a function's server answers takes no more steps than its length allows."""

from __future__ import annotations

import pytest

from gateway.v1.answer_bodies import HELD_MAX
from gateway.v1.answer_members import BRACKETS_MAX
from gateway.v1.rewriting import ModelAnswer
from gateway.v1.usage import KEPT, Ends, TokenUsage
from tests.fuzz.oracles import measured
from tests.unit.gateway.v1.test_rewriting import EVENTS, JSON, head, through

LINES_MAX = 250_000
"""About 20 ms."""
USAGE = b'"usage":{"prompt_tokens":1,"completion_tokens":2}'


@pytest.mark.parametrize("piece", [b'"usage":{', b'"usage":{"a":"', b'"usage":{"a":[', b'"usage":'])
def test_what_looks_like_usage_is_read_a_few_times(piece: bytes) -> None:
    """Each such object goes on to the end of the answer, so that reading all is quadratic."""
    ends = Ends()
    for _ in range(8):
        ends.add(piece * (KEPT // 2 // len(piece)))

    assert measured(ends.usage).lines < LINES_MAX


def test_usage_is_looked_for_in_the_same_bytes_however_they_arrive() -> None:
    """Only the first and the last KEPT bytes count, also where more are held for a moment."""
    whole, parts = Ends(), Ends()
    stream = [b"x" * KEPT, USAGE, b"y" * KEPT]
    whole.add(b"".join(stream))
    for part in stream:
        parts.add(part)

    assert parts.usage() == whole.usage() is None
    parts.add(USAGE)
    assert parts.usage() == TokenUsage(1, 2)


@pytest.mark.parametrize(
    "inner",
    [
        b'"a":[' + b"[]," * (HELD_MAX // 6) + b"[]]",
        b'"response":{"a":[' + b"[]," * (HELD_MAX // 6) + b'[]]},"message":1',
        b'"a":' + b"[" * (HELD_MAX // 4) + b"]" * (HELD_MAX // 4),
    ],
)
@pytest.mark.parametrize("kind", [EVENTS, JSON])
def test_an_event_full_of_brackets_is_searched_for_a_while(kind: str, inner: bytes) -> None:
    """It passes with the server's name of the model where that stands behind too many brackets."""
    text = b"{%b,%b}" % (inner, b'"model":"served"')
    sent = b"data: %b\n\n" % text if kind == EVENTS else text

    def passed() -> bytes:
        answer = ModelAnswer("mine", asks_usage=True)
        answer.begin(head(kind))
        return through(answer, sent)

    assert measured(passed).lines < LINES_MAX
    assert passed() == sent


def test_a_model_before_many_brackets_is_found() -> None:
    """Servers write it before what is long, also within the object `response`."""
    answer = ModelAnswer("mine", asks_usage=False)
    answer.begin(head(EVENTS))
    many = b"[" + b"[]," * BRACKETS_MAX + b"[]]"
    event = b'data: {"response":{"model":"served","output":%b}}\n\n'

    assert through(answer, event % many) == event.replace(b"served", b"mine") % many
