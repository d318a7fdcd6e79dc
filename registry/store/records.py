"""Nouns as the JSON text of their rows."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from registry.errors import StoreUnavailable

T = TypeVar("T")


def encode_record(noun: Any) -> str:
    """A noun of `registry.model` as JSON text; `decode_record` is its inverse."""
    return msgspec.json.encode(noun).decode()


def decode_record(text: str, kind: type[T]) -> T:
    """The noun that `encode_record` wrote. Raises StoreUnavailable on a damaged row."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise StoreUnavailable(f"database corrupt: a {kind.__name__} has {error}") from error
