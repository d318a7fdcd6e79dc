"""Routes for access keys, for who needs one, for the admin token, and for the session: the scopes
of a request's key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from admin.api.context import CALLER
from admin.store import TOKEN_FILE, Store, replace_admin_token
from admin.views import key_json
from gateway.http.bodies import read_body
from gateway.problems import CREATED, json_answer
from registry.bounded_text import read_json
from registry.errors import BadRequest, Conflict
from registry.key_form import KeyPriority
from registry.openness import CLOSED, Decision, Openness
from registry.store.keys import KeyRing, Keys, Revocations

log = structlog.get_logger()

REQUEST_MAX = 64 * 1024
READ_S = 10.0

SESSION_FACTS: Final = ("version", "driver", "workers")


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A new key. `scopes`: invoke, invoke:NAME, read, deploy or admin. `priority`: the highest one
    that its calls may have."""

    scopes: list[str]
    note: str = ""
    priority: KeyPriority = KeyPriority.NORMAL


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
        key, secret = await self._keys.add(
            wanted.scopes, wanted.note, now_s=self._wall(), priority=wanted.priority
        )
        self._ring.put(key)
        return json_answer({**key_json(key), "secret": secret}, CREATED)

    async def remove_key(self, request: web.Request) -> web.Response:
        """Revoke a key. Requests with it are refused from now on, and what it has open is cut."""
        id = request.match_info["id"]
        await self._revocations.revoke(id)
        return json_answer({"removed": id})


class AccessRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The decision about callers without a key."""

    openness: Openness


class AccessRoutes:
    """Handlers for the decision about callers without a key, and for the admin token. Changes reach
    the store and, at once, the ring of request checks."""

    def __init__(self, store: Store, exposure: Callable[[], tuple[str, ...]], listen: str) -> None:
        """`exposure` returns what lets others than this machine reach the server; `listen` is its
        address, "" for one that this machine alone can reach."""
        self._store = store
        self._exposure = exposure
        self._listen = listen
        self._rotating = asyncio.Lock()

    async def get_access(self, _request: web.Request) -> web.Response:
        """Return who may call without a key, and what closes the server."""
        return self._answer()

    async def patch_access(self, request: web.Request) -> web.Response:
        """Open the server to everybody who reaches it, or close it to callers without a key."""
        body = await read_body(request, REQUEST_MAX, READ_S)
        openness = read_json(body, AccessRequest, "the request").openness
        if openness is Openness.LOCAL:
            raise BadRequest("openness: expected open or closed, got local: nobody can undecide it")
        if openness is Openness.OPEN and self._listen:
            raise Conflict(
                f"a server that listens on {self._listen} cannot be opened to callers without a"
                " key: listen on 127.0.0.1, or give them a key"
            )
        ring, store = self._store.ring, self._store.openness
        if openness is Openness.OPEN:
            await store.save(Decision(openness, self._exposure()))
            ring.decide(openness)
        else:
            ring.decide(openness)  # in memory first, whatever the disk does
            await store.save(CLOSED)
        log.warning("access without a key was decided", openness=openness.value)
        return self._answer()

    async def rotate_admin(self, _request: web.Request) -> web.Response:
        """Replace the admin token. The answer has no secret: it is in the data folder.

        Raises Conflict if another request replaces it at the same time.
        """
        ring = self._store.ring
        before = ring.token_id
        async with self._rotating:
            if ring.token_id != before:
                raise Conflict(
                    "another request has just replaced the admin token: the new one is in"
                    f" DATA/{TOKEN_FILE}"
                )
            # The file first: after a crash it is the truth.
            token = await asyncio.to_thread(replace_admin_token, self._store.settings.data)
            ring.replace_token(token)
        log.warning("the admin token was replaced", before=before, now=ring.token_id)
        return json_answer({"id": ring.token_id, "replaced": before})

    def _answer(self) -> web.Response:
        ring = self._store.ring
        return json_answer(
            {
                "openness": ring.openness.value,
                "exposure": list(self._exposure()),
                "has_keys": ring.has_keys,
            }
        )


class SessionRoutes:
    """Handler for `GET /admin/v1/session`. `facts` do not change while the server runs."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = {key: facts[key] for key in SESSION_FACTS}

    async def get_session(self, request: web.Request) -> web.Response:
        """Return the key's scopes. Every request is checked anew, whatever this answer says."""
        return json_answer({"scopes": list(request[CALLER].scopes), **self._facts})
