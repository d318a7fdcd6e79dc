"""The driver of a node, over a cluster of real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hosts.kubernetes.access import Access
from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.objects import PODS
from pool_manager.core import events
from pool_manager.core.state import Device
from pool_manager.driver import MEMORY_KILL, Exit
from pool_manager.drivers.uids import DEFAULT, UidAllocator, parse_range
from pool_manager.hosts.kubernetes.claims import Claims
from pool_manager.hosts.kubernetes.driver import (
    LEASE_SPARE_S,
    NodeShare,
    PodDriver,
    PodSettings,
    needs_of,
    stamped,
)
from pool_manager.hosts.kubernetes.ends import BY_SOMEBODY, PodFate
from pool_manager.hosts.kubernetes.pod_specs import PodNeeds, PodOwner, pod_name
from pool_manager.hosts.kubernetes.pods import Pods
from pool_manager.ports import ServerContainer
from registry.errors import DriverError, EngineDown, PlacementRefused, StartRefused
from registry.model.hosts import KubernetesHost
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.server import ServerSpec
from tests.support.dial_in.places import can_open_networks
from tests.support.kubernetes.a_pod import Wanted, a_pod
from tests.support.kubernetes.double import REPLICA_ACCOUNT, Double
from tests.support.kubernetes.pace import Pace
from tests.support.kubernetes.runtime import Image
from tests.support.replicas import binding
from tests.support.scenes import a_record

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not can_open_networks(), reason="needs root and network namespaces"),
]

OWNER = PodOwner("abcdef0123456789")
WAITS = "trap 'echo bye; exit 0' TERM; echo started; while :; do sleep 0.02; done"
IMAGES = {
    "waits": Image(("sh", "-c", WAITS)),
    "greedy": Image(("python3", "-c", "x = bytearray(2**28)")),
    "fails": Image(("sh", "-c", "echo because; exit 3")),
    "slow": Image(("sh", "-c", WAITS), pull_s=0.3),
    "missing": Image(pull_error="manifest unknown"),
    "root": Image(("sleep", "60"), user=""),
}
RECORD = replace(a_record(), host="k/n1", devices=("k/n1/cpu:0",), memory_mib=512)
ID = RECORD.id
SERVER = ServerContainer(
    "", reference="waits", user="20002", stop_grace_s=1.0, secrets={"KEY": "hunter2"}
)


@dataclass
class Played:
    """A driver of the node n1, and what it has reported."""

    double: Double
    driver: PodDriver
    pods: Pods
    client: KubernetesClient
    settings: PodSettings
    records: dict[str, ReplicaRecord]
    exits: list[tuple[str, Exit]]
    emitted: list[events.Event]
    folder: Path
    news: asyncio.Event
    """Set by each event."""
    ahead_s: float = 0.0
    """Seconds by which the clock of the driver is ahead."""

    def use(self, image: str) -> None:
        """Let replicas run an image."""
        self.driver.definition = KubernetesHost(name="k", image=image)

    async def start(
        self, record: ReplicaRecord = RECORD, server: ServerContainer | None = None
    ) -> None:
        """Start a replica."""
        self.records[record.id] = record
        await self.driver.start(record, self.folder, self.folder / "log", server)

    async def until(self, is_met: Callable[[PodFate], object], id: str = ID) -> PodFate:
        """Return what is known of a Pod once `is_met` says so."""
        fate = await self.pods.wait(id, lambda one: one is not None and bool(is_met(one)), 20.0)
        assert fate is not None
        assert is_met(fate)
        return fate

    async def lost(self, after_s: float) -> events.Lost:
        """Return the loss that is reported once some time has passed."""
        self.ahead_s += after_s
        self.pods.on_changed((await self.until(lambda _: True)).pod)
        await self.said("Lost(")
        assert isinstance(self.emitted[-1], events.Lost)
        return self.emitted[-1]

    async def said(self, text: str) -> None:
        """Return once the events have a text."""
        async with asyncio.timeout(20.0):
            while text not in str(self.emitted):
                self.news.clear()
                await self.news.wait()

    async def running(self, id: str = ID) -> PodFate:
        """Return what is known of a Pod once all of its containers run."""
        return await self.until(_runs, id)

    def pod(self, id: str = ID) -> Any:
        """Return the object of a replica's Pod."""
        return self.double.pod(pod_name(id, OWNER))

    def writes(self) -> dict[tuple[str, str], int]:
        """Return the requests that have changed something."""
        reads = ("get", "list", "watch", "log")
        return {key: count for key, count in self.client.requests.items() if key[0] not in reads}


def _runs(fate: PodFate) -> bool:
    status = fate.pod.status
    there = (*status.init_container_statuses, *status.container_statuses)
    return bool(there) and all(one.state.running is not None for one in there)


@pytest.fixture
async def played(tmp_path: Path) -> AsyncIterator[Played]:
    """A driver over the double."""
    async with Double(images=IMAGES, pace=Pace(final_s=0.3)) as double:
        client = KubernetesClient(Access(double.folder, double.address, double.api.port))
        tasks, loop = Tasks("test"), asyncio.get_running_loop()
        records: dict[str, ReplicaRecord] = {}

        def clock() -> float:
            return loop.time() + made.ahead_s

        pods = Pods(client, OWNER, records.__contains__, tasks, clock)
        emitted: list[events.Event] = []
        news = asyncio.Event()

        def emit(event: events.Event) -> None:
            emitted.append(event)
            news.set()

        definition = KubernetesHost(name="k", image="waits", service_account=REPLICA_ACCOUNT)
        settings = PodSettings(
            client=client,
            pods=pods,
            claims=Claims(client, definition, OWNER.id, clock),
            owner=OWNER,
            uids=UidAllocator(parse_range(DEFAULT)[:100]),
            authority="PEM",
            memory_mib=0,
            emit=emit,
            clock=clock,
        )
        driver = PodDriver("n1", definition, NodeShare(500), settings, records, tasks)
        made = Played(double, driver, pods, client, settings, records, [], emitted, tmp_path, news)
        driver.exits.subscribe(lambda id, end: made.exits.append((id, end)))
        tasks.root("pods", pods.run())
        await pods.wait("", lambda _: pods.synced_s is not None, 20.0)
        yield made
        await driver.close()
        await tasks.close()
        await client.close()


# Starts


async def test_a_start_writes_once(played: Played) -> None:
    """It returns when the scheduler has placed the Pod, and says what it waits for."""
    await played.start()
    assert played.writes() == {("create", "Pod"): 1}
    fate = await played.running()
    assert fate.pod.spec.node_name == "n1"
    assert await played.driver.list() == {ID}
    assert played.exits == []
    assert await played.driver.processes.pids(ID) is None
    assert await played.driver.processes.used_mib(ID) is None
    assert all(isinstance(one, events.Starting) for one in played.emitted)
    await played.driver.release(ID)
    assert played.writes() == {("create", "Pod"): 1, ("delete", "Pod"): 1}
    assert played.double.pods() == []
    assert await played.driver.list() == set()


async def test_a_server_with_secrets_writes_twice(played: Played) -> None:
    """Its Secret has the name of its Pod, and goes with it."""
    await played.start(server=SERVER)
    assert played.writes() == {("create", "Secret"): 1, ("create", "Pod"): 1}
    await played.running()
    assert "hunter2" not in str(played.pod())
    await played.driver.release(ID)
    assert played.writes()["delete", "Secret"] == 1


async def test_an_answer_that_was_lost(played: Played) -> None:
    """The Pod of the first try is taken; there is one."""
    played.double.faults.break_off(verb="create", plural="pods", is_after=True)
    await played.start()
    await played.running()
    assert len(played.double.pods()) == 1
    await played.driver.release(ID)


async def test_a_pod_of_that_name_that_is_not_ours(played: Played) -> None:
    """It is left alone."""
    await played.client.create(
        PODS, a_pod(Wanted(pod_name(ID, OWNER), image="waits", node="none"), REPLICA_ACCOUNT)
    )
    with pytest.raises(DriverError, match="its Pod cannot be made: there is another one"):
        await played.start()
    await played.driver.release(ID)
    assert len(played.double.pods()) == 1


async def test_a_quota_that_the_lost_one_has_used_up(played: Played) -> None:
    """The refusal of the second try says nothing of the first: its Pod is looked for."""
    played.double.faults.break_off(verb="create", plural="pods", is_after=True)
    played.double.faults.refuse(403, "Forbidden", "exceeded quota", verb="create", plural="pods")
    with pytest.raises(PlacementRefused, match="exceeded quota"):
        await played.start()
    assert len(played.double.pods()) == 1
    await played.driver.release(ID)
    assert played.double.pods() == []


async def test_a_full_node(played: Played) -> None:
    """The scheduler's words are the reason; nothing is left, and nothing waits for a lease."""
    played.double.tenant("hog", "n1", {"cpu": "3900m"})
    with pytest.raises(PlacementRefused, match=r"nodes are available: .*Insufficient cpu"):
        await played.start()
    await played.driver.release(ID)
    assert played.double.pods() == []
    assert played.exits == []


async def test_the_claim_of_a_refused_pod_is_looked_at_again(played: Played) -> None:
    """Somebody may have deleted it: the next start makes it unless it is there."""
    gpu = Device("k/n1/GPU-none", "cuda", 1000.0, host="k/n1")
    played.driver.definition = KubernetesHost(name="k", image="waits", cuda_image="waits")
    played.driver.share = NodeShare(500, "", {gpu.id: gpu})
    for id in (ID, "aaaa0010"):
        record = replace(RECORD, id=id, devices=(gpu.id,), device_kind="cuda")
        with pytest.raises(PlacementRefused, match="cannot allocate all claims"):
            await played.start(record)
        await played.driver.release(id)
    assert played.writes()["create", "ResourceClaim"] == 2
    assert played.settings.claims.used == 0


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (403, 'pods "x" is forbidden: exceeded quota: q, requested: pods=1', PlacementRefused),
        (403, 'admission webhook "w" denied the request: no', PlacementRefused),
        (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": a', StartRefused),
        (422, 'Pod "x" is invalid: spec.containers[0].image: Required value', StartRefused),
        (500, "etcd", PlacementRefused),
    ],
)
async def test_refusals_of_the_api_server(
    played: Played, code: int, text: str, kind: type[DriverError]
) -> None:
    """By their kind; the next start may do, or somebody has to change something."""
    played.double.faults.refuse(code, "", text, verb="create", plural="pods", times=2)
    with pytest.raises(DriverError) as caught:
        await played.start()
    assert type(caught.value) is kind
    assert text[-9:] in caught.value.message or code == 500
    if code != 500:
        await played.driver.release(ID)
    assert played.double.pods() == []


async def test_what_no_pod_can_have(played: Played) -> None:
    """Nothing is written, and the release is at once."""
    with pytest.raises(StartRefused, match=r"server.user: expected UID or UID:GID"):
        await played.start(server=replace(SERVER, user="app"))
    assert played.writes() == {}
    await played.driver.release(ID)


async def test_an_api_server_that_is_away(played: Played) -> None:
    """No function is at fault."""
    played.pods.on_away("no route")
    for work in (played.start(), played.driver.list(), played.driver.release("another")):
        with pytest.raises(EngineDown, match="no route"):
            await work


async def test_an_image_that_is_pulled(played: Played) -> None:
    """The start is over at once; what it waits for is said."""
    played.use("slow")
    await played.start()
    await played.running()
    texts = [one.text for one in played.emitted if isinstance(one, events.Starting)]
    assert texts
    assert texts[0].startswith("its Pod waits on node n1 for its image or its container")


async def test_an_image_that_cannot_be_pulled(played: Played) -> None:
    """The kubelet tries for a minute; the last words are its."""
    played.use("missing")
    await played.start()
    await played.said("ErrImagePull")
    assert not any(isinstance(one, events.Lost) for one in played.emitted)
    lost = await played.lost(61.0)
    assert "manifest unknown" in lost.reason
    assert (lost.is_its_fault, lost.is_lasting) == (True, False)


async def test_an_image_with_root(played: Played) -> None:
    """Only somebody who changes the image can help."""
    await played.start(server=replace(SERVER, reference="root", user="", secrets={}))
    await played.said("CreateContainerConfigError")
    lost = await played.lost(6.0)
    assert "runAsNonRoot" in lost.reason
    assert lost.is_lasting


# Ends


async def test_an_end_by_itself(played: Played) -> None:
    """Its code is told, and its output is kept until the release."""
    played.use("fails")
    await played.start()
    await played.until(lambda fate: fate.end)
    assert played.exits == [(ID, Exit("exited with code 3"))]
    assert await played.driver.list() == set()
    await played.driver.save_log(ID, played.folder / "log")
    assert (played.folder / "log").read_text() == "because\n"
    await played.driver.release(ID)
    await played.driver.save_log(ID, played.folder / "log")
    assert len(played.exits) == 1


async def test_an_end_for_want_of_memory(played: Played) -> None:
    """The kernel has killed it at its cap."""
    played.use("greedy")
    await played.start(replace(RECORD, memory_mib=64))
    fate = await played.until(lambda fate: fate.end)
    assert fate.end == Exit(f"{MEMORY_KILL} and was killed by SIGKILL")


async def test_a_preemption(played: Played) -> None:
    """A tenant's Pod takes the place of one that may be preempted: no failure."""
    played.driver.share = NodeShare(4000)
    played.driver.expect(ID, replace(binding(), preemptible=True))
    await played.start(replace(RECORD, threads=4))
    await played.running()
    played.double.tenant("vip", "n1", {"cpu": "3"}, "tenant-high")
    fate = await played.until(lambda fate: fate.end)
    assert fate.end is not None
    assert fate.end.is_eviction
    assert fate.end.how.startswith("was evicted: PreemptionByScheduler")


async def test_a_stranger_deletes_it(played: Played) -> None:
    """By the book: its last object is the proof."""
    await played.start()
    await played.running()
    played.double.delete(played.pod())
    await played.until(lambda fate: fate.gone_s is not None)
    assert played.exits == [(ID, Exit(BY_SOMEBODY, True))]
    await played.driver.release(ID)


async def test_a_stranger_deletes_it_by_force(played: Played) -> None:
    """What runs of it ends by its lease, from when this server has left it."""
    await played.start()
    await played.running()
    played.double.delete(played.pod(), 0)
    await played.until(lambda fate: fate.gone_s is not None)
    with pytest.raises(DriverError, match="without a proof that its containers have ended"):
        await played.driver.release(ID)
    played.ahead_s += RECORD.orphan_s + LEASE_SPARE_S + 1.0
    await played.driver.release(ID)
    assert played.exits == [(ID, Exit(BY_SOMEBODY, True))]


async def test_a_pod_that_nobody_has_seen(played: Played) -> None:
    """A record without a Pod may have had one: its lease is waited for."""
    played.records[ID] = RECORD
    with pytest.raises(DriverError, match="without a proof"):
        await played.driver.release(ID)
    played.ahead_s += RECORD.orphan_s + LEASE_SPARE_S + 1.0
    await played.driver.release(ID)


async def test_a_pod_without_a_record_is_deleted(played: Played) -> None:
    """It is of a start whose end nobody has seen."""
    pod = a_pod(Wanted("stray", image="waits", node="n1"), REPLICA_ACCOUNT)
    labels = {"fngate.dev/owner": OWNER.id, "fngate.dev/replica": "stray"}
    metadata = msgspec.structs.replace(pod.metadata, labels=labels)
    await played.client.create(PODS, msgspec.structs.replace(pod, metadata=metadata))
    await played.pods.wait("stray", lambda fate: fate is not None, 20.0)
    await played.pods.wait("stray", lambda fate: fate is None, 20.0)
    assert played.double.pods() == []


async def test_a_node_that_does_not_confirm(played: Played, monkeypatch: Any) -> None:
    """The device stays taken."""
    monkeypatch.setattr("pool_manager.hosts.kubernetes.driver.GONE_S", 0.1)
    await played.start()
    await played.running()
    await played.double.kill_kubelet("n1")
    with pytest.raises(DriverError, match="node n1 has not confirmed it"):
        await played.driver.release(ID)
    await played.double.restart_kubelet("n1")
    await played.until(lambda fate: fate.gone_s is not None)
    await played.driver.release(ID)


async def test_the_last_words_of_a_server(played: Played) -> None:
    """They come between its end and that of its Pod."""
    await played.start(server=replace(SERVER, secrets={}))
    await played.running()
    await played.driver.save_log(ID, played.folder / "log")
    assert "bye" not in (played.folder / "log").read_text()
    await played.driver.terminate(ID)
    await played.driver.release(ID)
    assert "bye" in (played.folder / "log").read_text()


# Standbys


async def test_a_standby_that_keeps_its_cap(played: Played) -> None:
    """Nothing is written for a cap that nobody has set."""
    await played.start(replace(RECORD, role="standby", memory_mib=0))
    await played.running()
    before = played.writes()
    played.driver.expect(ID, binding())
    await played.driver.limit(replace(RECORD, memory_mib=1100))
    await played.driver.limit(replace(RECORD, memory_mib=0))
    await played.driver.limit(replace(RECORD, memory_mib=2048))
    assert played.writes() == before


@pytest.mark.parametrize("memory_mib", [512, 3000])
async def test_a_standby_with_another_cap(played: Played, memory_mib: int) -> None:
    """A cap that somebody has set, and one beyond that of standbys, are set in place."""
    await played.start(replace(RECORD, role="standby", memory_mib=0))
    await played.running()
    played.driver.expect(ID, binding(memory_mib=512) if memory_mib == 512 else binding())
    await played.driver.limit(replace(RECORD, memory_mib=memory_mib))
    limits = played.pod()["spec"]["containers"][0]["resources"]["limits"]
    assert limits["memory"] == f"{memory_mib}Mi"
    assert played.writes()["patch", "Pod"] == 1
    assert played.pods.can_resize


async def test_a_cluster_without_resizes(played: Played) -> None:
    """It has no standbys any more."""
    await played.start(replace(RECORD, role="standby", memory_mib=0))
    await played.running()
    played.double.api.has_resize = False
    with pytest.raises(DriverError, match="the cap of aaaa0009 could not be set"):
        await played.driver.limit(replace(RECORD, memory_mib=3000))
    assert not played.pods.can_resize


async def test_a_cap_that_cannot_be_lowered(played: Played) -> None:
    """The replica keeps it itself."""
    await played.start(replace(RECORD, role="standby", memory_mib=0))
    await played.running()
    played.double.faults.refuse(422, "Invalid", "cannot be decreased", verb="patch")
    await played.driver.limit(replace(RECORD, memory_mib=512))
    with pytest.raises(DriverError, match="it does not run"):
        await played.driver.limit(replace(RECORD, id="nobody"))


# Adoption


async def test_a_later_manager_adopts(played: Played) -> None:
    """Its user id is taken; a second driver of the node lists it, one of another node does not."""
    await played.start()
    await played.running()
    uid = played.pod()["spec"]["securityContext"]["runAsUser"]
    uids = UidAllocator(range(uid - 1, uid + 2))
    settings = replace(played.settings, uids=uids)
    tasks = Tasks("later")
    for node, found in (("n1", {ID}), ("n2", set())):
        later = PodDriver(
            node, played.driver.definition, NodeShare(0), settings, played.records, tasks
        )
        assert await later.list() == found
        await later.close()
    assert uids.take("another") != uid
    await tasks.close()


# Pure parts


def test_needs() -> None:
    """Of a standby, of a server, and of one that is apart."""
    assert needs_of(None) == PodNeeds()
    spec = ServerSpec("w@1", ("x",), stop_grace_s=7.0, network="egress")
    needs = needs_of(replace(binding(), spec=spec, measured_mib=9.0))
    assert (needs.stop_grace_s, needs.network, needs.measured_mib) == (7.0, "egress", 9.0)
    assert not needs.is_preemptible
    apart = needs_of(replace(binding(), spec=spec, container=SERVER))
    assert (apart.stop_grace_s, apart.network) == (1.0, "none")


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (b"2026-11-30T14:30:00.123456789Z a b\n", b"2026-11-30T14:30:00.123456789Z a b\n"),
        (b"2026-11-30T15:30:00.12+01:00 a\n", b"2026-11-30T14:30:00.120000000Z a\n"),
        (b"2026-11-30T14:30:00Z a\n", b"2026-11-30T14:30:00.000000000Z a\n"),
        (b"2026-11-30T14:30:00.1 a\n", b""),
        (
            b"rest of a line\n2026-11-30T14:30:00.1Z a\nunfinished",
            b"2026-11-30T14:30:00.100000000Z a\n",
        ),
        (b"\xff\xfe x\n\n", b""),
    ],
)
def test_timestamps(output: bytes, found: bytes) -> None:
    """In UTC with nine digits, whatever the runtime writes."""
    assert stamped(output) == found


def test_a_cut_line_is_left_out() -> None:
    """Even if a function has made it look like a whole one."""
    line = b"2026-11-30T14:30:00.000000001Z a\n"
    assert stamped(b"2099-01-01T00:00:00.000000000Z forged\n" + line, is_cut=True) == line
    assert stamped(b"", is_cut=True) == b""
