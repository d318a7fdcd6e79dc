"""Finds the fields of a multipart request that the gateway reads or changes, as spans. Pure.

RFC 7578 and RFC 2046 section 5.1; the parser is python-multipart's.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.v1.scanning import MODEL_MAX, Scanned, Span
from registry.errors import BadRequest

FIELDS_MAX: Final = 20
HEAD_MAX: Final = 8 * 1024
"""Max bytes of a field's head."""
SLICE: Final = 1024 * 1024
"""Bytes that are parsed between two turns of the loop."""
_READ: Final = frozenset({b"model", b"stream"})


class _Fields:
    """Spans of the values of the fields, as the parser reports them."""

    def __init__(self) -> None:
        self.values: dict[str, Span] = {}
        self.count = 0
        self.is_complete = False
        self.base = 0
        """Index in the body of the first byte of the slice that is being parsed."""
        self.slice = b""
        self._head_bytes = 0
        self._name = self._value = b""
        self._field = b""
        self._begin = self._end = -1

    def part_begin(self) -> None:
        self.count += 1
        self._head_bytes, self._field = 0, b""
        self._begin = self._end = -1
        if self.count > FIELDS_MAX:
            raise BadRequest(f"the body: expected at most {FIELDS_MAX} fields, got more")

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += self._head_piece(data, start, end)

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._head_piece(data, start, end)

    def header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._field = parse_options_header(self._value)[1].get(b"name", b"")
        self._name = self._value = b""

    def part_data(self, data: bytes, start: int, end: int) -> None:
        if data is not self.slice:  # the parser's own copy of what looked like a boundary
            if self._field in _READ:
                raise BadRequest(f"{self._field.decode()}: expected one line")
            return
        if self._begin < 0:
            self._begin = self.base + start
        self._end = self.base + end

    def part_end(self) -> None:
        if self._field not in _READ:
            return
        key = self._field.decode()
        if key in self.values:
            raise BadRequest(f"{key}: expected once, got twice", detail={"param": key})
        self.values[key] = Span(max(self._begin, 0), max(self._end, 0))

    def end(self) -> None:
        self.is_complete = True

    def _head_piece(self, data: bytes, start: int, end: int) -> bytes:
        self._head_bytes += end - start
        if self._head_bytes > HEAD_MAX:
            raise BadRequest(f"the body: expected heads of at most {HEAD_MAX} bytes, got more")
        return data[start:end]


def scan_multipart(body: bytes, content_type: bytes) -> Generator[None, None, Scanned]:
    """Return what the gateway reads of a request; yields where the loop should take a turn.

    Raises BadRequest unless the body is a complete form with a model.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadRequest("Content-Type: expected multipart/form-data with a boundary")
    fields = _Fields()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": fields.part_begin,
                "on_header_field": fields.header_field,
                "on_header_value": fields.header_value,
                "on_header_end": fields.header_end,
                "on_part_data": fields.part_data,
                "on_part_end": fields.part_end,
                "on_end": fields.end,
            },
        )
        for at in range(0, len(body), SLICE):
            if at:
                yield
            fields.base, fields.slice = at, body[at : at + SLICE]
            parser.write(fields.slice)
    except FormParserError as error:
        raise BadRequest(f"the body: expected a form: {error}") from None
    if not fields.is_complete:
        raise BadRequest("the body: expected a form that ends with its boundary")
    model = _text(body, fields.values.get("model"))
    if not model or len(model) > MODEL_MAX or not model.isprintable():
        text = f"model: expected a field of 1 to {MODEL_MAX} printable characters"
        raise BadRequest(text, detail={"param": "model"})
    return Scanned(model, _text(body, fields.values.get("stream")) == "true", fields.values, 0)


def _text(body: bytes, span: Span | None) -> str:
    if span is None or span.end - span.begin > 4 * MODEL_MAX:
        return ""
    return body[span.begin : span.end].decode("utf-8", "replace").strip()
