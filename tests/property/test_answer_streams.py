"""Streams of events through the filter of an answer, beside a reading of their grammar."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import pytest

from gateway.dispatch.held import HeldBytes
from gateway.http.reservations import BodyBudget
from gateway.proxy.response_head import parse_response_head
from gateway.v1 import answer_bodies
from gateway.v1.rewriting import ModelAnswer
from tests.support.doses import amount
from tests.support.event_grammar import Dispatched, read

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAMS = amount(8000, 100_000)
LARGE = amount(2, 60)
LARGE_MAX = amount(3 * 2**20, 20 * 2**20)
SMALL_HELD = 4096
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
TEXTS = (
    *("", "a", "é\n", '"model": "served"', "\\", "data: {", '"choices": [], "usage": {', "\u2028"),
    *("}\r\n", "x" * 200, "\U0001f600", ": c"),
)


class Memory(BodyBudget):
    """Room for what is held, with its peak."""

    def __init__(self) -> None:
        super().__init__(HeldBytes(2 * LARGE_MAX), time.monotonic)
        self.peak = 0

    def try_charge(self, count: int) -> bool:
        fits = super().try_charge(count)
        self.peak = max(self.peak, self.held.bytes)
        return fits


class Part(NamedTuple):
    """The lines of one event, and the data that its client gets: None if it gets no event."""

    lines: list[bytes]
    data: bytes | None


class Case(NamedTuple):
    """One stream and what comes of it. `kept`: which of its events come through. `model`: "" to
    leave that."""

    stream: bytes
    kept: list[bool]
    expected: list[Dispatched]
    comments: list[bytes]
    is_as_is: bool
    model: str
    asks: bool


def chunk(random: Random, **more: Any) -> dict[str, Any]:
    """Return the object of an event, with its members in any order."""
    text = "".join(random.choices(TEXTS, k=3))
    found = {
        **{"id": "c1", "created": 10 ** random.choice((1, 9, 300)), "model": "served"},
        "choices": [{"delta": {"content": text, "model": "served"}, "logprob": float("-inf")}],
        **more,
    }
    names = list(found)
    random.shuffle(names)
    return {name: found[name] for name in names}


def edited(document: dict[str, Any], model: str, *, asks: bool) -> dict[str, Any] | None:
    """Return an object as a client gets it, None for the usage alone."""
    found = dict(document)
    if asks and isinstance(found.get("usage"), dict):
        del found["usage"]
        plain = {"id", "object", "created", "model", "system_fingerprint", "service_tier"}
        more = {name for name, value in found.items() if value is not None} - plain
        if found.get("choices") == [] and more == {"choices"}:
            return None
    if model and isinstance(found.get("model"), str):
        found["model"] = model
    return found


def document_part(random: Random, model: str, *, asks: bool, pad: int = 0) -> Part:
    """Return an event with an object, on one line or several. One of `pad` bytes is too long."""
    more: dict[str, Any] = random.choice(
        (
            *({}, {"usage": None}, {"model": None}, {"response": {"model": 1}}),
            *({"usage": USAGE, "choices": []}, {"usage": USAGE}),
            *({"usage": USAGE, "choices": [], "sglext": None},),
            *({"usage": USAGE, "choices": [], "timings": {"predicted_n": 2}},),
        )
    )
    document = chunk(random, **more, **({"b64": "A" * pad} if pad else {}))
    after = document if pad else edited(document, model, asks=asks)
    indent, is_ascii = random.choice((None, None, None, 1)), random.random() < 0.5
    line = "\n" if indent else ""
    space, blank = random.choice(("", " ")), random.choice((b" ", b" ", b"", b"  "))

    def lines(shown: dict[str, Any]) -> list[bytes]:
        members = []
        for at, name in enumerate(document):
            value = json.dumps(shown.get(name), indent=indent, ensure_ascii=is_ascii)
            if name in shown:
                members.append(f'{line}{space if at else ""}"{name}":{space}{value}')
        text = "{" + ",".join(members) + line + "}"
        return [b"data:" + blank + one for one in text.encode().split(b"\n")]

    data = None
    if after is not None:
        data = b"\n".join([one[5:].removeprefix(b" ") for one in lines(after)])
    return Part(lines(document), data)


def plain_part(random: Random) -> Part:
    """Return an event that nothing is changed in."""
    texts = random.choice(
        (
            *([b"[DONE]"], [b""], [b"", b""], [b"a", b'{"model":"served"}'], [b"\xff{\xfe", b"{}"]),
            *([b"["], [b'[{"model":"served"}]'], [b'{"model":"served"'], [b'{"model']),
            *([b'{"mod\\u0065l":"served"}'], [b'{"x":{"model":"served"}}'], [b'{"a":"\xff"}']),
        )
    )
    if texts == [b'{"model":"served"']:
        texts = [b'{"Model":"served"']
    return Part([b"data: " + text for text in texts], b"\n".join(texts))


def fields(random: Random) -> tuple[list[bytes], bytes, bytes]:
    """Return further lines of an event, its type and its id, b"" for none."""
    kind = random.choice((b"a", b"response.completed")) if random.random() < 0.3 else b""
    last_id = b"%d" % random.randrange(99) if random.random() < 0.2 else b""
    lines = [b"event: " + kind] * bool(kind) + [b"id:" + last_id] * bool(last_id)
    if random.random() < 0.1:
        lines.append(random.choice((b"retry: 10", b"x: y", b"datax: {}", b"eventually")))
    if random.random() < 0.2:
        lines.append(b": keep-alive")
    random.shuffle(lines)
    return lines, kind, last_id


def ended(random: Random, lines: list[bytes], ends: str) -> bytes:
    """Return lines with ends of a kind, or of any."""
    stream, before = bytearray(), b"\n"
    for line in lines:
        end = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}.get(ends)
        if end is None:
            # An LF behind a CR would be a part of that end.
            is_bound = not line and before == b"\r"
            end = random.choice((b"\r\n", b"\r") if is_bound else (b"\r\n", b"\r", b"\n"))
        before = end
        stream += line + end
    return bytes(stream)


def written(random: Random, parts: list[Part], ends: str) -> tuple[bytes, list[Dispatched]]:
    """Return a stream of events with other fields and comments, and what comes of it."""
    lines, expected, last_id = [], [], b""
    for part in parts:
        more, kind, new_id = fields(random)
        last_id = new_id or last_id
        at = random.randint(0, len(more)) if random.random() < 0.2 else len(more)
        lines += [*more[:at], *part.lines, *more[at:], b""]
        if part.data is not None:
            expected.append(Dispatched(kind or b"message", part.data, last_id))
        while random.random() < 0.15:
            lines.append(random.choice((b"", b": ping", b":")))
    return ended(random, lines, ends), expected


def case(random: Random, *, sizes: tuple[int, int], count: int) -> Case:
    """Return a stream of up to `count` events. Some have between `sizes` bytes."""
    model, asks = random.choice((("asked", True), ("asked", False), ("", True)))
    parts = []
    for _ in range(random.randint(0, count)):
        pad = random.randint(*sizes) if random.random() < 1 / (2 * count) else 0
        is_plain = random.random() < 0.3
        one = plain_part(random) if is_plain else document_part(random, model, asks=asks, pad=pad)
        parts.append(one)
    stream, expected = written(random, parts, random.choice(("lf", "lf", "crlf", "cr", "mixed")))
    sent = read(stream)
    is_as_is = sent.events == expected
    if random.random() < 0.2:
        stream += random.choice(
            (b"data: [DONE]", b": end", b"\n", b"data: {", b"event: x\n", b"\xff")
        )
    if random.random() < 0.1:
        stream = b"\xef\xbb\xbf" + stream
    kept = [part.data is not None for part in parts]
    return Case(stream, kept, expected, read(stream).comments, is_as_is, model, asks)


def pieces_of(random: Random, stream: bytes) -> list[bytes]:
    """Return a stream cut anywhere."""
    if len(stream) < 500 and random.random() < 0.1:
        return [stream[at : at + 1] for at in range(len(stream))]
    count = random.choice((0, 1, 4, 16)) if len(stream) < 2**16 else len(stream) // 2**16
    places = sorted(random.randint(0, len(stream)) for _ in range(count))
    return [stream[a:b] for a, b in pairwise([0, *places, len(stream)])]


def check(random: Random, one: Case) -> int:
    """Assert that a filter gives what is expected, event by event; return the peak of what is
    held, in bytes."""
    memory = Memory()
    answer = ModelAnswer(one.model, asks_usage=one.asks, is_nested=False, memory=memory)
    answer.begin(parse_response_head(HEAD, b"POST"))
    given, taken = bytearray(), bytearray()
    pieces = pieces_of(random, one.stream)
    for piece in pieces:
        taken += piece
        given += answer.feed(piece)
        if len(one.stream) < 2**14 and len(pieces) < 20:
            complete = one.kept[: len(read(bytes(taken)).events)]
            assert len(read(bytes(given)).events) == sum(complete), "an event is held"
    given += answer.end()
    answer.close()
    assert memory.held.bytes == 0
    found = read(bytes(given))
    assert found.events == one.expected
    assert found.comments == one.comments
    if one.is_as_is:
        assert given == one.stream
    return memory.peak


@pytest.mark.parametrize("seed", range(4))
def test_streams_are_those_of_the_grammar(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Any stream, cut anywhere, says the same but for the edits, and each event passes with its
    last byte; an event that is too long says what the server said."""
    monkeypatch.setattr(answer_bodies, "HELD_MAX", SMALL_HELD)
    random = Random(seed)
    for _ in range(STREAMS // 4):
        one = case(random, sizes=(2 * SMALL_HELD, 8 * SMALL_HELD), count=6)
        assert check(random, one) <= SMALL_HELD


def test_long_events_pass_with_bounded_memory() -> None:
    """Events of many MiB pass in parts."""
    random = Random(5)
    limit = answer_bodies.HELD_MAX
    for _ in range(LARGE):
        assert check(random, case(random, sizes=(limit + 1, LARGE_MAX), count=2)) <= limit
