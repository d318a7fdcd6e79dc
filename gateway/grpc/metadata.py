"""Metadata of a call: who calls, and which ids correlate the call. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gateway.admission.calls import REQUEST_ID, TRACEPARENT, Correlation, correlate
from gateway.admission.credentials import DIRECT, Credential, bearer_of, is_passed_on

SHOWN_MAX: Final = 100
"""Max characters of a client's text in an error."""
_AUTHORIZATION: Final = "authorization"
_ENDS_STREAM: Final = "triton_grpc_error"
_REQUEST_ID: Final = REQUEST_ID.lower()
_READ: Final = frozenset({_AUTHORIZATION, _ENDS_STREAM, _REQUEST_ID, TRACEPARENT})


class CallHead(NamedTuple):
    """What the metadata of a call says. `ends_stream`: the first error ends a stream."""

    credential: Credential
    correlation: Correlation
    ends_stream: bool


def read_metadata(pairs: Iterable[tuple[str, str | bytes]] | None) -> CallHead:
    """Return the head of a call. Of a repeated key the first value counts."""
    found: dict[str, str] = {}
    passed_on = ""
    for key, value in pairs or ():
        if key in _READ and isinstance(value, str):
            found.setdefault(key, value)
        elif not passed_on and is_passed_on(key):
            passed_on = key[:SHOWN_MAX]
    if not found and not passed_on:
        return ANONYMOUS
    correlation = correlate(lambda name: found.get(name.lower()))
    is_ending = found.get(_ENDS_STREAM, "").lower() in ("true", "1")
    credential = Credential(bearer_of(found.get(_AUTHORIZATION)), passed_on=passed_on)
    return CallHead(credential, correlation, is_ending)


ANONYMOUS: Final = CallHead(DIRECT, correlate(lambda _: None), ends_stream=False)
