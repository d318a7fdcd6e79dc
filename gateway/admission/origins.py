"""Pages of other origins at /fn, /v1, /v2 and /openapi.json: who may send requests, and the fields
of the answers that they may read.

A page may if the server's settings list its origin, or that of its function. At /v1 the function is
in the body, which no preflight has: there the origins of all models may ask, and the function
decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.pages.origins import (
    Asked,
    Sender,
    cors_fields,
    is_own_page,
    is_shared,
    judge,
    preflight_fields,
)
from registry.errors import ForeignOrigin

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.admission.access import Access
    from registry.catalog import Catalog, Deployed
    from registry.model.servers import ServerSettings

Fields = tuple[tuple[str, str], ...]
MODELS: Final = "/v1"
VARIES: Final[Fields] = (("Vary", "Origin"),)


class Judged(NamedTuple):
    """The verdict on the page that sends a request to a function's server."""

    sender: Sender
    with_cookies: bool
    """Whether the page may read an answer to a request with cookies."""
    fields: Fields
    """Fields of every answer."""


class Origins:
    """The origins of one process. Event loop thread only."""

    def __init__(self, access: Access, catalog: Catalog) -> None:
        self._access = access
        self._catalog = catalog
        self._of_models: frozenset[str] = frozenset()
        self._as_of = -1

    def may_ask(self, path: str, origin: str) -> bool:
        """Return whether pages of an origin may send requests to an undecoded path, before their
        function is known."""
        if not is_shared(path):
            return False
        return self._access.lists(origin) or (_is_model(path) and origin in self.of_models())

    def fields(self, path: str, origin: str | None) -> Fields:
        """Return the fields of an answer with which a page of `origin` can read it. () where no
        origin is listed."""
        if origin is not None and self.may_ask(path, origin):
            return cors_fields(origin, with_cookies=False)
        return VARIES if is_shared(path) and self._has_any(path) else ()

    def preflight(
        self, method: str, path: str, header: Callable[[str], str | None]
    ) -> Fields | None:
        """Return the fields of the answer to a preflight, None for another request, and for a
        page that may not ask. `header(name)` returns the value of a header."""
        origin, wanted = header("Origin"), header("Access-Control-Request-Method")
        if method != "OPTIONS" or origin is None or wanted is None:
            return None
        if not self.may_ask(path, origin):
            return None
        is_private = header("Access-Control-Request-Private-Network") == "true"
        asked = Asked(method, "", origin, wanted=wanted, is_private=is_private)
        names = header("Access-Control-Request-Headers")
        return preflight_fields(asked, names, with_cookies=False)

    def judge_server(
        self, asked: Asked, server: ServerSettings | None, *, is_own_host: bool
    ) -> Judged:
        """Return who asks for something of a function's server, None for one that is not deployed.

        Before any check of a key: browsers send none with a preflight. The origins are those of the
        function and, except on its own host, those of the server's settings. Raises ForeignOrigin.
        """
        origins = () if server is None else server.origins
        origin, with_cookies = asked.origin or "", asked.origin in origins
        if not with_cookies and not is_own_host and self._access.lists(origin):
            origins = (*origins, origin)
        sender = judge(asked, origins, is_linked=is_own_host)
        if sender is Sender.OWN:
            fields = VARIES if origins or self._access.has_origins else ()
        else:
            fields = cors_fields(origin, with_cookies=with_cookies)
        return Judged(sender, with_cookies, fields)

    def may_call(self, origin: str | None, host: str, deployed: Deployed) -> bool:
        """Return whether a page that may ask may call a function with a server of its own."""
        if origin is None or is_own_page(origin, host) or self._access.lists(origin):
            return True
        server = deployed.revision.server
        return server is not None and origin in server.origins

    def check_call(self, origin: str | None, host: str, deployed: Deployed) -> None:
        """Raise ForeignOrigin for a page that may not call a function."""
        if not self.may_call(origin, host, deployed):
            raise ForeignOrigin(f"a page of {(origin or '')[:100]!r} may not call this function")

    def _has_any(self, path: str) -> bool:
        return self._access.has_origins or (_is_model(path) and bool(self.of_models()))

    def of_models(self) -> frozenset[str]:
        """Return the origins of all models, found once per version of the catalog."""
        if self._as_of != self._catalog.version:
            self._as_of = self._catalog.version
            servers = (one.revision.server for one in self._catalog.every())
            found = (one.origins for one in servers if one is not None and one.api is not None)
            self._of_models = frozenset(origin for origins in found for origin in origins)
        return self._of_models


def _is_model(path: str) -> bool:
    return path == MODELS or path.startswith(f"{MODELS}/")
