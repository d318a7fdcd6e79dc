"""Nodes of a cluster as hosts."""

from __future__ import annotations

from typing import Any

import pytest

from hosts.kubernetes.objects import Node, ResourceSlice
from pool_manager.core.state import Device
from pool_manager.hosts.kubernetes.inventory import GPU_REPLICAS, NodeFacts, node_facts
from pool_manager.hosts.kubernetes.node_gpus import Mode
from registry.model.hosts import Toleration
from tests.support.cluster_objects import READY, definition, gpu, node, slice_of


def facts(of: Node, *slices: ResourceSlice, **changes: Any) -> NodeFacts:
    return node_facts(of, slices, definition(**{"cpu_slots": 4, **changes}))


def test_a_node_with_cpu_slots_is_a_host() -> None:
    """CPU slots share four fifths of the memory, and the processors in equal parts."""
    found = facts(node())
    assert (found.host, found.node, found.why_unusable) == ("c/n1", "n1", "")
    assert [one.id for one in found.devices] == [f"c/n1/cpu:{n}" for n in range(4)]
    assert {one.bank for one in found.devices} == {"c/n1/cpu"}
    assert found.memory_mib == found.devices[0].memory_mib == 26214.0  # 4/5 of 32 GiB
    assert (found.share_millis, found.threads("cpu")) == (2000, 2)
    assert not (found.why_not_ready)
    assert not (found.why_paused)
    assert not (found.is_draining)
    assert not (found.notes)


def test_gpus_go_before_cpu_slots() -> None:
    """A node may have both; a replica on its only GPU may use all processors. The scheduler keeps
    an equal part for each that may run at once."""
    found = facts(node(), slice_of([gpu(0)]))
    assert [one.kind for one in found.devices] == ["cuda", *["cpu"] * 4]
    assert found.mode is Mode.CLAIMS
    assert found.threads("cuda") == 8
    assert found.share_millis == 8000 // (4 + GPU_REPLICAS)


def test_the_bank_of_cpu_slots_is_bounded_by_the_node() -> None:
    """The memory of the definition counts as far as the node has it."""
    assert facts(node(), cpu_mib=1000).memory_mib == 1000.0
    assert facts(node(), cpu_mib=10**9).memory_mib == 32 * 1024.0


@pytest.mark.parametrize("memory", ["", "-5Gi", "9" * 50, "2Ei"])
def test_slots_without_memory_are_none(memory: str) -> None:
    """A node of unknown memory has no slots, and the quantity is said."""
    found = facts(node(allocatable={"memory": memory}))
    assert found.devices == ()
    assert found.why_unusable == "it has neither a GPU nor CPU slots"
    assert "allocatable memory" in found.notes[0]


@pytest.mark.parametrize("name", ["", "N1", "a/b", "../n", "a b", "x" * 254, "n\n", "é"])
def test_odd_names_are_no_hosts(name: str) -> None:
    """A name that no node can have is no part of a host's name."""
    found = facts(node(name))
    assert found.why_unusable.startswith("expected a node's name")
    assert (found.host, found.devices) == ("", ())


def test_gpus_need_an_image() -> None:
    """Without the image for GPUs, and where the definition says none, no GPU is used."""
    there = node(allocatable={"nvidia.com/gpu": "2"})
    assert facts(there, cuda_image="", cpu_slots=0).why_unusable
    assert facts(there, devices="none", cpu_slots=0).why_unusable
    assert len(facts(there, cpu_slots=0).devices) == 2


def test_a_node_whose_driver_starts_is_said_so() -> None:
    """A node that is about to publish its devices says that."""
    found = facts(node(allocatable={"nvidia.com/gpu": "0"}), cpu_slots=0)
    assert found.why_unusable == "it has no device yet"
    slices = [slice_of([], count=2)]
    assert "has yet to publish" in facts(node(), *slices, cpu_slots=0).why_unusable


def test_a_selector_chooses_nodes() -> None:
    """A node needs all labels of the selector."""
    chosen = definition(node_selector={"pool": "gpu"}, cpu_slots=1)
    assert node_facts(node(labels={"pool": "gpu"}), [], chosen).why_unusable == ""
    assert node_facts(node(), [], chosen).why_unusable == "it has no label pool=gpu"


TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "is_host"),
    [
        (Toleration(key="dedicated"), True),
        (Toleration(), True),
        (Toleration(key="dedicated", operator="Equal", value="ml"), True),
        (Toleration(key="dedicated", operator="Equal", value="web"), False),
        (Toleration(operator="Equal", value="ml"), False),
        (Toleration(key="other"), False),
        (Toleration(key="dedicated", effect="NoExecute"), False),
        (Toleration(key="dedicated", effect="NoSchedule"), True),
    ],
)
def test_taints_are_tolerated_as_the_scheduler_does(toleration: Toleration, is_host: bool) -> None:
    """Key, operator, value and effect, as Kubernetes has them."""
    found = facts(node(taints=[TAINT]), tolerations=(toleration,))
    assert (found.why_unusable == "") is is_host


def test_an_untolerated_taint_is_named() -> None:
    """The reason has the whole taint; a preference is none."""
    why = facts(node(taints=[TAINT])).why_unusable
    assert why == "it has the taint dedicated=ml:NoSchedule, which c does not tolerate"
    assert not facts(node(taints=[{**TAINT, "effect": "PreferNoSchedule"}])).why_unusable


def test_a_cordoned_node_drains() -> None:
    """A cordoned node is a host that drains, and so is each of a cluster that drains."""
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    found = facts(node(cordoned=True, taints=[taint]))
    assert (found.is_draining, found.why_unusable) == (True, "")
    assert facts(node(), is_draining=True).is_draining


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_node_that_is_not_ready_stays_a_host(effect: str) -> None:
    """What runs there may serve on: neither the condition nor its taint drains it."""
    silent = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting"}
    taint = {"key": "node.kubernetes.io/unreachable", "effect": effect}
    found = facts(node(conditions=[silent], taints=[taint]))
    assert found.why_unusable == ""
    assert found.why_not_ready == "its kubelet does not report: Kubelet stopped posting"
    bad = {"type": "Ready", "status": "False", "reason": "CNI"}
    assert facts(node(conditions=[bad])).why_not_ready == "it is not ready: CNI"
    assert facts(node(conditions=[])).why_not_ready == "its kubelet has not reported yet"


def test_a_node_under_pressure_is_paused() -> None:
    """Nothing is placed there for the moment, by condition or taint, unless that is tolerated."""
    pressed = {"type": "MemoryPressure", "status": "True", "message": "under pressure"}
    taint = {"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}
    found = facts(node(conditions=[READY, pressed], taints=[taint]))
    assert (found.why_unusable, found.why_not_ready) == ("", "")
    assert found.why_paused == "its kubelet reports MemoryPressure: under pressure"
    by_taint = facts(node(taints=[taint])).why_paused
    assert by_taint == "it has the taint node.kubernetes.io/memory-pressure:NoSchedule"
    tolerant = (Toleration(),)
    assert not facts(node(conditions=[pressed], taints=[taint]), tolerations=tolerant).why_paused


def test_labels_of_a_host_are_those_that_functions_can_name() -> None:
    """The definition's labels go first; nobody forges the names of node and cluster."""
    own = {
        "topology.kubernetes.io/zone": "z1",
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "kubernetes.io/hostname": "n1",
        "disk": "ssd",
        "Odd": "x",
        "host": "somebody",
        "node": "forged",
        "note": "two words",
        "mine": "node's",
    }
    found = facts(node(labels=own), labels={"mine": "definition"}).labels
    assert found == {
        "cluster": "c",
        "node": "n1",
        "mine": "definition",
        "zone": "z1",
        "instance-type": "p5.48xlarge",
        "disk": "ssd",
    }


def test_labels_are_limited() -> None:
    """A node with a thousand labels has as many as a host can have."""
    own = {f"l{n}": "x" for n in range(1000)}
    found = facts(node(labels=own)).labels
    assert len(found) == 16
    assert found["cluster"] == "c"


GPU_0, GPU_1 = "c/n1/GPU-00000000-aaaa", "c/n1/GPU-00000001-aaaa"


def kept(
    slices: list[ResourceSlice], before: tuple[Device, ...], *used: str, **changes: Any
) -> NodeFacts:
    there = node(allocatable=changes.pop("allocatable", {}))
    return node_facts(there, slices, definition(**changes), before=before, used=used)


def test_a_device_that_is_used_stays_while_its_driver_starts_anew() -> None:
    """Its replicas would be ended without it; one that nobody uses goes."""
    before = facts(node(), slice_of([gpu(0), gpu(1)]), cpu_slots=0).devices
    found = kept([], before, GPU_0)
    assert [one.id for one in found.devices] == [GPU_0]
    assert found.devices[0] == before[0]
    assert not (found.faults)
    assert not (found.why_unusable)


def test_a_gpu_that_the_definition_does_without_is_faulty_while_it_is_used() -> None:
    """Nothing more is placed there."""
    before = facts(node(), slice_of([gpu(0), gpu(1)]), cpu_slots=2).devices
    found = kept([slice_of([gpu(0), gpu(1)])], before, GPU_0, cpu_slots=2, cuda_image="")
    assert [one.id for one in found.devices] == [GPU_0, "c/n1/cpu:0", "c/n1/cpu:1"]
    assert dict(found.faults) == {GPU_0: "c uses no GPUs any more"}
    assert found.kept == {GPU_0}


def test_a_device_that_is_gone_for_good_is_faulty() -> None:
    """A driver that has published all without it does not give it to Pods any more."""
    before = facts(node(), slice_of([gpu(0), gpu(1)]), cpu_slots=0).devices
    found = kept([slice_of([gpu(1)], generation=2)], before, GPU_0)
    assert [one.id for one in found.devices] == [GPU_1, GPU_0]
    assert dict(found.faults) == {GPU_0: "its driver does not publish it any more"}


def test_a_device_of_an_adopted_replica_is_there_before_it_is_published() -> None:
    """A later server keeps the replicas of an earlier one, on devices that take no other."""
    found = kept([], (), GPU_0, "c/n1/cpu:7", "c/n2/GPU-x", "other")
    assert [(one.id, one.kind, one.is_exclusive) for one in found.devices] == [
        (GPU_0, "cuda", True),
        ("c/n1/cpu:7", "cpu", True),
    ]


def test_slots_of_a_plugin_that_are_used_stay() -> None:
    """A count that falls does not say which GPU has gone."""
    before = facts(node(allocatable={"nvidia.com/gpu": "4"}), cpu_slots=0).devices
    found = kept([], before, "c/n1/gpu-3", allocatable={"nvidia.com/gpu": "2"})
    assert [one.id for one in found.devices] == ["c/n1/gpu-0", "c/n1/gpu-1", "c/n1/gpu-3"]
    assert not found.faults


def test_facts_of_the_same_objects_are_equal() -> None:
    """An engine tells changes by comparing."""
    assert facts(node(), slice_of([gpu(0)])) == facts(node(), slice_of([gpu(0)]))
