"""The head of a request to /v1/realtime: its model, and the key among its subprotocols. Pure.

OpenAI API reference, "Realtime", over WebSocket. A page in a browser cannot set Authorization, so
OpenAI's clients offer the key as a subprotocol there, beside `realtime`.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote, unquote_plus

from gateway.v1.scanning import MODEL_MAX, check_name
from registry.errors import BadRequest

KEY: Final = b"openai-insecure-api-key."
"""Beginning of the subprotocol that is a key. No server gets it, and no answer names it."""
PROTOCOL: Final = b"Sec-WebSocket-Protocol"
PARAMETERS_MAX: Final = 100
"""Max parameters of a query."""
_NAME: Final = "model"


class Offered(NamedTuple):
    """The subprotocols of a handshake (RFC 6455 section 11.3.4). `keys`: of those that are keys,
    what follows KEY. `others`: all others, in their order."""

    keys: tuple[str, ...]
    others: tuple[bytes, ...]


def split_offer(value: bytes) -> Offered:
    """Return the subprotocols in a value of Sec-WebSocket-Protocol, of several fields joined."""
    items = [item for part in value.split(b",") if (item := part.strip(b" \t"))]
    is_key = [item.lower().startswith(KEY) for item in items]
    pairs = list(zip(items, is_key, strict=True))
    keys = tuple(item[len(KEY) :].decode("latin-1") for item, is_one in pairs if is_one)
    return Offered(keys, tuple(item for item, is_one in pairs if not is_one))


class ModelQuery(NamedTuple):
    """A query that names one model, around its value as it was sent."""

    model: str
    before: bytes
    value: bytes
    after: bytes

    def text(self, served_model: str) -> bytes:
        """Return the query for the server, which calls the model `served_model`, "" for the name
        that the client sent."""
        value = quote(served_model, safe="").encode() if served_model else self.value
        return self.before + value + self.after


def find_model(query: bytes) -> ModelQuery:
    """Return the model that a query names. Raises BadRequest unless it names exactly one, the same
    for all servers."""
    if b";" in query:
        text = "the query: expected no ; as it is (%3B), which some servers take for &"
        raise BadRequest(text, detail={"param": _NAME})
    parts = query.split(b"&")
    if len(parts) > PARAMETERS_MAX:
        raise BadRequest(f"the query: expected at most {PARAMETERS_MAX} parameters, got more")
    found: list[tuple[int, bytes]] = []
    at = 0
    for part in parts:
        name, _, value = part.partition(b"=")
        decoded = unquote_plus(name.decode("latin-1"))
        check_name(decoded)
        if decoded == _NAME:
            found.append((at + len(part) - len(value), value))
        at += len(part) + 1
    if len(found) != 1:
        text = f"the query: expected one model (/v1/realtime?model=NAME), got {len(found)}"
        raise BadRequest(text, detail={"param": _NAME})
    begin, value = found[0]
    return ModelQuery(_decoded(value), query[:begin], value, query[begin + len(value) :])


def _decoded(value: bytes) -> str:
    """Return the model's name. Raises BadRequest."""
    try:
        model = unquote_plus(value.decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        raise BadRequest("model: expected UTF-8", detail={"param": _NAME}) from None
    if not 0 < len(model) <= MODEL_MAX:
        text = f"model: expected 1 to {MODEL_MAX} characters, got {len(model)}"
        raise BadRequest(text, detail={"param": _NAME})
    return model
