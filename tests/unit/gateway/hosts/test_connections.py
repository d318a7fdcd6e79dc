"""Tests of the connections to hosts: when they are opened, replaced and closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from gateway.hosts import connections
from gateway.hosts.connections import UNUSED_S, HostConnections
from registry.exchange import HostRoute, SshRoute, TlsRoute
from registry.model.hosts import HOSTS_MAX
from registry.tasks import Tasks
from tests.support.remote_peers import UnixHost, UnixHosts

NOW = 100.0
WAY = SshRoute("nn@gpu2", host_key="ssh-ed25519 AAAA", epoch=1)


@dataclass
class Under:
    """Connections under test, and the names of hosts in use."""

    hosts: UnixHosts
    tasks: Tasks
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.connections = HostConnections(self.hosts, self.tasks, self.used.__contains__)

    async def settled(self) -> list[UnixHost]:
        """Return the connections that are not closed."""
        await asyncio.gather(*self.tasks._tasks)
        return [each for each in self.hosts.made if not each.is_closed]


@pytest.fixture
async def under() -> AsyncIterator[Under]:
    """Connections without a host."""
    tasks = Tasks("test")
    under = Under(UnixHosts(), tasks)
    yield under
    await under.connections.close()
    await tasks.close()


async def test_a_listed_host_has_two_connections(under: Under) -> None:
    """Opened once, however often the host is listed."""
    for _ in range(3):
        under.connections.update({"gpu2": WAY}, NOW)

    assert [each.name for each in under.hosts.made] == ["gpu2 calls", "gpu2 bodies"]
    assert all(each.is_open for each in under.hosts.made)
    assert under.connections.route("gpu2").calls.rtt_s == 0.07


async def test_an_unknown_host_has_no_route(under: Under) -> None:
    """The links try again."""
    with pytest.raises(ConnectionError, match="gpu3"):
        under.connections.route("gpu3")


async def test_a_new_epoch_cuts_nothing(under: Under) -> None:
    """The manager's connection was broken, this process's was not."""
    under.connections.update({"gpu2": WAY}, NOW)

    under.connections.update({"gpu2": SshRoute(WAY.address, WAY.host_key, epoch=2)}, NOW)

    assert len(await under.settled()) == len(under.hosts.made) == 2


async def test_a_new_epoch_ends_the_pause_of_lost_connections(under: Under) -> None:
    """The host is back: this process logs in at once."""
    under.connections.update({"gpu2": WAY}, NOW)
    for each in under.hosts.made:
        each.break_off()

    under.connections.update({"gpu2": SshRoute(WAY.address, WAY.host_key, epoch=2)}, NOW)

    assert await under.settled() == under.hosts.made[2:]


async def test_a_new_epoch_replaces_the_lost_connection_alone(under: Under) -> None:
    """The channels of the other one stay."""
    under.connections.update({"gpu2": WAY}, NOW)
    calls, bodies = under.hosts.made
    bodies.break_off()

    under.connections.update({"gpu2": SshRoute(WAY.address, WAY.host_key, epoch=2)}, NOW)

    assert await under.settled() == [calls, under.hosts.made[2]]
    assert under.connections.route("gpu2") == (calls, under.hosts.made[2])


async def test_lost_connections_of_the_same_epoch_are_kept(under: Under) -> None:
    """They log in again by themselves."""
    under.connections.update({"gpu2": WAY}, NOW)
    for each in under.hosts.made:
        each.break_off()

    under.connections.update({"gpu2": WAY}, NOW)

    assert len(under.hosts.made) == 2


@pytest.mark.parametrize(
    "way",
    [
        SshRoute("nn@other", WAY.host_key, epoch=1),
        SshRoute(WAY.address, "ssh-ed25519 BBBB", epoch=1),
        SshRoute(WAY.address, WAY.host_key, identity="/key", epoch=1),
        TlsRoute("authority", "certificate", "key", epoch=1),
    ],
)
async def test_another_login_replaces_the_connections(under: Under, way: HostRoute) -> None:
    """Another address, key or kind is another way, perhaps another machine."""
    under.connections.update({"gpu2": WAY}, NOW)

    under.connections.update({"gpu2": way}, NOW)

    assert [each.way for each in await under.settled()] == [way, way]


async def test_an_unlisted_host_is_left_after_a_while(under: Under) -> None:
    """And not before: its next replica needs no login."""
    under.connections.update({"gpu2": WAY}, NOW)
    under.connections.update({}, NOW)
    under.connections.update({}, NOW + 50)

    under.connections.sweep(NOW + UNUSED_S - 1)
    before = len(await under.settled())
    under.connections.sweep(NOW + UNUSED_S)

    assert (before, await under.settled()) == (2, [])


async def test_a_host_that_is_listed_again_is_kept(under: Under) -> None:
    """The time begins anew."""
    under.connections.update({"gpu2": WAY}, NOW)
    under.connections.update({}, NOW)
    under.connections.update({"gpu2": WAY}, NOW + 50)

    under.connections.sweep(NOW + 200)

    assert len(await under.settled()) == 2


async def test_a_draining_replica_keeps_its_host(under: Under) -> None:
    """Its calls may take longer than UNUSED_S."""
    under.connections.update({"gpu2": WAY}, NOW)
    under.connections.update({}, NOW)
    under.used.add("gpu2")

    under.connections.sweep(NOW + 10 * UNUSED_S)

    assert len(await under.settled()) == 2


async def test_the_number_of_hosts_is_limited(
    under: Under, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more is not connected to."""
    monkeypatch.setattr(connections, "HOSTS_MAX", 1)

    with capture_logs() as logs:
        under.connections.update({"gpu2": WAY, "gpu3": WAY}, NOW)

    assert {each.name for each in under.hosts.made} == {"gpu2 calls", "gpu2 bodies"}
    assert [each["host"] for each in logs] == ["gpu3"]


async def test_all_hosts_of_a_full_store_are_connected(under: Under) -> None:
    """The limit of connections is above that of stored hosts, also after one was replaced."""
    hosts = {f"h{number}": WAY for number in range(HOSTS_MAX)}
    under.connections.update(hosts, NOW)
    del hosts["h0"]
    under.connections.update({**hosts, "new": WAY}, NOW)

    assert all(under.connections.route(name) for name in [*hosts, "new"])


async def test_a_connection_that_is_down_is_named(under: Under) -> None:
    """Waiting for it ends with an OSError, as all failures of a link."""
    under.connections.update({"gpu2": WAY}, NOW)
    under.hosts.calls.break_off()

    with pytest.raises(ConnectionError, match="down"):
        await under.connections.route("gpu2").calls.wait_up(0.01)
