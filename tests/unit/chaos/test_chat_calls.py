"""Tests of the judgement of answers of /v1."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from tests.chaos.chat_calls import FORMS, Ask, asks, judge, refusal
from tests.support.chat import answers

MAKERS: dict[str, Callable[[answers.Body, str], answers.Answer]] = {
    "/v1/chat/completions": answers.chat,
    "/v1/completions": answers.completion,
    "/v1/responses": answers.response,
    "/v1/messages": answers.message,
}
STREAMING = [form for form in FORMS if form.streams]


def ask(path: str, *, is_stream: bool = True, asks_usage: bool = False) -> Ask:
    """Return a call of an endpoint."""
    [form] = [form for form in FORMS if form.path == path]
    return Ask(7, "m", "m@1", form, is_stream, asks_usage, 5, False)


def events(one: Ask) -> list[bytes]:
    """Return the events of the server's answer."""
    made = MAKERS[one.form.path](json.loads(one.body), one.text)
    return [data for _, data in made.events]


@pytest.mark.parametrize("path", [form.path for form in STREAMING])
def test_a_whole_answer_is_right(path: str) -> None:
    """The stand-in's stream and its document are judged as whole and right."""
    one = ask(path)
    document = MAKERS[path](json.loads(one.body), one.text).document

    assert judge(one, b": waiting\n\n" + b"".join(events(one))) == ("whole", "")
    assert judge(ask(path, is_stream=False), json.dumps(document).encode()) == ("whole", "")


@pytest.mark.parametrize("path", [form.path for form in STREAMING])
def test_a_stream_that_lacks_its_end_is_short(path: str) -> None:
    """Without its last event a stream is short, wherever it ends."""
    one = ask(path)
    sent = events(one)

    for count in range(len(sent)):
        assert judge(one, b"".join(sent[:count])).kind == "short"
    whole = b"".join(sent)
    assert judge(one, whole[:-1]).kind == "short"


@pytest.mark.parametrize("path", [form.path for form in STREAMING])
def test_a_lost_token_is_wrong(path: str) -> None:
    """A stream with its end but without one token is whole and wrong."""
    one = ask(path)
    made = MAKERS[path](json.loads(one.body), one.text)
    sent, has_lost = [], False
    for has_token, data in made.events:
        if has_token and not has_lost:
            has_lost = True
        else:
            sent.append(data)

    kind, wrong = judge(one, b"".join(sent))
    assert (kind, "expected" in wrong) == ("whole", True)


def test_a_usage_that_was_not_asked_for_is_wrong() -> None:
    """A chat stream tells its usage exactly if the request asks for it."""
    silent, asking = ask("/v1/chat/completions"), ask("/v1/chat/completions", asks_usage=True)

    assert judge(silent, b"".join(events(asking))).wrong.startswith("expected no usage")
    assert judge(asking, b"".join(events(silent))).wrong.startswith("expected (2, 5)")


def test_another_models_name_is_wrong() -> None:
    """An answer has the name of the model that the client has sent."""
    one = ask("/v1/messages")
    sent = b"".join(events(one)).replace(b'"m@1"', b'"served"')

    assert judge(one, sent) == ("whole", "model 'served', not 'm@1'")


def test_an_error_event_is_told() -> None:
    """An error event ends a stream visibly."""
    one = ask("/v1/chat/completions")
    error = b'data: {"error":{"message":"x","type":"server_error","param":null,"code":"y"}}\n\n'

    assert judge(one, b"".join(events(one)[:3]) + error).kind == "told"


def test_refusals_have_the_protocols_shape() -> None:
    """An error before the answer is one of the named ones, in the shape of its protocol, and says
    when to come again."""
    one = ask("/v1/completions")
    known = b'{"error":{"message":"x","type":"server_error","param":null,"code":"shutting_down"}}'

    assert refusal(one, 503, known, "5") == ("shutting_down", "")
    assert "without Retry-After" in refusal(one, 503, known, None)[1]
    assert refusal(one, 500, known, None)[1].startswith("500 ")
    assert "another shape" in refusal(one, 502, b'{"code":"replica_died"}', None)[1]
    assert refusal(ask("/v1/messages"), 502, b'{"error":{"type":"api_error"}}', None)[1] == ""


def test_the_same_seed_makes_the_same_calls() -> None:
    """Calls follow from the seed, and reach every endpoint and name."""
    models = {"a": ["a", "a@1"], "b": ["b", "b@1", "org/B"]}

    def made() -> list[Ask]:
        calls = asks(random.Random(3), models, 0.1)
        return [next(calls) for _ in range(200)]

    calls = made()
    assert calls == made()
    assert {one.form.path for one in calls} == {form.path for form in FORMS}
    assert {one.model for one in calls} == {"a", "a@1", "b", "b@1", "org/B"}
    assert any(one.leaves for one in calls)
