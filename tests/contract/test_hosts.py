"""Contract of every kind of host, and of engines whose hosts come and go."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.data_links import Delivered
from hosts.tls.authority import Authority
from hosts.tls.door import LinkDoor
from pool_manager.drivers.uids import DEFAULT, parse_range
from pool_manager.host import HostEngine
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings, KubernetesSettings
from pool_manager.replicas.run_folders import RunFolders
from pool_manager.settings import PoolSettings
from registry.errors import BadRequest, DriverError, HostDown, Unknown
from registry.model.hosts import LOCAL_HOST, Host, KubernetesHost
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.control import ReplicaRecord
from tests.support import models
from tests.support.cluster import NODES, SLOTS, Cluster
from tests.support.dial_in.engine import DialInEngine
from tests.support.dial_in.places import can_open_networks, loopback
from tests.support.fleet.fleet import open_fleet
from tests.support.fleet.host import WORKER, Plan
from tests.support.kubernetes.double import IMAGE, Double
from tests.support.leaks import Leaks
from tests.support.other_hosts import KEY, House, Place
from tests.support.replicas import pool_settings
from tests.support.scenes import a_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SSH = pytest.param("ssh", marks=pytest.mark.docker)
NEEDS_ROOT = pytest.mark.skipif(not can_open_networks(), reason="needs network namespaces")
KUBERNETES = pytest.param("kubernetes", marks=NEEDS_ROOT)


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings() as made:
        yield made


@pytest.fixture(scope="module")
def machine(engine: str) -> Iterator[Place]:
    """A host with sshd and an engine, which has no image yet."""
    with open_fleet(Plan(user=WORKER, is_relayed=True)) as fleet:
        one = fleet.first
        yield Place("", one.address, one.host_key, str(one.identity), engine, "")
        assert fleet.left() == []


class Clustered(House):
    """A house with a cluster of three nodes, of which its function may use one."""

    def __init__(self, settings: PoolSettings, folder: Path, name: str) -> None:
        super().__init__(
            settings,
            folder,
            Host("cluster", labels={"zone": "b"}),
            name=name,
            engine_of=self._make,
        )
        self._settings = settings
        self.on_start = lambda: [self.cluster.join(one) for one in NODES]

    def _make(self, host: Host, services: HostServices) -> HostEngine:
        self.cluster = Cluster(host, self._settings, self.files, services)
        return self.cluster


class DialledIn(House):
    """A house with an engine whose replicas dial in by TLS, of which its function may use one host
    of three. `epoch` counts the managers over one folder."""

    def __init__(
        self, settings: PoolSettings, folder: Path, name: str, root: Path, epoch: int = 1
    ) -> None:
        listen = TlsAddress("127.0.0.1", 0)
        self.places = [loopback(one, root) for one in NODES]
        authority = Authority.open(root / "link", epoch, time.time)
        self.door = LinkDoor(listen, None, authority, time.time)
        host = Host("cluster")
        super().__init__(settings, folder, host, name=name, engine_of=self._make, door=self.door)

    def _make(self, host: Host, services: HostServices) -> HostEngine:
        return DialInEngine(host.name, self.places, SLOTS, services)

    async def open(self, **changes: Any) -> None:
        await self.door.open()
        await super().open(**changes)

    async def close(self) -> None:
        await super().close()
        await self.door.close()


class InPods(House):
    """A house in the double of a Kubernetes cluster, which it closes; its function may use one of
    two nodes."""

    def __init__(self, settings: PoolSettings, folder: Path, root: Path, double: Double) -> None:
        self._double = double
        authority = Authority.open(root / "link", 1, time.time)
        self.door = LinkDoor(TlsAddress(double.address, 0), None, authority, time.time)
        access = KubernetesSettings(double.folder, double.address, double.api.port)
        uids = parse_range(DEFAULT)
        super().__init__(
            settings,
            folder,
            KubernetesHost("k", image=IMAGE, cpu_slots=2),
            name="k/n2",
            remote=HostSettings("test", {}, uids, kubernetes=access),
            door=self.door,
        )

    async def open(self, **changes: Any) -> None:
        await self.door.open()
        await super().open(**changes)

    async def close(self) -> None:
        await super().close()
        await self.door.close()
        await self._double.close()


@pytest.fixture(params=["local", "cluster", "dial-in", KUBERNETES, SSH])
async def one(
    request: pytest.FixtureRequest, settings: PoolSettings, tmp_path: Path
) -> AsyncIterator[House]:
    """A manager with a function that may run on one host, of each kind in turn."""
    files = tmp_path / "files"
    files.mkdir()
    models.add_one(files)
    if request.param == "local":
        made = House(settings, files, Host(LOCAL_HOST))
    elif request.param == "cluster":
        made = Clustered(settings, files, "node2")
    elif request.param == "dial-in":
        made = DialledIn(settings, files, "node2", tmp_path / "engine")
    elif request.param == "kubernetes":
        double = Double()
        await double.open()
        made = InPods(settings, files, tmp_path, double)
    else:
        leaks: Leaks = request.getfixturevalue("leaks")
        for text in ("nsenter", "unshare", "python", "pipe:", "net/tun"):
            leaks.exclude(text, reason="of the host, which outlives the test")
        machine: Place = request.getfixturevalue("machine")
        image = request.getfixturevalue("runtime_image")
        words = (machine.address, machine.host_key, machine.identity, machine.engine)
        made = House.over_ssh(settings, Place(str(files), *words, image))
    try:
        await made.open()
        yield made
    finally:
        await made.close()


def host_record(one: House, id: str) -> ReplicaRecord:
    """Return the record of a replica."""
    return one.manager._hosts.fleet.records(one.name)[id]


def content(path: Path) -> bytes:
    """Return the bytes of a file."""
    return path.read_bytes()


async def test_a_replica_runs_on_its_host(one: House) -> None:
    """It is started, found by gateways and by its record, answers, is stopped and leaves
    nothing."""
    manager, host = one.manager, one.manager._hosts.fleet.get(one.name)
    id = await one.until_ready()
    outcome = await one.call()

    assert isinstance(outcome, Delivered), outcome
    [endpoint] = one.last.pools[KEY].replicas
    record = host_record(one, id)
    place = host.transport.located(record)
    assert (endpoint.host, endpoint.path) == (place.host, place.path)
    assert place.host == next(iter(host.transport.routes), "")
    assert (record.host, record.bound) == (one.name, KEY)
    assert manager._hosts.fleet.of(id) is host
    assert id in await host.driver.list()
    assert await host.processes.pids(id) != frozenset()
    assert await host.processes.used_mib(id) is None
    view = one.view
    assert (view.state, view.replicas, view.driver) == ("up", 1, host.driver.kind)

    manager.remove(KEY)
    await one.until(lambda: not one.replicas)

    assert manager._hosts.fleet.records(one.name) == {}
    assert id not in await host.driver.list()
    assert await host.processes.pids(id) in (None, frozenset())


async def test_a_replica_gets_more_files_and_is_read(one: House) -> None:
    """Files are added to a running one, or named to it for a fetch, and what it made is fetched
    from it. A host to which files are sent counts them."""
    host = one.manager._hosts.fleet.get(one.name)
    id = await one.until_ready()
    [file] = one.files.bundle().files
    added = replace(file, path="added.onnx")
    folder = Path(host_record(one, id).model_dir)

    to_fetch = await one.manager._launcher.add_files(id, [added])
    if to_fetch:
        assert to_fetch == [{"path": "added.onnx", "size": file.size, "sha256": file.sha256}]
    elif one.name in (LOCAL_HOST, *NODES):  # the folder is on this machine
        assert content(folder / added.path) == content(folder / file.path)
    async with one.manager._launcher.reader(id) as reader:
        reader._sock.close()

    cache = host.files.cache
    assert (cache is None) == (host.files.cache_mib == 0)
    if cache is not None:
        await cache.send([file])
        assert cache.stock[file.sha256] == file.size
        await cache.trim(1, ())


async def test_what_is_not_there_is_harmless(one: House) -> None:
    """Operations on an unknown replica do nothing, but limits, which say so."""
    host, id = one.manager._hosts.fleet.get(one.name), "dead0001"

    await host.driver.terminate(id)
    await host.driver.release(id)
    await host.files.remove(id)
    with pytest.raises(DriverError, match=f"cannot limit {id}"):
        await host.driver.limit(replace(a_record(), id=id))
    assert host.transport.why_down == ""
    await host.transport.wait_up()


async def test_a_host_is_removed_unless_it_is_kept(one: House) -> None:
    """Its replicas drain, and what this server left there goes with it."""
    manager, engine = one.manager, one.manager._hosts._engines[one.host.name]
    await one.until_ready()
    if engine.why_kept:
        with pytest.raises(BadRequest, match=engine.why_kept):
            manager.remove_host(one.host.name)
        return

    manager.remove_host(one.host.name)
    await one.until(lambda: manager.host(one.name) is None)

    assert one.replicas == []
    assert manager._hosts.fleet.find(one.name) is None
    with pytest.raises(HostDown):
        manager._hosts.fleet.get(one.name)
    with pytest.raises(Unknown):
        manager.remove_host(one.host.name)


@pytest.fixture
async def clustered(settings: PoolSettings, tmp_path: Path) -> AsyncIterator[Clustered]:
    """A function of the second of three nodes."""
    models.add_one(tmp_path)
    made = Clustered(settings, tmp_path, "node2")
    try:
        await made.open(may_rerun=True)
        yield made
    finally:
        await made.close()


async def test_a_node_that_breaks_is_used_again_when_it_is_back(clustered: Clustered) -> None:
    """Meanwhile nothing can be asked of it, and its function waits."""
    node = clustered.manager._hosts.fleet.get("node2")

    clustered.cluster.cut("node2")
    assert (clustered.view.state, clustered.view.reason) == ("unreachable", "the cable is cut")
    with pytest.raises(HostDown, match="host node2 is not up: the cable is cut"):
        _ = node.driver
    assert node.files.cache is None
    clustered.cluster.join("node2")

    assert clustered.view.state == "up"
    assert clustered.manager._hosts.fleet.get("node2") is node
    await clustered.until_ready()
    assert isinstance(await clustered.call(), Delivered)


async def test_a_node_that_leaves_drains_and_may_come_back(clustered: Clustered) -> None:
    """The other nodes go on; a function of that node alone waits for it."""
    first = await clustered.until_ready()

    clustered.cluster.leave("node2")
    await clustered.until(lambda: clustered.manager.host("node2") is None)
    there = [one.name for one in clustered.manager.hosts()]
    assert there == ["local", "node1", "node3"]
    assert clustered.cluster.nodes["node2"].files.removed == [first]

    clustered.cluster.join("node2")
    assert await clustered.until_ready() != first


async def test_a_node_that_is_gone_gives_its_replicas_up(clustered: Clustered) -> None:
    """At once: its engine has said so. Nothing of them is kept here."""
    id = await clustered.until_ready()
    clustered.cluster.leave("node2", is_gone=True)
    await clustered.until(lambda: clustered.manager.host("node2") is None)
    await clustered.until(lambda: id not in clustered.manager._launcher.folders.read_records())

    assert clustered.manager._hosts.fleet.records("node2") == {}
    assert clustered.replicas == []


async def test_replicas_of_a_cluster_wait_for_their_node(
    settings: PoolSettings, tmp_path: Path
) -> None:
    """A later manager adopts them by their records, before any node has joined; those on a host
    that nobody defines are forgotten. What does not run when the node is back is released."""
    models.add_one(tmp_path)
    earlier = Clustered(settings, tmp_path, "node2")
    await earlier.open()
    id = await earlier.until_ready()
    kept = earlier.manager._hosts.fleet.records("node2")[id]
    await earlier.close()
    folders = RunFolders(settings)
    folders.record(kept)
    folders.record(replace(kept, id="dead0001", host="node9"))

    later = Clustered(settings, tmp_path, "node2")
    later.manager.define_host(later.host)
    await later.manager.start()
    assert list(folders.read_records()) == [id]
    assert (later.view.state, later.view.replicas) == ("joining", 1)
    later.cluster.join("node2")
    await later.until(lambda: not folders.read_records())

    assert later.view.state == "up"
    await later.close()
