"""Who sends a request: the callers that keys, cookies and the server's openness let in. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from gateway.admission.callers import KEY_EXPECTED, Caller, Callers
from gateway.admission.credentials import Credential, Realm
from gateway.admission.hosts import LOOPBACK, HostNames
from gateway.pages.cookies import find_values, read_value, renewal
from gateway.pages.origins import Asked, is_shared, judge
from registry.errors import NoKey
from registry.openness import Openness
from registry.store.keys import KeyRing

ANY_ORIGIN: Final = "*"
"""Stands for every origin in a list of origins."""
_PASSED_ON: Final = (
    "without a key this server takes calls from this machine alone, and a proxy passed this one on"
    " ({}): create a key with fnctl key add --scope invoke, or let everybody call with fnctl access"
    " open"
)


class Visitor(NamedTuple):
    """Who sends a request to a function's own host."""

    caller: Caller
    by_cookie: bool
    """Whether a cookie was the credential. Cookies expire, which nothing tells."""
    renewed: str = ""
    """Value of Set-Cookie that renews the cookie, "" if it is not yet time."""


class Access:
    """Access rules of one server.

    The admin token has every scope. Whether invoking and metrics need a key is the ring's stored
    decision (`lets_in`).
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
        self.hosts: Final = HostNames(listen, public_hosts)
        self.ring: Final = ring
        self.callers: Final = Callers(ring)
        self.cookie_secret: Final = cookie_secret
        self._is_local = listen in LOOPBACK
        self._origins: Final = frozenset(cors_origins)

    def check_source(self, asked: Asked, path: str, models: Container[str] = ()) -> None:
        """Raise ForeignHost unless a request names this server, and ForeignOrigin if it is a page's
        that may not send it. `path`: where the request is for, undecoded. `models`: origins whose
        pages may ask there beside those of the settings."""
        self.hosts.check(asked.host)
        origin = asked.origin
        listed: tuple[str, ...] = ()
        if origin is not None and is_shared(path) and (origin in models or self.lists(origin)):
            listed = (origin,)
        judge(asked, listed)

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

    @property
    def is_closed(self) -> bool:
        """Whether every caller needs a key."""
        return not self._is_local or self.ring.openness is Openness.CLOSED

    def lets_in(self, credential: Credential) -> bool:
        """Return whether the sender of a request needs no key.

        This is the whole rule: nobody once the server is closed, everybody once the operator has
        opened it, and before either those whose request no proxy has passed on. A proxy on this
        machine is local to the server, but its clients need not be.
        """
        if self.is_closed:
            return False
        return self.ring.openness is Openness.OPEN or not credential.passed_on

    def identify(self, credential: Credential, realm: Realm) -> Caller:
        """Return who sends a request. Raises NoKey."""
        secret = credential.presented
        if realm is Realm.SERVERS:
            found = self._of_server(credential)
            if found is not None:
                return found
        elif secret is None and realm is Realm.CALLS and self.lets_in(credential):
            return self.callers.nobody
        if secret is None:
            raise NoKey(KEY_EXPECTED if realm is Realm.ADMIN else self._expected(credential))
        return self._known(secret)

    def identify_visitor(self, credential: Credential, function: str, now_s: float) -> Visitor:
        """Return who sends a request to the own host of `function`: as in the realm SERVERS, or the
        caller of a cookie of its pages. `now_s`: Unix seconds. Raises NoKey."""
        found = self._of_server(credential)
        if found is not None:
            return Visitor(found, by_cookie=False)
        for value, is_secure in find_values(credential.cookies):
            cookie = read_value(self.cookie_secret, value, function, now_s)
            caller = None if cookie is None else self.callers.with_id(cookie.key_id)
            if cookie is not None and caller is not None:
                renewed = renewal(self.cookie_secret, cookie, function, now_s, is_secure=is_secure)
                return Visitor(caller, by_cookie=True, renewed=renewed)
        expected = f"expected the cookie of `fnctl open {function}`, Fn-Key, or Authorization"
        raise NoKey(self._expected(credential, expected))

    def holder(self, credential: Credential) -> Caller | None:
        """Return the caller whose key is in Authorization, None if there is none."""
        bearer = credential.bearer
        return self.callers.with_secret(bearer) if bearer else None

    def is_admin(self, credential: Credential) -> bool:
        """Return whether a request has a key with the scope admin in Authorization."""
        found = self.holder(credential)
        return found is not None and found.is_admin

    def _of_server(self, credential: Credential) -> Caller | None:
        """Return the caller in the realm SERVERS, None for who would have to bring a key. Raises
        NoKey for a Fn-Key that is none: it is for nobody else."""
        if credential.fn_key is not None:
            return self._known(credential.fn_key.strip())
        secret = credential.presented
        found = self.callers.with_secret(secret) if secret else None
        if found is not None:
            return found
        return self.callers.nobody if self.lets_in(credential) else None

    def _known(self, secret: str) -> Caller:
        """Return the caller with this key. Raises NoKey."""
        found = self.callers.with_secret(secret) if secret else None
        if found is None:
            raise NoKey("the key is unknown" if secret else KEY_EXPECTED)
        return found

    def _expected(self, credential: Credential, expected: str = KEY_EXPECTED) -> str:
        """Return why a request without a key is refused, and how to open the server to it.

        `expected`: what the request lacks.
        """
        if credential.passed_on and not self.is_closed:
            return _PASSED_ON.format(credential.passed_on)
        return expected
