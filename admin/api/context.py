"""Collaborators of the admin API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from admin.deploy.builds import Builds
from admin.deploy.deploys import Deploys, Settled, at_once
from admin.events.snapshot import GatewayState
from admin.history import ServerHistory
from admin.host_cluster import HostClusters
from admin.settings import Settings
from admin.store import Store
from gateway.admission.callers import Caller
from gateway.http.connected import Connections
from gateway.observing.errors import RecentFailures
from gateway.pages.tickets import Tickets
from pool_manager.manager import Manager

CALLER: Final = web.RequestKey("caller", Caller)
"""Whose request it is; `AdminApi` sets it before a handler gets the request."""
AskConnections = Callable[[str, str], Awaitable[Connections]]


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Collaborators of the admin API. `gateways` and `failures` have the load and the errors of all
    gateway processes. `connections(namespace, name)` returns the open exchanges of a function in
    all of them. `settled` returns when every process has applied all earlier changes."""

    settings: Settings
    store: Store
    manager: Manager
    deploys: Deploys
    builds: Builds
    history: ServerHistory
    gateways: GatewayState
    failures: RecentFailures
    connections: AskConnections
    tickets: Tickets
    clusters: HostClusters
    """Of the cluster that the server runs in."""
    settled: Settled = at_once
