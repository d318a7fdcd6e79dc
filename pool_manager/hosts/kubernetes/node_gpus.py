"""The GPUs of a node as devices: from ResourceSlices of a driver of dynamic resource allocation, or
as slots of a device plugin. No I/O.

Names of attributes, capacities, labels and classes are those of NVIDIA's projects: see design.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from hosts.errors import shown
from hosts.kubernetes.objects import Node, ResourceSlice, SliceDevice
from pool_manager.core.state import Device
from pool_manager.gpus.memory import MODEL_MAX
from pool_manager.hosts.kubernetes.quantities import count_of, mib_of
from registry.model.hosts import KubernetesHost, id_on

GPUS_MAX: Final = 256
"""Max GPUs of a node: 16 of them with seven MIG slices each are 112."""
SLICES_MAX: Final = 1024
"""Max ResourceSlices of a node that are looked at."""
MIB_MAX: Final = 2.0**24
"""Max MiB that a GPU is believed to have: 16 TiB."""
NOTES_MAX: Final = 8
_UUID: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")
"""A UUID becomes a part of ids, of names and of an expression. Attributes have at most 64
characters."""
_REFUSING: Final = ("NoSchedule", "NoExecute")
_NO_CUDA: Final = "vfio"
"""Type of a device that is passed to a virtual machine: it has a UUID, and no driver."""
_SLICE_TYPE: Final = "mig"
_PCI_BUS: Final = "resource.kubernetes.io/pciBusID"
_SHARED: Final = ".shared"
"""Suffix of a resource that the device plugin renames because its GPUs are shared."""
_MPS: Final = "mps"
_STRATEGIES: Final = ("time-slicing", _MPS)


class Mode(StrEnum):
    """How Pods get the GPUs of a node."""

    CLAIMS = "claims"
    """Each GPU by a ResourceClaim, which all Pods on it share."""
    PLUGIN = "plugin"
    """As a counted resource: the kubelet chooses which GPU a Pod gets."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FoundGpus:
    """The GPUs that a node has published."""

    devices: tuple[Device, ...] = ()
    mode: Mode = Mode.NONE
    faults: Mapping[str, str] = field(default_factory=dict)
    """Why no Pod gets a device, by its id."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    is_complete: bool = False
    """Whether a driver has published all of its devices: one that is not among them is gone."""
    is_expected: bool = False
    """Whether a driver is about to publish more."""


NO_GPUS: Final = FoundGpus()


def note(notes: list[str], text: str) -> None:
    """Add a text to the notes of a node, NOTES_MAX at most."""
    if len(notes) < NOTES_MAX:
        notes.append(text)


def qualified(name: str, driver: str) -> tuple[str, str]:
    """Return domain and identifier of an attribute or a capacity: without a domain it has that of
    its driver."""
    domain, _, identifier = name.rpartition("/")
    return domain or driver, identifier


def find_gpus(
    node: Node, slices: Iterable[ResourceSlice], definition: KubernetesHost, host: str
) -> FoundGpus:
    """Return the GPUs of a node, whose ResourceSlices are given, as devices of `host`."""
    if definition.devices != "plugin":
        of_driver = _of_driver(slices, definition.device_class, node.metadata.name)
        if of_driver or definition.devices == "claims":
            return _claimed(of_driver, definition, host)
    return _plugged(node, definition, host)


# Dynamic resource allocation


def _of_driver(slices: Iterable[ResourceSlice], driver: str, node: str) -> list[ResourceSlice]:
    """Return the slices of a driver for a node. Pools of several nodes have no `nodeName`, and no
    GPU of this kind."""
    found: dict[str, ResourceSlice] = {}
    for one in slices:
        if one.spec.driver == driver and one.spec.node_name == node:
            found[one.metadata.name] = one
            if len(found) >= SLICES_MAX:
                break
    return [found[name] for name in sorted(found)]


def _pools(slices: Sequence[ResourceSlice]) -> Iterator[tuple[list[ResourceSlice], bool]]:
    """Yield the slices of each pool that count, and whether they are all of it.

    A driver that changes a pool raises its generation, slice by slice: those of a lower one are
    out of date. Source: Kubernetes API reference, ResourceSlice, ResourcePool.
    """
    pools: dict[str, list[ResourceSlice]] = {}
    for one in slices:
        pools.setdefault(one.spec.pool.name, []).append(one)
    for members in pools.values():
        newest = max(one.spec.pool.generation for one in members)
        current = [one for one in members if one.spec.pool.generation == newest]
        yield current, len(current) >= max(one.spec.pool.resource_slice_count for one in current)


def _claimed(slices: Sequence[ResourceSlice], definition: KubernetesHost, host: str) -> FoundGpus:
    """Return the devices that a driver has published."""
    devices: dict[str, Device] = {}
    faults: dict[str, str] = {}
    notes: list[str] = []
    is_complete = bool(slices)
    for current, is_whole in _pools(slices):
        is_complete &= is_whole
        for published in (one for part in current for one in part.spec.devices):
            device = _device(published, definition, host, notes)
            if device is None or device.id in devices:
                continue
            if len(devices) >= GPUS_MAX:
                note(notes, f"it has more than {GPUS_MAX} GPUs; the others are not used")
                return _found(devices, Mode.CLAIMS, faults, notes, is_complete=False)
            devices[device.id] = device
            if taint := next((one for one in published.taints if one.effect in _REFUSING), None):
                text = f"{shown(taint.key)}={shown(taint.value)}:{shown(taint.effect)}"
                faults[device.id] = f"its driver has tainted it: {text}"
    if not is_complete:
        note(notes, "its driver has yet to publish all of its devices")
    return _found(devices, Mode.CLAIMS, faults, notes, is_complete=is_complete)


def _found(
    devices: Mapping[str, Device],
    mode: Mode,
    faults: Mapping[str, str],
    notes: Sequence[str],
    *,
    is_complete: bool,
) -> FoundGpus:
    ordered = tuple(sorted(devices.values(), key=lambda one: (one.pci_bus, one.id)))
    return FoundGpus(
        *(ordered, mode, faults, tuple(notes)),
        is_complete=is_complete,
        is_expected=not is_complete,
    )


def _device(
    found: SliceDevice, definition: KubernetesHost, host: str, notes: list[str]
) -> Device | None:
    """Return a published device, None if it is no GPU that a claim can name. Parts of a GPU that a
    driver would make for a claim have no UUID yet."""
    driver = definition.device_class
    kind = _text(found, "type", driver)
    uuid = _text(found, definition.uuid_attribute, driver)
    if kind == _NO_CUDA or not uuid:
        return None
    if _UUID.fullmatch(uuid) is None:
        note(notes, f"{shown(found.name)}: expected a UUID, got {shown(uuid)!r}")
        return None
    mib = _memory_mib(found, definition, notes)
    is_slice = kind == _SLICE_TYPE
    profile = _text(found, "profile", driver) if is_slice else ""
    name = _text(found, "productName", driver) or "GPU"
    capability = _version(found, "cudaComputeCapability", driver).split(".")
    return Device(
        id_on(host, uuid),
        "cuda",
        mib,
        host=host,
        model=_model(
            f"{name} MIG {profile}" if profile else name,
            mib,
            "".join(capability[:2]),
            _version(found, "driverVersion", driver),
        ),
        pci_bus=_text(found, _PCI_BUS, driver),
        is_slice=is_slice,
        # Where memory cannot be accounted, nothing else may be placed.
        is_exclusive=not mib,
    )


def _text(found: SliceDevice, name: str, driver: str) -> str:
    """Return a text among the attributes of a device, "" for none."""
    domain, identifier = qualified(name, driver)
    value = found.attributes.get(f"{domain}/{identifier}")
    if value is None and domain == driver:
        value = found.attributes.get(identifier)
    return (value.string or "") if value is not None else ""


def _version(found: SliceDevice, name: str, driver: str) -> str:
    value = found.attributes.get(name) or found.attributes.get(f"{driver}/{name}")
    return (value.version or value.string or "") if value is not None else ""


def _memory_mib(found: SliceDevice, definition: KubernetesHost, notes: list[str]) -> float:
    """Return the memory of a device in MiB, 0 if it is not known."""
    domain, identifier = qualified(definition.memory_capacity, definition.device_class)
    value = found.capacity.get(f"{domain}/{identifier}")
    if value is None and domain == definition.device_class:
        value = found.capacity.get(identifier)
    if value is None:
        return 0.0
    try:
        return _believed(mib_of(value.value))
    except ValueError as error:
        note(notes, f"{shown(found.name)}: its {shown(identifier)}: {error}")
        return 0.0


def _believed(mib: float) -> float:
    """Return the MiB of a GPU. Raises ValueError if no GPU has that."""
    if not 1.0 <= mib <= MIB_MAX:
        raise ValueError(f"expected 1 to {MIB_MAX:.0f} MiB, got {mib:g}")
    return mib


def _model(name: str, mib: float, capability: str, driver: str) -> str:
    """Return all that is known of a GPU, in the words of `pool_manager.gpus.memory.model_of`."""
    parts = [
        name,
        f"{mib:.0f} MiB" if mib else "",
        f"sm{capability}" if capability else "",
        f"driver {driver}" if driver else "",
    ]
    return shown(", ".join(part for part in parts if part))[:MODEL_MAX]


# Device plugins


def _plugged(node: Node, definition: KubernetesHost, host: str) -> FoundGpus:
    """Return the slots of a device plugin: its GPUs are interchangeable, and each takes one replica
    at a time. Where they are shared with other Pods, there are as many slots as GPUs."""
    notes: list[str] = []
    labels = _PluginLabels(node.metadata.labels, definition.resource, notes)
    text = node.status.allocatable.get(definition.resource)
    if text is None:
        return NO_GPUS
    try:
        there = count_of(text)
    except ValueError as error:
        return FoundGpus(notes=(f"its allocatable {definition.resource}: {error}",))
    slots = min(there, labels.gpus) if labels.is_shared else there
    if slots > GPUS_MAX:
        note(notes, f"expected at most {GPUS_MAX} GPUs, got {shown(text)}; the others are not used")
        slots = GPUS_MAX
    devices = tuple(
        Device(
            id_on(host, f"gpu-{number}"),
            "cuda",
            labels.memory_mib,
            host=host,
            model=labels.model,
            is_slice=labels.is_slice,
            is_exclusive=True,
        )
        for number in range(slots)
    )
    # It takes its GPUs back while it starts anew: one that is missing may come again.
    return FoundGpus(devices, Mode.PLUGIN, notes=tuple(notes), is_expected=not devices)


class _PluginLabels:
    """What GPU feature discovery says of the resource of a device plugin, in labels of its node.
    All are unknown without it, and a resource that is not known to be shared counts as whole
    GPUs."""

    def __init__(self, labels: Mapping[str, str], resource: str, notes: list[str]) -> None:
        self._labels, self._notes = labels, notes
        self._prefix = resource.removesuffix(_SHARED)
        product = shown(self._get("product"))
        strategy, replicas = self._get("sharing-strategy"), self._number("replicas", 0)
        self.is_shared = (
            resource.endswith(_SHARED)
            or replicas > 1
            or strategy in _STRATEGIES
            or product.endswith("-SHARED")
        )
        self.gpus = self._number("count", 1) if self.is_shared else 0
        """GPUs of the node; 1 if their number is not known, as of a resource that is shared."""
        self.is_slice = "/mig-" in self._prefix or "-MIG-" in product
        # MPS gives each client an equal part of the memory.
        clients = max(1, replicas) if strategy == _MPS else 1
        self.memory_mib = float(self._memory_mib() // clients)
        family = self._get("compute.major"), self._get("compute.minor")
        driver = labels.get(f"{resource.partition('/')[0]}/cuda.driver-version.full", "")
        name = product.removesuffix("-SHARED") or "GPU"
        self.model = _model(name, self.memory_mib, "".join(family), driver)

    def _get(self, suffix: str) -> str:
        return self._labels.get(f"{self._prefix}.{suffix}", "")

    def _number(self, suffix: str, default: int) -> int:
        text = self._get(suffix)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            note(self._notes, f"its label {suffix}: expected a number, got {shown(text)!r}")
            return default
        return int(text)

    def _memory_mib(self) -> float:
        mib = self._number("memory", 0)
        if mib and mib <= MIB_MAX:
            return float(mib)
        if mib:
            note(self._notes, f"its label memory: expected at most {MIB_MAX:.0f}, got {mib}")
        return 0.0
