"""Routes for who may call without a key, and for the admin token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog
from aiohttp import web

from admin.store import TOKEN_FILE, Store, replace_admin_token
from gateway.http.bodies import read_body
from gateway.problems import json_answer
from registry.errors import BadRequest, Conflict
from registry.openness import CLOSED, Decision, Openness

log = structlog.get_logger()

REQUEST_MAX: Final = 4096
READ_S: Final = 10.0


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
        try:
            openness = msgspec.json.decode(body, type=AccessRequest).openness
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(f"the request cannot be read: {error}") from error
        if openness is Openness.LOCAL:
            raise BadRequest("openness: expected open or closed, got local: nobody can undecide it")
        if openness is Openness.OPEN and self._listen:
            raise Conflict(
                f"a server that listens on {self._listen} cannot be opened to callers without a"
                " key: listen on 127.0.0.1, or give them a key"
            )
        is_open = openness is Openness.OPEN
        await self._store.openness.save(Decision(openness, self._exposure()) if is_open else CLOSED)
        self._store.ring.decide(openness)
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
