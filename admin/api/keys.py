"""Routes for access keys, and for the session: the scopes of a request's key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from admin.views import key_json
from gateway.access import Access
from gateway.http.bodies import read_body
from gateway.problems import CREATED, json_answer
from registry.bounded_text import read_json
from registry.store.keys import KeyRing, Keys, Revocations

REQUEST_MAX = 64 * 1024
READ_S = 10.0

SESSION_FACTS: Final = ("version", "driver", "workers")


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A new key. `scopes`: invoke, invoke:NAME, read, deploy or admin."""

    scopes: list[str]
    note: str = ""


class KeyRoutes:
    """Handlers for keys. Changes reach the store and, at once, the key ring of request checks."""

    def __init__(
        self, keys: Keys, ring: KeyRing, revocations: Revocations, wall: Callable[[], float]
    ) -> None:
        self._keys = keys
        self._ring = ring
        self._revocations = revocations
        self._wall = wall

    async def list_keys(self, _request: web.Request) -> web.Response:
        """Return every key that is accepted, without its secret."""
        stored, ring = await self._keys.list(), self._ring
        # A removal that is not stored yet is one all the same.
        items = [key_json(key) for key in stored if ring.with_id(key.id) is not None]
        return json_answer({"items": items, "next": None})

    async def add_key(self, request: web.Request) -> web.Response:
        """Create a key. Only this answer has the secret; the store keeps none."""
        body = await read_body(request, REQUEST_MAX, READ_S)
        wanted = read_json(body, KeyRequest, "the key request")
        key, secret = await self._keys.add(wanted.scopes, wanted.note, now_s=self._wall())
        self._ring.put(key)
        return json_answer({**key_json(key), "secret": secret}, CREATED)

    async def remove_key(self, request: web.Request) -> web.Response:
        """Revoke a key. Requests with it are refused from now on, and what it has open is cut."""
        id = request.match_info["id"]
        await self._revocations.revoke(id)
        return json_answer({"removed": id})


class SessionRoutes:
    """Handler for `GET /admin/v1/session`. `facts` do not change while the server runs."""

    def __init__(self, access: Access, facts: Mapping[str, Any]) -> None:
        self._access = access
        self._facts = {key: facts[key] for key in SESSION_FACTS}

    async def get_session(self, request: web.Request) -> web.Response:
        """Return the key's scopes. Every request is checked anew, whatever this answer says."""
        scopes = self._access.scopes(request.headers.get("Authorization"))
        return json_answer({"scopes": list(scopes), **self._facts})
