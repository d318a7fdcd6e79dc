"""Routes of /v1 that no server answers: the list of models, and what does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

import structlog
from aiohttp import web

from gateway import problems
from gateway.access import Credential, anonymous
from gateway.cross_origins import CrossOrigins
from gateway.http.admission import correlate
from gateway.http.bodies import check_framing, is_awaiting_continue
from gateway.http.models.resolution import check_model_caller
from gateway.http.models.router import no_endpoint, own_keys, protocol_of
from gateway.v1 import shapes
from gateway.v1.endpoints import MODELS, PREFIX, Protocol
from gateway.v1.model_list import Model, list_document, model_document, names_of, unknown_model
from registry.errors import FnError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.http.context import Invoker
    from registry.catalog import Deployed

log = structlog.get_logger()

_PLACE = (PREFIX + MODELS).decode()


class ModelRoutes:
    """Handlers of requests to /v1 that name no model in a body. Nothing wakes."""

    def __init__(self, invoker: Invoker) -> None:
        self._access = invoker.access
        self._catalog = invoker.catalog
        self._new_id = invoker.new_id
        self._origins = CrossOrigins(invoker.access, invoker.catalog)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        header = _header_of(request)
        path = request.rel_url.raw_path
        protocol = protocol_of(path.encode("utf-8", "replace"), header)
        request_id = correlate(header).request_id or self._new_id()
        try:
            check_framing(request)
            sender = anonymous(request.host, request.headers)
            keys = own_keys(protocol, header)
            credential = check_model_caller(self._access, self._origins, header, sender, keys)
            document = self._document(request, path, protocol, credential)
            response = problems.json_answer(document)
        except FnError as error:
            response = _answer(protocol, error, request_id)
        except Exception:  # error boundary: a defect must not expose internals
            log.exception("a request failed", path=request.path[:200], request_id=request_id)
            response = _answer(protocol, FnError("see the server's log"), request_id)
        response.headers["X-Request-Id"] = request_id
        if is_awaiting_continue(request):
            response.force_close()
        return response

    def _document(
        self, request: web.Request, path: str, protocol: Protocol, credential: Credential
    ) -> dict[str, object]:
        """Return the document that a request asks for. Raises FnError."""
        method = request.method
        page = (_header_of(request)("Origin"), request.host)
        if method not in ("GET", "HEAD") or not (path + "/").startswith(f"{_PLACE}/"):
            raise no_endpoint(method, path.encode("utf-8", "replace"))
        if path == _PLACE:
            mine = (one for one in self._catalog.all() if self._is_shown(one, credential, page))
            return list_document(protocol, (name for one in mine for name in names_of(one)))
        id = unquote(path.removeprefix(f"{_PLACE}/"))
        found = self._catalog.find_model(id)
        if found is None or not self._is_shown(found, credential, page):
            raise unknown_model(
                self._catalog, id, lambda other: self._is_shown(other, credential, page)
            )
        return model_document(protocol, Model(id, found.function.created_s))

    def _is_shown(
        self, deployed: Deployed, credential: Credential, page: tuple[str | None, str]
    ) -> bool:
        """Return whether a function is a model that the caller may invoke. `page`: the fields
        Origin and Host."""
        server = deployed.revision.server
        if server is None or server.api is None or not self._origins.may_call(*page, deployed):
            return False
        return self._access.allows(credential, "invoke", deployed.function.name)


def _header_of(request: web.Request) -> Callable[[str], str | None]:
    """Return a function that returns the value of a header, None if it is missing. Several values
    are joined, so that a field that may not repeat becomes invalid."""

    def header(name: str) -> str | None:
        values = request.headers.getall(name, ())
        return ", ".join(values) if values else None

    return header


def _answer(protocol: Protocol, error: FnError, request_id: str) -> web.Response:
    return problems.response_of(shapes.reply(protocol, error, request_id))
