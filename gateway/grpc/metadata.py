"""Metadata of a call: who calls, and which ids correlate the call. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gateway.access import DIRECT, Credential, anonymous
from gateway.http.admission import REQUEST_ID, TRACEPARENT, Correlation, correlate

_AUTHORIZATION: Final = "authorization"
_ENDS_STREAM: Final = "triton_grpc_error"
_REQUEST_ID: Final = REQUEST_ID.lower()
_READ: Final = frozenset({_AUTHORIZATION, _ENDS_STREAM, _REQUEST_ID, TRACEPARENT})


class CallHead(NamedTuple):
    """What the metadata of a call says. `ends_stream`: the first error ends a stream."""

    authorization: Credential
    correlation: Correlation
    ends_stream: bool


def read_metadata(pairs: Iterable[tuple[str, str | bytes]] | None) -> CallHead:
    """Return the head of a call. Of a repeated key the first value counts."""
    found: dict[str, str] = {}
    sender = DIRECT
    for key, value in pairs or ():
        if key in _READ and isinstance(value, str):
            found.setdefault(key, value)
        elif sender is DIRECT:
            sender = anonymous(None, (key,))
    if not found and sender is DIRECT:
        return ANONYMOUS
    correlation = correlate(lambda name: found.get(name.lower()))
    is_ending = found.get(_ENDS_STREAM, "").lower() in ("true", "1")
    return CallHead(found.get(_AUTHORIZATION, sender), correlation, is_ending)


ANONYMOUS: Final = CallHead(DIRECT, correlate(lambda _: None), ends_stream=False)
