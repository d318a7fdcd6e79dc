"""The cookie that stands for a key on a function's own host. Pure.

`KEY_ID.EXPIRY.MAC`: the id of a key, Unix seconds in hex, and an HMAC-SHA256 (RFC 2104) over both
and the function's name. No process stores it; each verifies it with the same secret, and it is void
without its key.
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import Final

NAME: Final = b"fngate"
"""Cookie's name where pages are served over http."""
SECURE_NAME: Final = b"__Host-fngate"
"""Cookie's name under https. Browsers accept it only from this very host (RFC 6265bis, 4.1.3.2)."""
NAMES: Final = frozenset({NAME, SECURE_NAME})
LIFETIME_S: Final = 12 * 3600
SECRET_BYTES: Final = 32
TRIED_MAX: Final = 4
"""Cookies of these names that are verified of one request. A host of another function can add
some for a common parent domain."""
_VALUE: Final = re.compile(rb"([A-Za-z0-9_-]{1,64})\.([0-9a-f]{1,12})\.([A-Za-z0-9_-]{43})")


def make_value(secret: bytes, key_id: str, function: str, expires_s: int) -> str:
    """Return the cookie's value for a key and a function; `expires_s` in Unix seconds."""
    text = f"{key_id}.{expires_s:x}"
    return f"{text}.{_mac(secret, function, text.encode()).decode()}"


def read_value(secret: bytes, value: bytes, function: str, now_s: float) -> str | None:
    """Return the id of the key that a cookie's value stands for.

    None if it is not a value that `make_value` returned for this function, or has expired. Whether
    the key still exists is the caller's to check.
    """
    found = _VALUE.fullmatch(value) if secret else None
    if found is None or int(found[2], 16) <= now_s:
        return None
    expected = _mac(secret, function, value.rpartition(b".")[0])
    return found[1].decode() if hmac.compare_digest(found[3], expected) else None


def find_values(cookies: bytes) -> list[bytes]:
    """Return the values of the gateway's cookies in the field Cookie, those of https first."""
    if NAME not in cookies:
        return []
    found: dict[bytes, list[bytes]] = {SECURE_NAME: [], NAME: []}
    for pair in cookies.split(b";"):
        name, _, value = pair.partition(b"=")
        if name.strip(b" \t") in found:
            found[name.strip(b" \t")].append(value.strip(b" \t"))
    return [*found[SECURE_NAME], *found[NAME]][:TRIED_MAX]


def set_cookie(value: str, *, is_secure: bool) -> str:
    """Return the value of Set-Cookie; without Domain, so that no other host gets the cookie."""
    name = (SECURE_NAME if is_secure else NAME).decode()
    text = f"{name}={value}; Path=/; Max-Age={LIFETIME_S}; HttpOnly; SameSite=Lax"
    return f"{text}; Secure" if is_secure else text


def _mac(secret: bytes, function: str, text: bytes) -> bytes:
    # Names have neither a zero byte nor a dot, so no two triples have the same text.
    digest = hmac.digest(secret, b"page cookie\0%b\0%b" % (function.encode(), text), "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=")
