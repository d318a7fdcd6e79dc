"""Routes for the secrets of servers. No answer has a value."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from admin.api.answers import flag, json_answer, read_request
from admin.deploy.upstream_keys import UpstreamKeyReader, upstream_secret
from admin.documents.functions import Items
from admin.documents.requests import SecretRequest
from admin.documents.server import RemovedSecret, SecretChange, SecretRow
from admin.store import Store
from gateway.statuses import CREATED, OK
from pool_manager.core.state import State
from pool_manager.manager import Manager
from registry.catalog import Deployed
from registry.errors import BadRequest, Conflict
from registry.model.functions import NAMESPACE

REQUEST_MAX = 512 * 1024
"""Max bytes of a request: a value as JSON takes up to six times its bytes."""


class SecretRoutes:
    """Handlers for secrets. A changed value counts from the next start of a replica; functions
    that failed without it are started at once. Where it is a key that the gateway sends, it counts
    from the next call."""

    def __init__(
        self,
        store: Store,
        manager: Manager,
        upstream_keys: UpstreamKeyReader,
        wall: Callable[[], float],
    ) -> None:
        self._catalog = store.catalog
        self._secrets = store.secrets
        self._manager = manager
        self._upstream_keys = upstream_keys
        self._wall = wall

    async def list_secrets(self, _request: web.Request) -> web.Response:
        """Return every secret without its value. `problem` says why the value cannot be read, ""
        if it can; `functions` are the functions that need it."""
        items = [
            SecretRow(one.name, one.set_s, one.problem, self._current(one.name))
            for one in await self._secrets.list()
        ]
        return json_answer(Items(items, None))

    async def set_secret(self, request: web.Request) -> web.Response:
        """Create a secret, or replace its value. `stale` are functions with replicas that still
        have the old value; `unreadable` are other secrets whose key is missing."""
        try:
            wanted = await read_request(request, SecretRequest, "the secret", REQUEST_MAX)
        except BadRequest:
            # Without the decoder's reason, which may quote the value.
            raise BadRequest("the secret cannot be read: expected {name, value} as text") from None
        change = await self._secrets.set(wanted.name, wanted.value, now_s=self._wall())
        await self._upstream_keys.refresh(wanted.name, NAMESPACE)
        if change.is_changed:
            for one in self._needing(wanted.name):
                self._manager.retry(one.revision.key)
        answer = SecretChange(
            name=change.secret.name,
            set_s=change.secret.set_s,
            created=change.is_new,
            changed=change.is_changed,
            stale=self._stale(wanted.name) if change.is_changed else [],
            unreadable=list(change.unreadable),
        )
        return json_answer(answer, CREATED if change.is_new else OK)

    async def remove_secret(self, request: web.Request) -> web.Response:
        """Remove a secret. While a function needs it, only with `force=true`; `needed_by` are the
        revisions that cannot start or be called any more."""
        name = request.match_info["name"]
        is_forced, current = flag(request.query, "force"), self._current(name)
        if current and not is_forced:
            raise Conflict(
                f"secret {name} is needed by {', '.join(current)}, which could not be called any"
                " more; pass --force to remove it",
                detail={"functions": current},
            )
        await self._secrets.remove(name)
        await self._upstream_keys.refresh(name, NAMESPACE)
        refs = [one.revision.ref for one in self._needing(name)]
        return json_answer(RemovedSecret(name, refs))

    def _needing(self, name: str) -> list[Deployed]:
        """Return the revisions that need a secret."""
        found = (one for one in self._catalog.every() if name in secrets_of(one))
        return sorted(found, key=lambda one: (one.revision.name, one.revision.number))

    def _current(self, name: str) -> list[str]:
        """Return the functions whose revisions with the traffic need a secret."""
        return [
            one.function.name
            for one in self._needing(name)
            if one.function.revision == one.revision.number
        ]

    def _stale(self, name: str) -> list[str]:
        """Return the functions with a replica that needs a secret and began before now."""
        pools = {
            one.revision.key: one.function.name
            for one in self._needing(name)
            if name in variables_of(one)
        }
        replicas = self._manager.replicas()
        return sorted(
            {
                pools[one.pool]
                for one in replicas
                if one.pool in pools and one.state is not State.RELEASING
            }
        )


def secrets_of(deployed: Deployed) -> set[str]:
    """Return the names of the secrets that a revision needs."""
    upstream = upstream_secret(deployed.revision.server)
    return variables_of(deployed) | ({upstream} if upstream else set())


def variables_of(deployed: Deployed) -> set[str]:
    """Return the names of the secrets that a revision's server gets as variables."""
    server = deployed.revision.server
    return set(server.secrets.values()) if server else set()
