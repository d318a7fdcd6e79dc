"""Access control by Host header, origin, key and scope. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from gateway.pages.cookies import find_values, read_value, renewal
from gateway.pages.origins import is_own_page
from registry.errors import ForeignHost, ForeignOrigin, NoKey, WrongScope
from registry.key_form import KeyPriority
from registry.model import Key
from registry.names import is_name
from registry.openness import Openness
from registry.store.keys import KeyRing

Need = Literal["invoke", "read", "deploy", "admin"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LOCAL_BASE: Final = "localhost"
ANY_ORIGIN: Final = "*"
"""Stands for every origin in a list of origins."""
_SHARED: Final = re.compile(r"/(?:fn|v1|v2)(?:/.*)?|/openapi\.json", re.DOTALL)


class Caller(NamedTuple):
    """Holder of the key of a request: the key's id, and its scopes.

    `is_high`: whether its calls may have the priority high.
    """

    id: str
    scopes: tuple[str, ...]
    is_high: bool = False

    def may_invoke(self, name: str) -> bool:
        """Return whether the caller, who was let in, may invoke function `name`."""
        return self == NOBODY or _allows(self.scopes, "invoke", name)


NOBODY: Final = Caller("", ())
"""A caller without a key who is let in."""


class Anonymous(NamedTuple):
    """Who sends a request without a key.

    `passed_on`: what shows that a proxy passed the request on, such as "Via"; "" for nothing.
    """

    passed_on: str = ""


Credential = str | Anonymous | None
"""What a request is authorised with: the field Authorization, or else how it came. None, where that
is not known, lets nobody in."""


def anonymous(host: str | None, names: Iterable[str]) -> Anonymous:
    """Return who sends a request without a key.

    `host`: the field Host, None where the protocol has none. `names`: names of all its fields.
    """
    for name in names:
        if is_passed_on(name):
            return Anonymous(name[:_SHOWN_MAX])
    return DIRECT if host is None or is_loopback(host) else Anonymous(f"Host: {host[:_SHOWN_MAX]}")


def is_passed_on(name: str) -> bool:
    """Return whether a field is one that proxies add to the requests that they pass on."""
    lowered = name.lower()
    return lowered in _PASSED_ON or lowered.startswith(_FORWARDED)


def credential_of(
    authorization: str | None, host: str | None, names: Iterable[str]
) -> str | Anonymous:
    """Return what a request is authorised with; `host` and `names` as in `anonymous`."""
    return anonymous(host, names) if authorization is None else authorization


DIRECT: Final = Anonymous()
_PASSED_ON: Final = frozenset({"forwarded", "via", "x-real-ip"})
_FORWARDED: Final = "x-forwarded"
_SHOWN_MAX: Final = 100


class Access:
    """Access rules of one server.

    The admin token has every scope. Whether invoking and metrics need a key is the ring's stored
    decision (`lets_in`). Everything under /admin always needs the token or a key.

    A function's pages are on the host NAME.BASE, where BASE is `localhost` on loopback and each
    public host name.
    """

    def __init__(
        self,
        listen: str,
        public_hosts: Iterable[str],
        ring: KeyRing,
        cookie_secret: bytes = b"",
        cors_origins: Iterable[str] = (),
    ) -> None:
        """Create the rules.

        `cookie_secret` signs cookies of pages; without it none is valid. `cors_origins`: web
        origins whose pages may call functions.
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
        self.cookie_secret: Final = cookie_secret
        self._origins: Final = frozenset(cors_origins)

    def check_host(self, host: str) -> None:
        """Raise ForeignHost unless the Host header names this server."""
        known = self._known.get(host)
        if known is None:
            known = _host_name(host) in self._hosts
            if len(self._known) < 1000 and len(host) <= _HOST_MAX:
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

        ANY_ORIGIN means none while some callers need no key: every page that its owner visits could
        then call its functions.
        """
        if origin in self._origins:
            return origin != ANY_ORIGIN
        return ANY_ORIGIN in self._origins and self.is_closed and "://" in origin

    def check_origin(
        self, origin: str | None, fetch_site: str | None, host: str, path: str = ""
    ) -> None:
        """Raise ForeignOrigin for a browser's request from a page of another origin.

        `origin` and `fetch_site` are the headers Origin and Sec-Fetch-Site, None where missing.
        `path`: where the request is for, undecoded. A page of a listed origin may call functions.
        """
        if origin is not None and is_shared(path) and self.lists(origin):
            return
        if origin is not None and not is_own_page(origin, host):
            raise ForeignOrigin(f"a page of {origin[:100]!r} may not call this server")
        if origin is None and fetch_site in ("cross-site", "same-site"):
            raise ForeignOrigin("a page of another site may not call this server")

    @property
    def is_closed(self) -> bool:
        """Whether every caller needs a key."""
        return not self._is_local or self.ring.openness is Openness.CLOSED

    def lets_in(self, credential: Credential) -> bool:
        """Return whether the sender of a request may invoke without a key.

        This is the whole rule: nobody once the server is closed, everybody once the operator has
        opened it, and before either those whose request no proxy has passed on. A proxy on this
        machine is local to the server, but its clients need not be.
        """
        if not isinstance(credential, Anonymous) or self.is_closed:
            return False
        return self.ring.openness is Openness.OPEN or not credential.passed_on

    def check(self, credential: Credential, need: Need, name: str = "") -> Caller:
        """Return the caller, who has the scope `need` (for function `name`).

        Raises NoKey or WrongScope.
        """
        if need == "invoke" and self.lets_in(credential):
            return NOBODY
        return _allowed(self.caller(credential), need, name)

    def check_caller(self, credential: Credential) -> None:
        """Raise NoKey unless the caller has any key, or needs none."""
        if not self.lets_in(credential):
            self.caller(credential)

    def allows(self, credential: Credential, need: Need, name: str = "") -> bool:
        """Return whether the caller has the scope `need`, as `check`. Raises NoKey."""
        try:
            self.check(credential, need, name)
        except WrongScope:
            return False
        return True

    def check_cookie(
        self, cookies: bytes, name: str, now_s: float, sender: Anonymous = DIRECT
    ) -> tuple[Caller, str]:
        """Return the caller whom a cookie for the pages of function `name` stands for, and the
        value of Set-Cookie that renews it, "" if it is not yet time.

        `cookies` is the field Cookie, `now_s` Unix seconds, `sender` who sends the request if the
        cookie stands for nobody. Raises NoKey or WrongScope.
        """
        secret = self.cookie_secret
        for value, is_secure in find_values(cookies):
            found = read_value(secret, value, name, now_s)
            if found is not None and self._find(found.key_id) is not None:
                caller = self.check_id(found.key_id, "invoke", name)
                return caller, renewal(secret, found, name, now_s, is_secure=is_secure)
        expected = f"expected the cookie of `fnctl open {name}`, Fn-Key, or Authorization"
        raise NoKey(self.key_expected(sender, expected))

    def is_admin(self, credential: Credential) -> bool:
        """Return whether the caller has the scope admin."""
        try:
            return "admin" in self.scopes(credential)
        except NoKey:
            return False

    def scopes(self, credential: Credential) -> tuple[str, ...]:
        """Return the scopes of a bearer key; "admin" includes all others. Raises NoKey."""
        return self.caller(credential).scopes

    def caller(self, credential: Credential) -> Caller:
        """Return the caller with this bearer key. Raises NoKey."""
        if isinstance(credential, Anonymous) or credential is None:
            raise NoKey(self.key_expected(credential))
        scheme, _, secret = credential.partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise NoKey(_EXPECTED)
        caller = self._holder(secret.strip())
        if caller is None:
            raise NoKey("the key is unknown")
        return caller

    def is_key(self, secret: str) -> bool:
        """Return whether a text is a valid key, or the admin token."""
        return self._holder(secret) is not None

    def _holder(self, secret: str) -> Caller | None:
        """Return the caller with this key, None if it is unknown."""
        key: Key | None = self.ring.find(secret)
        return None if key is None else _caller_with(key)

    def check_id(self, id: str, need: Need, name: str = "") -> Caller:
        """Return the caller with a key's id, as `check`. Raises NoKey or WrongScope."""
        caller = self._find(id)
        if caller is None:
            raise NoKey("the key was removed")
        return _allowed(caller, need, name)

    def _find(self, id: str) -> Caller | None:
        """Return the caller with a key's id, None if there is no such key any more."""
        key = self.ring.with_id(id)
        return None if key is None else _caller_with(key)

    def key_expected(self, credential: Credential, expected: str = "") -> str:
        """Return why a request without a key is refused, and how to open the server to it.

        `expected`: what the request lacks, by default the header Authorization.
        """
        if isinstance(credential, Anonymous) and credential.passed_on and not self.is_closed:
            return _PASSED_ON_TEXT.format(credential.passed_on)
        return expected or _EXPECTED


def _caller_with(key: Key) -> Caller:
    return Caller(key.id, key.scopes, key.priority is KeyPriority.HIGH)


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


def is_loopback(host: str) -> bool:
    """Return whether a Host header names the loopback interface, or a function's host there."""
    name = _host_name(host) or ""
    return name in LOOPBACK or name.endswith(f".{LOCAL_BASE}")


def _host_name(host: str) -> str | None:
    """Return the lower-case host of a Host header (RFC 9110 section 7.2) without port and brackets.

    None if the header is malformed.
    """
    found = _HOST.fullmatch(host)
    return None if found is None else (found[1] or found[2]).lower()


_EXPECTED: Final = "expected the header Authorization: Bearer <key>"
_PASSED_ON_TEXT: Final = (
    "without a key this server takes calls from this machine alone, and a proxy passed this one on"
    " ({}): create a key with fnctl key add --scope invoke, or let everybody call with fnctl access"
    " open"
)
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_HOST_MAX: Final = 255 + len(":65535")
"""Max characters of a Host header whose verdict is remembered (RFC 1035 section 2.3.4)."""
_PORT: Final = re.compile(r":[0-9]{1,5}$")
_ADDRESS: Final = re.compile(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*")
