"""What invoking reads of a request's head, wherever that came from."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.observing import trace_context
from registry.errors import BadRequest
from runtime_image.link.meta import RequestMeta

REQUEST_ID: Final = "X-Request-Id"
TRACEPARENT: Final = "traceparent"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Correlation(NamedTuple):
    """By what others know a request: "" where its client does not say, or says what may not stand
    in headers and logs. Apart from the head, for it is another with each request."""

    request_id: str = ""
    traceparent: str = ""


NOT_CORRELATED: Final = Correlation()


def correlate(header: Callable[[str], str | None]) -> Correlation:
    """What a request is known by, of which `header(name)` gives the first value of each header."""
    request_id, traceparent = header(REQUEST_ID), header(TRACEPARENT)
    if request_id is None and traceparent is None:
        return NOT_CORRELATED
    if request_id is None or _REQUEST_ID.fullmatch(request_id) is None:
        request_id = ""
    return Correlation(request_id, trace_context.read(traceparent or ""))


class Head(NamedTuple):
    """One request to `/fn/{ref}`. Headers are None where they are not there."""

    ref: str
    host: str
    origin: str | None
    fetch_site: str | None
    authorization: str | None
    content_type: str | None
    accept: str | None
    json_length: str | None
    prefer: str | None
    priority: str | None

    @property
    def name(self) -> str:
        """The function's, without a revision."""
        return self.ref.partition("@")[0]

    def meta(self) -> RequestMeta:
        """What travels to the replica beside a trace. Raises BadRequest on a length that is
        none."""
        length = self.json_length
        if length and not (length.isdecimal() and len(length) < 12):
            text = f"Inference-Header-Content-Length: expected a number, got {length[:40]!r}"
            raise BadRequest(text)
        return RequestMeta(
            self.content_type or "",
            self.accept or "",
            int(length) if length else -1,
            "",
        )


def make_head(ref: str, host: str, header: Callable[[str], str | None]) -> Head:
    """The head of which `header(name)` gives the first value of each header."""
    return Head(
        ref,
        host,
        header("Origin"),
        header("Sec-Fetch-Site"),
        header("Authorization"),
        header("Content-Type"),
        header("Accept"),
        header("Inference-Header-Content-Length"),
        header("Prefer"),
        header("Priority"),
    )
