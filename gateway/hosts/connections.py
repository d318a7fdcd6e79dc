"""The SSH connections of this gateway process: two per host that has replicas.

One carries small frames, one the bodies over 64 KiB and the exchanges with functions' servers.
Beside a body of 10 MB, small calls on the same connection take 42 to 56 ms at the 99th percentile,
8 ms on another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from msgspec.structs import replace

from gateway.hosts.data_link import Route
from gateway.hosts.greeting import Connection
from gateway.hosts.ssh import SshConnection
from registry.exchange import HostRoute, SshRoute
from registry.model.hosts import HOSTS_MAX as STORED_MAX
from registry.tasks import Tasks

log = structlog.get_logger()

UNUSED_S: Final = 60.0
"""Seconds after the last endpoint of a host before its connections are closed."""
HOSTS_MAX: Final = 2 * STORED_MAX
"""Max hosts that one process is connected to: all stored ones, and as many that were removed a
moment ago and are still connected."""


Connect = Callable[[str, HostRoute, Tasks], Connection]
"""Makes a connection, not opened yet: its name, the way to the host, the owner of its tasks."""


def connection_of(name: str, way: HostRoute, tasks: Tasks) -> Connection:
    """Make the connection for a route of any kind; the only place that distinguishes them."""
    match way:
        case SshRoute():
            return SshConnection(name, way, tasks)


@dataclass(slots=True)
class _Host:
    """The connections to one host."""

    way: HostRoute
    route: Route
    """Both connections."""
    unused_s: float = 0.0
    """Since when the host is not listed (monotonic seconds), 0 while it is."""


class HostConnections:
    """Connections to all hosts with replicas. Event loop thread only."""

    def __init__(self, connect: Connect, tasks: Tasks, is_used: Callable[[str], bool]) -> None:
        """Create without connections. `is_used(host)`: whether a link to a replica there is left;
        replicas that are no longer listed finish their calls."""
        self._connect = connect
        self._tasks = tasks
        self._is_used = is_used
        self._hosts: dict[str, _Host] = {}

    def route(self, host: str) -> Route:
        """Return the way to the replicas of a host. Raises OSError for an unknown one."""
        found = self._hosts.get(host)
        if found is None:
            raise ConnectionError(f"no connection to host {host}")
        return found.route

    def update(self, ways: dict[str, HostRoute], now: float) -> None:
        """Connect to hosts that are newly listed; `ways` has all of them.

        1. A listed host keeps its connections. A new epoch alone says only that the manager has
           connected anew: healthy connections of this process are not cut.
        2. Its login has changed: new connections replace the old ones.
        3. The manager has connected anew and this process has no connection: it connects at once
           instead of at the end of its pause.
        """
        for name, host in self._hosts.items():
            if name not in ways:
                host.unused_s = host.unused_s or now
        for name, way in ways.items():
            found = self._hosts.get(name)
            if found is not None:
                found.unused_s = 0.0
                if not _is_outdated(found, way):  # 1
                    found.way = way
                    continue
                self._close(found)  # 2, 3
            self._open(name, way)

    def sweep(self, now: float) -> None:
        """Close the connections to hosts that were not used for UNUSED_S."""
        for name, host in list(self._hosts.items()):
            if host.unused_s and now - host.unused_s >= UNUSED_S and not self._is_used(name):
                log.info("the connections to a host are closed", host=name)
                del self._hosts[name]
                self._close(host)

    async def close(self) -> None:
        """Close all connections."""
        hosts, self._hosts = list(self._hosts.values()), {}
        for host in hosts:
            for connection in host.route:
                await connection.close()

    def _open(self, name: str, way: HostRoute) -> None:
        self._hosts.pop(name, None)
        if len(self._hosts) >= HOSTS_MAX:
            log.error("too many hosts", host=name, most=HOSTS_MAX)
            return
        route = Route(*(self._connect(f"{name} {use}", way, self._tasks) for use in Route._fields))
        self._hosts[name] = _Host(way, route)
        for connection in route:
            connection.open()

    def _close(self, host: _Host) -> None:
        for connection in host.route:
            self._tasks.spawn("close a connection", connection.close())


def _is_outdated(host: _Host, way: HostRoute) -> bool:
    """Return whether the connections to a host are to be replaced."""
    if replace(way, epoch=host.way.epoch) != host.way:
        return True
    is_down = not any(each.is_up for each in host.route)
    return way.epoch != host.way.epoch and is_down
