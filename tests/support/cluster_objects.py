"""Objects of a cluster for tests: nodes, and the ResourceSlices of NVIDIA's driver there, as that
writes them (its page "ResourceSlice device attributes")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hosts.kubernetes.objects import Node, ResourceSlice
from registry.model.hosts import KubernetesHost

DRIVER = "gpu.nvidia.com"
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}


def definition(**changes: Any) -> KubernetesHost:
    """Return the definition of a cluster `c` with images for both kinds of devices."""
    fields: dict[str, Any] = {"name": "c", "image": "fngate:1", "cuda_image": "fngate-cuda:1"}
    return KubernetesHost(**{**fields, **changes})


def node(
    name: str = "n1",
    allocatable: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    taints: Sequence[Mapping[str, str]] = (),
    conditions: Sequence[Mapping[str, str]] = (READY,),
    cordoned: bool = False,
) -> Node:
    """Return a node; 8 CPUs and 32 GiB unless told otherwise."""
    resources = {"cpu": "8", "memory": "32Gi", **(allocatable or {})}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": {"unschedulable": cordoned, "taints": list(taints)},
            "status": {"allocatable": resources, "conditions": list(conditions)},
        },
        Node,
    )


def gpu(number: int, uuid: str = "", memory: str = "81559Mi", **more: Any) -> dict[str, Any]:
    """Return a whole GPU of a ResourceSlice."""
    return {
        "name": f"gpu-{number}",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": uuid or f"GPU-0000000{number}-aaaa"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "driverVersion": {"version": "580.126.20"},
            "resource.kubernetes.io/pciBusID": {"string": f"0000:{0x18 + number:02x}:00.0"},
        },
        "capacity": {"memory": {"value": memory}},
        **more,
    }


def mig(number: int, uuid: str = "", memory: str = "9856Mi") -> dict[str, Any]:
    """Return a MIG slice of a ResourceSlice."""
    found = gpu(0, uuid or f"MIG-0000000{number}-bbbb", memory)
    found["name"] = f"gpu-0-mig-1g10gb-19-{number}"
    found["attributes"] |= {
        "type": {"string": "mig"},
        "profile": {"string": "1g.10gb"},
        "parentUUID": {"string": "GPU-00000000-aaaa"},
    }
    return found


def slice_of(
    devices: Sequence[Mapping[str, Any]],
    name: str = "s1",
    *,
    node: str = "n1",
    driver: str = DRIVER,
    pool: str = "n1",
    generation: int = 1,
    count: int = 1,
) -> ResourceSlice:
    """Return a ResourceSlice of a pool that has `count` of them."""
    return msgspec.convert(
        {
            "metadata": {"name": name},
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
                "devices": list(devices),
            },
        },
        ResourceSlice,
    )
