"""Answers of the server: all text, all counts of tokens and all vectors follow from the request.
Pure.

A token is a word. Orders in the text of a request, such as `[tokens=20]`, direct its answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

_SENTENCE = "a gate holds each call until its model wakes then every word flows back in order"
WORDS = tuple(_SENTENCE.split(" "))
CREATED = 1_700_000_000
DIMENSIONS = 8
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
_ORDER = re.compile(r"\[(\w+)=([0-9.]+)\]")
Body = dict[str, Any]


class Orders(NamedTuple):
    """Orders in a request's text. Places are numbers of tokens of the answer, -1 for none.

    `tokens`: length of the answer. `rate`: tokens per second, 0 for no pauses, -1 as the server.
    `think`: seconds before the answer. `fail`: status of an error, with `retry_after` seconds, for
    the first `fail_times` such texts (0: all). `die`: the process ends. `cut`: the connection ends.
    `hang`: nothing more comes. `error`: a stream gets an error event and ends. `pad`: bytes that
    each token has in addition.
    """

    tokens: int = 8
    rate: float = -1.0
    think: float = 0.0
    fail: int = 0
    retry_after: float = 0.0
    fail_times: int = 0
    die: int = -1
    cut: int = -1
    hang: int = -1
    error: int = -1
    pad: int = 0


class Answer(NamedTuple):
    """One answer. `events`: whether each has a token, and its bytes. Tokens of input and output."""

    document: Body
    events: Iterator[tuple[bool, bytes]]
    input: int
    output: int


def orders_of(text: str) -> Orders:
    """Return the orders in a text. Unknown ones are text."""
    kinds = Orders._field_defaults
    found = {name: value for name, value in _ORDER.findall(text) if name in kinds}
    return Orders(**{name: type(kinds[name])(float(value)) for name, value in found.items()})


def text_of(value: Any) -> str:
    """Return all text of a message, of a list of them, or of an input."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(map(text_of, value))
    if isinstance(value, dict):
        return text_of(value.get("content", value.get("text", "")))
    return ""


def count(text: str) -> int:
    """Return the number of a text's tokens. Orders are none."""
    return len(_ORDER.sub(" ", text).split())


def words_of(text: str, number: int, pad: int = 0) -> list[str]:
    """Return the tokens of the answer to a text; all but the first begin with a space."""
    start = zlib.crc32(text.encode())
    words = (WORDS[(start + place) % len(WORDS)] + "x" * pad for place in range(number))
    return [word if not place else f" {word}" for place, word in enumerate(words)]


def vector_of(text: str, size: int = DIMENSIONS) -> list[float]:
    """Return a text's vector, of numbers that 32 bits hold exactly."""
    return [zlib.crc32(f"{place} {text}".encode()) % 1024 / 1024 for place in range(size)]


def sound_of(text: str) -> bytes:
    """Return the speech of a text: 1000 bytes a token."""
    return hashlib.shake_128(text.encode()).digest(1000 * count(text))


def event(data: Body | str, name: str = "") -> bytes:
    """Return one event of a stream."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


class _Said(NamedTuple):
    """What a language model says: words, or the call of a tool. `cause`: stop, length or tool."""

    id: str
    words: list[str]
    tool: str
    cause: str
    input: int

    @property
    def text(self) -> str:
        return "".join(self.words)


def _say(body: Body, text: str, last: Any) -> _Said:
    orders, tools = orders_of(text), body.get("tools") or []
    id = f"{zlib.crc32(text.encode()):08x}"
    if tools and body.get("tool_choice") != "none" and not _is_result(last):
        first = tools[0].get("function", tools[0])
        given = json.dumps({"text": _ORDER.sub("", text).strip()})
        words = re.findall(r"\S+\s*", given)
        return _Said(id, words, first["name"], "tool", count(text))
    names = ("max_completion_tokens", "max_output_tokens", "max_tokens")
    most = next((body[name] for name in names if body.get(name) is not None), orders.tokens)
    number = min(orders.tokens, most)
    cause = "length" if number < orders.tokens else "stop"
    return _Said(id, words_of(text, number, orders.pad), "", cause, count(text))


def _is_result(last: Any) -> bool:
    """Return whether the last item of a conversation is what a tool has returned."""
    if not isinstance(last, dict):
        return False
    parts = last.get("content")
    kinds = [one.get("type") for one in parts] if isinstance(parts, list) else []
    kinds += [last.get("role"), last.get("type")]
    return not {"tool", "tool_result", "function_call_output"}.isdisjoint(kinds)


def logprob_of(text: str, place: int) -> float:
    """Return the log probability of the token in a place of a text."""
    return -(zlib.crc32(f"{place} {text}".encode()) % 3000) / 1000


def _chat_logprobs(words: list[str], text: str) -> Body:
    found = [(word, logprob_of(text, place)) for place, word in enumerate(words)]
    tokens = [{"token": word, "logprob": logprob, "bytes": None} for word, logprob in found]
    return {"content": [{**one, "top_logprobs": [one]} for one in tokens]}


def _completion_logprobs(words: list[str], text: str, *, is_echo: bool) -> Body:
    tokens = [*(text.split() if is_echo else ()), *words]
    logprobs: list[float | None] = [logprob_of(text, place) for place in range(len(tokens))]
    tops: list[Body | None] = [{token: one} for token, one in zip(tokens, logprobs, strict=True)]
    if is_echo:
        logprobs[0] = tops[0] = None
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops}


def chat(body: Body, text: str) -> Answer:
    """POST /chat/completions."""
    said = _say(body, text, body["messages"][-1])
    message: Body = {"role": "assistant", "content": said.text}
    if said.tool:
        function = {"name": said.tool, "arguments": said.text}
        call = {"id": f"call_{said.id}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    head = {"id": f"chatcmpl-{said.id}", "created": CREATED, "model": body["model"]}
    reason = "tool_calls" if said.tool else said.cause
    choice: Body = {"index": 0, "message": message, "finish_reason": reason}
    if body.get("logprobs") and not said.tool:
        choice["logprobs"] = _chat_logprobs(said.words, text)
    usage = _usage(said)
    document = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    return Answer(document, _chat_events(body, head, said, reason), said.input, len(said.words))


def _chat_events(body: Body, head: Body, said: _Said, reason: str) -> Iterator[tuple[bool, bytes]]:
    asks = (body.get("stream_options") or {}).get("include_usage")
    head = {**head, "object": "chat.completion.chunk"}
    more = {"usage": None} if asks else {}

    def chunk(delta: Body, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return event({**head, "choices": [choice], **more})

    call = {"index": 0, "id": f"call_{said.id}", "type": "function"}
    first: Body = {"role": "assistant", "content": ""}
    if said.tool:
        begun = {**call, "function": {"name": said.tool, "arguments": ""}}
        first = {"role": "assistant", "content": None, "tool_calls": [begun]}
    yield False, chunk(first)
    for word in said.words:
        part = {"index": 0, "function": {"arguments": word}}
        yield True, chunk({"tool_calls": [part]} if said.tool else {"content": word})
    yield False, chunk({}, reason)
    if asks:
        yield False, event({**head, "choices": [], "usage": _usage(said)})
    yield False, event("[DONE]")


def completion(body: Body, text: str) -> Answer:
    """POST /completions."""
    said = _say({**body, "tools": None}, text, None)
    head = {"id": f"cmpl-{said.id}", "object": "text_completion", "created": CREATED}
    head["model"] = body["model"]

    def choice(words: str, reason: str | None) -> Body:
        return {"index": 0, "text": words, "logprobs": None, "finish_reason": reason}

    def events() -> Iterator[tuple[bool, bytes]]:
        for place, word in enumerate(said.words, 1):
            reason = said.cause if place == len(said.words) else None
            yield True, event({**head, "choices": [choice(word, reason)]})
        if (body.get("stream_options") or {}).get("include_usage"):
            yield False, event({**head, "choices": [], "usage": _usage(said)})
        yield False, event("[DONE]")

    whole = choice(said.text, said.cause)
    if body.get("logprobs") is not None:
        is_echo = bool(body.get("echo"))
        whole["logprobs"] = _completion_logprobs(said.words, text, is_echo=is_echo)
    document = {**head, "choices": [whole], "usage": _usage(said)}
    return Answer(document, events(), said.input, len(said.words))


def _usage(said: _Said) -> dict[str, int]:
    spent = len(said.words)
    total = said.input + spent
    return {"prompt_tokens": said.input, "completion_tokens": spent, "total_tokens": total}


def response(body: Body, text: str) -> Answer:
    """POST /responses."""
    given = body["input"]
    said = _say(body, text, given[-1] if isinstance(given, list) and given else None)
    spent = len(said.words)
    if said.tool:
        item: Body = {"id": f"fc_{said.id}", "type": "function_call", "status": "completed"}
        item |= {"call_id": f"call_{said.id}", "name": said.tool, "arguments": said.text}
    else:
        part = {"type": "output_text", "text": said.text, "annotations": []}
        item = {"id": f"msg_{said.id}", "type": "message", "status": "completed"}
        item |= {"role": "assistant", "content": [part]}
    head = {"id": f"resp_{said.id}", "object": "response", "created_at": CREATED}
    head |= {"model": body["model"], "tools": body.get("tools") or [], "tool_choice": "auto"}
    head |= {"parallel_tool_calls": True, "error": None, "incomplete_details": None}
    usage = {
        "input_tokens": said.input,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": spent,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": said.input + spent,
    }
    document = {**head, "status": "completed", "output": [item], "usage": usage}
    return Answer(document, _response_events(head, document, item, said), said.input, spent)


def _response_events(
    head: Body, document: Body, item: Body, said: _Said
) -> Iterator[tuple[bool, bytes]]:
    number = 0

    def told(name: str, **data: Any) -> bytes:
        nonlocal number
        number += 1
        return event({"type": name, "sequence_number": number - 1, **data}, name)

    begun = {**head, "status": "in_progress", "output": [], "usage": None}
    yield False, told("response.created", response=begun)
    yield False, told("response.in_progress", response=begun)
    at = {"item_id": item["id"], "output_index": 0}
    empty = {"arguments": ""} if said.tool else {"content": []}
    added = {**item, "status": "in_progress", **empty}
    yield False, told("response.output_item.added", output_index=0, item=added)
    name = "response.function_call_arguments" if said.tool else "response.output_text"
    if not said.tool:
        at["content_index"] = 0
        part = {"type": "output_text", "text": "", "annotations": []}
        yield False, told("response.content_part.added", **at, part=part)
    for word in said.words:
        yield True, told(f"{name}.delta", **at, delta=word, **({} if said.tool else _NO_PROBS))
    if said.tool:
        yield False, told(f"{name}.done", **at, arguments=said.text, name=said.tool)
    else:
        yield False, told(f"{name}.done", **at, text=said.text, **_NO_PROBS)
        yield False, told("response.content_part.done", **at, part=item["content"][0])
    yield False, told("response.output_item.done", output_index=0, item=item)
    yield False, told("response.completed", response=document)


_NO_PROBS: Body = {"logprobs": []}


def message(body: Body, text: str) -> Answer:
    """POST /messages, as Anthropic's API has it."""
    said = _say(body, text, body["messages"][-1])
    block: Body = {"type": "text", "text": said.text}
    if said.tool:
        id = f"toolu_{said.id}"
        block = {"type": "tool_use", "id": id, "name": said.tool, "input": json.loads(said.text)}
    head = {"id": f"msg_{said.id}", "type": "message", "role": "assistant", "model": body["model"]}
    reason = {"tool": "tool_use", "length": "max_tokens", "stop": "end_turn"}[said.cause]
    ended = {"stop_reason": reason, "stop_sequence": None}
    usage = {"input_tokens": said.input, "output_tokens": len(said.words)}
    document = {**head, "content": [block], **ended, "usage": usage}

    def told(name: str, **data: Any) -> bytes:
        return event({"type": name, **data}, name)

    def events() -> Iterator[tuple[bool, bytes]]:
        begun = {**head, "content": [], "stop_reason": None, "stop_sequence": None}
        begun["usage"] = {"input_tokens": said.input, "output_tokens": 1}
        yield False, told("message_start", message=begun)
        empty = {"input": {}} if said.tool else {"text": ""}
        yield False, told("content_block_start", index=0, content_block={**block, **empty})
        yield False, told("ping")
        for word in said.words:
            delta = {"type": "text_delta", "text": word}
            if said.tool:
                delta = {"type": "input_json_delta", "partial_json": word}
            yield True, told("content_block_delta", index=0, delta=delta)
        yield False, told("content_block_stop", index=0)
        spent = {"output_tokens": len(said.words)}
        yield False, told("message_delta", delta=ended, usage=spent)
        yield False, told("message_stop")

    return Answer(document, events(), said.input, len(said.words))
