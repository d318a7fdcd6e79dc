"""What a function's settings are called in `ETag` and `If-Match` (RFC 9110)."""

from __future__ import annotations

import hashlib

from registry.errors import PreconditionFailed, PreconditionRequired
from registry.model import Function
from registry.store.records import encode_record


def etag(function: Function) -> str:
    """A strong tag: the same exactly as long as settings and traffic are."""
    return f'"{hashlib.sha256(encode_record(function).encode()).hexdigest()[:16]}"'


def check_match(header: str | None, function: Function) -> None:
    """Raise unless `If-Match` names the function as it is; `*` is any, a weak tag is none."""
    if header is None:
        raise PreconditionRequired(
            f"a change of {function.name} needs the header If-Match with the ETag that GET gave"
        )
    tags = [tag.strip() for tag in header.split(",")]
    if "*" not in tags and etag(function) not in tags:
        raise PreconditionFailed(
            f"{function.name} has changed since it was read: expected If-Match {etag(function)},"
            f" got {header[:200]}"
        )
