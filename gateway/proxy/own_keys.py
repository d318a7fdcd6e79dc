"""Keys of this server in the fields of a request, which no function's server may get. Pure."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from itertools import islice
from string import ascii_letters, digits
from typing import Final

from gateway.proxy.fields import Fields
from registry.field_classes import CREDENTIALS, fold
from registry.key_form import KEY_FORM, PREFIX

CANDIDATES_MAX: Final = 32
"""Max texts of a key's form that are looked up for one request; each costs a hash. With more of
them, no field for credentials, and none that contains the beginning of a key, is forwarded."""
NO_KEYS: Final = frozenset[bytes]()
_BEGINNING: Final = PREFIX.encode()


def find_keys(fields: Fields, is_key: Callable[[str], bool]) -> frozenset[bytes]:
    """Return texts of these fields that are keys of this server, as they stand in the values.

    Any value is searched for the form of keys. A field for credentials, by the name that servers of
    the CGI family read, is also taken as a whole, or without its scheme, and, where that is Basic,
    decoded (RFC 7617): the admin token need not have the form. `is_key` returns whether a text is a
    valid key now.
    """
    has_none = _BEGINNING not in b"\n".join(fields.values.values())
    if has_none and CREDENTIALS.names.isdisjoint(map(fold, fields.names)):
        return NO_KEYS
    pairs = tuple(islice(_candidates(fields), CANDIDATES_MAX + 1))
    if len(pairs) > CANDIDATES_MAX:
        return frozenset({_BEGINNING, *filter(None, _credentials(fields))})
    return frozenset(text for text, key in set(pairs) if is_key(key.decode("latin-1")))


def _credentials(fields: Fields) -> Iterator[bytes]:
    """Yield the values of the fields for credentials."""
    for low, (_, value) in zip(fields.names, fields.lines, strict=True):
        if fold(low) in CREDENTIALS.names:
            yield value


def _candidates(fields: Fields) -> Iterator[tuple[bytes, bytes]]:
    """Yield texts of the fields, each with the key that it would be."""
    for value in _credentials(fields):
        yield from _of_credential(value)
    for _, value in fields.lines:
        if _BEGINNING in value:
            yield from ((found[1], found[1]) for found in KEY_FORM.finditer(value))


def _of_credential(value: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the texts by which a field for credentials may name a key."""
    scheme, *words = value.split(None, 1)[:2] or [b""]
    word = words[0] if words else scheme
    if not word:
        return
    yield word, word
    if scheme.lower() == b"basic":
        texts = {word, word.partition(b"=")[0], word.split(None, 1)[0]}
        for decoded in set().union(*map(_decoded, texts)):
            yield from ((word, part) for part in decoded.split(b":", 1) if part)
            yield from ((word, found[1]) for found in KEY_FORM.finditer(decoded))


def _decoded(text: bytes) -> set[bytes]:
    """Return what lenient decoders read in base64: in either alphabet or without - and _, whatever
    stands between, and without a character that is one too many."""
    plains = (text.translate(_ALPHABET, _IGNORED), text.translate(None, _IGNORED + b"-_"))
    return {b64decode(one[: len(one) - (len(one) % 4 == 1)] + b"==") for one in plains}


_ALPHABET: Final = bytes.maketrans(b"-_", b"+/")
_IGNORED: Final = bytes(set(range(256)) - set(f"{ascii_letters}{digits}+/-_".encode()))
