"""What a request brings to say who sends it: keys, a page's cookie, and whether a proxy passed it
on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Final, NamedTuple

from gateway.admission.hosts import is_loopback


class Realm(Enum):
    """Protection spaces (RFC 9110 section 11.5): what credentials mean, by where a request goes."""

    CALLS = auto()
    """Models, and what the gateway answers itself. A key in Authorization must be valid; who is let
    in needs none."""
    SERVERS = auto()
    """Servers of functions, which may have an Authorization of their own: a key of this server may
    come as Fn-Key, and of who is let in, an Authorization that is no key of this server is not its
    business."""
    ADMIN = auto()
    """The admin API: a key in Authorization, always."""


class Credential(NamedTuple):
    """The credentials of one request. Which of them counts, `Access` decides by the realm."""

    bearer: str | None = None
    """Secret of `Authorization: Bearer`; "" for another scheme, None without the field."""
    fn_key: str | None = None
    """Secret of the field Fn-Key, None without it."""
    own: tuple[str, ...] = ()
    """Secrets where only the request's protocol has them, such as x-api-key."""
    cookies: bytes = b""
    """The field Cookie, which may have the cookie of a function's page."""
    passed_on: str = ""
    """What shows that a proxy passed the request on, such as "Via"; "" for nothing."""

    @property
    def presented(self) -> str | None:
        """The key of the protocol's own field, else `bearer`."""
        return self.own[0].strip() if self.own else self.bearer

    @property
    def secrets(self) -> set[str]:
        """All keys that the request brings."""
        sent = (self.fn_key, *self.own, self.bearer or None)
        return {secret.strip() for secret in sent if secret is not None}


DIRECT: Final = Credential()
"""No key, and no sign of a proxy."""
_PASSED_ON: Final = frozenset({"forwarded", "via", "x-real-ip"})
_FORWARDED: Final = "x-forwarded"
_SHOWN_MAX: Final = 100


def read_credential(
    header: Callable[[str], str | None],
    host: str | None,
    names: Iterable[str],
    realm: Realm = Realm.CALLS,
    own: tuple[str, ...] = (),
) -> Credential:
    """Return the credentials of a request that count in a realm.

    `header(name)` returns the value of a field, None if it is missing. `host`: the field Host, None
    where the protocol has none. `names`: the names of all fields. `own` as in `Credential`.
    """
    bearer, passed_on = bearer_of(header("Authorization")), passed_on_by(host, names)
    if realm is not Realm.SERVERS:
        return Credential(bearer, passed_on=passed_on)
    cookies = (header("Cookie") or "").encode("latin-1", "replace")
    return Credential(bearer, header("Fn-Key"), own, cookies, passed_on)


def bearer_of(authorization: str | None) -> str | None:
    """Return the secret of a field Authorization, as `Credential.bearer`."""
    if authorization is None:
        return None
    scheme, _, secret = authorization.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def passed_on_by(host: str | None, names: Iterable[str]) -> str:
    """Return what shows that a proxy passed a request on, as `Credential.passed_on`."""
    for name in names:
        if is_passed_on(name):
            return name[:_SHOWN_MAX]
    return "" if host is None or is_loopback(host) else f"Host: {host[:_SHOWN_MAX]}"


def is_passed_on(name: str) -> bool:
    """Return whether a field is one that proxies add to the requests that they pass on."""
    lowered = name.lower()
    return lowered in _PASSED_ON or lowered.startswith(_FORWARDED)
