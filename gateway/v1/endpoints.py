"""Endpoints below /v1, and what the gateway knows about each. Pure.

OpenAI API reference, Anthropic API reference; `rerank` as Cohere, Jina and vLLM have it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from registry.errors import BadRequest

PREFIX: Final = b"/v1"


class Protocol(Enum):
    """Form of requests, answers, events and errors."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class BodyForm(Enum):
    """Form of a request's body, in which the gateway finds the model."""

    JSON = "json"
    MULTIPART = "multipart"


class UsageForm(Enum):
    """Where an answer says how many tokens it took.

    CHUNKS: `usage` in the answer or, if the request asks for it, in the last event, whose `choices`
    are empty. RESPONSE: `usage` in the answer, or in `response.usage` of the last event. MESSAGE:
    `usage` in the answer, or in the events `message_start` and `message_delta`. PLAIN: `usage` in
    the answer alone. NONE: nowhere.
    """

    CHUNKS = "chunks"
    RESPONSE = "response"
    MESSAGE = "message"
    PLAIN = "plain"
    NONE = "none"


class Endpoint(NamedTuple):
    """One endpoint. `path` is below PREFIX. `forms`: of the body; where there are several, its
    Content-Type says which. `has_effects`: a second run may do harm or cost, so it is only resent
    as a function's `limits.retry` says. `streams`: `"stream": true` is possible."""

    path: bytes
    protocol: Protocol = Protocol.OPENAI
    forms: tuple[BodyForm, ...] = (BodyForm.JSON,)
    has_effects: bool = True
    streams: bool = False
    usage: UsageForm = UsageForm.NONE

    def form_of(self, content_type: bytes) -> BodyForm:
        """Return the form of a body. Raises BadRequest for a type that may be none of several."""
        if len(self.forms) == 1:
            return self.forms[0]
        media = content_type.partition(b";")[0].strip().lower()
        if media in _FORMS:
            return _FORMS[media]
        got = repr(media[:40].decode("latin-1"))
        expected = b" or ".join(_FORMS).decode()
        raise BadRequest(f"Content-Type: expected {expected}, got {got}")


_FORMS: Final = {b"multipart/form-data": BodyForm.MULTIPART, b"application/json": BodyForm.JSON}
_OPENAI, _ANTHROPIC = Protocol.OPENAI, Protocol.ANTHROPIC
_JSON, _MULTIPART = (BodyForm.JSON,), (BodyForm.MULTIPART,)
_BOTH = (BodyForm.MULTIPART, BodyForm.JSON)

ENDPOINTS: Final = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint(b"/chat/completions", _OPENAI, _JSON, False, True, UsageForm.CHUNKS),
        Endpoint(b"/completions", _OPENAI, _JSON, False, True, UsageForm.CHUNKS),
        Endpoint(b"/embeddings", _OPENAI, _JSON, False, False, UsageForm.PLAIN),
        Endpoint(b"/rerank", _OPENAI, _JSON, False, False, UsageForm.PLAIN),
        Endpoint(b"/moderations", _OPENAI, _JSON, False),
        Endpoint(b"/responses", _OPENAI, _JSON, True, True, UsageForm.RESPONSE),
        Endpoint(b"/audio/speech", _OPENAI, _JSON, True, True),
        Endpoint(b"/audio/transcriptions", _OPENAI, _MULTIPART, True, True, UsageForm.PLAIN),
        Endpoint(b"/audio/translations", _OPENAI, _MULTIPART, True, False, UsageForm.PLAIN),
        Endpoint(b"/images/generations", _OPENAI, _JSON, True, True, UsageForm.PLAIN),
        Endpoint(b"/images/edits", _OPENAI, _BOTH, True, True, UsageForm.PLAIN),
        Endpoint(b"/messages", _ANTHROPIC, _JSON, False, True, UsageForm.MESSAGE),
        Endpoint(b"/messages/count_tokens", _ANTHROPIC, _JSON, False),
    )
}
"""Endpoints by their path. All take POST."""
MODELS: Final = b"/models"
"""Path of the list of models; with "/ID", of one. They take GET, and wake nothing."""

REALTIME: Final = b"/realtime"
"""Path of WebSockets, whose handshakes name the model in their query."""
_REALTIME: Final = PREFIX + REALTIME


def is_model_request(method: bytes, target: bytes) -> bool:
    """Return whether a request is one that names a model, in its body or its query."""
    if method == b"GET":
        return is_realtime(method, target)
    return method == b"POST" and target.startswith(b"/v1/")


def is_realtime(method: bytes, target: bytes) -> bool:
    """Return whether a request is one for a WebSocket."""
    return method == b"GET" and target.partition(b"?")[0] == _REALTIME
