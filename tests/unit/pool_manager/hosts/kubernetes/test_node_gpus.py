"""GPUs of nodes, from ResourceSlices and from device plugins."""

from __future__ import annotations

from typing import Any

import pytest

from hosts.kubernetes.objects import ResourceSlice
from pool_manager.hosts.kubernetes.node_gpus import GPUS_MAX, FoundGpus, Mode, find_gpus
from tests.support.cluster_objects import definition, gpu, mig, node, slice_of

FEATURES = {
    "nvidia.com/gpu.count": "4",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    "nvidia.com/gpu.memory": "40960",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/cuda.driver-version.full": "580.95.05",
}


def claimed(*slices: ResourceSlice, **changes: Any) -> FoundGpus:
    return find_gpus(node(), slices, definition(**changes), "c/n1")


def ids(found: FoundGpus) -> list[str]:
    return [one.id for one in found.devices]


def test_each_published_gpu_is_a_device() -> None:
    """Id, memory, model and PCI address are those of the ResourceSlice, in the order of PCI."""
    found = claimed(slice_of([gpu(1), gpu(0)]))
    assert (found.mode, found.is_complete) == (Mode.CLAIMS, True)
    first, second = found.devices
    assert (first.id, second.id) == ("c/n1/GPU-00000000-aaaa", "c/n1/GPU-00000001-aaaa")
    assert (first.kind, first.host, first.memory_mib) == ("cuda", "c/n1", 81559.0)
    assert first.model == "NVIDIA H100 80GB HBM3, 81559 MiB, sm90, driver 580.126.20"
    assert first.pci_bus == "0000:18:00.0"
    assert not (first.is_slice)
    assert not (first.is_exclusive)


def test_a_mig_slice_is_a_device() -> None:
    """A MIG slice has a UUID and a memory of its own."""
    (device,) = claimed(slice_of([mig(3)])).devices
    assert device.id == "c/n1/MIG-00000003-bbbb"
    assert device.is_slice
    assert device.memory_mib == 9856.0
    assert device.model.startswith("NVIDIA H100 80GB HBM3 MIG 1g.10gb, 9856 MiB")


def test_what_no_claim_can_name_is_no_device() -> None:
    """A part that the driver would make for a claim has no UUID, and one for virtual machines no
    driver."""
    part = mig(1)
    del part["attributes"]["uuid"]
    vfio = gpu(2)
    vfio["attributes"]["type"] = {"string": "vfio"}
    found = claimed(slice_of([part, vfio, gpu(0)]))
    assert ids(found) == ["c/n1/GPU-00000000-aaaa"]
    assert not found.notes


def test_several_slices_are_one_pool() -> None:
    """A pool has as many slices as each of them says; until then, what is there is used."""
    slices = [slice_of([gpu(n)], f"s{n}", count=3) for n in range(3)]
    assert len(claimed(*slices).devices) == 3
    assert claimed(*slices).is_complete
    some = claimed(*slices[:2])
    assert len(some.devices) == 2
    assert (some.is_complete, some.is_expected) == (False, True)
    assert some.notes == ("its driver has yet to publish all of its devices",)


def test_slices_of_an_earlier_generation_are_ignored() -> None:
    """Only the highest generation of a pool counts."""
    old = [slice_of([gpu(n)], f"s{n}", count=2) for n in range(2)]
    new = slice_of([gpu(5)], "s5", generation=2, count=1)
    found = claimed(*old, new)
    assert ids(found) == ["c/n1/GPU-00000005-aaaa"]
    assert found.is_complete


def test_generations_are_of_pools() -> None:
    """The generation of one pool says nothing of another."""
    found = claimed(
        slice_of([gpu(0)], "s0", pool="a", generation=7),
        slice_of([gpu(1)], "s1", pool="b", generation=1),
    )
    assert len(found.devices) == 2
    assert found.is_complete


def test_slices_of_others_are_ignored() -> None:
    """Slices of other drivers and other nodes give no device."""
    found = claimed(
        slice_of([gpu(0)], "s0", driver="dra.cpu"),
        slice_of([gpu(1)], "s1", node="n2"),
        slice_of([gpu(2)], "s2"),
    )
    assert ids(found) == ["c/n1/GPU-00000002-aaaa"]


def test_a_uuid_is_one_device() -> None:
    """A UUID that is published twice is one device."""
    found = claimed(slice_of([gpu(0, "GPU-a"), gpu(1, "GPU-a")]))
    assert ids(found) == ["c/n1/GPU-a"]


@pytest.mark.parametrize("uuid", ["GPU' || true || '", "../x", "GPU-é", "a b", "-a", "a" * 65])
def test_odd_uuids_are_left_out_and_said(uuid: str) -> None:
    """A UUID that could not be a part of an id or an expression is left out, with a note."""
    found = claimed(slice_of([gpu(0, uuid), gpu(1)]))
    assert ids(found) == ["c/n1/GPU-00000001-aaaa"]
    assert "expected a UUID" in found.notes[0]


@pytest.mark.parametrize("memory", ["0", "-1Gi", "many", "17Ti", "512Ki"])
def test_a_gpu_of_unknown_memory_takes_one_replica(memory: str) -> None:
    """A memory that no GPU has is unknown, and nothing can be accounted there."""
    found = claimed(slice_of([gpu(0, memory=memory)]))
    (device,) = found.devices
    assert (device.memory_mib, device.is_exclusive) == (0.0, True)
    assert found.notes[0].startswith("gpu-0: its memory: expected")


def test_a_gpu_without_memory_takes_one_replica() -> None:
    """The same holds where no memory is published."""
    (device,) = claimed(slice_of([gpu(0, capacity={})])).devices
    assert device.is_exclusive


def test_a_tainted_device_is_faulty() -> None:
    """A device that its driver keeps Pods from stays, with the reason."""
    taints = [
        {"key": "a", "value": "", "effect": "None"},
        {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"},
    ]
    found = claimed(slice_of([gpu(0, taints=taints), gpu(1)]))
    assert dict(found.faults) == {
        "c/n1/GPU-00000000-aaaa": "its driver has tainted it: gpu.nvidia.com/xid=79:NoExecute"
    }
    assert len(found.devices) == 2


def test_names_of_attributes_are_settings() -> None:
    """Other drivers have other names, with domains."""
    other = {
        "name": "x",
        "attributes": {"example.com/id": {"string": "X-1"}},
        "capacity": {"example.com/vram": {"value": "1Gi"}},
    }
    (device,) = claimed(
        slice_of([other]), uuid_attribute="example.com/id", memory_capacity="example.com/vram"
    ).devices
    assert (device.id, device.memory_mib, device.model) == ("c/n1/X-1", 1024.0, "GPU, 1024 MiB")


def test_names_with_the_drivers_own_domain_are_the_same() -> None:
    """The driver's own domain may be written out."""
    whole = gpu(0)
    whole["attributes"] = {f"gpu.nvidia.com/{n}": v for n, v in whole["attributes"].items()}
    whole["capacity"] = {"gpu.nvidia.com/memory": {"value": "1Gi"}}
    (device,) = claimed(slice_of([whole])).devices
    assert (device.id, device.memory_mib) == ("c/n1/GPU-00000000-aaaa", 1024.0)
    assert device.model == "NVIDIA H100 80GB HBM3, 1024 MiB, sm90, driver 580.126.20"


def test_a_node_has_a_limit_of_gpus() -> None:
    """Devices over the limit are not used, and that is said."""
    found = claimed(slice_of([gpu(0, f"GPU-{number}") for number in range(GPUS_MAX + 1)]))
    assert len(found.devices) == GPUS_MAX
    assert not found.is_complete
    assert found.notes == ("it has more than 256 GPUs; the others are not used",)


def test_claims_go_before_a_plugin_unless_told() -> None:
    """Where both are there, claims are used; the definition may decide otherwise."""
    both = node(allocatable={"nvidia.com/gpu": "2"})
    slices = [slice_of([gpu(0)])]
    modes = {
        devices: find_gpus(both, slices, definition(devices=devices), "c/n1").mode
        for devices in ("auto", "claims", "plugin")
    }
    assert modes == {"auto": Mode.CLAIMS, "claims": Mode.CLAIMS, "plugin": Mode.PLUGIN}
    assert find_gpus(both, [], definition(), "c/n1").mode is Mode.PLUGIN
    none = find_gpus(both, [], definition(devices="claims"), "c/n1")
    assert (none.devices, none.is_expected) == ((), True)


def plugged(count: str, labels: dict[str, str] | None = None, **changes: Any) -> FoundGpus:
    resource = changes.get("resource", "nvidia.com/gpu")
    there = node(allocatable={resource: count}, labels=labels)
    return find_gpus(there, [], definition(**changes), "c/n1")


def test_a_plugin_has_slots() -> None:
    """Each GPU is an exclusive slot with memory and model of GPU feature discovery."""
    found = plugged("4", FEATURES)
    assert ids(found) == ["c/n1/gpu-0", "c/n1/gpu-1", "c/n1/gpu-2", "c/n1/gpu-3"]
    first = found.devices[0]
    assert first.is_exclusive
    assert not first.is_slice
    assert first.memory_mib == 40960.0
    assert first.model == "NVIDIA-A100-SXM4-40GB, 40960 MiB, sm80, driver 580.95.05"


def test_a_plugin_without_labels_has_slots_of_unknown_memory() -> None:
    """Without labels each GPU is whole, and its memory unknown."""
    found = plugged("2")
    assert [(one.memory_mib, one.model) for one in found.devices] == [(0.0, "GPU")] * 2


@pytest.mark.parametrize(
    "more",
    [
        {"nvidia.com/gpu.replicas": "10"},
        {"nvidia.com/gpu.sharing-strategy": "time-slicing"},
        {"nvidia.com/gpu.sharing-strategy": "mps"},
        {"nvidia.com/gpu.product": "Tesla-T4-SHARED"},
    ],
)
def test_a_shared_gpu_is_one_slot(more: dict[str, str]) -> None:
    """Whichever label says that GPUs are shared, there are as many slots as GPUs."""
    assert len(plugged("40", {**FEATURES, **more}).devices) == 4


def test_a_renamed_resource_is_shared() -> None:
    """The suffix of a renamed resource says that its GPUs are shared."""
    resource = "nvidia.com/gpu.shared"
    assert len(plugged("40", FEATURES, resource=resource).devices) == 4
    assert len(plugged("40", {}, resource=resource).devices) == 1
    assert len(plugged("2", FEATURES, resource=resource).devices) == 2


def test_a_client_of_mps_has_a_part_of_the_memory() -> None:
    """MPS divides the memory of a GPU by the number of its clients."""
    labels = {**FEATURES, "nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "8"}
    assert plugged("32", labels).devices[0].memory_mib == 5120.0


def test_slices_of_a_plugin_are_slices() -> None:
    """Both of the plugin's strategies for MIG give slices, with their own memory."""
    single = {**FEATURES, "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}
    assert plugged("7", single).devices[0].is_slice
    mixed = {"nvidia.com/mig-1g.5gb.memory": "4864"}
    (device,) = plugged("1", mixed, resource="nvidia.com/mig-1g.5gb").devices
    assert (device.is_slice, device.memory_mib) == (True, 4864.0)


@pytest.mark.parametrize("count", ["-1", "1.5", "x", "1e30"])
def test_an_odd_count_is_no_device(count: str) -> None:
    """A count that is none gives no device, and is said."""
    found = plugged(count)
    assert found.devices == ()
    assert found.notes[0].startswith("its allocatable nvidia.com/gpu: expected")


def test_a_plugin_that_starts_anew_is_expected() -> None:
    """A node whose plugin has taken its GPUs back is about to have some."""
    assert plugged("0").is_expected


def test_a_hundred_thousand_gpus_are_not_believed() -> None:
    """A node has as many GPUs as a machine can have."""
    found = plugged("100000")
    assert len(found.devices) == GPUS_MAX
    assert "expected at most 256 GPUs, got 100000" in found.notes[0]


@pytest.mark.parametrize("text", ["-4", "4.0", "٤", "9" * 40, "many"])
def test_odd_labels_are_unknown(text: str) -> None:
    """A label that is no number is unknown, and is said."""
    labels = {**FEATURES, "nvidia.com/gpu.memory": text, "nvidia.com/gpu.replicas": text}
    found = plugged("4", labels)
    assert found.devices[0].memory_mib == 0.0
    assert any("expected a number" in one for one in found.notes)
