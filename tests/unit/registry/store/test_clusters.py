"""Tests of the definitions of clusters."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from registry.errors import BadRequest, Conflict
from registry.model.hosts import KubernetesHost, SshHost, Toleration
from registry.store.database import Database
from registry.store.hosts import HostStore, check_host

CLUSTER = KubernetesHost(
    "k",
    image="registry.example:5000/team/fngate-runtime@sha256:" + "a" * 64,
    cuda_image="fngate-runtime:gpu",
    labels={"zone": "a"},
    node_selector={"example.com/pool": "gpu", "kubernetes.io/os": "linux", "empty": ""},
    cpu_slots=4,
    tolerations=(Toleration("nvidia.com/gpu"), Toleration("team", "Equal", "a", "NoExecute")),
    pull_secrets=("registry",),
    pod_labels={"team": "a"},
    pod_annotations={"example.com/note": "any text, also ü"},
    added_s=7.0,
)


async def test_a_cluster_survives_a_restart(database: Database) -> None:
    """It comes back as one, beside hosts by SSH."""
    store = await HostStore.open(database)
    gpu2 = SshHost("gpu2", address="nn@gpu2")
    await store.add(CLUSTER)
    await store.add(gpu2)

    assert (await HostStore.open(database)).all() == [gpu2, CLUSTER]


async def test_a_server_has_one_cluster(database: Database) -> None:
    """A second definition would have the devices of the first once more. A host by SSH whose
    address is the same word is another thing."""
    store = await HostStore.open(database)
    await store.add(SshHost("gpu2", address="kubernetes"))
    await store.add(CLUSTER)

    with pytest.raises(Conflict, match="kubernetes is the host k already"):
        await store.add(replace(CLUSTER, name="k2"))
    with pytest.raises(Conflict, match="there is a host k already: kubernetes"):
        await store.add(CLUSTER)


def test_all_that_clusters_take_is_valid() -> None:
    """References with a registry, a port and a digest; keys with a domain and without."""
    check_host(CLUSTER)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "K"}, "expected a name"),
        ({"image": ""}, "image: expected the runtime"),
        ({"image": "a b"}, "image: expected a reference"),
        ({"image": "-a"}, "image: expected a reference"),
        ({"cuda_image": "a\n"}, "cuda_image: expected a reference"),
        ({"node_selector": {"a/b/c": "d"}}, "node_selector: expected keys"),
        ({"node_selector": {"a": "b c"}}, "node_selector: expected a value of a label for a"),
        ({"node_selector": {"a" * 64: "b"}}, "node_selector: expected keys"),
        ({"node_selector": {f"k{n}": "" for n in range(65)}}, "expected at most 64, got 65"),
        ({"cpu_slots": 257}, "cpu_slots: expected 0 to 256"),
        ({"cpu_mib": -1}, "cpu_mib: expected 0"),
        ({"claim_idle_s": 1e9}, "claim_idle_s: expected 0 to 86400"),
        ({"claim_idle_s": float("nan")}, "claim_idle_s: expected"),
        ({"resource": "nvidia.com/"}, "resource: expected"),
        ({"device_class": "GPU"}, "device_class: expected"),
        ({"slice_class": "mig'"}, "slice_class: expected"),
        ({"slice_class": ""}, "slice_class: expected"),
        ({"uuid_attribute": "a-b"}, "uuid_attribute: expected"),
        ({"memory_capacity": ""}, "memory_capacity: expected"),
        ({"service_account": "../x"}, "service_account: expected"),
        ({"runtime_class": "a b"}, "runtime_class: expected"),
        ({"priority_class": "-"}, "priority_class: expected"),
        ({"pull_secrets": ("a/b",)}, "pull_secrets: expected"),
        ({"tolerations": (Toleration("a", "Exists", "b"),)}, "expected no value with Exists"),
        ({"tolerations": (Toleration("", "Equal", "b"),)}, "expected a key with Equal"),
        ({"tolerations": (Toleration("a", effect="Never"),)}, "expected the effect NoSchedule"),
        ({"pod_labels": {"fngate.dev/replica": "x"}}, "expected keys of Pods other"),
        ({"pod_labels": {"app.kubernetes.io/name": "fngate"}}, "expected keys of Pods other"),
        ({"pod_annotations": {"fngate.dev/entrance": "x"}}, "expected keys of Pods other"),
        ({"pod_annotations": {"a": "x" * 4097}}, "expected at most 4096 characters"),
        ({"cpu_slots": 0, "cuda_image": ""}, "expected cpu_slots"),
        ({"cpu_slots": 0, "devices": "none"}, "expected cpu_slots"),
    ],
)
def test_what_no_api_server_would_take_is_refused(changes: dict[str, Any], expected: str) -> None:
    """The first bad field is named, with what was expected."""
    with pytest.raises(BadRequest, match=expected):
        check_host(replace(CLUSTER, **changes))
