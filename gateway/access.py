"""Access control by Host header, origin, key and scope. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hmac import compare_digest
from typing import Final, Literal, NamedTuple

from gateway.pages.cookies import find_values, read_value, renewal
from registry.errors import ForeignHost, ForeignOrigin, NoKey, WrongScope
from registry.model import Key
from registry.names import is_name
from registry.store.keys import KeyRing, fingerprint

Need = Literal["invoke", "read", "deploy", "admin"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LOCAL_BASE: Final = "localhost"
TOKEN_ID_CHARS: Final = 12


ANY_ORIGIN: Final = "*"
"""Stands for every origin in a list of origins."""
_SHARED: Final = re.compile(r"/(?:fn|v1|v2)(?:/.*)?|/openapi\.json", re.DOTALL)


class Caller(NamedTuple):
    """Whom a request's key names: the key's id, and its scopes."""

    id: str
    scopes: tuple[str, ...]


NOBODY: Final = Caller("", ())
"""The caller of a server that is open to anyone."""


class Access:
    """Access rules of one server.

    The admin token has every scope. While a loopback server has no keys, invoking, health and
    metrics need no authorization. Everything under /admin always needs the token or a key.

    A function's pages are on the host NAME.BASE, where BASE is `localhost` on loopback and each
    public host name.
    """

    def __init__(
        self,
        listen: str,
        public_hosts: Iterable[str],
        ring: KeyRing,
        token_sha256: str,
        cookie_secret: bytes = b"",
        cors_origins: Iterable[str] = (),
    ) -> None:
        """Create the rules.

        `token_sha256` is the admin token's fingerprint. `cookie_secret` signs cookies of pages;
        without it none is valid. `cors_origins`: web origins whose pages may call functions.
        """
        public = [_host_name(name) or name.lower() for name in public_hosts]
        self._is_local = listen in LOOPBACK
        self._hosts = {*public, _host_name(listen) or listen.lower()}
        bases = [name for name in public if not _ADDRESS.fullmatch(name)]
        if self._is_local:
            self._hosts |= set(LOOPBACK)
            bases.insert(0, LOCAL_BASE)
        self.bases: Final = tuple(dict.fromkeys(bases))
        self._known: dict[str, bool] = {}
        self.ring = ring
        self._token = token_sha256
        self.cookie_secret: Final = cookie_secret
        self._origins: Final = frozenset(cors_origins)

    def check_host(self, host: str) -> None:
        """Raise ForeignHost unless the Host header names this server."""
        known = self._known.get(host)
        if known is None:
            known = _host_name(host) in self._hosts
            if len(self._known) < 1000:
                self._known[host] = known
        if not known:
            raise ForeignHost(
                f"Host: expected {' or '.join(sorted(self._hosts))}, got {host[:100]!r};"
                " name it with --public-host"
            )

    def has_host(self, host: str) -> bool:
        """Return whether the Host header names this server."""
        return _host_name(host) in self._hosts

    def function_of(self, host: str) -> str | None:
        """Return NAME of a Host header of the form NAME.BASE, None for every other one.

        Whether such a function is deployed is not remembered: it may be in a moment.
        """
        label, dot, rest = host.partition(".")
        if not dot or rest.partition(":")[0].lower() not in self.bases:
            return None
        name = _host_name(host)
        label = label.lower()
        return label if name is not None and name not in self._hosts and is_name(label) else None

    def page_host(self, function: str, host: str) -> str | None:
        """Return the host of a function's pages for a client that reached this server by `host`.

        None if the server has no name that can have one.
        """
        own, port = _host_name(host) or "", _PORT.search(host)
        bases = [own] if own in self.bases else self.bases
        if not bases or not is_name(function):
            return None
        return f"{function}.{bases[0]}{port[0] if port else ''}"

    @property
    def has_origins(self) -> bool:
        """Whether the settings list origins whose pages may call functions."""
        return bool(self._origins)

    def lists(self, origin: str) -> bool:
        """Return whether the settings let the pages of an origin call functions.

        ANY_ORIGIN means none while the server is open to anyone: every page that its owner visits
        could then call its functions.
        """
        if origin in self._origins:
            return origin != ANY_ORIGIN
        return ANY_ORIGIN in self._origins and not self.is_open and "://" in origin

    def check_origin(
        self, origin: str | None, fetch_site: str | None, host: str, path: str = ""
    ) -> None:
        """Raise ForeignOrigin for a browser's request from a page of another origin.

        `origin` and `fetch_site` are the headers Origin and Sec-Fetch-Site, None where missing.
        `path`: where the request is for, undecoded. A page of a listed origin may call functions.
        """
        if origin is not None and is_shared(path) and self.lists(origin):
            return
        if origin is not None and origin.partition("://")[2] != host:
            raise ForeignOrigin(f"a page of {origin[:100]!r} may not call this server")
        if origin is None and fetch_site in ("cross-site", "same-site"):
            raise ForeignOrigin("a page of another site may not call this server")

    def check(self, authorization: str | None, need: Need, name: str = "") -> Caller:
        """Return the caller, who has the scope `need` (for function `name`).

        Raises NoKey or WrongScope.
        """
        if need == "invoke" and authorization is None and self.is_open:
            return NOBODY
        return _allowed(self.caller(authorization), need, name)

    def allows(self, authorization: str | None, need: Need, name: str = "") -> bool:
        """Return whether the caller has the scope `need`, as `check`. Raises NoKey."""
        try:
            self.check(authorization, need, name)
        except WrongScope:
            return False
        return True

    def check_cookie(self, cookies: bytes, name: str, now_s: float) -> tuple[Caller, str]:
        """Return the caller whom a cookie for the pages of function `name` stands for, and the
        value of Set-Cookie that renews it, "" if it is not yet time.

        `cookies` is the field Cookie, `now_s` Unix seconds. Raises NoKey or WrongScope.
        """
        secret = self.cookie_secret
        for value, is_secure in find_values(cookies):
            found = read_value(secret, value, name, now_s)
            if found is not None and self._find(found.key_id) is not None:
                caller = self.check_id(found.key_id, "invoke", name)
                return caller, renewal(secret, found, name, now_s, is_secure=is_secure)
        raise NoKey(f"expected the cookie of `fnctl open {name}`, Fn-Key, or Authorization")

    def is_admin(self, authorization: str | None) -> bool:
        """Return whether the caller has the scope admin."""
        try:
            return "admin" in self.scopes(authorization)
        except NoKey:
            return False

    @property
    def is_open(self) -> bool:
        """Whether anyone may invoke without a key."""
        return self._is_local and not len(self.ring)

    def scopes(self, authorization: str | None) -> tuple[str, ...]:
        """Return the scopes of a bearer key; "admin" includes all others. Raises NoKey."""
        return self.caller(authorization).scopes

    def caller(self, authorization: str | None) -> Caller:
        """Return the caller with this bearer key. Raises NoKey."""
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise NoKey("expected the header Authorization: Bearer <key>")
        caller = self._holder(secret.strip())
        if caller is None:
            raise NoKey("the key is unknown")
        return caller

    def is_key(self, secret: str) -> bool:
        """Return whether a text is a valid key, or the admin token."""
        return self._holder(secret) is not None

    def _holder(self, secret: str) -> Caller | None:
        """Return the caller with this key, None if it is unknown."""
        if compare_digest(fingerprint(secret), self._token):
            return Caller(self.token_id, ("admin",))
        key: Key | None = self.ring.find(secret)
        return None if key is None else Caller(key.id, key.scopes)

    def check_id(self, id: str, need: Need, name: str = "") -> Caller:
        """Return the caller with a key's id, as `check`. Raises NoKey or WrongScope."""
        caller = self._find(id)
        if caller is None:
            raise NoKey("the key was removed")
        return _allowed(caller, need, name)

    def _find(self, id: str) -> Caller | None:
        """Return the caller with a key's id, None if there is no such key any more."""
        if id == self.token_id:
            return Caller(id, ("admin",))
        key = self.ring.with_id(id)
        return None if key is None else Caller(id, key.scopes)

    @property
    def token_id(self) -> str:
        """The admin token's id: the beginning of its fingerprint, as of every key."""
        return self._token[:TOKEN_ID_CHARS]


def is_shared(path: str) -> bool:
    """Return whether pages of listed origins may send requests to an undecoded path."""
    return _SHARED.fullmatch(path) is not None


def _allowed(caller: Caller, need: Need, name: str) -> Caller:
    """Return the caller. Raises WrongScope."""
    if not _allows(caller.scopes, need, name):
        raise WrongScope(f"this needs the scope {need}, the key has {', '.join(caller.scopes)}")
    return caller


def _allows(scopes: tuple[str, ...], need: Need, name: str) -> bool:
    if "admin" in scopes or need in scopes:
        return True
    if need == "read":
        return "deploy" in scopes
    return need == "invoke" and bool(name) and f"invoke:{name}" in scopes


def _host_name(host: str) -> str | None:
    """Return the lower-case host of a Host header (RFC 9110 section 7.2) without port and brackets.

    None if the header is malformed.
    """
    found = _HOST.fullmatch(host)
    return None if found is None else (found[1] or found[2]).lower()


_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_PORT: Final = re.compile(r":[0-9]{1,5}$")
_ADDRESS: Final = re.compile(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*")
