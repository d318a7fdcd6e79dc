"""Keys of this server in the fields of a request, which no function's server may get. Pure."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from gateway.proxy.fields import Fields
from registry.field_classes import CREDENTIALS
from registry.key_form import KEY_FORM, PREFIX

CANDIDATES_MAX: Final = 32
"""Max texts of a key's form that are looked up for one request; each costs a hash. With more of
them, no field that contains the beginning of a key is forwarded."""
NO_KEYS: Final = frozenset[bytes]()
_BEGINNING: Final = PREFIX.encode()


def find_keys(fields: Fields, is_key: Callable[[str], bool]) -> frozenset[bytes]:
    """Return texts of these fields that are keys of this server, as they stand in the values.

    Any value is searched for the form of keys. A field for credentials is also taken as a whole,
    or without its scheme, and, where that is Basic, decoded (RFC 7617): the admin token need not
    have the form. `is_key` returns whether a text is a valid key now.
    """
    has_none = _BEGINNING not in b"\n".join(fields.values.values())
    if has_none and CREDENTIALS.names.isdisjoint(fields.values):
        return NO_KEYS
    pairs = tuple(islice(_candidates(fields), CANDIDATES_MAX + 1))
    if len(pairs) > CANDIDATES_MAX:
        return frozenset({_BEGINNING})
    return frozenset(text for text, key in set(pairs) if is_key(key.decode("latin-1")))


def _candidates(fields: Fields) -> Iterator[tuple[bytes, bytes]]:
    """Yield texts of the fields, each with the key that it would be."""
    for low, (_, value) in zip(fields.names, fields.lines, strict=True):
        if low in CREDENTIALS.names:
            yield from _of_credential(value)
        if _BEGINNING in value:
            yield from ((found[1], found[1]) for found in KEY_FORM.finditer(value))


def _of_credential(value: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the texts by which a field for credentials may name a key."""
    scheme, blank, rest = value.partition(b" ")
    word = rest.strip(b" \t") if blank else value
    if not word:
        return
    yield word, word
    if scheme.lower() == b"basic":
        with suppress(binascii.Error):
            decoded = b64decode(word + b"==")
            yield from ((word, part) for part in decoded.split(b":", 1) if part)
