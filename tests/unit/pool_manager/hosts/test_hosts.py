"""Hosts of a manager: what is defined, announced, withdrawn and removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pool_manager.core import events
from pool_manager.core.hosts import HostMemory
from pool_manager.core.machine import Machine
from pool_manager.host import HostEngine
from pool_manager.hosts.hosts import MEMBERS_MAX, Hosts
from pool_manager.hosts.kinds import engines_of
from pool_manager.hosts.local import LocalHost
from pool_manager.hosts.remote_host import RemoteHost
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings
from pool_manager.replicas.run_folders import RunFolders
from pool_manager.settings import PoolSettings
from registry.errors import BadRequest, DriverError, Unknown
from registry.model.hosts import LOCAL_HOST, Host, SshHost
from registry.tasks import Tasks
from runtime_image.contract.agent import HostReport
from tests.support.cluster import NODES, Cluster
from tests.support.fake_driver.driver import FakeDriver
from tests.support.modelled import Clock
from tests.support.replicas import ModelFolder


class Rig:
    """Hosts of a machine, which handles their events. Those by SSH are not connected."""

    def __init__(self, folder: Path, settings: HostSettings | None) -> None:
        self.events: list[events.Event] = []
        self.tasks = Tasks("rig")
        self.pool = PoolSettings(folder / "r", folder / "m", folder / "l")
        self.clock = clock = Clock()
        self.machine = Machine([], lambda: "id")
        self.bundles = ModelFolder(folder)
        self._over_ssh = engines_of(settings, self.pool)
        self.cluster: Cluster | None = None
        local = LocalHost(self.pool, FakeDriver(), self.bundles, RunFolders(self.pool))
        labels = settings.local_labels if settings is not None else {}
        self.hosts = Hosts(
            local,
            labels,
            self.make,
            (),
            self.emit,
            folder.joinpath,
            lambda _record: None,
            lambda _name: False,
            self.tasks,
            clock,
            clock,
        )

    def emit(self, event: events.Event) -> None:
        """Have the machine handle an event."""
        self.events.append(event)
        self.machine.handle(event, self.clock())
        self.hosts.sync(self.machine)

    def make(self, host: Host, services: HostServices) -> HostEngine:
        """Make an engine: one by SSH for a host of that kind, else a cluster."""
        if not isinstance(host, SshHost):
            self.cluster = Cluster(host, self.pool, self.bundles, services)
            return self.cluster
        return self._over_ssh(host, services)

    def names(self) -> list[str]:
        """Return the hosts that the fleet has."""
        return [one.name for one in self.hosts.fleet]

    def ssh(self) -> RemoteHost:
        """Return the only host by SSH."""
        [found] = [one for one in self.hosts.fleet if isinstance(one, RemoteHost)]
        return found

    def open_cluster(self) -> Cluster:
        """Define a cluster and connect to it."""
        self.hosts.define(Host("cluster", labels={"zone": "b"}))
        self.hosts.start()
        assert self.cluster is not None
        return self.cluster


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    settings = HostSettings("server", {}, range(1), local_labels={"zone": "a", "host": "other"})
    made = Rig(tmp_path, settings)
    yield made
    await made.hosts.close()
    await made.tasks.close()


async def test_every_host_has_its_name_as_a_label(rig: Rig) -> None:
    """This machine also has those of the settings; nothing can take the name's place."""
    rig.hosts.define_first()
    rig.hosts.define(SshHost("gpu2", address="nn@gpu2", labels={"zone": "b"}, is_draining=True))

    assert rig.events == [
        events.HostDefined(LOCAL_HOST, (("host", "local"), ("zone", "a")), is_draining=False),
        events.HostDefined("gpu2", (("host", "gpu2"), ("zone", "b")), is_draining=True),
    ]
    assert rig.names() == ["local", "gpu2"]


async def test_this_machine_is_up_since_the_start_of_the_server(rig: Rig) -> None:
    """Not since the start of the clock, which is the machine's."""
    began_s = rig.clock()
    rig.clock.now += 30

    [local] = rig.hosts.views(Machine([], lambda: "1"))

    assert (local.name, local.state, local.since_s) == (LOCAL_HOST, "up", began_s)
    assert local.driver == "fake"


async def test_a_changed_login_replaces_the_host(rig: Rig) -> None:
    """The replicas go over to the new one; other settings change the host in place."""
    rig.hosts.define(SshHost("gpu2", address="nn@gpu2"))
    first = rig.ssh()
    rig.hosts.define(SshHost("gpu2", address="nn@gpu2", labels={"zone": "b"}, cpu_slots=3))
    assert rig.ssh() is first
    assert first.slots == 3

    rig.hosts.define(SshHost("gpu2", address="nn@gpu2:2222"))
    second = rig.ssh()
    assert second is not first
    assert (second.control, second.records) == (first.control, first.records)
    assert second.records is rig.hosts.fleet.records("gpu2")


async def test_bad_definitions_are_refused(rig: Rig, tmp_path: Path) -> None:
    """An address that is none, a host that is not there, this machine, and a server without other
    hosts."""
    with pytest.raises(BadRequest, match="host gpu2: "):
        rig.hosts.define(SshHost("gpu2", address="nn@gpu2:port"))
    with pytest.raises(Unknown, match="no host gpu3"):
        rig.hosts.remove("gpu3")
    with pytest.raises(BadRequest, match="local is the machine that the server runs on"):
        rig.hosts.remove(LOCAL_HOST)
    alone = Rig(tmp_path, None)
    with pytest.raises(DriverError, match="can have no other hosts"):
        alone.hosts.define(SshHost("gpu2", address="nn@gpu2"))
    assert rig.events == alone.events == []
    assert rig.names() == alone.names() == ["local"]


async def test_a_removed_host_ends_once_the_machine_has_forgotten_it(rig: Rig) -> None:
    """One that is defined again meanwhile is another one, which is opened after the end of the
    first."""
    cluster = rig.open_cluster()
    cluster.join("node1")

    rig.hosts.remove("cluster")
    rig.hosts.define(Host("cluster"))
    second = rig.cluster
    assert rig.names() == ["local"]
    assert second is not None
    assert second is not cluster
    assert not second.opened.is_set()
    await second.opened.wait()

    assert cluster.closed.is_set()
    assert cluster.is_removed


async def test_an_engine_announces_and_withdraws_its_hosts(rig: Rig) -> None:
    """Each is a host of its own, with the labels of the definition. A node that leaves is forgotten
    with its last replica, and the engine goes on; it may come back."""
    cluster = rig.open_cluster()
    assert rig.names() == ["local"]
    for name in NODES:
        cluster.join(name)
    assert rig.names() == ["local", *NODES]
    views = {one.name: one for one in rig.hosts.views(rig.machine)}
    assert [(views[name].state, views[name].labels) for name in NODES] == [
        ("up", {"zone": "b"})
    ] * len(NODES)

    rig.emit(events.EngineLost("cannot list containers: closed", "node1"))
    silent = rig.hosts.view("node1", rig.machine)
    assert silent is not None
    assert silent.reason == "its container engine does not answer: cannot list containers: closed"

    cluster.cut("node2")
    cluster.leave("node1")
    cluster.leave("node3", is_gone=True)
    assert rig.names() == ["local", "node2"]
    view = rig.hosts.view("node2", rig.machine)
    assert view is not None
    assert (view.state, view.reason) == ("unreachable", "the cable is cut")
    assert not cluster.is_removed

    cluster.join("node3")
    assert rig.names() == ["local", "node2", "node3"]
    rig.hosts.remove("cluster", is_forced=True)
    assert rig.names() == ["local"]


async def test_a_host_that_the_machine_does_not_know_yet_is_kept(rig: Rig) -> None:
    """It was announced while another event is handled, which comes first."""
    cluster = rig.open_cluster()
    cluster.join("node1")
    emit, rig.hosts._emit = rig.hosts._emit, rig.events.append
    cluster.join("node2")
    rig.hosts.sync(rig.machine)

    assert rig.names() == ["local", "node1", "node2"]
    rig.hosts._emit = emit


async def test_a_removed_engine_without_hosts_ends_at_once(rig: Rig) -> None:
    """Nothing of it has to drain."""
    cluster = rig.open_cluster()

    rig.hosts.remove("cluster")
    await cluster.closed.wait()

    assert cluster.is_removed
    with pytest.raises(Unknown):
        rig.hosts.remove("cluster")


async def test_an_engine_cannot_take_the_host_of_another(rig: Rig) -> None:
    """Nor announce more than this server can have, nor withdraw what is not its own."""
    cluster = rig.open_cluster()
    with pytest.raises(BadRequest, match="a name of its own"):
        cluster.join(LOCAL_HOST)
    cluster.leave("gpu2")
    for number in range(MEMBERS_MAX):
        cluster.join(f"n{number}")
    with pytest.raises(BadRequest, match=f"at most {MEMBERS_MAX} hosts"):
        cluster.join("one-more")
    assert len(rig.names()) == MEMBERS_MAX + 1


async def test_an_engine_that_is_removed_announces_nothing(rig: Rig) -> None:
    """Its hosts drain, whatever it sees of them, until it is defined again; one of another kind
    cannot have its name meanwhile."""
    cluster = rig.open_cluster()
    cluster.join("node1")
    rig.emit(events.Found("aaaa0001", "", ("node1/cpu:0",), "serve", "node1"))

    rig.hosts.remove("cluster")
    cluster.join("node1")
    cluster.join("node2")
    assert rig.names() == [LOCAL_HOST, "node1"]
    assert rig.machine.cluster.hosts["node1"].is_removed
    with pytest.raises(BadRequest, match="one of another kind is being removed"):
        rig.hosts.define(SshHost("cluster", address="nn@gpu2"))

    rig.hosts.define(Host("cluster"))
    cluster.join("node2")
    assert rig.names() == [LOCAL_HOST, "node1", "node2"]
    assert not rig.machine.cluster.hosts["node1"].is_removed


async def test_the_memory_of_all_hosts_is_told(rig: Rig) -> None:
    """That of this machine, and of another one while its agent reports."""
    rig.hosts.define(SshHost("gpu2", address="nn@gpu2"))
    reports = rig.ssh().agent.reports
    assert [one.host for one in rig.hosts.memories()] == [LOCAL_HOST]
    report = HostReport(1, None, "", True, (), 4096.0, 1024.0, 8, 1.0, 1.0, 0.0, 0.0)

    reports._receive(report)

    told = {one.host: one.memory for one in rig.hosts.memories()}
    assert told["gpu2"] == HostMemory(4096.0, 1024.0)
