"""Machines that run replicas."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

LOCAL_HOST = "local"
"""Name of the machine that the server runs on: the default where none is named."""
CLUSTER = "kubernetes"
"""Address of a Kubernetes cluster in texts: the one that the server runs in."""
HOSTS_MAX = 100
"""Max hosts beside the local one."""


class Ability(StrEnum):
    """What a host may be able to run beside models; a replica needs one of these at most."""

    COMMAND = "command"
    """Commands of server functions, beside the server's own programs."""
    IMAGE = "image"
    """Images of server functions."""
    PACKAGES = "packages"
    """Python functions, with the packages that this server has installed."""


def other_host(name: str) -> str:
    """Return the name of a host for texts, "" for LOCAL_HOST, which they do not mention."""
    return "" if name == LOCAL_HOST else name


def host_order(name: str) -> tuple[bool, str]:
    """Return the sort key of a host: LOCAL_HOST is the first, then they are by name."""
    return name != LOCAL_HOST, name


def id_on(host: str, id: str) -> str:
    """Return the id by which a part of a host, such as a device, is known among those of all hosts:
    HOST/ID, and ID alone for LOCAL_HOST."""
    return f"{host}/{id}" if other_host(host) else id


class Host(msgspec.Struct, frozen=True):
    """The definition of a machine that runs replicas, or of several; each kind has a Struct of its
    own, told apart by its tag. This machine has none, and is not stored."""

    name: str
    """Name, unique; also the value of its label `host`."""
    labels: dict[str, str] = {}
    """The operator's labels; functions name those that their host must have."""
    is_draining: bool = False
    """Whether no replicas are placed there."""
    added_s: float = 0.0
    """Unix seconds."""


class SshHost(Host, frozen=True, kw_only=True, tag_field="kind", tag="ssh"):
    """A machine with sshd and a container engine. Servers before the tag have stored none."""

    address: str
    """Login by SSH: `[USER@]HOST[:PORT]`."""
    host_key: str = ""
    """Public key that the host must show, as a line of OpenSSH (`ssh-ed25519 AAAA...`); "" for the
    keys of known_hosts."""
    identity: str = ""
    """File of a private key on the server's machine; "" for the agent's keys and those of
    ~/.ssh/config."""
    engine: str = "/var/run/docker.sock"
    """Path of the container engine's socket there."""
    cpu_slots: int = 0
    """Number of CPU slots; 0 for one per core."""
    gpus: str = "all"
    """GPUs that replicas may use, as in FN_GPUS."""
    files_mib: int = 51_200
    """MiB that the cache of model files may take there."""


class Toleration(msgspec.Struct, frozen=True, rename="camel"):
    """A taint of nodes that Pods tolerate; fields as in the Kubernetes API."""

    key: str = ""
    """"" tolerates every key, with the operator Exists."""
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: str = ""
    """"" for all effects."""


class KubernetesHost(Host, frozen=True, kw_only=True, tag_field="kind", tag="kubernetes"):
    """The Kubernetes cluster that the server runs in: each of its nodes that can run replicas is a
    host `NAME/NODE`, and each replica there is a Pod."""

    image: str
    """Image of the runtime for CPU slots, as Pods name it."""
    cuda_image: str = ""
    """Image of the runtime for GPUs; "" for none: then no GPU is used."""
    node_selector: dict[str, str] = {}
    """Labels of the nodes that are used; {} for all."""
    cpu_slots: int = 0
    """CPU slots of each of these nodes; 0 for none: then only nodes with GPUs are used."""
    cpu_mib: int = 0
    """MiB that replicas on CPU slots may take of each node; 0 for four fifths of what is
    allocatable there."""
    devices: Literal["auto", "claims", "plugin", "none"] = "auto"
    """How Pods get GPUs: by ResourceClaims (dynamic resource allocation), or as counted resources
    of a device plugin. auto: by claims where the driver of `device_class` has published its
    devices, else by the plugin."""
    resource: str = "nvidia.com/gpu"
    """The resource of the device plugin."""
    device_class: str = "gpu.nvidia.com"
    """The DeviceClass of claims for whole GPUs, which is also the name of its driver."""
    slice_class: str = "mig.nvidia.com"
    """The DeviceClass of claims for MIG slices, of the same driver."""
    uuid_attribute: str = "uuid"
    """The attribute of a device in a ResourceSlice that is its UUID."""
    memory_capacity: str = "memory"
    """The capacity of such a device that is its memory."""
    claim_idle_s: float = 60.0
    """Seconds after the last replica on a GPU until its claim is given back."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes that Pods tolerate."""
    runtime_class: str = ""
    """RuntimeClass of Pods with a GPU."""
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets of the namespace by which the kubelet pulls images."""
    service_account: str = "fngate-replica"
    """ServiceAccount of Pods."""
    priority_class: str = "fngate-serving"
    """PriorityClass of Pods that other tenants of the cluster cannot preempt; "" for none."""
    idle_class: str = "fngate-idle"
    """PriorityClass of Pods that they can preempt; "" for none."""
    pod_labels: dict[str, str] = {}
    pod_annotations: dict[str, str] = {}


StoredHost = SshHost | KubernetesHost
"""The definitions that are stored: a union of all kinds with a tag."""


class HostKind(msgspec.Struct):
    """The kind that a definition names. Those without one are older than other kinds than ssh."""

    kind: Literal["ssh", "kubernetes"] = "ssh"


def where(host: StoredHost) -> str:
    """Return what a host is reached by, for texts: its login, or the word for a cluster."""
    return host.address if isinstance(host, SshHost) else CLUSTER
