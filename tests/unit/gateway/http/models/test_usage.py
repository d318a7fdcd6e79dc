"""Tests of the usage of one call: what each end of it counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.http.models import usage
from gateway.http.models.usage import UsageMeter
from gateway.metrics.requests import Metrics
from gateway.proxy.response_head import parse_response_head
from gateway.v1.rewriting import ModelAnswer
from registry.usage import HOUR_S, UsageRow
from tests.support.nouns import function

NOW_S = 10 * HOUR_S + 5.0
SAID = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


class Call:
    """One call whose answer is a stream, at a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, says_usage: bool = True) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(usage, "monotonic", lambda: self.now_s)
        self.rows: list[UsageRow] = []
        self.metrics = Metrics(lambda *_: True)
        history = SimpleNamespace(used=self.rows.append)
        invoker: Any = SimpleNamespace(metrics=self.metrics, history=history, wall=lambda: NOW_S)
        self.answer = ModelAnswer("", asks_usage=False)
        self.meter = UsageMeter(
            invoker, function("chat"), "k1", self.answer, self.now_s, says_usage=says_usage
        )

    def begin(self) -> None:
        """Begin the stream."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
        self.answer.begin(parse_response_head(head + b"\r\n\r\n", b"POST"))

    def counted(self) -> tuple[int, ...]:
        """Return tokens in, tokens out, calls and unknown of the only row."""
        (row,) = self.rows
        assert row[:4] == ("k1", "default", "chat", 10 * HOUR_S)
        numbers = self.metrics.tokens_of("default", "chat")
        families = (numbers.tokens_in, numbers.tokens_out, numbers.unknown)
        assert [one.get() for one in families] == [row.tokens_in, row.tokens_out, row.unknown]
        assert row.busy_ms == 750
        return row[4:8]


def test_a_whole_stream_has_its_tokens_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token counts from the head of the request, the rate from the first token."""
    call = Call(monkeypatch)
    call.begin()
    call.now_s += 2.0
    call.answer.feed(b"data: {}\n\n")
    call.now_s += 0.1
    call.answer.feed(SAID + DONE)
    call.meter.end(200, call.now_s - 0.75, is_answered=True, is_complete=True)

    assert call.counted() == (7, 3, 1, 0)
    numbers = call.metrics.tokens_of("default", "chat")
    assert (numbers.first_token.total, numbers.first_token.counts()[-1]) == (2.0, 1)
    assert numbers.rate.total == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("data", "status", "is_answered", "is_complete", "found"),
    [
        (SAID, 200, True, False, (0, 0, 1, 1)),  # the end is missing: more may have come
        (SAID + DONE, 200, True, False, (7, 3, 1, 0)),  # a client that leaves at the end
        (DONE, 200, True, True, (0, 0, 1, 1)),  # the server says nothing
        (b"", 502, False, False, (0, 0, 1, 1)),  # the server has died
        (b"", 500, True, True, (0, 0, 1, 0)),  # an error takes no tokens
        (b"", 400, True, False, (0, 0, 1, 0)),
    ],
)
def test_the_end_of_a_call_decides(
    monkeypatch: pytest.MonkeyPatch,
    data: bytes,
    status: int,
    is_answered: bool,
    is_complete: bool,
    found: tuple[int, ...],
) -> None:
    """Tokens are those of complete answers, and unknown is what may have taken some."""
    call = Call(monkeypatch)
    if data:
        call.begin()
        call.answer.feed(data)
    call.meter.end(status, call.now_s - 0.75, is_answered=is_answered, is_complete=is_complete)

    assert call.counted() == found
    assert call.metrics.tokens_of("default", "chat").rate.counts()[-1] == 0


def test_an_endpoint_without_usage_is_never_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls count, and it has no first token."""
    call = Call(monkeypatch, says_usage=False)
    call.begin()
    call.answer.feed(b"data: {}\n\n")
    call.meter.end(200, call.now_s - 0.75, is_answered=True, is_complete=True)

    assert call.counted() == (0, 0, 1, 0)
    assert call.metrics.tokens_of("default", "chat").first_token.counts()[-1] == 0


@pytest.mark.parametrize(
    ("data", "is_end"),
    [
        (b"\ndata: [DONE]\n\n", True),
        (b"\ndata:[DONE]\r\n\r\n", True),
        (b"\nevent: message_stop\ndata: {}\n\n", True),
        (b"\nevent: response.completed\ndata: {}\n\n", True),
        (b"\nevent: response.created\ndata: {}\n\n", False),
        (b'\ndata: {"a": "\\ndata: [DONE]\\n"}\n\n', False),
        (b"\ndata: [DONE]", False),
    ],
)
def test_the_last_event_of_each_protocol_is_known(
    monkeypatch: pytest.MonkeyPatch, data: bytes, is_end: bool
) -> None:
    """Only whole lines count, which no text of a model can contain."""
    call = Call(monkeypatch)
    call.begin()
    call.answer.feed(b"data: {}\n" + data)

    assert call.answer.has_said_end is is_end
