"""Routes for hosts: the machines that run replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, assert_never

import msgspec
from aiohttp import web
from msgspec.structs import replace

from admin.api.answers import READ_S, REQUEST_MAX, flag, json_answer, read_request
from admin.documents.functions import Items
from admin.documents.hosts import (
    HostDetail,
    HostSettings,
    KubernetesHostSettings,
    NewHost,
    RemovedHost,
    SshHostSettings,
)
from admin.documents.requests import HostChanges, KubernetesHostRequest, SshHostRequest
from admin.host_cluster import HostClusters
from admin.host_login import HostLogins, load_logins, login_of
from admin.views import host_row, struct_of
from gateway.http.bodies import read_body
from gateway.statuses import ACCEPTED, CREATED
from hosts.checks import Check
from pool_manager.core.hosts import HostState
from pool_manager.host import HostView
from pool_manager.manager import Manager
from registry.bounded_text import read_json
from registry.errors import BadRequest, Conflict, Unknown
from registry.model.hosts import (
    HOSTS_MAX,
    LOCAL_HOST,
    HostKind,
    KubernetesHost,
    SshHost,
    StoredHost,
    host_order,
    where,
)
from registry.names import is_name
from registry.store.hosts import HostStore, check_host
from registry.tasks import Tasks

LOGIN_FIELDS: Final = frozenset({"address", "host_key", "identity", "engine"})
"""Fields whose change needs a new login."""
UNCHECKED_FIELDS: Final = frozenset({"labels", "is_draining"})
"""Fields of a cluster that its API server does not see."""


class HostRoutes:
    """Handlers for hosts. `wall` returns Unix seconds."""

    def __init__(
        self,
        hosts: HostStore,
        manager: Manager,
        logins: HostLogins,
        clusters: HostClusters,
        wall: Callable[[], float],
    ) -> None:
        self._hosts = hosts
        self._manager = manager
        self._logins, self._clusters = logins, clusters
        self._wall = wall
        self._tasks = Tasks("hosts", HOSTS_MAX)
        self._removals: dict[str, asyncio.Event] = {}

    async def stop_waiting(self, _app: object = None) -> None:
        """Follow no removal any more (handler of aiohttp's shutdown signal). Hosts that still drain
        are kept, and drain when the server runs again."""
        await self._tasks.close()

    async def list_hosts(self, _request: web.Request) -> web.Response:
        """Return every host, the local machine first. A definition that has no host yet, as a
        cluster without nodes that can be used, stands for itself."""
        views = self._manager.hosts()
        bare = [one for one in self._hosts.all() if not self._manager.hosts_of(one.name)]
        views += [self._view(one) for one in bare]
        views.sort(key=lambda view: host_order(view.name))
        return json_answer(Items([host_row(view) for view in views], None))

    async def add_host(self, request: web.Request) -> web.Response:
        """Reach a host, check what it needs, and add it. With `unchecked=true` it is added as it
        is."""
        body = await read_body(request, REQUEST_MAX, READ_S)
        is_checked = not flag(request.query, "unchecked")
        host: StoredHost
        if read_json(body, HostKind, "the host").kind == "ssh":
            login = read_json(body, SshHostRequest, "the host")
            host, checks = await self._new_login(login, is_checked=is_checked)
        else:
            cluster = read_json(body, KubernetesHostRequest, "the host")
            host, checks = await self._new_cluster(cluster, is_checked=is_checked)
        added = await self._hosts.add(host)
        detail = msgspec.structs.asdict(self._detail(added))
        return json_answer(NewHost(**detail, checks=checks), CREATED)

    async def _new_login(
        self, wanted: SshHostRequest, *, is_checked: bool
    ) -> tuple[SshHost, list[Check]]:
        given = msgspec.structs.asdict(wanted)
        accepts_key = given.pop("accept_host_key")
        host = SshHost(**given, added_s=round(self._wall(), 3))
        await load_logins()
        login_of(host)
        if not host.name:
            host = replace(host, name=_derived_name(host.address))
        self._hosts.check_new(host)
        if not is_checked:
            return host, []
        checked = await self._logins.check(host, accepts_key=accepts_key)
        return checked.host, checked.checks

    async def _new_cluster(
        self, wanted: KubernetesHostRequest, *, is_checked: bool
    ) -> tuple[KubernetesHost, list[Check]]:
        host = KubernetesHost(**msgspec.structs.asdict(wanted), added_s=round(self._wall(), 3))
        self._hosts.check_new(host)
        self._clusters.check_server()
        return host, await self._clusters.check(host) if is_checked else []

    async def get_host(self, request: web.Request) -> web.Response:
        """Return a host with its settings, null for one that is not defined here."""
        name = request.match_info["name"]
        view = self._manager.host(name)
        if view is not None and not self._hosts.has(name):
            return json_answer(_detail(view, None))
        return json_answer(self._detail(self._hosts.get(name)))

    async def patch_host(self, request: web.Request) -> web.Response:
        """Change a host. A new login, and another cluster, is checked as that of a new host."""
        wanted, name = await read_request(request, HostChanges, "the host"), self._named(request)
        before = self._hosts.get(name)
        changes = _changes(before, wanted)
        if name in self._removals and changes.get("is_draining") is not False:
            raise Conflict(f"{name} is being removed; fnctl host drain {name} --undo ends that")
        after = replace(before, **changes)
        is_checked = not flag(request.query, "unchecked")
        if isinstance(after, SshHost):
            await load_logins()
            login_of(after)
        check_host(after)
        if isinstance(after, SshHost):
            if is_checked and LOGIN_FIELDS & changes.keys():
                await self._logins.check(after)
        elif is_checked and changes.keys() - UNCHECKED_FIELDS:
            await self._clusters.check(after)
        self._removals.pop(name, None)
        return json_answer(self._detail(await self._hosts.change(name, changes)))

    async def remove_host(self, request: web.Request) -> web.Response:
        """Remove a host: 202 while its replicas drain. An unreachable host with replicas is only
        removed with `force=true`, which forgets them."""
        name = self._named(request)
        is_forced = flag(request.query, "force")
        self._hosts.get(name)
        for view in self._manager.hosts_of(name):
            if view.replicas and view.state in ("unreachable", "joining") and not is_forced:
                raise Conflict(
                    f"{view.name} is {view.state}, and nothing can stop what may run there"
                    f" (replicas: {view.replicas}); pass --force to forget it: it ends by itself"
                    " after FN_ORPHAN_S"
                )
        await self._hosts.change(name, {"is_draining": True})
        with suppress(Unknown):  # the manager could not use its definition
            self._manager.remove_host(name, force=is_forced)
        left = self._manager.hosts_of(name)
        if not left:
            await self._hosts.remove(name)
            return json_answer(RemovedHost(name, 0))
        if name not in self._removals:
            self._removals[name] = asyncio.Event()
            self._tasks.spawn(f"remove {name}", self._follow_removal(name, self._removals[name]))
        return json_answer(RemovedHost(None, sum(view.replicas for view in left)), ACCEPTED)

    async def check_host(self, request: web.Request) -> web.Response:
        """Check all that a host needs."""
        name = request.match_info["name"]
        if self._manager.host(name) is not None and not self._hosts.has(name):
            name = name.partition("/")[0]  # a node: its cluster is what can be checked
        if reason := self._manager.why_kept(name):
            raise BadRequest(reason)
        host = self._hosts.get(name)
        match host:
            case SshHost():
                checks = await self._logins.examine(host)
            case KubernetesHost():
                self._clusters.check_server()
                checks = await self._clusters.examine(host)
            case _:
                assert_never(host)
        return json_answer(Items(checks, None))

    async def _follow_removal(self, name: str, changed: asyncio.Event) -> None:
        """Remove the row of a host once the manager has forgotten it, unless that is undone."""
        unsubscribe = self._manager.subscribe_hosts(lambda _name: changed.set())
        try:
            while self._removals.get(name) is changed and self._manager.hosts_of(name):
                changed.clear()
                await changed.wait()
        finally:
            unsubscribe()
        if self._removals.get(name) is changed:
            try:
                await self._hosts.remove(name)
            finally:
                del self._removals[name]

    def _detail(self, host: StoredHost) -> HostDetail:
        view = self._manager.host(host.name) or self._view(host)
        if isinstance(host, SshHost):
            return _detail(view, struct_of(SshHostSettings, host))
        return _detail(view, struct_of(KubernetesHostSettings, host))

    def _view(self, host: StoredHost) -> HostView:
        """Return the view of a definition whose hosts have names of their own, if it has any."""
        views = self._manager.hosts_of(host.name)
        return HostView(
            host.name,
            where(host),
            _state_of(host, views),
            self._manager.complaint_of(host.name),
            since_s=max((view.since_s for view in views), default=0.0),
            labels=dict(host.labels),
            driver=next((view.driver for view in views), ""),
            cpu_slots=sum(view.cpu_slots for view in views),
            gpus=sum(view.gpus for view in views),
            replicas=sum(view.replicas for view in views),
        )

    def _named(self, request: web.Request) -> str:
        """Return the host of the path. Raises BadRequest for one that is not defined here."""
        name = request.match_info["name"]
        if reason := self._manager.why_kept(name):
            raise BadRequest(reason)
        if not self._hosts.has(name) and self._manager.host(name) is not None:
            whole = name.partition("/")[0]
            raise BadRequest(f"{name} is a node of the host {whole}: expected {whole}")
        return name


def _detail(view: HostView, settings: HostSettings | None) -> HostDetail:
    return HostDetail(**msgspec.structs.asdict(host_row(view)), settings=settings)


def _state_of(host: StoredHost, views: Sequence[HostView]) -> HostState:
    """Return the state of a definition that has several hosts, or none yet."""
    if host.is_draining:
        return HostState.DRAINING
    return HostState.UP if any(view.state == "up" for view in views) else HostState.JOINING


def _changes(host: StoredHost, wanted: HostChanges) -> dict[str, Any]:
    """Return the changed fields of `host`. Raises BadRequest if there are none, or one that its
    kind of host does not have."""
    given = msgspec.structs.asdict(wanted)
    changes = {key: value for key, value in given.items() if value is not msgspec.UNSET}
    if not changes:
        able = [key for key in given if key == "draining" or hasattr(host, key)]
        raise BadRequest(f"expected at least one of {', '.join(able)}; got none")
    if "draining" in changes:
        changes["is_draining"] = changes.pop("draining")
    strange = changes.keys() - set(type(host).__struct_fields__)
    if strange:
        kind = "by SSH" if isinstance(host, SshHost) else "in Kubernetes"
        raise BadRequest(f"{host.name} is a host {kind}: it has no {', '.join(sorted(strange))}")
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
