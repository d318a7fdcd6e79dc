"""Finds the members of a JSON request that the gateway reads or changes, as spans. Pure.

RFC 8259. The body is not built as objects: msgspec checks its syntax, and a walk over the members
of the top level jumps from bracket to bracket. Both hold the loop, so the walk yields now and then,
and what takes long per byte has a limit.

A body that two parsers could read as requests for different models is refused. One that is odd in
another way is not: its server may read it. `tests/data/model_bodies.toml` says which is which.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote_plus

import msgspec

from gateway.v1.endpoints import BodyForm
from registry.errors import BadRequest

T = TypeVar("T")

MEMBERS_MAX: Final = 1000
"""Max members of the top level."""
BRACKETS_MAX: Final = 250_000
"""Max objects and arrays of a body, which take about 0.2 s."""
FOUND_BRACKETS_MAX: Final = 4096
"""Max objects and arrays of an answer among which its members are looked for, at most 6 ms: unlike
a request's, that is not done in turns."""
NAME_MAX: Final = 1024
"""Max bytes of the name of a member of the top level, as it stands in the body."""
VALUE_MAX: Final = 4096
"""Max bytes of a value that is decoded, as it stands in the body."""
MODEL_MAX: Final = 256
"""Max characters of a model's name."""
TURN: Final = 500
"""Steps of the walk between two turns of the loop, at most about 1 ms."""
SLICE: Final = 1024 * 1024
"""Bytes that are searched or decoded between two turns of the loop."""
_ITEMS: Final = 32
"""Max strings, or parts of numbers and names, of one step of the walk."""
_PART: Final = re.compile(rb'[^"\\]{0,1024}+(?:\\.[^"\\]{0,1024}+){0,64}+', re.DOTALL)
"""Part of a string."""
_STRING: Final = b'"' + _PART.pattern + b'"'
"""A string that is not long. `_walk` finds the end of others with less time per byte."""
_SPACE: Final = rb"[ \t\n\r]*+"
_NAME: Final = re.compile(_SPACE + b"(" + _STRING + b")" + _SPACE + b":" + _SPACE, re.DOTALL)
_PLAIN: Final = re.compile(_STRING + rb"|[-+.0-9A-Za-z]{1,%d}+" % VALUE_MAX, re.DOTALL)
"""A value that is neither an object nor an array nor a long string."""
_JUMP: Final = re.compile(rb'(?:[^"\[\]{}]{1,4096}+|' + _STRING + rb"){0,%d}+" % _ITEMS, re.DOTALL)
"""Everything up to the next bracket or long string, but not too much at once."""
_NEXT: Final = re.compile(_SPACE + rb"([,}])")
_END: Final = re.compile(_SPACE + b"}")
_MARK: Final = b"\xef\xbb\xbf"
"""Byte order mark, which RFC 8259 section 8.1 lets parsers ignore."""
_LENIENT: Final = (
    (b"\\\\", b".."),
    (b"\\ud", b"\\u0"),
    (b"\\uD", b"\\u0"),
    (b"-Infinity", b"[1111111]"),
    (b"Infinity", b"[111111]"),
    (b"NaN", b"[0]"),
)
"""What msgspec refuses and other parsers read, and texts of the same length that it reads.

Surrogates without their other half (RFC 8259 section 8.2): once pairs of backslashes are gone, each
backslash begins an escape. NaN and the infinities of Python's and JavaScript's writers: an array
may stand wherever they may, and as part of a number or a name is as wrong as they are.
"""
_ESCAPE: Final = re.compile(rb"\\(?:(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
"""An escape, and what follows its backslash if it is a surrogate."""
_REPLACED: Final = "\ufffd"
"""What stands for a surrogate without its other half."""
_LIKE_MODEL: Final = re.compile(
    r"[\s\ufffd]*+m\ufffd*+o\ufffd*+d\ufffd*+e\ufffd*+l[\s\ufffd]*+(?:[\0\[]|\Z)", re.IGNORECASE
)
"""A name that some parser takes for `model`; see `check_name`."""
DEPTH: Final = 900
"""Levels of objects and arrays that are read; msgspec reads a few more, as many as Python's stack
has room for."""
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
    opening brace, where a member can be inserted. `is_stream`: the client wants events. `form`: how
    the body is written. `is_coded`: the model's name is in a charset other than UTF-8 or has a
    transfer encoding, so that only an `is_bare` name means the same to all.
    """

    model: str
    is_stream: bool
    values: dict[str, Span]
    first: int
    form: BodyForm = BodyForm.JSON
    is_coded: bool = False


class _Object(msgspec.Struct):
    """Any object: the syntax of its members is checked, and nothing kept."""


_decode: Final = msgspec.json.Decoder(_Object).decode


def scan(body: bytes) -> Generator[None, None, Scanned]:
    """Return what the gateway reads of a request; yields where the loop should take a turn.

    Raises BadRequest unless the body is a JSON object with a model.
    """
    yield from _check_text(body)
    yield from _check_syntax(body)
    if len(body) > SLICE:
        yield
    first = body.index(b"{") + 1
    values = yield from _walk(body, first)
    stream = values.get("stream", Span(0, 0))
    is_stream = body[stream.begin : min(stream.end, stream.begin + 5)] == b"true"
    return Scanned(_model(_value(body, values, "model")), is_stream, values, first)


def run(scanning: Generator[None, None, T]) -> T:
    """Return the result of a scan without turns in between; for small bodies."""
    while True:
        try:
            next(scanning)
        except StopIteration as stop:
            found: T = stop.value
            return found


def check_model(model: str) -> None:
    """Raise BadRequest unless a text may be a model's name."""
    if not 1 <= len(model) <= MODEL_MAX or not model.isprintable():
        raise _no_model(repr(model[:40]))


def is_bare(name: str) -> bool:
    """Return whether a name is the same in all charsets with ASCII and in quoted-printable."""
    return name.isascii() and "=" not in name and name == name.strip()


def check_name(name: str) -> None:
    """Raise BadRequest for a name that some servers take for `model`.

    Go's decoder ignores case, parsers in C end a text at a NUL, others read `model[]` as a list or
    leave out what is no character.
    """
    if name != "model" and _LIKE_MODEL.match(name):
        text = f"expected no member like `model` but itself, got {name[:40]!r}"
        raise BadRequest(text, detail={"param": "model"})


def is_like_model(name: str) -> bool:
    """Return whether some servers take a name for `model`."""
    return _LIKE_MODEL.match(name) is not None


def check_query(query: bytes) -> None:
    """Raise BadRequest for a query that names a model: some servers would take that one."""
    for part in re.split(rb"[&;]", query):
        name = unquote_plus(part.partition(b"=")[0].decode("latin-1"))
        check_name(name)
        if name == "model":
            raise BadRequest("the query: expected no model, as the body names it")


def _check_text(body: bytes) -> Generator[None, None, None]:
    """Raise BadRequest unless the body is UTF-8."""
    if body.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(body), SLICE):
        if at:
            yield
        piece = body[at : at + SLICE]
        try:
            decoder.decode(piece, final=at + SLICE >= len(body))
        except UnicodeDecodeError as error:
            place = at + error.start - (len(error.object) - len(piece))
            raise BadRequest(f"the body: expected UTF-8, got byte {place} as it is") from None


def _check_syntax(body: bytes) -> Generator[None, None, None]:
    """Raise BadRequest unless the body is a JSON object."""
    try:
        _decode(body)
    except RecursionError:
        text = f"expected at most {DEPTH} levels of objects and arrays, got more"
        raise BadRequest(f"the body: {text}") from None
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body: {error}") from None
    except msgspec.DecodeError as error:
        other = yield from _strict(body)
        if other == body:
            raise BadRequest(f"the body: expected a JSON object: {error}") from None
        yield from _check_syntax(other)


def _strict(body: bytes) -> Generator[None, None, bytes]:
    """Return a text of the same length that msgspec reads if a lenient parser reads the body."""
    if body.startswith(_MARK):
        body = body.replace(_MARK, b"   ", 1)
    for lenient, strict in _LENIENT:
        if len(body) > SLICE:
            yield
        body = body.replace(lenient, strict)
    return body


def _value(body: bytes, values: dict[str, Span], name: str) -> bytes:
    """Return the value of a member, b"null" if there is none. Raises BadRequest for a long one."""
    span = values.get(name)
    if span is None:
        return b"null"
    if span.end - span.begin > VALUE_MAX:
        text = f"{name}: expected at most {VALUE_MAX} bytes, got {span.end - span.begin}"
        raise BadRequest(text, detail={"param": name})
    return body[span.begin : span.end]


def _model(value: bytes) -> str:
    """Return the model's name. Raises BadRequest."""
    if value[:1] != b'"':
        raise _no_model("none" if value == b"null" else _shown(value))
    model = _text(value)
    if _REPLACED in model:
        raise _no_model(_shown(value))
    check_model(model)
    return model


def _no_model(got: str) -> BadRequest:
    text = f"model: expected a name of 1 to {MODEL_MAX} printable characters, got {got}"
    return BadRequest(text, detail={"param": "model"})


def _text(value: bytes) -> str:
    """Return a text that stands in quotes, with U+FFFD for surrogates if one is unpaired."""
    try:
        text: str = msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        text = msgspec.json.decode(_ESCAPE.sub(_without_surrogate, value), type=str)
    return text


def _without_surrogate(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def _shown(value: bytes) -> str:
    """Return the beginning of a value without characters that a terminal would obey."""
    return repr(value[:40].decode("utf-8", "replace"))


def _walk(body: bytes, at: int) -> Generator[None, None, dict[str, Span]]:
    """Return the spans of the members in `_READ`, beginning behind the opening brace.

    The syntax is checked already. Raises BadRequest for a member that stands twice: a server might
    read the other one.
    """
    values: dict[str, Span] = {}
    members, left = 0, BRACKETS_MAX
    name = _NAME.match(body, at)
    if name is None and _END.match(body, at) is None:
        raise _long_name()
    while name is not None:
        members += 1
        if members > MEMBERS_MAX:
            raise BadRequest(f"the body: expected at most {MEMBERS_MAX} members")
        begin, key = name.end(), _key(name[1])
        if (plain := _PLAIN.match(body, begin)) is not None:
            end = plain.end()
        else:
            end, left = yield from _end_of_checked(body, begin, left)
        if key in _READ:
            if key in values:
                raise BadRequest(f"{key}: expected once, got twice", detail={"param": key})
            values[key] = Span(begin, end)
        after = _NEXT.match(body, end)
        if after is None:
            raise BadRequest(f"the body: expected numbers of at most {VALUE_MAX} digits")
        if after[1] == b"}":
            break
        name = _NAME.match(body, after.end())
        if name is None:
            raise _long_name()
    return values


def _key(name: bytes) -> str:
    """Return the name of a member, which stands in quotes. Raises BadRequest."""
    if len(name) > NAME_MAX:
        raise _long_name()
    key = _text(name)
    check_name(key)
    return key


def _long_name() -> BadRequest:
    return BadRequest(f"the body: expected names of members of at most {NAME_MAX} bytes")


def _end_of_checked(body: bytes, at: int, left: int) -> Generator[None, None, tuple[int, int]]:
    """Return what `_end_of_counted` does, for a body with the right syntax. Raises BadRequest."""
    try:
        return (yield from _end_of_counted(body, at, left))
    except ValueError:
        text = f"the body: expected at most {BRACKETS_MAX} objects and arrays"
        raise BadRequest(text) from None


def find_members(body: bytes, at: int, wanted: tuple[bytes, ...]) -> dict[bytes, Span]:
    """Return the spans of the values of the first members with the names `wanted`, in quotes as
    they stand there, of the object that begins at `at`.

    Without what stands behind FOUND_BRACKETS_MAX objects and arrays, or is cut. An object that goes
    on behind them ends with the body.
    """
    found: dict[bytes, Span] = {}
    left = FOUND_BRACKETS_MAX
    name = _NAME.match(body, at + 1) if body[at : at + 1] == b"{" else None
    for _ in range(MEMBERS_MAX):
        if name is None or len(found) == len(wanted):
            break
        begin, plain, key = name.end(), _PLAIN.match(body, name.end()), name[1]
        is_first = key in wanted and key not in found
        try:
            if plain is not None:
                end = plain.end()
            else:
                end, left = run(_end_of_counted(body, begin, left))
        except ValueError:
            if is_first and body[begin : begin + 1] == b"{":
                found[key] = Span(begin, len(body))
            break
        if is_first:
            found[key] = Span(begin, end)
        after = _NEXT.match(body, end)
        name = _NAME.match(body, after.end()) if after is not None and after[1] == b"," else None
    return found


class Member(NamedTuple):
    """One member of an object: its name in quotes as it stands there, and its value. `whole`: both
    with the white space around, up to a comma; behind the last member, that is the object's."""

    name: bytes
    value: Span
    whole: Span


def split_members(body: bytes, at: int) -> tuple[list[Member], int]:
    """Return all members of the object that begins at `at`, and the index of its closing brace.

    None and -1 for an object that is cut or empty, that has more than MEMBERS_MAX members or
    FOUND_BRACKETS_MAX objects and arrays, or no object.
    """
    members: list[Member] = []
    left, first = FOUND_BRACKETS_MAX, at + 1
    name = _NAME.match(body, first) if body[at : at + 1] == b"{" else None
    while name is not None and len(members) < MEMBERS_MAX:
        begin = name.end()
        if (plain := _PLAIN.match(body, begin)) is not None:
            end = plain.end()
        else:
            try:
                end, left = run(_end_of_counted(body, begin, left))
            except ValueError:
                break
        after = _NEXT.match(body, end)
        if after is None:
            break
        is_last = after[1] == b"}"
        whole = Span(first, end if is_last else after.start(1))
        members.append(Member(name[1], Span(begin, end), whole))
        if is_last:
            return members, after.start(1)
        first = after.end()
        name = _NAME.match(body, first)
    return [], -1


def is_object(body: bytes, at: int) -> bool:
    """Return whether an object begins at `at`, ends, and nothing but white space follows.

    Not for one with more than FOUND_BRACKETS_MAX objects and arrays.
    """
    if body[at : at + 1] != b"{" or not body.rstrip().endswith(b"}"):
        return False
    try:
        end, _ = run(_end_of_counted(body, at, FOUND_BRACKETS_MAX))
    except ValueError:
        return False
    return not body[end:].strip()


def end_of_value(body: bytes, at: int) -> Generator[None, None, int]:
    """Return the index behind an object, an array or a string that begins at `at`.

    Its syntax needs to be right. Raises ValueError if the body ends before, and for too many
    brackets.
    """
    end, _ = yield from _end_of_counted(body, at, BRACKETS_MAX)
    return end


def _end_of_counted(body: bytes, at: int, left: int) -> Generator[None, None, tuple[int, int]]:
    """Return what `end_of_value` does, and how many objects and arrays are left of `left`."""
    depth = steps = 0
    turn = at
    while True:
        steps += 1
        if steps == TURN or at - turn > SLICE:
            steps, turn = 0, at
            yield
        jump = _JUMP.match(body, at) if depth else None
        at = at if jump is None else jump.end()
        char = body[at : at + 1]
        if char == b'"':
            at = yield from _end_of_string(body, at + 1)
        elif char and char in b"[{":
            at, depth, left = at + 1, depth + 1, left - 1
            if left < 0:
                raise ValueError("there are too many brackets")
        elif char and char in b"]}":
            at, depth = at + 1, depth - 1
        elif not depth or not char:
            raise ValueError("the value is cut")
        if not depth:
            return at, left


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
