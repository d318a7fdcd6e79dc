"""Access control by Host header, origin, key and scope. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hmac import compare_digest
from typing import Final, Literal

from registry.errors import ForeignHost, ForeignOrigin, NoKey, WrongScope
from registry.model import Key
from registry.store.keys import KeyRing, fingerprint

Need = Literal["invoke", "read", "deploy", "admin"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Access:
    """Access rules of one server.

    The admin token has every scope. While a loopback server has no keys, invoking, health and
    metrics need no authorization. Everything under /admin always needs the token or a key.
    """

    def __init__(
        self, listen: str, public_hosts: Iterable[str], ring: KeyRing, token_sha256: str
    ) -> None:
        """Create the rules; `token_sha256` is the admin token's fingerprint."""
        names = {*public_hosts, listen}
        self._is_local = listen in LOOPBACK
        if self._is_local:
            names |= set(LOOPBACK)
        self._hosts = {_host_name(name) or name.lower() for name in names}
        self._known: dict[str, bool] = {}
        self.ring = ring
        self._token = token_sha256

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

    def check_origin(self, origin: str | None, fetch_site: str | None, host: str) -> None:
        """Raise ForeignOrigin for a browser's request from a page of another origin.

        `origin` and `fetch_site` are the headers Origin and Sec-Fetch-Site, None where missing.
        """
        if origin is not None and origin.partition("://")[2] != host:
            raise ForeignOrigin(f"a page of {origin[:100]!r} may not call this server")
        if origin is None and fetch_site in ("cross-site", "same-site"):
            raise ForeignOrigin("a page of another site may not call this server")

    def check(self, authorization: str | None, need: Need, name: str = "") -> None:
        """Raise NoKey or WrongScope unless the caller has scope `need` (for function `name`)."""
        if need == "invoke" and authorization is None and self.is_open:
            return
        scopes = self.scopes(authorization)
        if not _allows(scopes, need, name):
            raise WrongScope(f"this needs the scope {need}, the key has {', '.join(scopes)}")

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
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise NoKey("expected the header Authorization: Bearer <key>")
        secret = secret.strip()
        if compare_digest(fingerprint(secret), self._token):
            return ("admin",)
        key: Key | None = self.ring.find(secret)
        if key is None:
            raise NoKey("the key is unknown")
        return key.scopes


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
