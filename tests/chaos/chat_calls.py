"""Calls of /v1 with answers that are known beforehand, and the judgement of what came. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tests.support.chat import answers

TOKENS_MAX: Final = 40
NAMED: Final = {
    429: {"queue_full"},
    502: {"replica_died", "upstream_failed", "poison"},
    503: {"shutting_down", "wait_budget_over"},
    504: {"upstream_timeout"},
}
"""Codes of errors that callers may get while processes die."""
NAMED_TYPES: Final = {
    429: {"rate_limit_error"},
    502: {"api_error"},
    503: {"overloaded_error"},
    504: {"timeout_error"},
}
"""Types of the same errors on /v1/messages, whose shape has no codes."""
DONE: Final = b"[DONE]"
Tokens = tuple[int, int]
"""Tokens of the input and of the output."""


class Form(NamedTuple):
    """One endpoint: its path, the member with the text, whether it streams, and whether a stream
    tells its usage only if the request asks for it."""

    path: str
    member: str
    streams: bool = True
    asks: bool = False


FORMS: Final = (
    Form("/v1/chat/completions", "messages", asks=True),
    Form("/v1/completions", "prompt", asks=True),
    Form("/v1/responses", "input"),
    Form("/v1/messages", "messages"),
    Form("/v1/embeddings", "input", streams=False),
)
WEIGHTS: Final = (4, 1, 1, 3, 1)


@dataclass(frozen=True, slots=True)
class Ask:
    """One call. `function`: behind `model`. `leaves`: the client leaves in the middle."""

    number: int
    function: str
    model: str
    form: Form
    is_stream: bool
    asks_usage: bool
    tokens: int
    leaves: bool

    @property
    def text(self) -> str:
        """The text, with the order for the server."""
        return f"call {self.number} [tokens={self.tokens}]"

    @property
    def body(self) -> bytes:
        """The body of the request."""
        said: Any = self.text
        if self.form.member == "messages":
            said = [{"role": "user", "content": self.text}]
        asked = {self.form.member: said, "model": self.model}
        if self.form.path == "/v1/messages":
            asked["max_tokens"] = TOKENS_MAX
        if self.is_stream:
            asked["stream"] = True
        if self.asks_usage:
            asked["stream_options"] = {"include_usage": True}
        return json.dumps(asked).encode()

    @property
    def wanted(self) -> str:
        """The text of the answer, or the vector as JSON."""
        if not self.form.streams:
            return json.dumps(answers.vector_of(self.text))
        return "".join(answers.words_of(self.text, self.tokens))

    @property
    def usage(self) -> Tokens:
        """The tokens that the server counts."""
        return answers.count(self.text), self.tokens if self.form.streams else 0


def asks(chance: random.Random, models: dict[str, list[str]], leavers: float) -> Iterator[Ask]:
    """Return random calls without end. `models`: names of the models, by function."""
    functions, number = list(models), 0
    while True:
        number += 1
        function = chance.choice(functions)
        [form] = chance.choices(FORMS, WEIGHTS)
        is_stream = form.streams and chance.random() < 0.6
        yield Ask(
            number,
            function,
            chance.choice(models[function]),
            form,
            is_stream,
            is_stream and form.asks and chance.random() < 0.5,
            chance.randrange(1, TOKENS_MAX + 1),
            chance.random() < leavers,
        )


class Judged(NamedTuple):
    """What an answer was: "whole", "told" (an error event) or "short"; and what is wrong."""

    kind: str
    wrong: str = ""


def judge(ask: Ask, body: bytes) -> Judged:
    """Judge the body of an answer with status 200, as far as it came."""
    try:
        return _stream(ask, body) if ask.is_stream else _document(ask, json.loads(body))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return Judged("short", f"{error!r} in {body[-300:]!r}")


def refusal(ask: Ask, status: int, body: bytes, retry_after: str | None) -> tuple[str, str]:
    """Return the code of an error before the answer, and what is wrong with it, "" for nothing."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return "", f"{status} in another shape: {body[:300]!r}"
    is_messages = ask.form.path == "/v1/messages"
    code = str(error["type"] if is_messages else error["code"])
    if code not in (NAMED_TYPES if is_messages else NAMED).get(status, ()):
        return code, f"{status} {body[:500]!r}"
    if status in (429, 503) and retry_after is None:
        return code, f"{status} without Retry-After: {body[:300]!r}"
    return code, ""


def _document(ask: Ask, made: dict[str, Any]) -> Judged:
    if made["model"] != ask.model:
        return Judged("whole", f"model {made['model']!r}, not {ask.model!r}")
    text, usage = _text_of(ask.form, made), _usage_of(made["usage"])
    if text != ask.wanted or usage != ask.usage:
        return Judged("whole", f"expected {ask.wanted!r} {ask.usage}, got {text!r} {usage}")
    return Judged("whole")


def _text_of(form: Form, made: dict[str, Any]) -> str:
    if form.path == "/v1/chat/completions":
        return str(made["choices"][0]["message"]["content"])
    if form.path == "/v1/completions":
        return str(made["choices"][0]["text"])
    if form.path == "/v1/responses":
        return str(made["output"][0]["content"][0]["text"])
    if form.path == "/v1/messages":
        return str(made["content"][0]["text"])
    return json.dumps(made["data"][0]["embedding"])


def _usage_of(said: dict[str, Any]) -> Tokens:
    got = said.get("prompt_tokens", said.get("input_tokens", 0))
    return got, said.get("completion_tokens", said.get("output_tokens", 0))


def _stream(ask: Ask, body: bytes) -> Judged:
    """Judge the events of a stream; what follows the last empty line is no event."""
    usages: list[Tokens] = []
    text, has_ended, wrong = "", False, ""
    for event in body.split(b"\n\n")[:-1]:
        data = event.rpartition(b"data: ")[2]
        if event.startswith(b":"):
            continue
        if has_ended:
            return Judged("whole", f"an event after the last: {event[:200]!r}")
        if data == DONE:
            has_ended = True
            continue
        made = json.loads(data)
        if made.get("type") == "error" or ("error" in made and "id" not in made):
            return Judged("told", wrong)
        wrong = wrong or _wrong_model(ask, made)
        text += _delta_of(made)
        usages += _usages_of(made, usages)
        has_ended = made.get("type") in ("message_stop", "response.completed")
    if not has_ended:
        return Judged("short", wrong)
    if text != ask.wanted:
        return Judged("whole", f"expected {ask.wanted!r}, got {text!r}")
    tells = ask.asks_usage or not ask.form.asks
    if (usages[-1:] != [ask.usage]) if tells else bool(usages):
        return Judged("whole", f"expected {ask.usage if tells else 'no usage'}, got {usages}")
    return Judged("whole", wrong)


def _wrong_model(ask: Ask, made: dict[str, Any]) -> str:
    inner = made.get("response", made.get("message", made))
    model = inner.get("model", ask.model)
    return "" if model == ask.model else f"model {model!r}, not {ask.model!r}"


def _delta_of(made: dict[str, Any]) -> str:
    if made.get("type") == "response.output_text.delta":
        return str(made["delta"])
    if made.get("type") == "content_block_delta":
        return str(made["delta"]["text"])
    choices = made.get("choices") or [{}]
    return choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""


def _usages_of(made: dict[str, Any], before: list[Tokens]) -> list[Tokens]:
    """Return the usage that an event tells. Of a message, the first event has the input's tokens,
    the last but one the output's."""
    said = made.get("response", made.get("message", made)).get("usage")
    if made.get("type") == "message_delta":
        return [(before[0][0], said["output_tokens"])]
    return [_usage_of(said)] if said else []
