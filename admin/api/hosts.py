"""Routes for hosts: the machines that run replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from admin.api.answers import flag, json_answer, read_request
from admin.documents.functions import Items
from admin.documents.hosts import HostDetail, HostSettings, NewHost, RemovedHost
from admin.documents.requests import HostChanges, HostRequest
from admin.host_login import HostLogins, load_logins, login_of
from admin.views import host_row, struct_of
from gateway.statuses import ACCEPTED, CREATED
from hosts.checks import Check
from pool_manager.host import HostView
from pool_manager.manager import Manager
from registry.errors import BadRequest, Conflict
from registry.model.hosts import HOSTS_MAX, LOCAL_HOST, SshHost
from registry.names import is_name
from registry.store.hosts import HostStore, check_host
from registry.tasks import Tasks

LOGIN_FIELDS: Final = frozenset({"address", "host_key", "identity", "engine"})
"""Fields whose change needs a new login."""


class HostRoutes:
    """Handlers for hosts. `wall` returns Unix seconds."""

    def __init__(
        self, hosts: HostStore, manager: Manager, logins: HostLogins, wall: Callable[[], float]
    ) -> None:
        self._hosts = hosts
        self._manager = manager
        self._logins = logins
        self._wall = wall
        self._tasks = Tasks("hosts", HOSTS_MAX)
        self._removals: dict[str, asyncio.Event] = {}

    async def stop_waiting(self, _app: object = None) -> None:
        """Follow no removal any more (handler of aiohttp's shutdown signal). Hosts that still drain
        are kept, and drain when the server runs again."""
        await self._tasks.close()

    async def list_hosts(self, _request: web.Request) -> web.Response:
        """Return every host, the local machine first."""
        return json_answer(Items([host_row(view) for view in self._manager.hosts()], None))

    async def add_host(self, request: web.Request) -> web.Response:
        """Log in to a host, check what it needs, and add it. With `unchecked=true` it is added as
        it is."""
        wanted = await read_request(request, HostRequest, "the host")
        given = msgspec.structs.asdict(wanted)
        accepts_key = given.pop("accept_host_key")
        host = SshHost(**given, added_s=round(self._wall(), 3))
        await load_logins()
        login_of(host)
        if not host.name:
            host = replace(host, name=_derived_name(host.address))
        self._hosts.check_new(host)
        checks: list[Check] = []
        if not flag(request.query, "unchecked"):
            checked = await self._logins.check(host, accepts_key=accepts_key)
            host, checks = checked.host, checked.checks
        host = await self._hosts.add(host)
        detail = msgspec.structs.asdict(self._detail(host))
        return json_answer(NewHost(**detail, checks=checks), CREATED)

    async def get_host(self, request: web.Request) -> web.Response:
        """Return a host with its settings, null for one that is not defined here."""
        name = request.match_info["name"]
        view = self._manager.host(name)
        if view is not None and not self._hosts.has(name):
            return json_answer(_detail(view, None))
        return json_answer(self._detail(self._hosts.get(name)))

    async def patch_host(self, request: web.Request) -> web.Response:
        """Change a host. A new login is checked as that of a new host."""
        wanted, name = await read_request(request, HostChanges, "the host"), self._named(request)
        before = self._hosts.get(name)
        changes = _changes(before, wanted)
        if name in self._removals and changes.get("is_draining") is not False:
            raise Conflict(f"{name} is being removed; fnctl host drain {name} --undo ends that")
        after = replace(before, **changes)
        await load_logins()
        login_of(after)
        check_host(after)
        if LOGIN_FIELDS & changes.keys() and not flag(request.query, "unchecked"):
            await self._logins.check(after)
        self._removals.pop(name, None)
        return json_answer(self._detail(await self._hosts.change(name, changes)))

    async def remove_host(self, request: web.Request) -> web.Response:
        """Remove a host: 202 while its replicas drain. An unreachable host with replicas is only
        removed with `force=true`, which forgets them."""
        name = self._named(request)
        is_forced = flag(request.query, "force")
        self._hosts.get(name)
        view = self._manager.host(name)
        if view and view.replicas and view.state in ("unreachable", "joining") and not is_forced:
            raise Conflict(
                f"{name} is {view.state}, and nothing can stop what may run there (replicas:"
                f" {view.replicas}); pass --force to forget it: it ends by itself after FN_ORPHAN_S"
            )
        await self._hosts.change(name, {"is_draining": True})
        if view is not None:
            self._manager.remove_host(name, force=is_forced)
        left = self._manager.host(name)
        if left is None:
            await self._hosts.remove(name)
            return json_answer(RemovedHost(name, 0))
        if name not in self._removals:
            self._removals[name] = asyncio.Event()
            self._tasks.spawn(f"remove {name}", self._follow_removal(name, self._removals[name]))
        return json_answer(RemovedHost(None, left.replicas), ACCEPTED)

    async def check_host(self, request: web.Request) -> web.Response:
        """Check all that a host needs."""
        host = self._hosts.get(self._named(request))
        checks = await self._logins.examine(host)
        return json_answer(Items(checks, None))

    async def _follow_removal(self, name: str, changed: asyncio.Event) -> None:
        """Remove the row of a host once the manager has forgotten it, unless that is undone."""
        unsubscribe = self._manager.subscribe_hosts(lambda _name: changed.set())
        try:
            while self._removals.get(name) is changed and self._manager.host(name) is not None:
                changed.clear()
                await changed.wait()
        finally:
            unsubscribe()
        if self._removals.get(name) is changed:
            try:
                await self._hosts.remove(name)
            finally:
                del self._removals[name]

    def _detail(self, host: SshHost) -> HostDetail:
        view = self._manager.host(host.name) or HostView(host.name, host.address)
        return _detail(view, struct_of(HostSettings, host))

    def _named(self, request: web.Request) -> str:
        """Return the host of the path. Raises BadRequest for one that is not defined here."""
        name = request.match_info["name"]
        if reason := self._manager.why_kept(name):
            raise BadRequest(reason)
        return name


def _detail(view: HostView, settings: HostSettings | None) -> HostDetail:
    return HostDetail(**msgspec.structs.asdict(host_row(view)), settings=settings)


def _changes(host: SshHost, wanted: HostChanges) -> dict[str, Any]:
    """Return the changed fields of `host`. Raises BadRequest if there are none."""
    given = msgspec.structs.asdict(wanted)
    changes = {key: value for key, value in given.items() if value is not msgspec.UNSET}
    if not changes:
        raise BadRequest(f"expected at least one of {', '.join(given)}; got none")
    if "draining" in changes:
        changes["is_draining"] = changes.pop("draining")
    if "labels" in changes:
        merged = {**host.labels, **changes["labels"]}
        changes["labels"] = {key: value for key, value in merged.items() if value is not None}
    return changes


def _derived_name(address: str) -> str:
    """Return the first word of a machine's name: gpu2 of nn@gpu2.example.com:2222. Raises
    BadRequest."""
    name = address.rpartition("@")[2].partition(":")[0].partition(".")[0].lower()
    if not is_name(name) or name == LOCAL_HOST:
        raise BadRequest(f"cannot derive a name from {address[:80]!r}; choose one with --name")
    return name
