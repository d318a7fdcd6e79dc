"""Types of bodies about hosts."""

from __future__ import annotations

import msgspec

from admin.documents.requests import DeviceMode
from hosts.checks import Check as Check
from pool_manager.core.hosts import HostState
from registry.model.hosts import Toleration


class HostRow(msgspec.Struct):
    """A machine that runs replicas. `address` is "" for the machine of the server. `reason`: why it
    is not up, or what is wrong with it. `agent`: why there are no reports of its GPUs and disk, ""
    if there are. `images`: number of images that this server has sent there. `clock_offset_s`: its
    clock minus that of the server. `transfer`: what is being sent there. Null means unknown."""

    name: str
    address: str
    state: HostState
    reason: str
    since_s: float
    labels: dict[str, str]
    driver: str
    engine_version: str
    rtt_ms: float | None
    agent: str
    cpu_slots: int
    gpus: int
    replicas: int
    disk_free_mib: int | None
    cached_files: int
    cached_mib: float
    images: int
    clock_offset_s: float | None
    transfer: str


class SshHostSettings(
    msgspec.Struct, rename={"is_draining": "draining"}, tag_field="kind", tag="ssh"
):
    """The stored settings of a host by SSH. `host_key`: the pinned public key, "" for that of
    known_hosts; `identity`: file of a private key on the server's machine, "" for its agent's keys;
    `cpu_slots`: 0 for one per core; `files_mib`: limit of its cache of model files."""

    address: str
    labels: dict[str, str]
    host_key: str
    identity: str
    engine: str
    cpu_slots: int
    gpus: str
    files_mib: int
    is_draining: bool
    added_s: float


class KubernetesHostSettings(
    msgspec.Struct, rename={"is_draining": "draining"}, tag_field="kind", tag="kubernetes"
):
    """The stored settings of a Kubernetes cluster. `image`, `cuda_image`: the runtime's, for CPU
    slots and GPUs, as Pods name them. `node_selector`: labels of the nodes that are used, {} for
    all. `cpu_slots`, `cpu_mib`: of each node; 0 slots for none, 0 MiB for four fifths of what is
    allocatable. `devices`: how Pods get GPUs, by claims of `device_class` (of `slice_class` for MIG
    slices), or as `resource` of a device plugin; auto is by claims where the driver of
    `device_class` has published its devices.
    `uuid_attribute`, `memory_capacity`: of such a device. `claim_idle_s`: seconds after the last
    replica on a GPU until its claim is given back. `runtime_class`: of Pods with a GPU, "" for
    none. `pull_secrets`: Secrets for the images. `priority_class`, `idle_class`: of Pods that other
    tenants cannot preempt, and of those that they can, "" for none."""

    image: str
    cuda_image: str
    labels: dict[str, str]
    node_selector: dict[str, str]
    cpu_slots: int
    cpu_mib: int
    devices: DeviceMode
    resource: str
    device_class: str
    slice_class: str
    uuid_attribute: str
    memory_capacity: str
    claim_idle_s: float
    tolerations: tuple[Toleration, ...]
    runtime_class: str
    pull_secrets: tuple[str, ...]
    service_account: str
    priority_class: str
    idle_class: str
    pod_labels: dict[str, str]
    pod_annotations: dict[str, str]
    is_draining: bool
    added_s: float


HostSettings = SshHostSettings | KubernetesHostSettings


class HostDetail(HostRow):
    """A host with its settings, null for one that has no definition of its own: the machine of the
    server, a node of a cluster."""

    settings: SshHostSettings | KubernetesHostSettings | None


class NewHost(HostDetail):
    """A new host, and the results of its checks; none if it was added unchecked."""

    checks: list[Check]


class RemovedHost(msgspec.Struct):
    """A host that is removed, or null while its `replicas` drain."""

    removed: str | None
    replicas: int
