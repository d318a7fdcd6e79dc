"""Finds the fields of a multipart request that the gateway reads or changes, as spans. Pure.

RFC 7578 and RFC 2046 section 5.1, taken strictly: parsers differ about preambles, bare line feeds,
repeated or encoded fields of a part's head and boundaries within a value. A form that two parsers
could read as requests for different models is refused.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, NamedTuple

from gateway.v1.scanning import (
    MODEL_MAX,
    SLICE,
    VALUE_MAX,
    Scanned,
    Span,
    check_model,
    check_name,
)
from registry.errors import BadRequest

FIELDS_MAX: Final = 20
HEAD_MAX: Final = 8 * 1024
"""Max bytes of a field's head."""
_READ: Final = frozenset({"model", "stream"})
_LINE: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_BOUNDARY: Final = rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]"
"""RFC 2046 section 5.1.1."""
_PARAMETER: Final = re.compile(
    rb"[ \t]*+;[ \t]*+(?:(" + _TOKEN + rb")=(?:(" + _TOKEN + rb')|"((?:[^"\\]|\\[^"])*+)"))?+',
    re.DOTALL,
)
"""A parameter. A quote with a backslash before it ends the text for some parsers."""
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"):[ \t]*+([\t\x20-\x7e\x80-\xff]*+)")
_NAME: Final = re.compile(r"[0-9A-Za-z_.:/ \[\]-]{1,200}")
"""Names that no parser decodes or cuts."""
_PLAIN_CODINGS: Final = frozenset({b"7bit", b"8bit", b"binary"})
_CHARSETS: Final = frozenset({b"utf-8", b"us-ascii"})


class _Part(NamedTuple):
    """Name of a field, and where its value stands."""

    name: str
    value: Span


def content_type(boundary: bytes) -> bytes:
    """Return the field for the server: parsers differ about odd ones. Some know no quotes."""
    is_token = re.fullmatch(_TOKEN, boundary) is not None
    return b"multipart/form-data; boundary=" + (boundary if is_token else b'"%b"' % boundary)


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary that a Content-Type names. Raises BadRequest."""
    kind, parameters = _parameters(content_type)
    boundary = parameters.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not re.fullmatch(_BOUNDARY, boundary):
        raise BadRequest(
            "Content-Type: expected multipart/form-data with a boundary of 1 to 70 characters"
        )
    if parameters.get(b"charset", b"utf-8").lower() != b"utf-8":
        raise BadRequest("Content-Type: expected the charset utf-8, got another one")
    return boundary


def scan_multipart(body: bytes, content_type: bytes) -> Generator[None, None, Scanned]:
    """Return what the gateway reads of a request; yields where the loop should take a turn.

    Raises BadRequest unless the body is a complete form with a model.
    """
    values: dict[str, Span] = {}
    delimiter = b"--" + boundary_of(content_type)
    at = len(_LINE) if body.startswith(_LINE) else 0
    if not body.startswith(delimiter, at):
        raise BadRequest("the body: expected a form that begins with its boundary")
    at += len(delimiter)
    fields = 0
    while not body.startswith(b"--", at):
        fields += 1
        if fields > FIELDS_MAX:
            raise BadRequest(f"the body: expected at most {FIELDS_MAX} fields, got more")
        end = yield from _find(body, delimiter, at)
        part = _read_part(body, at, end)
        if part.name in _READ:
            if part.name in values:
                text = f"{part.name}: expected once, got twice"
                raise BadRequest(text, detail={"param": part.name})
            values[part.name] = part.value
        at = end + len(delimiter)
    if body[at : at + 5] not in (b"--", b"--\r\n"):
        raise BadRequest("the body: expected a form that ends with its boundary, got more")
    model = _text(body, values, "model")
    check_model(model)
    return Scanned(model, _is_true(_text(body, values, "stream")), values, 0)


def _find(body: bytes, delimiter: bytes, at: int) -> Generator[None, None, int]:
    """Return the index of the next delimiter. Raises BadRequest if there is none."""
    while at < len(body):
        found = body.find(delimiter, at, at + SLICE + len(delimiter) - 1)
        if found >= 0:
            return found
        at += SLICE
        yield
    raise BadRequest("the body: expected a form that ends with its boundary")


def _read_part(body: bytes, begin: int, end: int) -> _Part:
    """Return the field between the delimiter that ends at `begin` and the one that begins at `end`.

    Raises BadRequest. A boundary within a line is no delimiter, but some parsers take it for one.
    """
    if not body.startswith(_LINE, begin) or body[end - len(_LINE) : end] != _LINE:
        raise BadRequest("the body: expected the boundary on lines of its own")
    begin, end = begin + len(_LINE), end - len(_LINE)
    head_end = body.find(_HEAD_END, begin, min(end, begin + HEAD_MAX + len(_HEAD_END)))
    if head_end < 0:
        text = f"the body: expected each field to have a head of at most {HEAD_MAX} bytes"
        raise BadRequest(text)
    fields = _read_head(body[begin:head_end])
    name = _name(fields)
    if name in _READ:
        _check_plain(name, fields)
    return _Part(name, Span(head_end + len(_HEAD_END), end))


def _read_head(head: bytes) -> dict[bytes, bytes]:
    """Return the fields of a part's head by their lower-case names. Raises BadRequest."""
    fields: dict[bytes, bytes] = {}
    for line in head.split(_LINE):
        found = _FIELD.fullmatch(line)
        if found is None or found[1].lower() in fields:
            text = "expected a head of different fields, each on one line"
            raise BadRequest(f"the body: {text}")
        fields[found[1].lower()] = found[2].rstrip()
    coding = fields.get(b"content-transfer-encoding", b"binary")
    if coding.lower() not in _PLAIN_CODINGS:
        raise BadRequest("Content-Transfer-Encoding: expected binary, got another one")
    return fields


def _name(fields: dict[bytes, bytes]) -> str:
    """Return the name of a field. Raises BadRequest."""
    kind, parameters = _parameters(fields.get(b"content-disposition", b""))
    name = parameters.get(b"name", b"").decode("latin-1")
    is_coded = any(one.startswith(b"name*") for one in parameters)  # RFC 2231
    if kind != b"form-data" or is_coded or not _NAME.fullmatch(name):
        raise BadRequest(
            "Content-Disposition: expected form-data with a name of letters, digits and _.:/ []-"
        )
    check_name(name)
    if name == "_charset_":
        raise BadRequest("_charset_: expected no such field, as all values are UTF-8")
    return name


def _check_plain(name: str, fields: dict[bytes, bytes]) -> None:
    """Raise BadRequest unless a field is plain text, as all servers read it."""
    _, parameters = _parameters(fields[b"content-disposition"])
    kind, options = _parameters(fields.get(b"content-type", b"text/plain"))
    is_file = b"filename" in parameters or b"filename*" in parameters
    is_text = kind == b"text/plain" and options.get(b"charset", b"utf-8").lower() in _CHARSETS
    if is_file or not is_text:
        text = f"{name}: expected a field of plain text"
        raise BadRequest(text, detail={"param": name})


def _parameters(value: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return a value's kind and parameters, both in lower case but for the parameters' values.

    RFC 9110 section 5.6.6. Raises BadRequest, also for a parameter that stands twice.
    """
    kind, semicolon, _ = value.partition(b";")
    at, parameters = len(kind), {}
    while semicolon and at < len(value):
        found = _PARAMETER.match(value, at)
        if found is None or (found[1] and found[1].lower() in parameters):
            raise BadRequest("expected parameters as in RFC 9110, each of them once")
        if found[1]:
            text = found[3] if found[2] is None else found[2]
            parameters[found[1].lower()] = text
        at = found.end()
        if not value[at:].strip():
            break
    return kind.strip().lower(), parameters


def _text(body: bytes, values: dict[str, Span], name: str) -> str:
    """Return the text of a field, "" if there is none. Raises BadRequest."""
    begin, end = values.get(name, Span(0, 0))
    if end - begin > VALUE_MAX:
        text = f"{name}: expected at most {MODEL_MAX} characters, got {end - begin} bytes"
        raise BadRequest(text, detail={"param": name})
    try:
        return body[begin:end].decode()
    except UnicodeDecodeError:
        raise BadRequest(f"{name}: expected UTF-8", detail={"param": name}) from None


def _is_true(text: str) -> bool:
    """Return whether a server takes a text for true."""
    return text.strip().lower() in ("true", "1", "on", "yes", "t", "y")
