"""Routes of /v1 that no server answers: the list of models, and what does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

import structlog
from aiohttp import web

from gateway import problems
from gateway.http.admission import correlate
from gateway.http.bodies import check_framing, is_awaiting_continue
from gateway.http.model_requests import check_model_caller
from gateway.v1 import shapes
from gateway.v1.endpoints import ENDPOINTS, MODELS, PREFIX, Protocol
from gateway.v1.model_list import Model, list_document, model_document, names_of
from registry.errors import FnError, MethodNotAllowed, Unknown, UnknownModel, WrongScope

if TYPE_CHECKING:
    from gateway.http.context import Invoker
    from registry.catalog import Deployed

log = structlog.get_logger()

_VERSION = "Anthropic-Version"
_PLACE = (PREFIX + MODELS).decode()


class ModelRoutes:
    """Handlers of requests to /v1 that name no model in a body. Nothing wakes."""

    def __init__(self, invoker: Invoker) -> None:
        self._access = invoker.access
        self._catalog = invoker.catalog
        self._new_id = invoker.new_id

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        protocol = Protocol.ANTHROPIC if _VERSION in request.headers else Protocol.OPENAI
        request_id = correlate(request.headers.get).request_id or self._new_id()
        try:
            check_framing(request)
            document = self._document(request, protocol)
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

    def _document(self, request: web.Request, protocol: Protocol) -> dict[str, object]:
        """Return the document that a request asks for. Raises FnError."""
        credential = check_model_caller(self._access, request.headers.get, protocol)
        path = request.rel_url.raw_path
        is_endpoint = path.removeprefix(PREFIX.decode()).encode("utf-8", "replace") in ENDPOINTS
        if request.method not in ("GET", "HEAD") or is_endpoint:
            allow = ["POST"] if is_endpoint else ["GET", "HEAD"]
            text = f"expected {', '.join(allow)}, got {request.method}"
            raise MethodNotAllowed(text, detail={"allow": allow})
        if path == _PLACE:
            mine = (one for one in self._catalog.all() if self._is_shown(one, credential))
            return list_document(protocol, (name for one in mine for name in names_of(one)))
        if not path.startswith(f"{_PLACE}/"):
            raise Unknown(f"no route {request.method} {path[:200]}")
        id = unquote(path.removeprefix(f"{_PLACE}/"))
        found = self._catalog.find_model(id)
        if found is None or not self._is_shown(found, credential):
            raise UnknownModel(f"no model {id[:200]!r} that this key may use")
        return model_document(protocol, Model(id, found.function.created_s))

    def _is_shown(self, deployed: Deployed, credential: str | None) -> bool:
        """Return whether a function is a model that the caller may invoke."""
        server = deployed.revision.server
        if server is None or server.api is None:
            return False
        try:
            self._access.check(credential, "invoke", deployed.function.name)
        except WrongScope:
            return False
        return True


def _answer(protocol: Protocol, error: FnError, request_id: str) -> web.Response:
    status, headers, body = shapes.reply(protocol, error, request_id)
    return web.Response(status=status, body=bytes(body), headers=dict(headers))
