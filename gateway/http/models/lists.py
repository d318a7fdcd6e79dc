"""Routes of /v1 that no server answers: the list of models, and what does not exist."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from aiohttp import web

from gateway import problems
from gateway.admission.calls import correlate
from gateway.admission.credentials import Realm, read_credential
from gateway.http.boundary import answered
from gateway.http.models.router import no_endpoint, own_keys, protocol_of
from gateway.pages.origins import asked_for
from gateway.v1 import shapes
from gateway.v1.endpoints import MODELS, PREFIX, Protocol
from gateway.v1.model_list import Model, list_document, model_document, names_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.admission.callers import Caller
    from gateway.http.context import Invoker
    from gateway.pages.origins import Asked

_PLACE = (PREFIX + MODELS).decode()


class ModelRoutes:
    """Handlers of requests to /v1 that name no model in a body. Nothing wakes."""

    def __init__(self, invoker: Invoker) -> None:
        self._admission = invoker.admission
        self._catalog = invoker.catalog
        self._new_id = invoker.new_id

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        header = _header_of(request)
        path = request.rel_url.raw_path
        protocol = protocol_of(path.encode("utf-8", "replace"), header)
        request_id = correlate(header).request_id or self._new_id()

        async def listed(_request: web.Request) -> web.StreamResponse:
            asked = asked_for(request.method, header)
            keys, names = own_keys(protocol, header), request.headers
            credential = read_credential(header, request.host, names, Realm.SERVERS, keys)
            caller = self._admission.enter_models(credential, asked)
            return problems.json_answer(self._document(asked, path, protocol, caller))

        response = await answered(request, listed, partial(shapes.reply, protocol, request_id))
        response.headers["X-Request-Id"] = request_id
        return response

    def _document(
        self, asked: Asked, path: str, protocol: Protocol, caller: Caller
    ) -> dict[str, object]:
        """Return the document that a request asks for. Raises FnError."""
        method = asked.method
        if method not in ("GET", "HEAD") or not (path + "/").startswith(f"{_PLACE}/"):
            raise no_endpoint(method, path.encode("utf-8", "replace"))
        if path == _PLACE:
            mine = (one for one in self._catalog.all() if self._admission.shows(caller, one, asked))
            return list_document(protocol, (name for one in mine for name in names_of(one)))
        id = unquote(path.removeprefix(f"{_PLACE}/"))
        found = self._admission.find_model(caller, id, asked)
        return model_document(protocol, Model(id, found.function.created_s))


def _header_of(request: web.Request) -> Callable[[str], str | None]:
    """Return a function that returns the value of a header, None if it is missing. Several values
    are joined, so that a field that may not repeat becomes invalid."""

    def header(name: str) -> str | None:
        values = request.headers.getall(name, ())
        return ", ".join(values) if values else None

    return header
