"""Reads the members of a JSON request that the gateway needs. Pure.

RFC 8259. msgspec checks the syntax and cuts the top level into members, whose values stay the bytes
that they are. That is one step of the loop, so what takes long per byte has a limit.

A body that two parsers could read as requests for different models is refused, unless that is for a
repeated member: what is written for the server (`gateway.v1.writing`) has the last one alone. A
body that is odd in another way is not refused: its server may read it.
`tests/data/model_bodies.toml` says which is which.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Generator, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_plus

import msgspec

from gateway.v1.answer_members import NAME, NEXT
from gateway.v1.bounds import DEPTH, MEMBERS_MAX, SLICE, check_structure
from registry.errors import BadRequest

NAME_MAX: Final = 1024
"""Max bytes of the name of a member of the top level, with its quotes, as it is written."""
VALUE_MAX: Final = 4096
"""Max bytes of a value that is decoded, as it stands in the body, and of a number."""
MODEL_MAX: Final = 256
"""Max characters of a model's name."""
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
_ODD: Final = r"[\ufffd\ud800-\udfff]*+"
_LIKE_MODEL: Final = re.compile(
    rf"[\s\ufffd\ud800-\udfff]*+m{_ODD}o{_ODD}d{_ODD}e{_ODD}l[\s\ufffd\ud800-\udfff]*+(?:[\0\[]|\Z)",
    re.IGNORECASE,
)
"""A name that some parser takes for `model`; see `check_name`."""
_NUMBERS: Final = b"-0123456789"
_NONE: Final = msgspec.Raw(b"")
_SHORT: Final = 128
"""Characters of a name that are less than NAME_MAX however they are written."""

OPTIONS: Final = "stream_options"
_OPTION: Final = "include_usage"
_ASKED: Final = msgspec.Raw(b'{"include_usage":true}')
_NULL, _TRUE = msgspec.Raw(b"null"), msgspec.Raw(b"true")

_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class JsonRequest(NamedTuple):
    """What the gateway reads of a request in JSON."""

    model: str
    is_stream: bool
    """Whether the client wants events."""
    options: msgspec.Raw | None
    """The client's `stream_options` with a request for the usage (OpenAI API reference); None where
    it asks for that itself, has no stream, or has options that are none: the server decides."""
    members: Mapping[str, msgspec.Raw]
    """The members of the top level, whose values are views of the body."""
    size: int
    """Bytes of the body."""


def scan(body: bytes) -> Generator[None, None, JsonRequest]:
    """Return what the gateway reads of a request; yields where the loop should take a turn.

    Raises BadRequest unless the body is a JSON object with a model.
    """
    yield from _check_text(body)
    yield from check_structure(body)
    if len(body) > SLICE:
        yield
    members = yield from _members(body)
    if len(members) > MEMBERS_MAX:
        raise BadRequest(f"the body: expected at most {MEMBERS_MAX} members")
    for name, value in members.items():
        check_name(name)
        if len(name) > _SHORT and len(encode_name(name)) > NAME_MAX:
            raise BadRequest(f"the body: expected names of members of at most {NAME_MAX} bytes")
        if len(value) > VALUE_MAX and memoryview(value)[0] in _NUMBERS:
            raise BadRequest(f"the body: expected numbers of at most {VALUE_MAX} digits")
    stream = members.get("stream")
    is_stream = stream is not None and len(stream) == len(b"true") and bytes(stream) == b"true"
    options = _options(members.get(OPTIONS)) if is_stream else None
    return JsonRequest(_model(members.get("model")), is_stream, options, members, len(body))


def encode_name(name: str) -> bytes:
    """Return the name of a member as it is written."""
    try:
        return msgspec.json.encode(name)
    except UnicodeEncodeError:  # a surrogate without its other half
        return json.dumps(name).encode()


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
    if name != "model" and is_like_model(name):
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


def _members(body: bytes) -> Generator[None, None, Mapping[str, msgspec.Raw]]:
    """Return the members of a body. Raises BadRequest unless it is a JSON object."""
    try:
        return _decode(body)
    except RecursionError:
        text = f"expected at most {DEPTH} levels of objects and arrays, got more"
        raise BadRequest(f"the body: {text}") from None
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body: {error}") from None
    except msgspec.DecodeError as error:
        other = yield from _strict(body)
        if other == body:
            raise BadRequest(f"the body: expected a JSON object: {error}") from None
        return _placed(body, other, (yield from _members(other)))


def _strict(body: bytes) -> Generator[None, None, bytes]:
    """Return a text of the same length that msgspec reads if a lenient parser reads the body."""
    if body.startswith(_MARK):
        body = body.replace(_MARK, b"   ", 1)
    for lenient, strict in _LENIENT:
        if len(body) > SLICE:
            yield
        body = body.replace(lenient, strict)
    return body


def _placed(body: bytes, other: bytes, found: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the members of a body that msgspec refuses, by those that it has `found` in a text of
    the same length.

    Their values have the same places in both, and follow each other in the order of their names,
    unless one is repeated: then the first one is not known, and this raises BadRequest.
    """
    view, members = memoryview(body), dict[str, msgspec.Raw]()
    at = other.index(b"{") + 1
    while (name := NAME.match(other, at)) is not None:
        key, value = _text(body[slice(*name.span(1))]), found.get(_text(name[1]), _NONE)
        end = name.end() + len(value)
        after = NEXT.match(other, end)
        if key in members or after is None or not other.startswith(value, name.end()):
            raise BadRequest(f"the body: expected each member once, got {key[:40]!r} twice")
        members[key], at = msgspec.Raw(view[name.end() : end]), after.end()
    return members


def _model(value: msgspec.Raw | None) -> str:
    """Return the model's name. Raises BadRequest."""
    if value is None:
        raise _no_model("none")
    if len(value) > VALUE_MAX:
        text = f"model: expected at most {VALUE_MAX} bytes, got {len(value)}"
        raise BadRequest(text, detail={"param": "model"})
    written = bytes(value)
    if written[:1] != b'"':
        raise _no_model("none" if written == b"null" else _shown(written))
    model = _text(written)
    check_model(model)
    return model


def _text(value: bytes) -> str:
    """Return a text that stands in quotes; one with unpaired surrogates has them, too."""
    try:
        text: str = msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        text = json.loads(value.decode())
    return text


def _options(value: msgspec.Raw | None) -> msgspec.Raw | None:
    """Return `JsonRequest.options` of a stream whose own are `value`."""
    if value is None or value == _NULL:
        return _ASKED
    if len(value) > VALUE_MAX:
        return None
    try:
        options = _decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if options.get(_OPTION) == _TRUE:
        return None
    return msgspec.Raw(msgspec.json.encode({**options, _OPTION: _TRUE}))


def _no_model(got: str) -> BadRequest:
    text = f"model: expected a name of 1 to {MODEL_MAX} printable characters, got {got}"
    return BadRequest(text, detail={"param": "model"})


def _shown(value: bytes) -> str:
    """Return the beginning of a value without characters that a terminal would obey."""
    return repr(value[:40].decode("utf-8", "replace"))
