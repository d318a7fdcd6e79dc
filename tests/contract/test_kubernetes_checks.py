"""The checks of a cluster, in one with real processes and no policies of networks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from admin.cli.kubernetes.manifests import IDLE_PRIORITY
from hosts.checks import Check
from hosts.kubernetes.access import Access
from hosts.kubernetes.rights import IN_CLUSTER, IN_NAMESPACE
from pool_manager.hosts.kubernetes.examine import Surroundings, examine
from pool_manager.hosts.kubernetes.probe import NAME
from registry.model.hosts import KubernetesHost
from runtime_image.contract.addresses import TlsAddress
from tests.support.dial_in.places import can_open_networks, free_port
from tests.support.kubernetes.access_rules import Rule
from tests.support.kubernetes.double import IMAGE, Double, NodePlan
from tests.support.kubernetes.store import NODES, PODS, PRIORITIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not can_open_networks(), reason="needs root and network namespaces"),
]
HOST = KubernetesHost("k", image=IMAGE, cpu_slots=2)
GRANTED = tuple(
    Rule((one.group,), (one.resource,), one.verbs) for one in (*IN_NAMESPACE, *IN_CLUSTER)
)
"""The rules of the manifests."""


class Cluster:
    """A cluster with a server's door and HTTP port, which accept connections."""

    def __init__(self, double: Double) -> None:
        self.double = double
        self.door, self.http = free_port(), free_port()

    async def check(self, host: KubernetesHost = HOST) -> dict[str, Check]:
        """Return the results of all checks by name."""
        double = self.double
        around = Surroundings(
            TlsAddress(double.address, self.door),
            "an authority",
            self.http,
            double.address,
            double.api.port,
            20_000,
        )
        access = Access(double.folder, double.address, double.api.port)
        return {one.name: one for one in await examine(access, host, around)}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Run a cluster of two nodes whose server has the rights of the manifests."""

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async with Double((NodePlan("n1"), NodePlan("n2", plugin_gpus=1))) as double:
        double.api.rules = GRANTED
        found = Cluster(double)
        servers = [
            await asyncio.start_server(accept, double.address, port)
            for port in (found.door, found.http)
        ]
        yield found
        for server in servers:
            server.close()
            await server.wait_closed()


async def test_a_good_cluster_passes_with_its_rights(cluster: Cluster) -> None:
    """The rules of the manifests are enough for every check. Without a network plugin that enforces
    policies, what a Pod reaches is named, and the host can be added all the same."""
    found = await cluster.check()

    assert {name: one.level for name, one in found.items() if one.level != "ok"} == {
        "network policies": "warn"
    }
    reached = found["network policies"].found
    assert "the HTTP port of the server" in reached
    assert "the API server" in reached
    assert "the door" not in reached
    assert list(cluster.double.store.every(PODS, "fngate")) == []


async def test_policies_are_proven_by_what_listens(cluster: Cluster) -> None:
    """A door that cannot be reached fails; a port that cannot be is a proof of policies."""
    double = cluster.double
    around = Surroundings(
        TlsAddress(double.address, free_port()),  # nothing listens there
        "an authority",
        free_port(),
        "127.0.0.1",
        1,
        20_000,
    )
    access = Access(double.folder, double.address, double.api.port)
    found = {one.name: one for one in await examine(access, HOST, around)}

    assert found["door"].level == "fail"
    assert "refused" in found["door"].found
    assert found["network policies"].level == "ok"


async def test_what_is_missing_is_named(cluster: Cluster) -> None:
    """Rights, priorities and nodes, each with a remedy; no Pod is made then."""
    double = cluster.double
    double.api.rules = [one for one in GRANTED if one.resources != ("pods/resize",)]
    double.store.remove(PRIORITIES, next(iter(double.store.every(PRIORITIES, ""))))

    found = await cluster.check(
        KubernetesHost("k", image=IMAGE, cpu_slots=1, node_selector={"pool": "gpu"})
    )

    assert found["rights"].level == "fail"
    assert "patch pods/resize" in found["rights"].found
    assert "kubectl apply" in found["rights"].todo
    assert found["priorities"].level == "fail"
    assert found["nodes"].level == "fail"
    assert "n1" in found["nodes"].found
    assert "probe" not in found
    assert IDLE_PRIORITY < 0


async def test_an_image_that_is_not_there_is_told(cluster: Cluster) -> None:
    """By the kubelet's words; the Pod is removed."""
    found = await cluster.check(KubernetesHost("k", image="registry.example/no:1", cpu_slots=1))

    assert found["probe"].level == "fail"
    assert "registry.example/no:1" in found["probe"].todo
    assert cluster.double.store.get(PODS, NAME, "fngate") is None


async def test_gpus_of_a_plugin_are_counted(cluster: Cluster) -> None:
    """A node without one is used for CPU slots alone."""
    found = await cluster.check(KubernetesHost("k", image=IMAGE, cuda_image=IMAGE, cpu_slots=1))

    assert found["nodes"].found == "2 of 2, with 2 CPU slots and 1 GPUs"
    assert found["GPUs"].found.startswith("1, by plugin")


async def test_a_silent_api_server_is_the_only_check(cluster: Cluster) -> None:
    """Nothing else can be asked."""
    await cluster.double.api.close()

    found = await cluster.check()

    assert [(one.name, one.level) for one in found.values()] == [("API server", "fail")]
    assert list(cluster.double.store.every(NODES, ""))
