"""The connections of this gateway process to hosts: two per host that has replicas.

One carries small frames, one the bodies over 64 KiB and the exchanges with functions' servers.
Beside a body of 10 MB, small calls on the same connection take 42 to 56 ms at the 99th percentile,
8 ms on another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.hosts.data_link import Route
from gateway.hosts.greeting import Connection
from gateway.hosts.ssh import SshConnection
from gateway.hosts.tls import TlsConnection
from registry.exchange import HostRoute, SshRoute, TlsRoute
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
        case TlsRoute():
            return TlsConnection(name, way, tasks)


@dataclass(slots=True)
class _Host:
    """The connections to one host."""

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

    def rtt_s(self, host: str) -> float:
        """Return the round trip time to a host, 0 for this machine ("") and if it is unknown."""
        found = self._hosts.get(host)
        return 0.0 if found is None else found.route.calls.rtt_s

    def update(self, ways: dict[str, HostRoute], now: float) -> None:
        """Connect to hosts that are newly listed; `ways` has all of them.

        1. A connection that goes on with the way that is listed now is kept (`Connection.renew`).
        2. Any other one is replaced: its channels end.
        """
        for name, host in self._hosts.items():
            if name not in ways:
                host.unused_s = host.unused_s or now
        for name, way in ways.items():
            found = self._hosts.get(name)
            if found is None:
                self._open(name, way)
                continue
            found.unused_s = 0.0
            for use, connection in found.route._asdict().items():
                if not connection.renew(way):  # 2
                    self._tasks.spawn("close a connection", connection.close())
                    found.route = found.route._replace(**{use: self._opened(name, use, way)})

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
        if len(self._hosts) >= HOSTS_MAX:
            log.error("too many hosts", host=name, most=HOSTS_MAX)
            return
        uses = Route._fields
        self._hosts[name] = _Host(Route(*(self._opened(name, use, way) for use in uses)))

    def _opened(self, name: str, use: str, way: HostRoute) -> Connection:
        connection = self._connect(f"{name} {use}", way, self._tasks)
        connection.open()
        return connection

    def _close(self, host: _Host) -> None:
        for connection in host.route:
            self._tasks.spawn("close a connection", connection.close())
