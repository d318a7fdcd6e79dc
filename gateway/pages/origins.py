"""Which pages of browsers may send a request to a server function. Pure.

Fetch standard (CORS), Fetch Metadata (`Sec-Fetch-*`), RFC 6454 (Origin). Clients other than
browsers send none of these fields and are not concerned.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from registry.errors import ForeignOrigin

EXPOSED: Final = ", ".join(
    (
        "Fn-Revision",
        "Fn-Problem",
        "X-Request-Id",
        "Server-Timing",
        "Retry-After",
        "Preference-Applied",
        "Inference-Header-Content-Length",
    )
)
"""Fields of answers that pages of other origins may read."""
PREFLIGHT_S: Final = 600
"""Seconds for which browsers may remember a preflight's answer."""
NAMES_MAX: Final = 2048
"""Max characters of a list of field names that a preflight may ask for."""
_FOREIGN: Final = frozenset({"cross-site", "same-site"})
_READS: Final = frozenset({"GET", "HEAD"})
_TOP: Final = frozenset({"document", "empty", None})
"""Destinations of a link. A service worker of the page that passes it on says "empty", and no other
page can send that as a navigation."""
_FRAMES: Final = frozenset({"iframe", "frame"})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")


_SHARED: Final = re.compile(r"/(?:fn|v1|v2)(?:/.*)?|/openapi\.json", re.DOTALL)


class Asked(NamedTuple):
    """The fields of a request that tell who sends it. None where the field is missing.

    `wanted`: Access-Control-Request-Method. `dest`: Sec-Fetch-Dest. `purpose`: Sec-Purpose, which
    says that a browser fetches a page before its user asks for it. `is_private`:
    Access-Control-Request-Private-Network, with which a browser asks whether a public page may
    reach a private address.
    """

    method: str
    host: str
    origin: str | None = None
    site: str | None = None
    mode: str | None = None
    wanted: str | None = None
    dest: str | None = None
    purpose: str | None = None
    is_private: bool = False


class Sender(Enum):
    """Who sends a request."""

    OWN = "own"
    """No browser, a page of the same origin, or a link that a user follows."""
    LISTED = "listed"
    """A page of an origin that the function's settings list."""
    PREFLIGHT = "preflight"
    """A browser that asks whether a listed page may send a request."""


def is_shared(path: str) -> bool:
    """Return whether pages of listed origins may send requests to an undecoded path."""
    return _SHARED.fullmatch(path) is not None


def is_own_page(origin: str, host: str) -> bool:
    """Return whether an origin is that of pages of `host`, by either scheme: a proxy may encrypt.

    Apps have schemes of their own, behind which the host says nothing: tauri://localhost.
    """
    scheme, _, rest = origin.lower().partition("://")
    return scheme in ("http", "https") and bool(rest) and rest == host.lower()


def judge(asked: Asked, origins: tuple[str, ...], *, is_linked: bool = False) -> Sender:
    """Return who sends a request. Raises ForeignOrigin for a page that may not.

    `origins`: those that the function's settings list. `is_linked`: pages elsewhere may link here,
    as on a function's own host.
    """
    origin = asked.origin
    if asked.purpose is not None and asked.site != "same-origin":
        # Chromium says "none" of pages that any site lets it prefetch, as of a typed address.
        raise ForeignOrigin("a page of another site may not let a browser fetch ahead")
    if origin is None:
        if asked.site in _FOREIGN and not (is_linked and _is_followed(asked, bool(origins))):
            raise ForeignOrigin("a page of another site may not call this server")
        return Sender.OWN
    # A page of the same host by another scheme is foreign, which only the browser knows here.
    if is_own_page(origin, asked.host) and asked.site not in _FOREIGN:
        return Sender.OWN
    if origin not in origins:
        raise ForeignOrigin(f"a page of {origin[:100]!r} may not call this server")
    is_question = asked.method == "OPTIONS" and asked.wanted is not None
    return Sender.PREFLIGHT if is_question else Sender.LISTED


def _is_followed(asked: Asked, may_frame: bool) -> bool:
    """Return whether a request of another site is a link that a user follows.

    Frames and objects are requested without the user, so they would wake the function.
    `may_frame`: pages elsewhere may frame it. Which ones do, no request says: the answer says who
    may (CSP frame-ancestors).
    """
    if asked.method not in _READS or asked.mode != "navigate":
        return False
    return asked.dest in _TOP or (may_frame and asked.dest in _FRAMES)


def asked_by(method: str, header: Callable[[str], str | None]) -> Asked:
    """Return the fields of a request; `header(name)` returns the value of a header."""
    return Asked(
        method,
        header("Host") or "",
        header("Origin"),
        header("Sec-Fetch-Site"),
        header("Sec-Fetch-Mode"),
        header("Access-Control-Request-Method"),
        header("Sec-Fetch-Dest"),
        header("Sec-Purpose"),
        header("Access-Control-Request-Private-Network") == "true",
    )


def asked_for(method: str, header: Callable[[str], str | None]) -> Asked:
    """Return who asks for something that the gateway itself reads, as `asked_by`: there is nothing
    to follow or to fetch ahead."""
    return Asked(method, header("Host") or "", header("Origin"), header("Sec-Fetch-Site"))


def cors_fields(origin: str, *, with_cookies: bool) -> tuple[tuple[str, str], ...]:
    """Return the fields with which the page of a listed origin can read an answer.

    `with_cookies`: also one to a request with cookies.
    """
    cookies = (("Access-Control-Allow-Credentials", "true"),) if with_cookies else ()
    return (
        ("Access-Control-Allow-Origin", origin),
        *cookies,
        ("Access-Control-Expose-Headers", EXPOSED),
        ("Vary", "Origin"),
    )


def preflight_fields(
    asked: Asked, names: str | None, *, with_cookies: bool
) -> tuple[tuple[str, str], ...]:
    """Return the fields of the answer to a preflight of a listed origin.

    `names`: Access-Control-Request-Headers. What is no list of names is not allowed.
    """
    common = cors_fields(asked.origin or "", with_cookies=with_cookies)
    fields = [*common, ("Access-Control-Max-Age", str(PREFLIGHT_S))]
    if asked.is_private:
        fields.append(("Access-Control-Allow-Private-Network", "true"))
    if asked.wanted is not None and _TOKEN.fullmatch(asked.wanted):
        fields.append(("Access-Control-Allow-Methods", asked.wanted))
    if names and _are_names(names):
        fields.append(("Access-Control-Allow-Headers", names))
    return tuple(fields)


def _are_names(text: str) -> bool:
    """Return whether a text is a list of field names."""
    return len(text) <= NAMES_MAX and all(
        _TOKEN.fullmatch(name.strip(" \t")) for name in text.split(",")
    )
