"""Finds the fields of a multipart request that the gateway reads or changes, as spans. Pure.

RFC 7578 and RFC 2046 section 5.1, as clients write them: `tests/data/forms` has recorded ones.
Parsers differ about bare line feeds, repeated or encoded lines of a field's head, quotes in names
and boundaries within a value. A form that two parsers could read as requests for different models
is refused.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, NamedTuple
from urllib.parse import unquote

from gateway.v1.endpoints import BodyForm
from gateway.v1.scanning import (
    MODEL_MAX,
    SLICE,
    VALUE_MAX,
    Scanned,
    Span,
    check_model,
    check_name,
    is_bare,
    is_like_model,
)
from registry.errors import BadRequest

FIELDS_MAX: Final = 1000
HEAD_MAX: Final = 8 * 1024
"""Max bytes of a field's head."""
LINES_MAX: Final = 20
"""Max lines of a field's head."""
PARAMETERS_MAX: Final = 20
"""Max parameters of a line."""
PREAMBLE_MAX: Final = 8 * 1024
"""Max bytes before the first boundary."""
NAME_MAX: Final = 200
"""Max bytes of a field's name."""
BOUNDARY_MAX: Final = 70
"""Max characters of a boundary (RFC 2046 section 5.1.1)."""
TURN: Final = 20
"""Fields that are read between two turns of the loop, at most about 2 ms."""
_READ: Final = frozenset({"model", "stream"})
_LINE: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]*[0-9A-Za-z'()+_,./:=?-]")
_BARE_BOUNDARY: Final = re.compile(
    rb"(?i)(;[ \t]*+boundary=)([0-9a-z'()+_./:=?-]++)(?=[ \t]*+(?:;|\Z))"
)
"""A boundary without quotes. Those of many programs have characters that need some, such as "="."""
_PARAMETER: Final = re.compile(
    rb"[ \t]*+;[ \t]*+(?:(" + _TOKEN + rb")=(?:(" + _TOKEN + rb")|"
    rb'"((?:[^"\\]|\\.)*+)"|"([^"]*+)"))?+',
    re.DOTALL,
)
"""A parameter. A backslash before a quote escapes it (Go, curl), or is a character (browsers)."""
_FILE: Final = re.compile(
    rb'(?i)form-data[ \t]*+;[ \t]*+name="([^"\\]*+)"[ \t]*+;[ \t]*+filename\*?="', re.DOTALL
)
"""A file whose own name is in no form: some clients escape no quotes in it."""
_PLAIN_NAME: Final = re.compile(r"[0-9A-Za-z_.\[\]-]+")
"""A name that nobody decodes."""
_NAMES: Final = re.compile(rb"(?i);[ \t]*+name[ \t]*+[*=]")
"""What some parser takes for a field's name, be it in quotes."""
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"):[ \t]*+([\t\x20-\x7e\x80-\xff]*+)")
_END: Final = re.compile(rb"--[ \t]*+(?:\r?\n|\Z)")
"""What follows the last boundary (RFC 2046 section 5.1.1), with the line end of some programs."""
_PLAIN_CODINGS: Final = frozenset({b"7bit", b"8bit", b"binary"})
_UTF8: Final = frozenset({b"utf-8", b"utf8", b"us-ascii"})
_ASCII_ALIKE: Final = re.compile(
    rb"iso-8859-\d{1,2}|latin-?1|windows-125\d|cp125\d|gbk|gb2312|gb18030|big5|euc-kr|euc-jp"
)
"""Charsets in which ASCII is as in UTF-8."""


class FormType(NamedTuple):
    """Content-Type of a form. `charset`: of texts that name none, b"" for UTF-8."""

    boundary: bytes
    charset: bytes

    def field(self) -> bytes:
        """Return the value for the server: parsers differ about odd ones. Some know no quotes."""
        is_token = re.fullmatch(_TOKEN, self.boundary) is not None
        boundary = self.boundary if is_token else b'"%b"' % self.boundary
        charset = b"; charset=" + self.charset if self.charset else b""
        return b"multipart/form-data; boundary=" + boundary + charset


class _Part(NamedTuple):
    """Name of a field, where its value stands, and of `model`, whether it is coded."""

    name: str
    value: Span
    is_coded: bool


def form_type(content_type: bytes) -> FormType:
    """Return what a Content-Type says of a form. Raises BadRequest."""
    try:
        kind, parameters = _parameters(content_type)
    except BadRequest:
        kind, parameters = _parameters(_BARE_BOUNDARY.sub(rb'\1"\2"', content_type))
    boundary = parameters.get(b"boundary", b"")
    if kind != b"multipart/form-data":
        raise BadRequest(f"Content-Type: expected multipart/form-data, got {_shown(kind)}")
    if len(boundary) > BOUNDARY_MAX or not _BOUNDARY.fullmatch(boundary):
        got = f"{len(boundary)}: {_shown(boundary)}"
        text = f"expected a boundary of 1 to {BOUNDARY_MAX} characters of RFC 2046, got {got}"
        raise BadRequest(f"Content-Type: {text}")
    charset = _charset(parameters, "Content-Type")
    return FormType(boundary, b"" if charset in _UTF8 else charset)


def scan_multipart(body: bytes, content_type: bytes) -> Generator[None, None, Scanned]:
    """Return what the gateway reads of a request; yields where the loop should take a turn.

    Raises BadRequest unless the body is a complete form with a model.
    """
    kind = form_type(content_type)
    delimiter = b"--" + kind.boundary
    at = _first(body, delimiter) + len(delimiter)
    found: dict[str, _Part] = {}
    fields = 0
    while not body.startswith(b"--", at):
        fields += 1
        if fields > FIELDS_MAX:
            raise BadRequest(f"the body: expected at most {FIELDS_MAX} fields, got more")
        if not fields % TURN:
            yield
        end = yield from _find(body, delimiter, at)
        if end < 0:
            raise BadRequest("the body: expected a form that ends with its boundary")
        part = _read_part(body, at, end, kind)
        if part.name in _READ:
            if part.name in found:
                text = f"{part.name}: expected once, got twice"
                raise BadRequest(text, detail={"param": part.name})
            found[part.name] = part
        at = end + len(delimiter)
    if not _END.match(body, at) or (yield from _find(body, delimiter, at)) >= 0:
        raise BadRequest("the body: expected a form that ends with its boundary, got more")
    values = {name: part.value for name, part in found.items()}
    begin, end = values.get("stream", Span(0, 0))
    is_stream = _is_true(body[begin : min(end, begin + VALUE_MAX)])
    is_coded = "model" in found and found["model"].is_coded
    model = _model(body, values.get("model", Span(0, 0)), is_coded=is_coded)
    return Scanned(model, is_stream, values, 0, BodyForm.MULTIPART, is_coded)


def _first(body: bytes, delimiter: bytes) -> int:
    """Return the index of the first delimiter. Raises BadRequest."""
    at = body.find(delimiter, 0, PREAMBLE_MAX + len(delimiter))
    if at < 0 or (at and not body.startswith(_LINE, at - len(_LINE))):
        text = f"begins with its boundary, or has it on a line in the first {PREAMBLE_MAX} bytes"
        raise BadRequest(f"the body: expected a form that {text}, got {_shown(body[:40])}")
    return at


def _find(body: bytes, delimiter: bytes, at: int) -> Generator[None, None, int]:
    """Return the index of the next delimiter, -1 if there is none."""
    while at < len(body):
        found = body.find(delimiter, at, at + SLICE + len(delimiter) - 1)
        if found >= 0:
            return found
        at += SLICE
        yield
    return -1


def _read_part(body: bytes, begin: int, end: int, kind: FormType) -> _Part:
    """Return the field between the delimiter that ends at `begin` and the one that begins at `end`.

    Raises BadRequest. A boundary within a line is no delimiter, but some parsers take it for one.
    """
    if not body.startswith(_LINE, begin) or body[end - len(_LINE) : end] != _LINE:
        text = "expected the boundary on lines of its own, which end with CRLF"
        raise BadRequest(f"the body: {text}, got {_shown(body[begin : begin + 20])} behind it")
    begin, end = begin + len(_LINE), end - len(_LINE)
    head_end = body.find(_HEAD_END, begin, min(end, begin + HEAD_MAX + len(_HEAD_END)))
    if head_end < 0:
        got = _shown(body[begin : min(end, begin + 40)])
        text = f"expected each field to have a head of at most {HEAD_MAX} bytes, got {got}"
        raise BadRequest(f"the body: {text}")
    head = _read_head(body[begin:head_end])
    disposition = head.get(b"content-disposition", b"")
    name, is_file = _read_disposition(disposition)
    is_coded = name == "model" and _is_coded_text(head, kind, is_file=is_file)
    return _Part(name, Span(head_end + len(_HEAD_END), end), is_coded)


def _read_head(head: bytes) -> dict[bytes, bytes]:
    """Return the lines of a field's head by their lower-case names. Raises BadRequest."""
    lines: dict[bytes, bytes] = {}
    for number, line in enumerate(head.split(_LINE), 1):
        if number > LINES_MAX:
            raise BadRequest(f"the body: expected a field's head of at most {LINES_MAX} lines")
        found = _FIELD.fullmatch(line)
        if found is None:
            text = "expected the head of a field to have lines such as `Name: value`"
            raise BadRequest(f"the body: {text}, got {_shown(line)}")
        if found[1].lower() in lines:
            text = f"expected each line in the head of a field once, got {_shown(found[1])} twice"
            raise BadRequest(f"the body: {text}")
        lines[found[1].lower()] = found[2].rstrip()
    return lines


def _read_disposition(value: bytes) -> tuple[str, bool]:
    """Return the name of a field, and whether it is a file. Raises BadRequest."""
    try:
        kind, parameters = _parameters(value)
    except BadRequest:
        if (file := _FILE.match(value)) is None:
            raise
        kind, parameters = b"form-data", {b"name": file[1], b"filename": b""}
    name = parameters.get(b"name", b"").decode("latin-1")
    is_odd = b"*" in value and any(one.startswith(b"name*") for one in parameters)  # RFC 2231
    is_odd |= name == "model" and b"\\" in value
    if kind != b"form-data" or is_odd or len(_NAMES.findall(value)) != 1:
        text = f"expected form-data with one plain name, got {_shown(value)}"
        raise BadRequest(f"Content-Disposition: {text}")
    if not 1 <= len(name) <= NAME_MAX or "=?" in name:  # RFC 2047
        text = f"expected a name of 1 to {NAME_MAX} bytes, not encoded, got {len(name)}"
        raise BadRequest(f"Content-Disposition: {text}: {name[:40]!r}")
    _check_field_name(name)
    return name, b"filename" in parameters or b"filename*" in parameters


def _check_field_name(name: str) -> None:
    """Raise BadRequest for a name that some servers take for `model`, or for that of a charset.

    Browsers write a quote as %22, others with a backslash; parsers decode one, both or none, and
    some end a name at a quote, a backslash or a semicolon.
    """
    if name == "model":
        return
    check_name(name)
    if _PLAIN_NAME.fullmatch(name) and not name.startswith("_"):
        return
    for one in (unquote(name, "latin-1"), unquote(name.replace("\\", ""), "latin-1")):
        if is_like_model(re.split(r'[\\";]', one)[0]):
            text = f"expected no member like `model` but itself, got {name[:40]!r}"
            raise BadRequest(text, detail={"param": "model"})
        if one.strip().casefold() == "_charset_":
            raise BadRequest("_charset_: expected no such field, but a charset in the Content-Type")


def _is_coded_text(head: dict[bytes, bytes], kind: FormType, *, is_file: bool) -> bool:
    """Return whether the field `model` has another charset than UTF-8, or a transfer encoding.

    Raises BadRequest unless it is plain text that may read alike with and without them.
    """
    media, options = _parameters(head.get(b"content-type", b"text/plain"))
    if is_file or media != b"text/plain":
        got = "a file" if is_file else _shown(media)
        text = f"model: expected a field of plain text, got {got}"
        raise BadRequest(text, detail={"param": "model"})
    coding = head.get(b"content-transfer-encoding", b"binary").lower()
    if coding not in _PLAIN_CODINGS and coding != b"quoted-printable":
        text = f"Content-Transfer-Encoding of model: expected binary, got {_shown(coding)}"
        raise BadRequest(text, detail={"param": "model"})
    is_other = bool(kind.charset)
    if b"charset" in options:
        is_other = _charset(options, "Content-Type of model") not in _UTF8
    return is_other or coding not in _PLAIN_CODINGS


def _charset(parameters: dict[bytes, bytes], where: str) -> bytes:
    """Return the charset that parameters name, b"utf-8" by default. Raises BadRequest."""
    charset = parameters.get(b"charset", b"utf-8").lower()
    if charset not in _UTF8 and not _ASCII_ALIKE.fullmatch(charset):
        raise BadRequest(f"{where}: expected a charset with ASCII in it, got {_shown(charset)}")
    return charset


def _parameters(value: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return a value's kind and parameters, both in lower case but for the parameters' values.

    RFC 9110 section 5.6.6. Raises BadRequest, also for a parameter that stands twice.
    """
    kind, semicolon, _ = value.partition(b";")
    at, parameters = len(kind), {}
    count = 0
    while semicolon and at < len(value):
        count += 1
        if count > PARAMETERS_MAX:
            raise BadRequest(f"expected at most {PARAMETERS_MAX} parameters, got {_shown(value)}")
        found = _PARAMETER.match(value, at)
        if found is None or (found[1] and found[1].lower() in parameters):
            text = f"expected parameters as in RFC 9110, each of them once, got {_shown(value)}"
            raise BadRequest(text)
        if found[1]:
            parameters[found[1].lower()] = found[found.lastindex or 1]
        at = found.end()
        if not value[at:].strip():
            break
    return kind.strip().lower(), parameters


def _model(body: bytes, span: Span, *, is_coded: bool) -> str:
    """Return the model's name, in UTF-8; if that is coded, it must be `is_bare`.

    Raises BadRequest.
    """
    begin, end = span
    if end - begin > VALUE_MAX:
        text = f"model: expected at most {MODEL_MAX} characters, got {end - begin} bytes"
        raise BadRequest(text, detail={"param": "model"})
    value = body[begin:end]
    try:
        model = value.decode()
    except UnicodeDecodeError:
        model = ""
    if (value and not model) or (is_coded and not is_bare(model)):
        expected = "ASCII without `=`" if is_coded else "UTF-8"
        text = f"model: expected {expected}, got {_shown(value)}"
        raise BadRequest(text, detail={"param": "model"})
    check_model(model)
    return model


def _is_true(text: bytes) -> bool:
    """Return whether a server takes a text for true."""
    return text.strip().lower() in (b"true", b"1", b"on", b"yes", b"t", b"y")


def _shown(value: bytes) -> str:
    """Return the beginning of a value without characters that a terminal would obey."""
    return repr(value[:40].decode("latin-1"))
