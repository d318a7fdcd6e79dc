"""Nodes of the double that fail, as it was measured with a real cluster (Kubernetes 1.36.2,
2026-11-28 and 2026-11-30)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from hosts.kubernetes import objects as o
from hosts.kubernetes.access import Access
from hosts.kubernetes.client import KubernetesClient
from tests.support.dial_in.places import can_open_networks
from tests.support.kubernetes.a_pod import WAIT, Wanted, a_pod
from tests.support.kubernetes.conditions import status_of
from tests.support.kubernetes.double import IMAGE, REPLICA_ACCOUNT, Double, NodePlan
from tests.support.kubernetes.observer import Observer, observing
from tests.support.kubernetes.pace import Pace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not can_open_networks(), reason="needs root and network namespaces"),
]

LISTEN = """
import socket
with socket.create_server(("", 7443)) as listener:
    while True:
        listener.accept()[0].close()
"""
SILENCE_S = 0.3
"""Patience for an answer that must not come."""


@pytest.fixture
async def double() -> AsyncIterator[Double]:
    async with Double([NodePlan("n1"), NodePlan("n2")], pace=Pace(node_grace_s=0.3)) as made:
        yield made


@pytest.fixture
async def client(double: Double) -> AsyncIterator[KubernetesClient]:
    made = KubernetesClient(Access(double.folder, double.address, double.api.port))
    yield made
    await made.close()


@pytest.fixture
async def pods(client: KubernetesClient) -> AsyncIterator[Observer]:
    async with observing(client) as made:
        yield made


@pytest.fixture
async def nodes(client: KubernetesClient) -> AsyncIterator[Observer]:
    async with observing(client, o.NODES) as made:
        yield made


async def start(client: KubernetesClient, name: str, program: str = WAIT, **wanted: str) -> None:
    pod = a_pod(Wanted(name, program, IMAGE, wanted.get("node", "n1"), grace_s=1), REPLICA_ACCOUNT)
    await client.create(o.PODS, pod)


async def is_ready(nodes: Observer, name: str, status: str) -> None:
    """Wait until a node says of itself, or is said, to be ready: True, False or Unknown."""
    await nodes.until(
        lambda seen: (found := seen.of(name)) and status_of(found[-1][1], "Ready") == status
    )


async def reach(pod: o.Pod) -> None:
    """Connect to a Pod that runs LISTEN."""
    reader, writer = await asyncio.open_connection(pod.status.pod_ip, 7443)
    await reader.read()
    writer.close()
    await writer.wait_closed()


async def listening(pod: o.Pod) -> None:
    """Wait until a Pod listens."""
    while True:
        try:
            await reach(pod)
        except ConnectionRefusedError:
            continue
        return


async def test_a_kubelet_is_killed(
    double: Double, client: KubernetesClient, pods: Observer, nodes: Observer
) -> None:
    """Its Pods run on; what was asked for or has ended meanwhile is made up for by the next one."""
    for name, program in (("a", LISTEN), ("b", WAIT)):
        await start(client, name, program)
        await pods.running(name)
    a = await pods.running("a")
    await listening(a)
    await double.kill_kubelet("n1")
    await is_ready(nodes, "n1", "Unknown")
    await reach(a)
    double.kill(double.pod("b"))
    await double.container(double.pod("b")).ended.wait()
    assert double.pod("b")["status"]["phase"] == "Running"
    await double.restart_kubelet("n1")
    await is_ready(nodes, "n1", "True")
    b = await pods.ended("b")
    terminated = b.status.container_statuses[0].state.terminated
    assert terminated is not None
    assert terminated.exit_code == 137
    await start(client, "c")
    await pods.running("c")
    assert (await pods.running("a")).status.container_statuses[0].restart_count == 0
    await reach(a)


async def test_a_node_is_cut_off(
    double: Double, client: KubernetesClient, pods: Observer, nodes: Observer
) -> None:
    """Packets vanish and its Pods stay as they were said to be; a delete takes effect, with its
    proof, when the cut is over."""
    for name in "ab":
        await start(client, name, LISTEN)
        await listening(await pods.running(name))
    a = await pods.running("a")
    await double.cut("n1")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reach(a), SILENCE_S)
    await is_ready(nodes, "n1", "Unknown")
    found = double.node("n1")["spec"]["taints"]
    assert [(one["key"], one["effect"]) for one in found] == [
        ("node.kubernetes.io/unreachable", "NoSchedule"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
    ]
    assert double.container(double.pod("a")).is_running
    await client.delete(o.PODS, "b", grace_s=1)
    ending = await pods.pod("b", lambda pod: pod.metadata.deletion_timestamp)
    assert ending.status.phase == "Running"
    await double.heal("n1")
    last = await pods.gone("b")
    assert last.status.container_statuses[0].state.terminated is not None
    await is_ready(nodes, "n1", "True")
    await nodes.until(lambda seen: "taints" not in seen.of("n1")[-1][1]["spec"])
    await reach(a)
    assert (await pods.running("a")).status.container_statuses[0].restart_count == 0


async def test_a_force_delete_on_a_node_that_is_cut_off(
    double: Double, client: KubernetesClient, pods: Observer
) -> None:
    """The object is gone, its process runs on until the kubelet is back."""
    await start(client, "a")
    await pods.running("a")
    container = double.container(double.pod("a"))
    await double.cut("n1")
    double.delete(double.pod("a"), 0)
    last = await pods.gone("a")
    assert last.status.container_statuses[0].state.running is not None
    assert container.is_running
    await double.heal("n1")
    await container.ended.wait()


async def test_a_node_is_removed(
    double: Double, client: KubernetesClient, pods: Observer, nodes: Observer
) -> None:
    """Its Pods are collected, with the reason as a condition."""
    await start(client, "a")
    await pods.running("a")
    await double.remove_node("n1")
    await nodes.until(lambda seen: seen.of("n1") and seen.of("n1")[-1][0] == "DELETED")
    last = await pods.gone("a")
    assert last.status.phase == "Failed"
    found = [one for one in last.status.conditions if one.type == "DisruptionTarget"]
    assert [(one.reason, one.message) for one in found] == [
        ("DeletionByPodGC", "PodGC: node no longer exists")
    ]


async def test_a_node_is_not_ready(
    double: Double, client: KubernetesClient, pods: Observer, nodes: Observer
) -> None:
    """Pods stay for as long as they tolerate it."""
    await start(client, "stays")
    pod = a_pod(Wanted("goes", WAIT, IMAGE, "n1", grace_s=1), REPLICA_ACCOUNT)
    key = "node.kubernetes.io/not-ready"
    short = o.Toleration(key=key, operator="Exists", effect="NoExecute", toleration_seconds=0)
    spec = msgspec.structs.replace(pod.spec, tolerations=(short,))
    await client.create(o.PODS, msgspec.structs.replace(pod, spec=spec))
    for name in ("stays", "goes"):
        await pods.running(name)
    double.set_ready("n1", "container runtime is down")
    await is_ready(nodes, "n1", "False")
    last = await pods.gone("goes")
    found = [one.reason for one in last.status.conditions if one.type == "DisruptionTarget"]
    assert found == ["DeletionByTaintManager"]
    assert (await pods.running("stays")).metadata.deletion_timestamp is None
    double.set_ready("n1")
    await is_ready(nodes, "n1", "True")
