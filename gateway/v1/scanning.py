"""Finds the members of a JSON request that the gateway reads or changes, as spans. Pure.

RFC 8259. The body is not built as objects: msgspec checks its syntax, and a walk over the members
of the top level jumps from bracket to bracket. Both hold the loop, so the walk yields now and then.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, NamedTuple, TypeVar

import msgspec

from registry.errors import BadRequest

T = TypeVar("T")

MEMBERS_MAX: Final = 1000
"""Max members of the top level."""
MODEL_MAX: Final = 256
"""Max characters of a model's name."""
TURN: Final = 2000
"""Steps of the walk between two turns of the loop, about 1 ms."""
_PART: Final = re.compile(rb'[^"\\]{0,1024}+(?:\\.[^"\\]{0,1024}+){0,64}+', re.DOTALL)
"""Part of a string."""
_STRING: Final = b'"' + _PART.pattern + b'"'
"""A string that is not long. `_walk` finds the end of others with less time per byte."""
_SPACE: Final = rb"[ \t\n\r]*+"
_NAME: Final = re.compile(
    _SPACE + rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")' + _SPACE + b":" + _SPACE, re.DOTALL
)
_PLAIN: Final = re.compile(_STRING + rb'|[^\s,}\[{"]++', re.DOTALL)
"""A value that is neither an object nor an array nor a long string."""
_JUMP: Final = re.compile(rb'[^"\[\]{}]*+(?:' + _STRING + rb'[^"\[\]{}]*+)*+', re.DOTALL)
"""Everything up to the next bracket or long string."""
_NEXT: Final = re.compile(_SPACE + rb"([,}])")
_READ: Final = frozenset(
    {"model", "stream", "stream_options", "background", "previous_response_id", "conversation"}
)
"""Names of the members whose spans are kept."""


class Span(NamedTuple):
    """Bytes of a body from `begin` to before `end`."""

    begin: int
    end: int


class Scanned(NamedTuple):
    """What the gateway reads of a request.

    `values`: spans of the values of the members in `_READ` that exist. `first`: index behind the
    opening brace, where a member can be inserted. `is_stream`: the client wants events.
    """

    model: str
    is_stream: bool
    values: dict[str, Span]
    first: int


class _Checked(msgspec.Struct):
    """The members with a type to check. All others only need to be JSON."""

    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, msgspec.Raw] | None = None


_decode: Final = msgspec.json.Decoder(_Checked).decode


def scan(body: bytes) -> Generator[None, None, Scanned]:
    """Return what the gateway reads of a request; yields where the loop should take a turn.

    Raises BadRequest unless the body is a JSON object with a model.
    """
    checked = _check(body)
    model = checked.model
    if not model or len(model) > MODEL_MAX or not model.isprintable():
        got = "none" if model is None else repr(model[:40])
        text = f"model: expected a name of 1 to {MODEL_MAX} printable characters, got {got}"
        raise BadRequest(text, detail={"param": "model"})
    first = body.index(b"{") + 1
    values = yield from _walk(body, first)
    return Scanned(model, bool(checked.stream), values, first)


def run(scanning: Generator[None, None, T]) -> T:
    """Return the result of a scan without turns in between; for small bodies."""
    while True:
        try:
            next(scanning)
        except StopIteration as stop:
            found: T = stop.value
            return found


def _check(body: bytes) -> _Checked:
    """Return the members with a type. Raises BadRequest unless the body is a JSON object."""
    try:
        if not body.isascii():
            body.decode()
        return _decode(body)
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body: expected UTF-8, got byte {error.start} as it is") from None
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body: {error}") from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body: expected a JSON object: {error}") from None


def _walk(body: bytes, at: int) -> Generator[None, None, dict[str, Span]]:
    """Return the spans of the members in `_READ`, beginning behind the opening brace.

    The syntax is checked already. Raises BadRequest for a member that stands twice: a server might
    read the other one.
    """
    values: dict[str, Span] = {}
    members = 0
    name = _NAME.match(body, at)
    while name is not None:
        begin = end = name.end()
        if (plain := _PLAIN.match(body, begin)) is not None:
            end = plain.end()
        else:
            end = yield from end_of_value(body, begin)
        key = msgspec.json.decode(name[1], type=str)
        if key in _READ:
            if key in values:
                text = f"{key}: expected once, got twice"
                raise BadRequest(text, detail={"param": key})
            values[key] = Span(begin, end)
        members += 1
        if members > MEMBERS_MAX:
            raise BadRequest(f"the body: expected at most {MEMBERS_MAX} members")
        after = _NEXT.match(body, end)
        name = _NAME.match(body, after.end()) if after is not None and after[1] == b"," else None
    return values


def find_member(body: bytes, at: int, wanted: bytes) -> Span | None:
    """Return the span of the value of the first member with the name `wanted`, in quotes as it
    stands there, of the object that begins at `at`; None if there is none, or it is cut."""
    name = _NAME.match(body, at + 1) if body[at : at + 1] == b"{" else None
    for _ in range(MEMBERS_MAX):
        if name is None:
            return None
        begin, plain = name.end(), _PLAIN.match(body, name.end())
        try:
            end = run(end_of_value(body, begin)) if plain is None else plain.end()
        except ValueError:
            return None
        if name[1] == wanted:
            return Span(begin, end)
        after = _NEXT.match(body, end)
        name = _NAME.match(body, after.end()) if after is not None and after[1] == b"," else None
    return None


def end_of_value(body: bytes, at: int) -> Generator[None, None, int]:
    """Return the index behind an object, an array or a string that begins at `at`.

    Raises ValueError if the body ends before; its syntax needs to be right otherwise.
    """
    depth = steps = 0
    while True:
        steps += 1
        if not steps % TURN:
            yield
        jump = _JUMP.match(body, at) if depth else None
        at = at if jump is None else jump.end()
        char = body[at : at + 1]
        at += 1
        if not char:
            raise ValueError("the value is cut")
        if char == b'"':
            at = yield from _end_of_string(body, at)
        else:
            depth += 1 if char in b"[{" else -1
        if not depth:
            return at


def _end_of_string(body: bytes, at: int) -> Generator[None, None, int]:
    """Return the index behind a string whose opening quote is before `at`.

    Where a part without escapes is long, the search for the next quote or backslash takes the least
    time per byte. A quote that was found is remembered: it may be far behind many backslashes.
    """
    steps, quote = 0, -1
    while True:
        steps += 1
        if not steps % TURN:
            yield
        part = _PART.match(body, at)
        at = at if part is None else part.end()
        if body[at : at + 1] == b'"':
            return at + 1
        if quote < at:
            quote = body.index(b'"', at)
        escape = body.find(b"\\", at, quote)
        if escape < 0:
            return quote + 1
        at = escape
