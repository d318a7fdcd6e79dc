"""Finds the fields of a multipart form, as spans. Pure.

RFC 7578 and RFC 2046 section 5.1, as clients write them: `tests/data/forms` has recorded ones.
Parsers differ about bare line feeds, repeated or encoded lines of a field's head, quotes in names
and boundaries within a value: a form that two of them read differently is refused.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, NamedTuple

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
SLICE: Final = 1024 * 1024
"""Bytes that are searched between two turns of the loop."""
_NAMES: Final = re.compile(rb"(?i);[ \t]*+name[ \t]*+[*=]")
"""What some parser takes for a field's name, be it in quotes."""
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"):[ \t]*+([\t\x20-\x7e\x80-\xff]*+)")
_END: Final = re.compile(rb"--[ \t]*+(?:\r?\n|\Z)")
"""What follows the last boundary (RFC 2046 section 5.1.1), with the line end of some programs."""
UTF8: Final = frozenset({b"utf-8", b"utf8", b"us-ascii"})
_ASCII_ALIKE: Final = re.compile(
    rb"iso-8859-\d{1,2}|latin-?1|windows-125\d|cp125\d|gbk|gb2312|gb18030|big5|euc-kr|euc-jp"
)
"""Charsets in which ASCII is as in UTF-8."""


class BadForm(ValueError):
    """The body is no form, or parsers differ about it; the text says what was expected."""


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


class Part(NamedTuple):
    """One field: its name as it stands there (latin-1), where its value stands, the lines of its
    head by their lower-case names, and whether it is a file."""

    name: str
    begin: int
    end: int
    head: dict[bytes, bytes]
    is_file: bool

    def media(self) -> tuple[bytes, dict[bytes, bytes]]:
        """Return the Content-Type of its value, in lower case, and parameters. Raises BadForm."""
        return parameters(self.head.get(b"content-type", b"text/plain"))


def form_type(content_type: bytes) -> FormType:
    """Return what a Content-Type says of a form. Raises BadForm."""
    try:
        kind, options = parameters(content_type)
    except BadForm:
        kind, options = parameters(_BARE_BOUNDARY.sub(rb'\1"\2"', content_type))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data":
        raise BadForm(f"Content-Type: expected multipart/form-data, got {shown(kind)}")
    if len(boundary) > BOUNDARY_MAX or not _BOUNDARY.fullmatch(boundary):
        got = f"{len(boundary)}: {shown(boundary)}"
        text = f"expected a boundary of 1 to {BOUNDARY_MAX} characters of RFC 2046, got {got}"
        raise BadForm(f"Content-Type: {text}")
    named = charset(options, "Content-Type")
    return FormType(boundary, b"" if named in UTF8 else named)


def parts(body: bytes, kind: FormType) -> Generator[Part | None, None, None]:
    """Yield the fields of a form, and None where an event loop should take a turn.

    Raises BadForm unless the body is a complete form.
    """
    delimiter = b"--" + kind.boundary
    at = _first(body, delimiter) + len(delimiter)
    fields = 0
    while not body.startswith(b"--", at):
        fields += 1
        if fields > FIELDS_MAX:
            raise BadForm(f"the body: expected at most {FIELDS_MAX} fields, got more")
        if not fields % TURN:
            yield None
        end = yield from _find(body, delimiter, at)
        if end < 0:
            raise BadForm("the body: expected a form that ends with its boundary")
        yield _read_part(body, at, end)
        at = end + len(delimiter)
    if not _END.match(body, at) or (yield from _find(body, delimiter, at)) >= 0:
        raise BadForm("the body: expected a form that ends with its boundary, got more")


def _first(body: bytes, delimiter: bytes) -> int:
    """Return the index of the first delimiter. Raises BadForm."""
    at = body.find(delimiter, 0, PREAMBLE_MAX + len(delimiter))
    if at < 0 or (at and not body.startswith(_LINE, at - len(_LINE))):
        text = f"begins with its boundary, or has it on a line in the first {PREAMBLE_MAX} bytes"
        raise BadForm(f"the body: expected a form that {text}, got {shown(body[:40])}")
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


def _read_part(body: bytes, begin: int, end: int) -> Part:
    """Return the field between the delimiter that ends at `begin` and the one that begins at `end`.

    Raises BadForm. A boundary within a line is no delimiter, but some parsers take it for one.
    """
    if not body.startswith(_LINE, begin) or body[end - len(_LINE) : end] != _LINE:
        text = "expected the boundary on lines of its own, which end with CRLF"
        raise BadForm(f"the body: {text}, got {shown(body[begin : begin + 20])} behind it")
    begin, end = begin + len(_LINE), end - len(_LINE)
    head_end = body.find(_HEAD_END, begin, min(end, begin + HEAD_MAX + len(_HEAD_END)))
    if head_end < 0:
        got = shown(body[begin : min(end, begin + 40)])
        text = f"expected each field to have a head of at most {HEAD_MAX} bytes, got {got}"
        raise BadForm(f"the body: {text}")
    head = _read_head(body[begin:head_end])
    name, is_file = _read_disposition(head.get(b"content-disposition", b""))
    return Part(name, head_end + len(_HEAD_END), end, head, is_file)


def _read_head(head: bytes) -> dict[bytes, bytes]:
    """Return the lines of a field's head by their lower-case names. Raises BadForm."""
    lines: dict[bytes, bytes] = {}
    for number, line in enumerate(head.split(_LINE), 1):
        if number > LINES_MAX:
            raise BadForm(f"the body: expected a field's head of at most {LINES_MAX} lines")
        found = _FIELD.fullmatch(line)
        if found is None:
            text = "expected the head of a field to have lines such as `Name: value`"
            raise BadForm(f"the body: {text}, got {shown(line)}")
        if found[1].lower() in lines:
            text = f"expected each line in the head of a field once, got {shown(found[1])} twice"
            raise BadForm(f"the body: {text}")
        lines[found[1].lower()] = found[2].rstrip()
    return lines


def _read_disposition(value: bytes) -> tuple[str, bool]:
    """Return the name of a field, and whether it is a file. Raises BadForm."""
    try:
        kind, options = parameters(value)
    except BadForm:
        if (file := _FILE.match(value)) is None:
            raise
        kind, options = b"form-data", {b"name": file[1], b"filename": b""}
    name = options.get(b"name", b"").decode("latin-1")
    is_odd = b"*" in value and any(one.startswith(b"name*") for one in options)  # RFC 2231
    if kind != b"form-data" or is_odd or len(_NAMES.findall(value)) != 1:
        text = f"expected form-data with one plain name, got {shown(value)}"
        raise BadForm(f"Content-Disposition: {text}")
    if not 1 <= len(name) <= NAME_MAX or "=?" in name:  # RFC 2047
        text = f"expected a name of 1 to {NAME_MAX} bytes, not encoded, got {len(name)}"
        raise BadForm(f"Content-Disposition: {text}: {name[:40]!r}")
    return name, b"filename" in options or b"filename*" in options


def charset(options: dict[bytes, bytes], where: str) -> bytes:
    """Return the charset that parameters name, b"utf-8" by default. Raises BadForm."""
    named = options.get(b"charset", b"utf-8").lower()
    if named not in UTF8 and not _ASCII_ALIKE.fullmatch(named):
        raise BadForm(f"{where}: expected a charset with ASCII in it, got {shown(named)}")
    return named


def parameters(value: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return a value's kind and parameters, both in lower case but for the parameters' values.

    RFC 9110 section 5.6.6. Raises BadForm, also for a parameter that stands twice.
    """
    kind, semicolon, _ = value.partition(b";")
    at, options = len(kind), dict[bytes, bytes]()
    count = 0
    while semicolon and at < len(value):
        count += 1
        if count > PARAMETERS_MAX:
            raise BadForm(f"expected at most {PARAMETERS_MAX} parameters, got {shown(value)}")
        found = _PARAMETER.match(value, at)
        if found is None or (found[1] and found[1].lower() in options):
            text = f"expected parameters as in RFC 9110, each of them once, got {shown(value)}"
            raise BadForm(text)
        if found[1]:
            options[found[1].lower()] = found[found.lastindex or 1]
        at = found.end()
        if not value[at:].strip():
            break
    return kind.strip().lower(), options


def shown(value: bytes) -> str:
    """Return the beginning of a value without characters that a terminal would obey."""
    return repr(value[:40].decode("latin-1"))
