"""Writes into a request what its server needs, and leaves every other byte as it is. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from gateway.v1.endpoints import BodyForm, Endpoint, UsageForm
from gateway.v1.scanning import VALUE_MAX, Scanned, Span, is_bare
from registry.errors import BadRequest
from registry.model import ModelApi

_ASKED: Final = b'{"include_usage":true}'
_OPTION: Final = "include_usage"
_NULL: Final = b"null"


class UpstreamBody(NamedTuple):
    """A request's body for the server. `asks_usage`: the gateway has asked for the usage of a
    stream, which the client has not."""

    body: bytes
    asks_usage: bool


def upstream_body(body: bytes, scanned: Scanned, endpoint: Endpoint, api: ModelApi) -> UpstreamBody:
    """Return the body with the server's name of the model, and with `stream_options` where the
    usage of a stream is sent on request only (OpenAI API reference, "stream_options").

    Raises BadRequest for a form whose coding of the name does not fit the server's.
    """
    edits: list[tuple[Span, bytes]] = []
    if api.served_model and api.served_model != scanned.model:
        if scanned.is_coded and not is_bare(api.served_model):
            text = "model: expected a field in UTF-8 and binary, as the server's name needs that"
            raise BadRequest(text, detail={"param": "model"})
        is_json = scanned.form is BodyForm.JSON
        name = msgspec.json.encode(api.served_model) if is_json else api.served_model.encode()
        edits.append((scanned.values["model"], name))
    asks = api.usage == "ask" and endpoint.usage is UsageForm.CHUNKS and scanned.is_stream
    edit = _options(body, scanned) if asks else None
    if edit is not None:
        edits.append(edit)
    return UpstreamBody(_edited(body, edits), edit is not None)


def _options(body: bytes, scanned: Scanned) -> tuple[Span, bytes] | None:
    """Return the edit that asks for the usage.

    None if the client asks for it, or if its options are none that can be read: the server decides.
    """
    span = scanned.values.get("stream_options")
    if span is None:
        return Span(scanned.first, scanned.first), b'"stream_options":' + _ASKED + b","
    if span.end - span.begin > VALUE_MAX:
        return None
    value = body[span.begin : span.end]
    try:
        options = {} if value == _NULL else msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return None
    if bytes(options.get(_OPTION, b"")).strip() == b"true":
        return None
    options[_OPTION] = msgspec.Raw(b"true")
    return span, msgspec.json.encode(options)


def _edited(body: bytes, edits: list[tuple[Span, bytes]]) -> bytes:
    if not edits:
        return body
    pieces, at = [], 0
    for span, text in sorted(edits):
        pieces += [body[at : span.begin], text]
        at = span.end
    return b"".join((*pieces, body[at:]))
