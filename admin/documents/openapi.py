"""The OpenAPI document of every route of the server. Pure.

It is made where msgspec is the only package (`build_backend`): what this module imports, directly
or not, is the standard library, msgspec and such modules of our own.
"""

from __future__ import annotations

from typing import Final

import msgspec

from admin.documents.routes import ROUTES
from gateway.openapi.call_routes import call_routes
from gateway.openapi.document import make_document
from gateway.openapi.model_routes import model_routes
from gateway.openapi.oip_routes import oip_routes
from gateway.openapi.routes import Route

DESCRIPTION: Final = """\
Calls of functions (`/fn`), of models in the forms of OpenAI and Anthropic (`/v1`) and of the Open
Inference Protocol (`/v2`), the admin API (`/admin/v1`), and the state of the server.

Errors are problem documents (RFC 9457) with a `code`, below `/v1` and `/v2` in the form of the
protocol. A defect of the server itself is 500 with the code `internal`. What a server function
answers is its own matter. One function is described at `/fn/{name}/openapi.json`."""


def every_route() -> list[Route]:
    """Return every route of the server."""
    admin = (one.described(*key.split(" ")) for key, one in ROUTES.items())
    return [*call_routes(), *model_routes(), *oip_routes(), *admin]


def make_routes_document(version: str) -> bytes:
    """Return the document of all routes as JSON. `version` is that of the server."""
    text = " ".join(DESCRIPTION.split("\n")).replace("  ", "\n\n")
    info = {"title": "fngate", "version": version, "description": text}
    return msgspec.json.encode(make_document(info, every_route()))
