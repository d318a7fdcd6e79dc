"""Finds the fields of a multipart request that the gateway reads or changes, as spans. Pure.

A form that two parsers could read as requests for different models is refused.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final, NamedTuple
from urllib.parse import unquote

from gateway.v1.scanning import (
    MODEL_MAX,
    VALUE_MAX,
    check_model,
    check_name,
    is_bare,
    is_like_model,
)
from registry.errors import BadRequest
from runtime_image.codecs import multipart
from runtime_image.codecs.multipart import UTF8, BadForm, FormType, Part, charset, shown

_READ: Final = frozenset({"model", "stream"})
_PLAIN_NAME: Final = re.compile(r"[0-9A-Za-z_.\[\]-]+")
"""A name that nobody decodes."""
_PLAIN_CODINGS: Final = frozenset({b"7bit", b"8bit", b"binary"})


class FormRequest(NamedTuple):
    """What the gateway reads of a request in a form."""

    model: str
    is_stream: bool
    """Whether the client wants events."""
    body: bytes
    place: tuple[int, int]
    """Where the model's name begins and ends in the body."""
    is_coded: bool
    """Whether the name is in a charset other than UTF-8 or has a transfer encoding, so that only an
    `is_bare` name means the same to all."""
    options: None = None
    """As of `JsonRequest`: none."""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body)


def form_type(content_type: bytes) -> FormType:
    """Return what a Content-Type says of a form. Raises BadRequest."""
    try:
        return multipart.form_type(content_type)
    except BadForm as error:
        raise BadRequest(str(error)) from None


def scan_multipart(body: bytes, content_type: bytes) -> Generator[None, None, FormRequest]:
    """Return what the gateway reads of a request; yields where the loop should take a turn.

    Raises BadRequest unless the body is a complete form with a model.
    """
    try:
        return (yield from _scan(body, multipart.form_type(content_type)))
    except BadForm as error:
        raise BadRequest(str(error)) from None


def _scan(body: bytes, kind: FormType) -> Generator[None, None, FormRequest]:
    """As `scan_multipart`. Raises BadForm, too."""
    values: dict[str, tuple[int, int]] = {}
    is_coded = False
    for part in multipart.parts(body, kind):
        if part is None:
            yield
            continue
        _check_field_name(part)
        if part.name == "model":
            is_coded = _is_coded_text(part, kind)
        if part.name in _READ:
            if part.name in values:
                text = f"{part.name}: expected once, got twice"
                raise BadRequest(text, detail={"param": part.name})
            values[part.name] = part.begin, part.end
    begin, end = values.get("stream", (0, 0))
    is_stream = _is_true(body[begin : min(end, begin + VALUE_MAX)])
    place = values.get("model", (0, 0))
    return FormRequest(_model(body, place, is_coded=is_coded), is_stream, body, place, is_coded)


def _check_field_name(part: Part) -> None:
    """Raise BadRequest for a name that some servers take for `model`, or for that of a charset.

    Browsers write a quote as %22, others with a backslash; parsers decode one, both or none, and
    some end a name at a quote, a backslash or a semicolon.
    """
    name = part.name
    if name == "model":
        disposition = part.head[b"content-disposition"]
        if b"\\" in disposition:
            text = f"expected form-data with one plain name, got {shown(disposition)}"
            raise BadRequest(f"Content-Disposition: {text}")
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


def _is_coded_text(part: Part, kind: FormType) -> bool:
    """Return whether the field `model` has another charset than UTF-8, or a transfer encoding.

    Raises BadRequest unless it is plain text that may read alike with and without them.
    """
    media, options = part.media()
    if part.is_file or media != b"text/plain":
        got = "a file" if part.is_file else shown(media)
        text = f"model: expected a field of plain text, got {got}"
        raise BadRequest(text, detail={"param": "model"})
    coding = part.head.get(b"content-transfer-encoding", b"binary").lower()
    if coding not in _PLAIN_CODINGS and coding != b"quoted-printable":
        text = f"Content-Transfer-Encoding of model: expected binary, got {shown(coding)}"
        raise BadRequest(text, detail={"param": "model"})
    is_other = bool(kind.charset)
    if b"charset" in options:
        is_other = charset(options, "Content-Type of model") not in UTF8
    return is_other or coding not in _PLAIN_CODINGS


def _model(body: bytes, place: tuple[int, int], *, is_coded: bool) -> str:
    """Return the model's name, in UTF-8; if that is coded, it must be `is_bare`.

    Raises BadRequest.
    """
    begin, end = place
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
        text = f"model: expected {expected}, got {shown(value)}"
        raise BadRequest(text, detail={"param": "model"})
    check_model(model)
    return model


def _is_true(text: bytes) -> bool:
    """Return whether a server takes a text for true."""
    return text.strip().lower() in (b"true", b"1", b"on", b"yes", b"t", b"y")
