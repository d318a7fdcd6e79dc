"""The engine of a cluster, over a cluster of real processes: what its manager is told."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from hosts.kubernetes.access import Access
from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.objects import CLAIMS, PODS
from hosts.tls.authority import Authority
from hosts.tls.door import LinkDoor
from pool_manager.core import events
from pool_manager.core.state import Device
from pool_manager.driver import Exit
from pool_manager.drivers.uids import DEFAULT, parse_range
from pool_manager.host import HostView, ReplicaHost
from pool_manager.hosts.kinds import engines_of
from pool_manager.hosts.kubernetes.claims import claim_of
from pool_manager.hosts.kubernetes.engine import KubernetesEngine
from pool_manager.hosts.kubernetes.identity import PodIdentities
from pool_manager.hosts.services import HostServices
from pool_manager.hosts.settings import HostSettings, KubernetesSettings
from pool_manager.settings import PoolSettings
from registry.errors import BadRequest, DriverError, EngineDown, HostDown, PlacementRefused
from registry.model.hosts import KubernetesHost
from registry.tasks import Tasks
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.control import ReplicaRecord
from tests.support.dial_in.places import can_open_networks
from tests.support.kubernetes.a_pod import Wanted, a_pod
from tests.support.kubernetes.double import IMAGE, REPLICA_ACCOUNT, Double, NodePlan
from tests.support.operator import until
from tests.support.scenes import a_record

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not can_open_networks(), reason="needs root and network namespaces"),
]

DEFINITION = KubernetesHost("k", image=IMAGE, cpu_slots=2)
GPUS = changed(DEFINITION, cuda_image=IMAGE)
GPU = Device("k/n1/GPU-n1-0", "cuda", 24576.0, host="k/n1")
RECORD = replace(a_record(), host="k/n1", devices=("k/n1/cpu:0",), data="tls://:7443")


class Played:
    """An engine, and what it has told its manager."""

    def __init__(self, double: Double, folder: Path, records: Mapping[str, ReplicaRecord]) -> None:
        self.double = double
        self.records: dict[str, dict[str, ReplicaRecord]] = {}
        for record in records.values():
            self.records.setdefault(record.host, {})[record.id] = record
        self.hosts: dict[str, ReplicaHost] = {}
        self.labels: dict[str, Mapping[str, str]] = {}
        self.draining: set[str] = set()
        self.withdrawn: list[tuple[str, bool]] = []
        self.events: list[events.Event] = []
        self.answering: set[str] = set()
        self.ahead_s = 0.0
        self.most = 100
        """Hosts that the manager takes."""
        self.tasks = Tasks("manager")
        authority = Authority.open(folder / "link", 1, time.time)
        self.door = LinkDoor(TlsAddress(double.address, 0), None, authority, time.time)
        account = KubernetesSettings(double.folder, double.address, double.api.port)
        self.settings = HostSettings("test", {}, parse_range(DEFAULT), kubernetes=account)
        self.pool = PoolSettings(folder / "r", folder / "m", folder / "l")
        self.services = HostServices(
            announce=self._announce,
            withdraw=lambda name, is_gone: self.withdrawn.append((name, is_gone)),
            seen={one.host for one in records.values()},
            records=lambda name: self.records.setdefault(name, {}),
            path=folder.joinpath,
            rewrite=lambda _record: None,
            answers=lambda name: name in self.answering,
            emit=self.events.append,
            changed=lambda _name: None,
            tasks=self.tasks,
            clock=lambda: time.monotonic() + self.ahead_s,
            wall=time.time,
            door=self.door,
        )
        self.engine: KubernetesEngine | None = None
        self.client = KubernetesClient(Access(double.folder, double.address, double.api.port))

    def _announce(self, host: ReplicaHost, labels: Mapping[str, str], is_draining: bool) -> None:
        if len(self.hosts) >= self.most and host.name not in self.hosts:
            raise BadRequest(f"expected at most {self.most} hosts")
        self.hosts[host.name], self.labels[host.name] = host, labels
        (self.draining.add if is_draining else self.draining.discard)(host.name)

    async def open(self, definition: KubernetesHost = DEFINITION) -> KubernetesEngine:
        """Make the engine, and open it."""
        await self.door.open()
        self.engine = KubernetesEngine(
            definition, self.settings, self.pool, self.services, PodIdentities()
        )
        self.engine.define(definition)
        self.engine.open()
        return self.engine

    def ups(self, name: str) -> list[events.HostUp]:
        """Return what was reported of a host as up."""
        return [one for one in self.events if isinstance(one, events.HostUp) and one.host == name]

    async def until_up(self, *names: str) -> None:
        """Return when hosts were reported up."""
        await until(lambda: all(self.ups(name) for name in names))

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.close()
        await self.client.close()
        await self.door.close()
        await self.tasks.close()


@pytest.fixture
async def double() -> AsyncIterator[Double]:
    async with Double([NodePlan("n1", claimed_gpus=1), NodePlan("n2")]) as made:
        yield made


@pytest.fixture
async def played(double: Double, tmp_path: Path) -> AsyncIterator[Played]:
    made = Played(double, tmp_path, {})
    yield made
    await made.close()


async def test_nodes_are_hosts(played: Played) -> None:
    """Each is announced with its labels, and up with its devices; epochs rise."""
    engine = await played.open()
    await played.until_up("k/n1", "k/n2")

    [one], [two] = played.ups("k/n1"), played.ups("k/n2")
    assert [device.id for device in one.devices] == ["k/n1/cpu:0", "k/n1/cpu:1"]
    assert (one.running, one.standby_kinds) == (frozenset(), frozenset({"cpu"}))
    assert {one.epoch, two.epoch} == {1, 2}
    assert played.labels["k/n1"]["node"] == "n1"
    assert engine.complaint == ""
    view = played.hosts["k/n1"].fill(HostView("k/n1"))
    assert (view.address, view.driver, view.reason) == ("10.99.8.1", "kubernetes", "")
    assert view.engine_version == "v1.36.2"


async def test_nodes_change(played: Played) -> None:
    """One that is cordoned drains, one with a taint is withdrawn, one that is deleted is gone, and
    a new one is a host."""
    await played.open()
    await played.until_up("k/n1", "k/n2")

    played.double.cordon("n1")
    await until(lambda: played.draining == {"k/n1"})
    played.double.taint("n2", "gpu-only")
    await until(lambda: played.withdrawn == [("k/n2", False)])
    await played.double.remove_node("n1")
    await until(lambda: ("k/n1", True) in played.withdrawn)
    played.double.add_node(NodePlan("n3"))
    await played.until_up("k/n3")
    played.double.untaint("n2", "gpu-only")
    await until(lambda: len(played.ups("k/n2")) == 2)

    assert played.draining == {"k/n1"}


async def test_a_silent_api_server(played: Played) -> None:
    """Hosts stay up, and their engine is silent; nothing can be started or stopped until it is
    back."""
    engine = await played.open()
    await played.until_up("k/n1", "k/n2")
    losses: list[str] = []
    host = played.hosts["k/n1"]
    host.engine_losses.subscribe(losses.append)

    await played.double.api.close()
    await until(lambda: bool(losses))
    with pytest.raises(EngineDown, match="the API server of k does not answer"):
        _ = host.driver
    assert "does not answer" in engine.complaint
    await played.double.api.reopen()
    await until(lambda: engine.complaint == "")

    assert await host.driver.list() == set()
    assert len(losses) == 1
    assert not any(isinstance(one, events.HostUnreachable) for one in played.events)


async def test_what_an_earlier_server_has_left_cannot_be_read(played: Played) -> None:
    """No node is a host until it is known, and the complaint says why."""
    played.double.api.faults.answer(b"{", verb="get", plural="pods", times=100)
    engine = await played.open()

    await until(lambda: "is not known yet: an answer that is none" in engine.complaint)

    assert played.ups("k/n1") == []


async def test_a_kubelet_that_does_not_report(played: Played) -> None:
    """While a replica answers, only its engine is silent; then its host is unreachable, and up
    again with its kubelet."""
    await played.open()
    await played.until_up("k/n1", "k/n2")
    played.answering = {"k/n1"}
    losses: list[str] = []
    host = played.hosts["k/n1"]
    host.engine_losses.subscribe(losses.append)

    await played.double.kill_kubelet("n1")
    await until(lambda: bool(losses))
    assert "its kubelet does not report" in losses[0]
    with pytest.raises(EngineDown):
        _ = host.driver
    played.answering, played.ahead_s = set(), 60.0
    away = events.HostUnreachable("k/n1", losses[0], played.ups("k/n1")[-1].epoch)
    await until(lambda: away in played.events)
    with pytest.raises(HostDown, match="host k/n1 is not up: its kubelet does not report"):
        _ = host.driver
    await played.double.restart_kubelet("n1")
    await until(lambda: len(played.ups("k/n1")) == 2)

    assert host.transport.why_down == ""


async def test_more_nodes_than_the_manager_takes(played: Played) -> None:
    """The others are left out with a reason, and taken when there is room."""
    played.most = 1
    engine = await played.open()
    await played.until_up("k/n1")
    await until(lambda: bool(engine.complaint))
    assert engine.complaint == "1 nodes are not used, n2 among them: expected at most 1 hosts"

    played.most = 2
    for _ in range(40):
        engine._look_by_time()

    assert [one.host for one in played.ups("k/n2")] == ["k/n2"]
    assert engine.complaint == ""


async def test_no_node_can_be_used(played: Played) -> None:
    """The reason names some."""
    engine = await played.open(changed(DEFINITION, node_selector={"pool": "x"}))
    await until(lambda: bool(engine.complaint.startswith("none")))

    assert engine.complaint == (
        "none of 2 nodes can be used; n1: it has no label pool=x; n2: it has no label pool=x"
    )
    engine.define(DEFINITION)
    await played.until_up("k/n1", "k/n2")


async def test_gpus_come_by_claims(played: Played) -> None:
    """Where a driver has published them; standbys are for CPU slots."""
    await played.open(GPUS)
    await played.until_up("k/n1", "k/n2")

    [up] = played.ups("k/n1")
    assert [one.id for one in up.devices if one.kind == "cuda"] == ["k/n1/GPU-n1-0"]
    view = played.hosts["k/n1"].gpus.view("k/n1/GPU-n1-0")
    assert view is not None
    assert view.total_mib == 24 * 1024
    assert played.hosts["k/n1"].gpus.view("k/n1/cpu:0") is None


async def test_starts_on_a_gpu_share_a_claim(played: Played, tmp_path: Path) -> None:
    """The first writes a claim and its Pod, the second its Pod alone; the claim is given back some
    time after the last."""
    engine = await played.open(GPUS)
    await played.until_up("k/n1", "k/n2")
    host, asked = played.hosts["k/n1"], engine._client.requests
    on_gpu = replace(RECORD, devices=(GPU.id,), device_kind="cuda")
    before = writes(asked)

    for id in ("aaaa0001", "aaaa0002"):
        record = played.records["k/n1"][id] = host.complete(replace(on_gpu, id=id))
        await host.driver.start(record, tmp_path, tmp_path / "log")
    assert writes(asked) - before == {("create", "Pod"): 2, ("create", "ResourceClaim"): 1}
    for id in ("aaaa0001", "aaaa0002"):
        await host.driver.release(id)
    await engine._claims.give_back()
    assert len((await played.client.list(CLAIMS))[0]) == 1

    played.ahead_s = GPUS.claim_idle_s
    await engine._claims.give_back()
    assert (await played.client.list(CLAIMS))[0] == {}


async def test_a_cluster_that_uses_no_gpus_any_more(played: Played, tmp_path: Path) -> None:
    """A GPU stays as long as a replica is on it, but nothing more is placed there."""
    engine = await played.open(GPUS)
    await played.until_up("k/n1", "k/n2")
    host = played.hosts["k/n1"]
    on_gpu = host.complete(replace(RECORD, devices=(GPU.id,), device_kind="cuda"))
    played.records["k/n1"][on_gpu.id] = on_gpu

    engine.define(DEFINITION)
    with pytest.raises(PlacementRefused, match="no image for GPUs any more"):
        await host.driver.start(on_gpu, tmp_path, tmp_path / "log")
    assert [one.id for one in played.ups("k/n1")[-1].devices if one.kind == "cuda"] == [GPU.id]
    del played.records["k/n1"][on_gpu.id]
    await until(lambda: {one.kind for one in played.ups("k/n1")[-1].devices} == {"cpu"})


def writes(asked: Mapping[tuple[str, str], int]) -> Counter[tuple[str, str]]:
    """Return the requests of a client that change something."""
    verbs = ("create", "delete", "patch")
    return Counter({key: count for key, count in asked.items() if key[0] in verbs})


async def test_a_cluster_without_claims(played: Played) -> None:
    """Hosts are up without them, and nothing asks for them again."""
    played.double.api.has_claims = False
    engine = await played.open(GPUS)
    await played.until_up("k/n1", "k/n2")

    assert engine._nodes._following is None
    assert engine._client.requests["list", "ResourceSlice"] <= 3
    assert {one.kind for one in played.ups("k/n1")[0].devices} == {"cpu"}


async def test_what_an_earlier_server_has_left(double: Double, tmp_path: Path) -> None:
    """Its Pods with a record are adopted, and other Pods and claims are deleted. A host that is no
    node any more is withdrawn."""
    gone = replace(RECORD, id="aaaa0002", host="k/n9", devices=("k/n9/cpu:0",))
    ended = replace(RECORD, id="aaaa0003", devices=("k/n1/cpu:1",))
    records = {one.id: one for one in (RECORD, gone, ended)}
    played = Played(double, tmp_path, records)
    owner = played.settings.owner("k")
    client = played.client
    for id in (RECORD.id, "dead0001"):
        pod = a_pod(Wanted(f"fn-{owner[:8]}-{id}", image=IMAGE, node="n1"), REPLICA_ACCOUNT)
        labels = {"fngate.dev/owner": owner, "fngate.dev/replica": id}
        metadata = changed(pod.metadata, labels=labels)
        await client.create(PODS, changed(pod, metadata=metadata))
    await client.create(CLAIMS, claim_of(GPU, GPUS, owner, ()))

    await played.open(GPUS)
    assert set(played.hosts) == {"k/n1", "k/n9"}
    await played.until_up("k/n1", "k/n2")

    assert played.ups("k/n1")[0].running == {RECORD.id}
    assert played.withdrawn == [("k/n9", True)]
    assert (await client.list(CLAIMS))[0] == {}
    await until(lambda: [_id(one) for one in double.pods()] == [RECORD.id])
    exits: list[tuple[str, Exit]] = []
    played.hosts["k/n1"].exits.subscribe(lambda id, exit: exits.append((id, exit)))
    double.delete(double.pods()[0], 0)
    await until(lambda: bool(exits))
    assert exits[0][0] == RECORD.id
    await played.close()


def _id(pod: Mapping[str, object]) -> object:
    metadata = pod["metadata"]
    assert isinstance(metadata, dict)
    return metadata["labels"]["fngate.dev/replica"]


async def test_a_removed_cluster_has_nothing_left(played: Played) -> None:
    """Pods that were given up, and claims, are deleted with it."""
    engine = await played.open(GPUS)
    await played.until_up("k/n1")
    owner = played.settings.owner("k")
    await played.client.create(CLAIMS, claim_of(GPU, GPUS, owner, ()))

    await engine.close(is_removed=True)
    played.engine = None

    assert (await played.client.list(CLAIMS))[0] == {}


async def test_definitions_that_cannot_be(played: Played, tmp_path: Path) -> None:
    """The reason says what is missing, and what to do."""
    make = engines_of(played.settings, played.pool)
    engine = make(DEFINITION, played.services)
    with pytest.raises(BadRequest, match="expected CPU slots or an image for GPUs"):
        engine.define(changed(DEFINITION, cpu_slots=0))
    with pytest.raises(DriverError, match="no door for replicas in Pods; set FN_LINK_LISTEN"):
        make(DEFINITION, replace(played.services, door=None))
    outside = KubernetesSettings(tmp_path)
    with pytest.raises(
        DriverError, match=r"runs outside a cluster: .* has no token and no ca\.crt"
    ):
        engines_of(replace(played.settings, kubernetes=outside), played.pool)(
            DEFINITION, played.services
        )
    await engine.close()
