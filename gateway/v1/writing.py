"""Writes what the server of a request gets. Pure.

A body of JSON is written anew from its members, so that a server reads what the gateway has read.
In a form, the model's name changes and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from gateway.v1.endpoints import Endpoint, UsageForm
from gateway.v1.multipart import FormRequest
from gateway.v1.scanning import OPTIONS, JsonRequest, encode_name, is_bare
from registry.errors import BadRequest
from registry.model.servers import ModelApi

Data = bytes | memoryview

JOINED_MAX: Final = 64 * 1024
"""Max bytes of a value that is copied: a longer one costs less as a piece of its own."""


class UpstreamBody(NamedTuple):
    """A request's body for the server."""

    pieces: tuple[Data, ...]
    """The body. Large values are views of the client's."""
    asks_usage: bool
    """Whether the gateway has asked for the usage of a stream, which the client has not."""


def upstream_body(
    request: JsonRequest | FormRequest, endpoint: Endpoint, api: ModelApi
) -> UpstreamBody:
    """Return the body with the server's name of the model, and with `stream_options` where the
    usage of a stream is sent on request only (OpenAI API reference, "stream_options").

    Raises BadRequest for a form whose coding of the name does not fit the server's.
    """
    served = api.served_model if api.served_model != request.model else ""
    if isinstance(request, FormRequest):
        return UpstreamBody(_form(request, served), asks_usage=False)
    members = request.members
    asks = api.usage == "ask" and endpoint.usage is UsageForm.CHUNKS
    options = request.options if asks else None
    if options is not None:
        is_new = OPTIONS not in members
        members = {OPTIONS: options, **members} if is_new else {**members, OPTIONS: options}
    if served:
        members = {**members, "model": msgspec.Raw(msgspec.json.encode(served))}
    return UpstreamBody(_written(members, request.size), options is not None)


def _written(members: Mapping[str, msgspec.Raw], size: int) -> tuple[Data, ...]:
    """Return an object in pieces; `size`: of the body that its members come from."""
    parts: list[Data | msgspec.Raw] = []
    for name, value in members.items():
        parts += (b",", encode_name(name), b":", value)
    parts[0] = b"{"
    parts.append(b"}")
    if size <= JOINED_MAX:
        return (b"".join(parts),)
    pieces: list[Data] = []
    short: list[Data | msgspec.Raw] = []
    for part in parts:
        if len(part) <= JOINED_MAX:
            short.append(part)
        else:
            pieces += (b"".join(short), memoryview(part))
            short.clear()
    return (*pieces, b"".join(short))


def _form(form: FormRequest, served: str) -> tuple[Data, ...]:
    """Return a form with the server's name of the model, "" for the client's."""
    if not served:
        return (form.body,)
    if form.is_coded and not is_bare(served):
        text = "model: expected a field in UTF-8 and binary, as the server's name needs that"
        raise BadRequest(text, detail={"param": "model"})
    body, (begin, end) = memoryview(form.body), form.place
    return body[:begin], served.encode(), body[end:]
