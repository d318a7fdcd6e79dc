"""Encoding of data classes as the JSON text of their rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from registry.errors import StoreUnavailable
from registry.store.database import CORRUPT, Row

T = TypeVar("T")

_SHAREABLE = (b"{", b"[", b'"')
"""First characters of objects, lists and strings: values that are larger than a number."""


def encode_record(noun: Any) -> str:
    """Encode a data class of `registry.model` as JSON text; `decode_record` is the inverse."""
    return msgspec.json.encode(noun).decode()


def decode_record(text: str, kind: type[T]) -> T:
    """Decode the output of `encode_record`. Raises StoreUnavailable on a damaged row."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise _damaged(kind, error) from error


class SharedParts:
    """Decodes many rows like `decode_record`, but shares equal parts between the results.

    Thousands of functions differ in little but their names: signatures, rules, limits and profiles
    are mostly equal. Sharing is safe because the data classes are frozen.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[int, bytes], Any] = {}
        self._kinds: dict[type, _Kind[Any]] = {}

    def decode(self, rows: Iterable[Row], kind: type[T]) -> list[T]:
        """Return the objects in the first column of `rows`.

        Raises StoreUnavailable on a damaged row.
        """
        reader = self._kinds.get(kind)
        if reader is None:
            reader = self._kinds[kind] = _Kind(kind, self._parts)
        try:
            return [reader.decode(row[0]) for row in rows]
        except (msgspec.DecodeError, TypeError) as error:
            raise _damaged(kind, error) from error


class _Kind(Generic[T]):
    """Decoder of one data class, field by field, which reuses parts that were decoded before."""

    def __init__(self, kind: type[T], parts: dict[tuple[int, bytes], Any]) -> None:
        self._parts = parts
        self._make = kind
        hints = get_type_hints(kind)
        self._fields = [(f.name, msgspec.json.Decoder(hints[f.name])) for f in fields(kind)]  # type: ignore[arg-type]  # nouns are dataclasses
        self._raw = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def decode(self, text: str) -> T:
        raw = self._raw.decode(text)
        values = {}
        for name, decoder in self._fields:
            if name in raw:
                values[name] = self._part(decoder, bytes(raw[name]))
        return self._make(**values)

    def _part(self, decoder: msgspec.json.Decoder[Any], text: bytes) -> Any:
        if text[:1] not in _SHAREABLE:
            return decoder.decode(text)
        key = (id(decoder), text)
        if key not in self._parts:
            self._parts[key] = decoder.decode(text)
        return self._parts[key]


def _damaged(kind: type, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"{CORRUPT}: a {kind.__name__} has {error}")
