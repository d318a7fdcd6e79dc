"""Keeps the hosts of the manager in step with the store."""

from __future__ import annotations

import structlog

from pool_manager.manager import Manager
from registry.errors import FnError, Unknown
from registry.model.hosts import Host
from registry.store.hosts import HostStore

log = structlog.get_logger()


class HostSync:
    """Defines every stored host at the manager, and removes it there with its row."""

    def __init__(self, hosts: HostStore, manager: Manager) -> None:
        self._manager = manager
        for host in hosts.all():
            self._changed(host.name, host)
        self.close = hosts.subscribe(self._changed)

    def _changed(self, name: str, host: Host | None) -> None:
        try:
            if host is None:
                self._manager.remove_host(name)
            else:
                self._manager.define_host(host)
        except Unknown:  # the manager has forgotten it before
            return
        except FnError as error:
            log.error("a host cannot be used", host=name, reason=error.message)
