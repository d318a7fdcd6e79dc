"""The cookie that stands for a key on a function's own host. Pure.

`KEY_ID.EXPIRY.MAC`: the id of a key, Unix seconds in hex, and an HMAC-SHA256 (RFC 2104) over both
and the function's name. No process stores it; each verifies it with the same secret, and it is void
without its key.
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import Final, NamedTuple

NAME: Final = b"fngate"
"""Cookie's name where pages are served over http."""
SECURE_NAME: Final = b"__Host-fngate"
"""Cookie's name under https. Browsers accept it only from this very host (RFC 6265bis, 4.1.3.2)."""
NAMES: Final = frozenset({NAME, SECURE_NAME})
LIFETIME_S: Final = 12 * 3600
RENEWED_S: Final = 6 * 3600
"""A cookie with less left than these seconds is renewed by its use."""
SECRET_BYTES: Final = 32
TRIED_MAX: Final = 4
"""Cookies of these names that are verified of one request. A host of another function can add
some for a common parent domain."""
_VALUE: Final = re.compile(rb"([A-Za-z0-9_-]{1,64})\.([0-9a-f]{1,12})\.([A-Za-z0-9_-]{43})")


class Sent(NamedTuple):
    """One of the gateway's cookies as a browser sent it. `is_secure`: by the name of https."""

    value: bytes
    is_secure: bool


class Found(NamedTuple):
    """What a valid cookie says: the id of its key, and its end in Unix seconds."""

    key_id: str
    expires_s: int


def make_value(secret: bytes, key_id: str, function: str, expires_s: int) -> str:
    """Return the cookie's value for a key and a function; `expires_s` in Unix seconds."""
    text = f"{key_id}.{expires_s:x}"
    return f"{text}.{_mac(secret, function, text.encode()).decode()}"


def read_value(secret: bytes, value: bytes, function: str, now_s: float) -> Found | None:
    """Return what a cookie's value says.

    None if it is not a value that `make_value` returned for this function, or has expired. Whether
    the key still exists is the caller's to check.
    """
    found = _VALUE.fullmatch(value) if secret else None
    if found is None:
        return None
    expires_s = int(found[2], 16)
    if expires_s <= now_s:
        return None
    expected = _mac(secret, function, value.rpartition(b".")[0])
    is_genuine = hmac.compare_digest(found[3], expected)
    return Found(found[1].decode(), expires_s) if is_genuine else None


def find_values(cookies: bytes) -> list[Sent]:
    """Return the gateway's cookies in the field Cookie, those of https first."""
    if NAME not in cookies:
        return []
    secure: list[Sent] = []
    others: list[Sent] = []
    for pair in cookies.split(b";"):
        name, _, value = pair.partition(b"=")
        if (name := name.strip(b" \t")) in NAMES:
            is_secure = name == SECURE_NAME
            (secure if is_secure else others).append(Sent(value.strip(b" \t"), is_secure))
    return [*secure, *others][:TRIED_MAX]


def set_cookie(value: str, *, is_secure: bool) -> str:
    """Return the value of Set-Cookie; without Domain, so that no other host gets the cookie."""
    return _cookie(value, LIFETIME_S, is_secure)


def forget_cookie(*, is_secure: bool) -> str:
    """Return the value of Set-Cookie that removes the cookie from its browser."""
    return _cookie("", 0, is_secure)


def renewal(secret: bytes, found: Found, function: str, now_s: float, *, is_secure: bool) -> str:
    """Return the value of Set-Cookie that renews a valid cookie, "" if it is not yet time."""
    if found.expires_s - now_s >= RENEWED_S:
        return ""
    value = make_value(secret, found.key_id, function, int(now_s) + LIFETIME_S)
    return set_cookie(value, is_secure=is_secure)


def _cookie(value: str, lasts_s: int, is_secure: bool) -> str:
    name = (SECURE_NAME if is_secure else NAME).decode()
    text = f"{name}={value}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Lax"
    return f"{text}; Secure" if is_secure else text


def _mac(secret: bytes, function: str, text: bytes) -> bytes:
    # Names have neither a zero byte nor a dot, so no two triples have the same text.
    digest = hmac.digest(secret, b"page cookie\0%b\0%b" % (function.encode(), text), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=")
