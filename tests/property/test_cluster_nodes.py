"""Property tests of the nodes of a cluster: whatever its objects say, hosts have valid devices.

Objects are made as JSON and decoded as they are in the client: every text may be anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.kubernetes.objects import Node, ResourceSlice
from pool_manager.core.state import Device
from pool_manager.hosts.kubernetes.claims import claim_name, claim_of
from pool_manager.hosts.kubernetes.inventory import MEMORY_MAX_MIB, SLOTS_MAX, NodeFacts, node_facts
from pool_manager.hosts.kubernetes.node_gpus import GPUS_MAX, MIB_MAX, NOTES_MAX, Mode
from pool_manager.hosts.kubernetes.quantities import VALUE_MAX, parse_quantity
from registry.model.hosts import Toleration
from tests.support.cluster_objects import DRIVER, definition, gpu, node, slice_of
from tests.support.doses import amount

ODD = [
    "",
    "0",
    "-1",
    "1e99",
    "9" * 60,
    "NaN",
    "GPU' || true",
    "a/b",
    "\n",
    "é",
    "gpu",
    "mig",
    "vfio",
]
LABELS = [
    f"nvidia.com/gpu.{name}"
    for name in ("count", "replicas", "memory", "product", "sharing-strategy", "compute.major")
]
ATTRIBUTES = ["type", "uuid", "productName", "profile", "driverVersion", f"{DRIVER}/uuid"]
EXPRESSION = re.compile(r"device\.attributes\['gpu\.nvidia\.com'\]\.uuid == '[A-Za-z0-9.-]{1,64}'")
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")

texts = st.one_of(st.sampled_from(ODD), st.text(max_size=20), st.integers(-9, 300).map(str))
quantities = st.one_of(
    texts,
    st.builds(
        "{}{}".format,
        st.one_of(st.integers(-(10**25), 10**25), st.floats(allow_nan=False)),
        st.sampled_from(["", "Ki", "Mi", "Gi", "Ei", "m", "n", "k", "E", "e3", "e-3", "e400"]),
    ),
)
taints = st.lists(
    st.fixed_dictionaries(
        {"key": texts, "effect": st.sampled_from(["NoSchedule", "NoExecute", "None", "", "x"])}
    ),
    max_size=3,
)
values: st.SearchStrategy[dict[str, Any]] = st.one_of(
    texts.map(lambda text: {"string": text}),
    texts.map(lambda text: {"version": text}),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: {"int": number}),
    st.just({}),
)
published = st.fixed_dictionaries(
    {"name": texts},
    optional={
        "attributes": st.dictionaries(st.one_of(st.sampled_from(ATTRIBUTES), texts), values),
        "capacity": st.dictionaries(
            st.one_of(st.just("memory"), texts), quantities.map(lambda text: {"value": text})
        ),
        "taints": taints,
    },
)
good = st.integers(0, 4).map(gpu)
slices: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries({"name": st.sampled_from(["s1", "s2", "s3", "s4"])}),
            "spec": st.fixed_dictionaries(
                {
                    "driver": st.sampled_from([DRIVER, DRIVER, "other"]),
                    "nodeName": st.sampled_from(["n1", "n1", "n2", ""]),
                    "pool": st.fixed_dictionaries(
                        {
                            "name": st.sampled_from(["n1", "b"]),
                            "generation": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2),
                            "resourceSliceCount": st.integers(-3, 4) | st.just(2**63 - 1),
                        }
                    ),
                    "devices": st.lists(published | good, max_size=5),
                }
            ),
        }
    ),
    max_size=4,
    unique_by=lambda one: str(cast(Any, one)["metadata"]["name"]),
)
nodes = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": st.just("n1") | texts,
                "labels": st.dictionaries(st.sampled_from(LABELS) | texts, texts, max_size=8),
            }
        ),
        "spec": st.fixed_dictionaries({"unschedulable": st.booleans(), "taints": taints}),
        "status": st.fixed_dictionaries(
            {
                "allocatable": st.dictionaries(
                    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), quantities
                ),
                "conditions": st.lists(
                    st.fixed_dictionaries(
                        {
                            "type": st.sampled_from(["Ready", "DiskPressure", "x"]),
                            "status": st.sampled_from(["True", "False", "Unknown", ""]),
                            "message": texts,
                        }
                    ),
                    max_size=3,
                ),
            }
        ),
    }
)
definitions = st.builds(
    definition,
    cpu_slots=st.integers(-1, 1000),
    cpu_mib=st.integers(0, 2**40),
    devices=st.sampled_from(["auto", "claims", "plugin", "none"]),
    tolerations=st.sampled_from([(), (Toleration(),)]),
)


def check_device(device: Device, found: NodeFacts) -> None:
    """Check that a device can be announced, placed on and claimed."""
    assert device.id.startswith(f"{found.host}/")
    assert device.host == found.host
    assert 0.0 <= device.memory_mib <= max(MEMORY_MAX_MIB, MIB_MAX)
    assert math.isfinite(device.memory_mib)
    if device.kind == "cpu":
        return
    assert device.memory_mib or device.is_exclusive
    assert device.model.isprintable()
    if found.mode is Mode.CLAIMS:
        claim = claim_of(device, definition(), "o", ())
        (request,) = claim.spec.devices.requests
        assert request.exactly is not None
        assert EXPRESSION.fullmatch(request.exactly.selectors[0].cel.expression)
        assert NAME.fullmatch(claim.metadata.name)


@settings(max_examples=amount(300, 5000))
@given(nodes, slices, definitions, st.sets(st.sampled_from(["c/n1/GPU-a", "c/n1/cpu:9", "x/y"])))
def test_hosts_have_valid_devices(
    raw: dict[str, Any], parts: Sequence[dict[str, Any]], of: Any, used: set[str]
) -> None:
    """Whatever a cluster says, nothing is raised, and each device can be used."""
    there = msgspec.json.decode(msgspec.json.encode(raw), type=Node)
    found_slices = msgspec.json.decode(msgspec.json.encode(parts), type=list[ResourceSlice])
    found = node_facts(there, found_slices, of, used=used)
    ids = [one.id for one in found.devices]
    assert len(set(ids)) == len(ids) <= GPUS_MAX + SLOTS_MAX + len(used)
    assert len(found.notes) <= NOTES_MAX + 2
    assert all(len(text) < 1000 for text in (*found.notes, found.why_unusable, found.why_not_ready))
    assert set(found.faults) <= set(ids)
    assert found.cpu_millis >= 0
    assert found.threads("cpu") >= 1
    if found.host:
        assert {one for one in used if one.startswith(f"{found.host}/")} <= set(ids)
    for device in found.devices:
        check_device(device, found)
    again = node_facts(there, list(reversed(found_slices)), of, used=used)
    assert (again.devices, again.mode) == (found.devices, found.mode)


@given(quantities)
def test_a_quantity_is_a_number_or_refused(text: str) -> None:
    """Whatever a quantity says, it is a number within the API's bounds, or ValueError."""
    try:
        value = parse_quantity(text)
    except ValueError:
        return
    assert abs(value) <= VALUE_MAX


@given(st.integers(0, 2**62), st.sampled_from(["", "Ki", "Mi"]))
def test_what_the_api_server_writes_is_read(number: int, suffix: str) -> None:
    """What the API server writes itself is read back exactly."""
    factor = {"": 1, "Ki": 2**10, "Mi": 2**20}[suffix]
    number //= factor
    assert parse_quantity(f"{number}{suffix}") == number * factor


@given(st.sets(st.text("abcABC019.-", min_size=1, max_size=20), max_size=20))
def test_names_of_claims_differ(uuids: set[str]) -> None:
    """Two GPUs never share the name of a claim."""
    assert len({claim_name("o", uuid) for uuid in uuids}) == len(uuids)


@pytest.mark.parametrize("count", [100_000])
def test_a_hundred_thousand_devices_are_limited(count: int) -> None:
    """A driver that publishes a hundred thousand devices takes neither time nor memory of them."""
    devices = [gpu(0, f"GPU-{number:06x}") for number in range(128)]
    parts = [slice_of(devices, f"s{number}", count=count // 128) for number in range(count // 128)]
    found = node_facts(node(), parts, definition())
    assert len(found.devices) == 128
    parts = [
        slice_of([gpu(0, f"GPU-{at:04x}-{number:04x}") for number in range(128)], f"s{at}")
        for at in range(8)
    ]
    assert len(node_facts(node(), parts, definition()).devices) == GPUS_MAX
