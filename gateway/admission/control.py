"""Admission of requests: who sends one, what may it do, where does it go. See `design.md`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.admission.access import Access
from gateway.admission.calls import Admission, Head, make_admission
from gateway.admission.credentials import Realm
from gateway.admission.origins import Origins
from gateway.oip.names import find_served
from gateway.pages.origins import Asked
from gateway.v1.endpoints import PREFIX
from gateway.v1.model_list import unknown_model
from registry.errors import ForeignHost, NoKey, Unknown

if TYPE_CHECKING:
    from gateway.admission.callers import Caller
    from gateway.admission.credentials import Credential
    from gateway.admission.origins import Judged
    from gateway.proxy.targets import FunctionTarget
    from registry.catalog import Catalog, Deployed
    from registry.model.keys import Need

CALLS: Final = "/fn"
"""Path that stands for all calls where origins are checked."""
MODELS: Final = PREFIX.decode()
HEAD_MAX: Final = 1024
"""Max characters of a cached head."""
KEPT_MAX: Final = 4096
"""Max cached heads. At the limit the cache is cleared, and each head is checked once more."""


class Entry(NamedTuple):
    """Who sends a request, and what it is for."""

    caller: Caller
    deployed: Deployed
    by_cookie: bool = False
    """Whether a cookie was the credential, which only functions' own hosts take."""
    renewed: str = ""
    """Value of Set-Cookie that renews the cookie, "" if it is not yet time."""


class AdmissionControl:
    """The admission of one gateway process, for every way in. Event loop thread only.

    What was decided about the head of a call is remembered as long as its caller lives and the
    catalog stays: with both the same, the same head always gets the same admission.
    """

    def __init__(
        self, access: Access, catalog: Catalog, wait_max_s: float, held_bytes_max: int
    ) -> None:
        """`held_bytes_max` bounds all bodies together, so each one, too."""
        self.access: Final = access
        self.origins: Final = Origins(access, catalog)
        self._catalog = catalog
        self._maxima = wait_max_s, held_bytes_max
        self._known: dict[Hashable, Admission] = {}

    # Calls of models, at /fn, /v2 and over gRPC

    def find(self, key: Hashable) -> Admission | None:
        """Return the cached admission of a head, None if there is none or it is outdated."""
        found = self._known.get(key)
        if found is None:
            return None
        if found.as_of == self._catalog.version and found.caller.is_live:
            return found
        del self._known[key]
        return None

    def enter_call(self, head: Head) -> Entry:
        """Return who sends a call, and which revision it is for. Raises FnError."""
        if head.host is not None:
            asked = Asked("POST", head.host, head.origin, head.fetch_site)
            self.access.check_source(asked, CALLS)
        if head.version is not None:
            return self.find_served(head.credential, "invoke", head.ref, head.version)
        caller = self.enter(head.credential, "invoke", head.name)
        return Entry(caller, self._catalog.resolve(head.ref, may_see=caller.may_invoke))

    def admit(self, key: Hashable, head: Head, entry: Entry) -> Admission:
        """Return the admission of a head that `find` does not know, and cache it.

        `key` identifies the head. Raises BadRequest; the head is then not cached.
        """
        caller, deployed = entry.caller, entry.deployed
        made = make_admission(head, caller, deployed, self._catalog.version, self._maxima)
        if len(self._known) >= KEPT_MAX:
            self._known.clear()
        if head.size <= HEAD_MAX:
            self._known[key] = made
        return made

    # What the gateway answers itself

    def enter(self, credential: Credential, need: Need, name: str = "") -> Caller:
        """Return who sends a request, and has the scope `need`, for function `name`.

        Raises NoKey or WrongScope.
        """
        caller = self.access.identify(credential, Realm.CALLS)
        caller.require(need, name)
        return caller

    def find_served(
        self, credential: Credential, need: Need, name: str, version: str = ""
    ) -> Entry:
        """Return the revision that answers for a version of a model of /v2.

        Raises FnError, first for a lack of rights: a caller whose key is for one function learns of
        no other names.
        """
        found = self._catalog.find_oip(name, version)
        caller = self.enter(credential, need, name if found is None else found.function.name)

        def may_see(other: str) -> bool:
            return caller.may(need, other)

        return Entry(caller, find_served(self._catalog, name, version, may_see))

    # Servers of functions

    def judge_page(self, asked: Asked, target: FunctionTarget) -> Judged:
        """Return who asks for something of a function's server, before any key is looked at.

        Raises ForeignHost or ForeignOrigin.
        """
        found = self._catalog.find(target.ref)
        server = None if found is None else found.revision.server
        if not target.is_own_host:
            self.access.hosts.check(asked.host)
        elif server is None:
            raise ForeignHost(f"Host: {target.name} is not a server function that is deployed")
        return self.origins.judge_server(asked, server, is_own_host=target.is_own_host)

    def enter_server(
        self, credential: Credential, target: FunctionTarget, method: str, now_s: float
    ) -> Entry:
        """Return who sends a request to a function's server, and to which revision.

        `now_s`: Unix seconds. Raises FnError; Unknown if it is not a server function.
        """
        by_cookie, renewed = False, ""
        if target.is_own_host:
            visitor = self.access.identify_visitor(credential, target.name, now_s)
            caller, by_cookie, renewed = visitor
        else:
            caller = self.access.identify(credential, Realm.SERVERS)
        caller.require("invoke", target.name)
        deployed = self._catalog.resolve(target.ref, may_see=caller.may_invoke)
        if deployed.revision.server is None:
            path = (target.prefix + target.path).decode()
            raise Unknown(f"no route {method} {path[:200]}")
        return Entry(caller, deployed, by_cookie, renewed)

    # Models of /v1, whose requests name them in their bodies

    def enter_models(self, credential: Credential, asked: Asked) -> Caller:
        """Return who sends a request to /v1. Raises FnError.

        Of who is let in without a key, whatever is sent as a key is no key of this server.
        """
        self.access.check_source(asked, MODELS, self.origins.of_models())
        if len(credential.secrets) > 1 and not self.access.lets_in(credential):
            raise NoKey("expected one key, got different ones in different fields")
        return self.access.identify(credential, Realm.SERVERS)

    def find_model(self, caller: Caller, model: str, asked: Asked) -> Deployed:
        """Return what a model's name means to a caller.

        Raises UnknownModel, also for a function that the caller may not invoke: its name is none of
        the caller's business. Raises ForeignOrigin for a page that may not call it.
        """
        found = self._catalog.find_model(model)
        if found is not None and caller.may_invoke(found.function.name):
            self.origins.check_call(asked.origin, asked.host, found)
            return found
        raise unknown_model(self._catalog, model, lambda one: self.shows(caller, one, asked))

    def shows(self, caller: Caller, deployed: Deployed, asked: Asked) -> bool:
        """Return whether a function is a model that a caller, and its page, may call."""
        server = deployed.revision.server
        if server is None or server.api is None:
            return False
        is_allowed = self.origins.may_call(asked.origin, asked.host, deployed)
        return is_allowed and caller.may_invoke(deployed.function.name)
