"""What invoking reads of a request's head, wherever that came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from registry.errors import BadRequest
from runtime_image.link.meta import RequestMeta


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
    traceparent: str | None
    prefer: str | None
    priority: str | None

    @property
    def name(self) -> str:
        """The function's, without a revision."""
        return self.ref.partition("@")[0]

    def meta(self) -> RequestMeta:
        """What travels to the replica. Raises BadRequest on a length that is none."""
        length = self.json_length
        if length and not (length.isdecimal() and len(length) < 12):
            text = f"Inference-Header-Content-Length: expected a number, got {length[:40]!r}"
            raise BadRequest(text)
        return RequestMeta(
            self.content_type or "",
            self.accept or "",
            int(length) if length else -1,
            self.traceparent or "",
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
        header("traceparent"),
        header("Prefer"),
        header("Priority"),
    )
