"""What the bearer of a key may do here, for a page that shows only what can be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from gateway.access import Access
from gateway.problems import json_answer

TOLD: Final = ("version", "driver", "workers")


class SessionRoutes:
    """`GET /admin/v1/session`. `facts` is what does not change while the server runs."""

    def __init__(self, access: Access, facts: Mapping[str, Any]) -> None:
        self._access = access
        self._facts = {key: facts[key] for key in TOLD}

    async def get_session(self, request: web.Request) -> web.Response:
        """The key's scopes; what they allow is decided anew at each request."""
        scopes = self._access.scopes(request.headers.get("Authorization"))
        return json_answer({"scopes": list(scopes), **self._facts})
