"""Routes for hosts: the machines that run replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from admin.host_login import HostLogins, checks_json, load_logins, login_of
from admin.views import host_json, host_settings_json
from gateway.http.bodies import read_body
from gateway.problems import ACCEPTED, CREATED, OK, json_answer
from pool_manager.host import HostView
from pool_manager.manager import Manager
from registry.bounded_text import read_json
from registry.errors import BadRequest, Conflict
from registry.model.hosts import HOSTS_MAX, LOCAL_HOST, SshHost
from registry.names import is_name
from registry.store.hosts import HostStore, check_host
from registry.tasks import Tasks

REQUEST_MAX = 64 * 1024
READ_S = 10.0
YES: Final = "true"
DEFAULTS: Final = SshHost("defaults", address="defaults")
LOGIN_FIELDS: Final = frozenset({"address", "host_key", "identity", "engine"})
"""Fields whose change needs a new login."""


class HostRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A new host. `name` is that of the machine if it is left out. `accept_host_key`: pin the key
    that a machine without a known key shows."""

    address: str
    name: str = ""
    labels: dict[str, str] = {}
    host_key: str = ""
    identity: str = ""
    engine: str = DEFAULTS.engine
    cpu_slots: int = DEFAULTS.cpu_slots
    gpus: str = DEFAULTS.gpus
    files_mib: int = DEFAULTS.files_mib
    accept_host_key: bool = False


class HostChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Changes of a host; what is left out stays. Labels are merged, null removes one. `draining`:
    no replica is placed there, and those that run there stop."""

    address: str | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET
    host_key: str | msgspec.UnsetType = msgspec.UNSET
    identity: str | msgspec.UnsetType = msgspec.UNSET
    engine: str | msgspec.UnsetType = msgspec.UNSET
    cpu_slots: int | msgspec.UnsetType = msgspec.UNSET
    gpus: str | msgspec.UnsetType = msgspec.UNSET
    files_mib: int | msgspec.UnsetType = msgspec.UNSET
    draining: bool | msgspec.UnsetType = msgspec.UNSET


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
        items = [host_json(view) for view in self._manager.hosts()]
        return json_answer({"items": items, "next": None})

    async def add_host(self, request: web.Request) -> web.Response:
        """Log in to a host, check what it needs, and add it. With `unchecked=true` it is added as
        it is."""
        body = await read_body(request, REQUEST_MAX, READ_S)
        wanted = read_json(body, HostRequest, "the host")
        given = msgspec.structs.asdict(wanted)
        accepts_key = given.pop("accept_host_key")
        host = SshHost(**given, added_s=round(self._wall(), 3))
        await load_logins()
        login_of(host)
        if not host.name:
            host = replace(host, name=_derived_name(host.address))
        self._hosts.check_new(host)
        checks: list[dict[str, str]] = []
        if not _is_yes("unchecked", request.query.get("unchecked", "")):
            checked = await self._logins.check(host, accepts_key=accepts_key)
            host, checks = checked.host, checks_json(checked.checks)
        host = await self._hosts.add(host)
        return json_answer({**self._detail(host), "checks": checks}, CREATED)

    async def get_host(self, request: web.Request) -> web.Response:
        """Return a host with its settings, null for one that is not defined here."""
        name = request.match_info["name"]
        view = self._manager.host(name)
        if view is not None and not self._hosts.has(name):
            return json_answer({**host_json(view), "settings": None})
        return json_answer(self._detail(self._hosts.get(name)))

    async def patch_host(self, request: web.Request) -> web.Response:
        """Change a host. A new login is checked as that of a new host."""
        body = await read_body(request, REQUEST_MAX, READ_S)
        name = self._named(request)
        before = self._hosts.get(name)
        changes = _changes(before, read_json(body, HostChanges, "the host"))
        if name in self._removals and changes.get("is_draining") is not False:
            raise Conflict(f"{name} is being removed; fnctl host drain {name} --undo ends that")
        after = replace(before, **changes)
        await load_logins()
        login_of(after)
        check_host(after)
        if LOGIN_FIELDS & changes.keys() and not _is_yes(
            "unchecked", request.query.get("unchecked", "")
        ):
            await self._logins.check(after)
        self._removals.pop(name, None)
        return json_answer(self._detail(await self._hosts.change(name, changes)))

    async def remove_host(self, request: web.Request) -> web.Response:
        """Remove a host: 202 while its replicas drain. An unreachable host with replicas is only
        removed with `force=true`, which forgets them."""
        name = self._named(request)
        is_forced = _is_yes("force", request.query.get("force", ""))
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
            return json_answer({"removed": name, "replicas": 0})
        if name not in self._removals:
            self._removals[name] = asyncio.Event()
            self._tasks.spawn(f"remove {name}", self._follow_removal(name, self._removals[name]))
        return json_answer({"removed": None, "replicas": left.replicas}, ACCEPTED)

    async def check_host(self, request: web.Request) -> web.Response:
        """Check all that a host needs."""
        host = self._hosts.get(self._named(request))
        checks = await self._logins.examine(host)
        return json_answer({"items": checks_json(checks), "next": None}, OK)

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

    def _detail(self, host: SshHost) -> dict[str, Any]:
        view = self._manager.host(host.name) or HostView(host.name, host.address)
        return {**host_json(view), "settings": host_settings_json(host)}

    def _named(self, request: web.Request) -> str:
        """Return the host of the path. Raises BadRequest for one that is not defined here."""
        name = request.match_info["name"]
        if reason := self._manager.why_kept(name):
            raise BadRequest(reason)
        return name


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


def _is_yes(key: str, value: str) -> bool:
    if value not in ("", YES):
        raise BadRequest(f"{key}: expected {YES}, got {value[:40]!r}")
    return value == YES
