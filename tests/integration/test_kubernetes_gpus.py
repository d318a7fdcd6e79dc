"""GPUs of a cluster: a server in the double, whose Pods are real processes without a driver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from pool_manager.hosts.kubernetes.claims import claim_name
from tests.support.caller import Caller
from tests.support.dial_in.places import can_open_networks
from tests.support.in_cluster import InCluster, are_up, cluster
from tests.support.kubernetes.double import CUDA_IMAGE, NodePlan
from tests.support.kubernetes.store import CLAIMS, Json
from tests.support.leaks import Leaks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not can_open_networks(), reason="needs root and network namespaces"),
]

CLAIMED = "c1"
PLUGGED = "p1"
NODES = (NodePlan(CLAIMED, claimed_gpus=2), NodePlan(PLUGGED, plugin_gpus=2))
HANDLER = b"def predict(inputs, ctx):\n    return {'y': 1}\n"
MANIFEST = """schema = 1
[runtime]
engine = "python"
[device]
kind = "cuda"
share = {share}
host = {{ node = "{node}" }}
[input.x]
kind = "json"
"""
ROWS: dict[str, Any] = {"inputs": {"x": 1}}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InCluster]:
    settings = {"cuda_image": CUDA_IMAGE, "cpu_slots": 0, "claim_idle_s": 1.0}
    with cluster(tmp_path_factory.mktemp("t"), NODES, **settings) as made:
        yield made


@pytest.fixture
async def caller(scene: InCluster, leaks: Leaks) -> AsyncIterator[Caller]:
    for text in ("process ", "pidfd", "pipe:", "socket:"):
        leaks.exclude(text, reason="of the double's Pods, which outlive the test")
    async with scene.caller() as made:
        await made.until(lambda: are_up(made))
        yield made


async def deployed(caller: Caller, name: str, node: str, share: float = 1.0) -> None:
    """Deploy a handler to GPUs of a node, and call it."""
    text = MANIFEST.format(node=node, share=share)
    await caller.deploy({"handler.py": HANDLER}, name=name, manifest=text)
    answer = await caller.call(name, ROWS)
    assert answer.status == 200, answer.body


async def asleep(caller: Caller, scene: InCluster, *names: str) -> None:
    """Put functions to sleep; return when their Pods are gone."""
    for name in names:
        await caller.admin("POST", f"/functions/{name}/sleep")

    async def is_so() -> bool:
        return not scene.ask(lambda double: double.pods())

    await caller.until(is_so)


def claims(scene: InCluster) -> list[Json]:
    """Return the claims in the cluster."""
    return scene.ask(lambda double: list(double.store.every(CLAIMS)))


async def devices(caller: Caller) -> dict[str, Json]:
    """Return what the admin API shows of every GPU of the cluster, by id."""
    items = (await caller.admin("GET", "/devices")).json()["items"]
    return {item["id"]: item for item in items if item["id"].startswith("k/")}


async def test_each_gpu_of_the_cluster_is_a_device(caller: Caller) -> None:
    """By their UUIDs where they are published, as slots where a plugin has them."""
    found = await devices(caller)

    assert sorted(found) == [
        "k/c1/GPU-c1-0",
        "k/c1/GPU-c1-1",
        "k/p1/gpu-0",
        "k/p1/gpu-1",
    ]
    assert found["k/c1/GPU-c1-0"]["memory_mib"] == 24 * 1024


async def test_a_function_on_a_claimed_gpu(caller: Caller, scene: InCluster) -> None:
    """Its Pod has the one GPU, by a claim that is given back after the Pod."""
    await deployed(caller, "one", CLAIMED)
    [pod] = scene.pods("one")

    [used] = pod["spec"]["resourceClaims"]
    by_name = {one["metadata"]["name"]: one for one in claims(scene)}
    claim = by_name[used["resourceClaimName"]]  # the trial's may be another one
    [result] = claim["status"]["allocation"]["devices"]["results"]
    record = scene.record(pod["metadata"]["labels"]["fngate.dev/replica"])
    assert record["devices"] == [f"k/c1/GPU-c1-{result['device'].rpartition('-')[2]}"]
    owner = claim["metadata"]["labels"]["fngate.dev/owner"]
    assert claim["metadata"]["name"] == claim_name(owner, record["devices"][0].split("/")[2])

    await asleep(caller, scene, "one")

    async def is_free() -> bool:
        return not claims(scene)

    await caller.until(is_free)


async def test_functions_share_a_claimed_gpu(caller: Caller, scene: InCluster) -> None:
    """Two halves are on one GPU, with one claim, as the ledger has room there."""
    for name in ("left", "right"):
        await deployed(caller, name, CLAIMED, share=0.5)
    names = {
        one["resourceClaimName"]
        for name in ("left", "right")
        for pod in scene.pods(name)
        for one in pod["spec"]["resourceClaims"]
    }
    assert len(names) == 1
    await asleep(caller, scene, "left", "right")


async def test_a_function_on_a_slot_of_a_plugin(caller: Caller, scene: InCluster) -> None:
    """Its Pod asks for one GPU, whichever that is, and no claim."""
    await deployed(caller, "slot", PLUGGED, share=0.5)
    [pod] = scene.pods("slot")

    [container] = pod["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert not pod["spec"].get("resourceClaims")
    await deployed(caller, "other", PLUGGED, share=0.5)
    found = {name: one["replicas"] for name, one in (await devices(caller)).items()}
    assert [len(found[f"k/p1/gpu-{number}"]) for number in range(2)] == [1, 1]
    await asleep(caller, scene, "slot", "other")


async def test_a_claim_that_somebody_deletes_costs_no_call(
    caller: Caller, scene: InCluster
) -> None:
    """The call is held until a Pod has a GPU, by another claim or by the same, made anew."""
    await deployed(caller, "again", CLAIMED)
    await asleep(caller, scene, "again")
    assert claims(scene)
    scene.ask(lambda double: [double.store.remove(CLAIMS, one) for one in claims_of(double)])

    answer = await caller.call("again", ROWS)

    assert answer.status == 200, answer.body


def claims_of(double: Any) -> list[Json]:
    """Return the claims in a double."""
    return list(double.store.every(CLAIMS))
