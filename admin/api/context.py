"""What the operator's side of a server works with."""

from __future__ import annotations

from dataclasses import dataclass

from admin.deploy.deploys import Deploys
from admin.events.snapshot import GatewayState
from admin.history import ServerHistory
from admin.settings import Settings
from admin.store import Store
from gateway.observing.errors import RecentFailures
from pool_manager.manager import Manager


@dataclass(frozen=True, slots=True)
class AdminContext:
    """What the admin API works with. `held` knows what all gateway processes hold,
    `failures` what went wrong in them."""

    settings: Settings
    store: Store
    manager: Manager
    deploys: Deploys
    history: ServerHistory
    gateways: GatewayState
    failures: RecentFailures
