"""What a node of a cluster is as a host: its labels, CPU slots and state. No I/O.

The objects come from a watch, so that any of them may be old, incomplete or hostile: what cannot
be used is left out and said in `NodeFacts.notes`. `node_gpus` finds the GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hosts.errors import shown
from hosts.kubernetes.objects import Node, ResourceSlice, Taint
from pool_manager.core.state import Device
from pool_manager.devices import cpu_slots
from pool_manager.hosts.kubernetes.node_gpus import NO_GPUS, FoundGpus, Mode, find_gpus, note
from pool_manager.hosts.kubernetes.quantities import mib_of, millis_of
from registry.model.hosts import KubernetesHost, Toleration, id_on
from registry.names import HOST_LABEL, LABEL_KEY, LABEL_VALUE, LABELS_MAX

BANK_SHARE: Final = 0.8
"""Share of a node's allocatable memory that replicas on its CPU slots may take."""
SLOTS_MAX: Final = 256
GPU_REPLICAS: Final = 8
"""Replicas on one GPU, if they share it, for which there is to be CPU on its node."""
CPU_MAX: Final = 100_000_000
"""Max thousandths of a CPU that a node is believed to have."""
MEMORY_MAX_MIB: Final = 2.0**30
"""Max MiB of memory that a node is believed to have: a pebibyte."""
_NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""A DNS subdomain (RFC 1123), as which the API server checks names of nodes."""
_REFUSING: Final = ("NoSchedule", "NoExecute")
_CORDON: Final = "node.kubernetes.io/unschedulable"
_NOT_READY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PRESSED: Final = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
"""Conditions that pass, and the taints by which the control plane keeps Pods away meanwhile.
Source: Kubernetes, "Taints and Tolerations", taint nodes by condition."""
_WELL_KNOWN: Final = {
    "topology.kubernetes.io/zone": "zone",
    "topology.kubernetes.io/region": "region",
    "node.kubernetes.io/instance-type": "instance-type",
}
"""Labels of nodes whose keys a function cannot name, and what a host has them as."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as a host."""

    host: str
    """Name of the host: CLUSTER/NODE."""
    node: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """Those of the definition; `cluster` and `node`; and of the node's own labels those that a
    function can name, with `zone`, `region` and `instance-type`."""
    why_unusable: str = ""
    """Why the node is no host, "" if it is one. One that was a host before drains."""
    is_draining: bool = False
    """Whether it is cordoned, or its cluster drains."""
    why_not_ready: str = ""
    """Why it may not run anything at present: its kubelet does not report, or reports that it is
    not ready. What runs there may serve on."""
    why_paused: str = ""
    """Why nothing is placed there for the moment, such as its memory pressure. What runs there
    serves on."""
    mode: Mode = Mode.NONE
    """How Pods get its GPUs."""
    devices: tuple[Device, ...] = ()
    """GPUs first, then CPU slots."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Why no Pod gets a device although it is there, by its id."""
    kept: frozenset[str] = frozenset()
    """The ids of devices that are there only as long as replicas use them."""
    cpu_millis: int = 0
    """Thousandths of a CPU that Pods may have of it."""
    memory_mib: float = 0.0
    """MiB that replicas may take of its memory together: what its CPU slots share."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    @property
    def share_millis(self) -> int:
        """The thousandths of a CPU that the scheduler is to keep for one replica: an equal part of
        the node for each that all devices take at once, GPU_REPLICAS on a GPU that is shared."""
        shared = sum(1 for one in self.devices if one.kind != "cpu" and not one.is_exclusive)
        return self.cpu_millis // max(1, len(self.devices) + shared * (GPU_REPLICAS - 1))

    def threads(self, kind: str) -> int:
        """Return the threads of a replica on a device of this kind: an equal part of the node's
        CPUs."""
        there = sum(1 for device in self.devices if device.kind == kind)
        return max(1, self.cpu_millis // max(1, there) // 1000)


def node_facts(
    node: Node,
    slices: Iterable[ResourceSlice],
    definition: KubernetesHost,
    *,
    before: Sequence[Device] = (),
    used: Collection[str] = (),
) -> NodeFacts:
    """Return a node as a host of the cluster that `definition` describes.

    `slices` are those of this node. `before` are the devices that the host was announced with, and
    `used` those that its replicas are on, by their ids: one that is not found at present stays as
    long as it is used, since its replicas would be ended without it. That is so while a driver or a
    kubelet starts anew, which takes back all that it has published.
    """
    name = node.metadata.name
    if _NODE_NAME.fullmatch(name) is None:
        return NodeFacts("", name, why_unusable=f"expected a node's name, got {shown(name)!r}")
    host = id_on(definition.name, name)
    notes: list[str] = []
    gpus = find_gpus(node, slices, definition, host) if _uses_gpus(definition) else NO_GPUS
    notes += gpus.notes
    memory_mib = _memory_mib(node, definition, notes)
    cpu_millis = int(_quantity(node, "cpu", millis_of, CPU_MAX, notes))
    slots = _slots(definition, memory_mib, host)
    devices = (*gpus.devices, *slots)
    kept = _kept(devices, before, used, host)
    kept_gpus = tuple(one for one in kept if one.kind != "cpu")
    faults = dict(gpus.faults)
    if not _uses_gpus(definition):
        faults |= {one.id: f"{definition.name} uses no GPUs any more" for one in kept_gpus}
    elif gpus.is_complete:
        faults |= {one.id: "its driver does not publish it any more" for one in kept_gpus}
    return NodeFacts(
        host,
        name,
        _labels(node, definition),
        _why_unusable(node, definition, (*devices, *kept), gpus),
        node.spec.unschedulable or definition.is_draining,
        _why_not_ready(node),
        _why_paused(node, definition),
        gpus.mode,
        (*gpus.devices, *kept_gpus, *slots, *(one for one in kept if one.kind == "cpu")),
        faults,
        frozenset(one.id for one in kept),
        cpu_millis,
        memory_mib,
        tuple(notes),
    )


def _uses_gpus(definition: KubernetesHost) -> bool:
    return bool(definition.cuda_image) and definition.devices != "none"


def _kept(
    devices: Sequence[Device], before: Sequence[Device], used: Collection[str], host: str
) -> list[Device]:
    """Return the devices of the host that are used and not among `devices`. One of which nothing
    else is known takes one replica, as nothing can be accounted there."""
    found = {one.id for one in devices}
    known = {one.id: one for one in before}
    missing = sorted(id for id in used if id not in found and id.startswith(f"{host}/"))
    return [known.get(id) or _bare(id, host) for id in missing]


def _bare(id: str, host: str) -> Device:
    kind = "cpu" if id.startswith(f"{host}/cpu:") else "cuda"
    return Device(id, kind, host=host, is_exclusive=True)


def _labels(node: Node, definition: KubernetesHost) -> dict[str, str]:
    """Return the labels of the host, LABELS_MAX at most: a function finds by them where it may
    run."""
    own = node.metadata.labels
    plain = {key: own[key] for key in sorted(own) if re.fullmatch(LABEL_KEY, key)}
    mapped = {name: own[key] for key, name in _WELL_KNOWN.items() if key in own}
    always = {"cluster": definition.name, "node": node.metadata.name, **definition.labels}
    found = {**always, **{key: mapped[key] for key in mapped if key not in always}}
    found |= {key: text for key, text in plain.items() if key not in found}
    usable = ((key, text) for key, text in found.items() if re.fullmatch(LABEL_VALUE, text))
    return dict([(key, text) for key, text in usable if key != HOST_LABEL][:LABELS_MAX])


def _why_unusable(
    node: Node, definition: KubernetesHost, devices: Sequence[Device], gpus: FoundGpus
) -> str:
    """Return why the node is no host, "" if it is one."""
    own = node.metadata.labels
    for key, value in definition.node_selector.items():
        if own.get(key) != value:
            return f"it has no label {shown(key)}={shown(value)}"
    for taint in node.spec.taints:
        if _refuses(taint, definition.tolerations) and not _passes(taint):
            text = f"{shown(taint.key)}={shown(taint.value)}:{shown(taint.effect)}"
            return f"it has the taint {text}, which {definition.name} does not tolerate"
    if devices:
        return ""
    if gpus.is_expected:
        return f"it has no device yet: {gpus.notes[0]}" if gpus.notes else "it has no device yet"
    return "it has neither a GPU nor CPU slots"


def _passes(taint: Taint) -> bool:
    """Whether a taint stands for a condition of the node, by which it is judged itself."""
    return taint.key == _CORDON or taint.key in _NOT_READY or taint.key in _PRESSED.values()


def _refuses(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Whether a taint keeps Pods with these tolerations away. Source: Kubernetes, "Taints and
    Tolerations"."""
    return taint.effect in _REFUSING and not any(_tolerates(one, taint) for one in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.key not in ("", taint.key):
        return False
    is_any = toleration.operator == "Exists"
    return is_any or (bool(toleration.key) and toleration.value == taint.value)


def _why_not_ready(node: Node) -> str:
    ready = next((one for one in node.status.conditions if one.type == "Ready"), None)
    if ready is None:
        return "its kubelet has not reported yet"
    if ready.status == "True":
        return ""
    said = shown(ready.message or ready.reason)
    what = "it is not ready" if ready.status == "False" else "its kubelet does not report"
    return f"{what}: {said}" if said else what


def _why_paused(node: Node, definition: KubernetesHost) -> str:
    """Return the condition or the taint by which the scheduler keeps Pods away for the moment."""
    for one in node.status.conditions:
        if one.type in _PRESSED and one.status == "True":
            taint = Taint(key=_PRESSED[one.type], effect="NoSchedule")
            if _refuses(taint, definition.tolerations):
                said = shown(one.message or one.reason)
                return f"its kubelet reports {one.type}" + (f": {said}" if said else "")
    for taint in node.spec.taints:
        if taint.key in _PRESSED.values() and _refuses(taint, definition.tolerations):
            return f"it has the taint {taint.key}:{shown(taint.effect)}"
    return ""


def _quantity(
    node: Node, resource: str, read: Callable[[str], float], most: float, notes: list[str]
) -> float:
    """Return what Pods may have of a resource of the node, 0 if that is not known."""
    text = node.status.allocatable.get(resource, "0")
    try:
        value = read(text)
    except ValueError as error:
        note(notes, f"its allocatable {resource}: {error}")
        return 0
    if value > most:
        note(notes, f"its allocatable {resource}: expected at most {most:g}, got {shown(text)!r}")
        return 0
    return value


def _memory_mib(node: Node, definition: KubernetesHost, notes: list[str]) -> float:
    """Return the MiB of the node's memory that replicas may take, 0 if that is not known."""
    allocatable = _quantity(node, "memory", mib_of, MEMORY_MAX_MIB, notes)
    if not definition.cpu_mib:
        return float(int(allocatable * BANK_SHARE))
    return float(min(definition.cpu_mib, int(allocatable)))


def _slots(definition: KubernetesHost, memory_mib: float, host: str) -> list[Device]:
    """Return the CPU slots; none while the memory that they would share is not known."""
    if not memory_mib:
        return []
    return cpu_slots(max(0, min(definition.cpu_slots, SLOTS_MAX)), memory_mib, host)
