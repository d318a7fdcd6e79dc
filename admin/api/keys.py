"""Routes for access keys, for who needs one, for the admin token, and for the session: the scopes
of a request's key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog
from aiohttp import web

from admin.api.answers import json_answer, read_request
from admin.api.context import CALLER
from admin.documents.events import ServerFacts
from admin.documents.functions import Items
from admin.documents.requests import AccessRequest, KeyRequest
from admin.documents.server import AccessState, KeyRow, NewKey, NewToken, Removed, Session
from admin.store import TOKEN_FILE, Store, replace_admin_token
from admin.views import struct_of
from gateway.statuses import CREATED
from registry.errors import BadRequest, Conflict
from registry.openness import CLOSED, Decision, Openness
from registry.store.keys import KeyRing, Keys, Revocations

log = structlog.get_logger()


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
        items = [struct_of(KeyRow, key) for key in stored if ring.with_id(key.id) is not None]
        return json_answer(Items(items, None))

    async def add_key(self, request: web.Request) -> web.Response:
        """Create a key. Only this answer has the secret; the store keeps none."""
        wanted = await read_request(request, KeyRequest, "the key request")
        key, secret = await self._keys.add(
            wanted.scopes, wanted.note, now_s=self._wall(), priority=wanted.priority
        )
        self._ring.put(key)
        row = msgspec.structs.asdict(struct_of(KeyRow, key))
        return json_answer(NewKey(**row, secret=secret), CREATED)

    async def remove_key(self, request: web.Request) -> web.Response:
        """Revoke a key. Requests with it are refused from now on, and what it has open is cut."""
        id = request.match_info["id"]
        await self._revocations.revoke(id)
        return json_answer(Removed(id))


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
        openness = (await read_request(request, AccessRequest, "the request")).openness
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
        return json_answer(NewToken(ring.token_id, before))

    def _answer(self) -> web.Response:
        ring = self._store.ring
        return json_answer(AccessState(ring.openness, list(self._exposure()), ring.has_keys))


class SessionRoutes:
    """Handler for `GET /admin/v1/session`. `facts` do not change while the server runs."""

    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts

    async def get_session(self, request: web.Request) -> web.Response:
        """Return the key's scopes. Every request is checked anew, whatever this answer says."""
        facts, scopes = self._facts, list(request[CALLER].scopes)
        return json_answer(Session(scopes, facts.version, facts.driver, facts.workers))
