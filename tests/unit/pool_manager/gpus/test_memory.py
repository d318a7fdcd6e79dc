"""GPU memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core.state import Device
from pool_manager.gpus.memory import (
    MODEL_MAX,
    SLACK_MIB,
    choose,
    cuda_numbers,
    device,
    foreign_mib,
    grown_mib,
    held_mib,
    lacks_room,
    model_of,
    still_taken,
    taken_mib,
)
from registry.errors import BadRequest
from runtime_image.contract.gpus import Ancestor, GpuProcess, Link, Reading, Snapshot

NONE = Snapshot(None, ())


def gpu(used_mib: float | None, *processes: GpuProcess, lists: bool = True) -> Reading:
    """A GPU that uses and lists this."""
    return Reading("GPU-a", "0", used_mib=used_mib, processes=processes if lists else None)


def test_a_replica_has_what_its_processes_have() -> None:
    """A replica's memory is the sum of its own processes only."""
    listed = gpu(9_000.0, GpuProcess(1, 500.0), GpuProcess(2, 300.0), GpuProcess(3, 700.0))

    assert taken_mib(listed, {1, 2}, 0.0, is_alone=False) == 800.0


def test_else_it_has_what_came_with_it() -> None:
    """If the driver reports no memory per process and the replica is alone, the increase counts."""
    for untold in (
        gpu(900.0, GpuProcess(1, None)),
        gpu(900.0, GpuProcess(1, None), GpuProcess(2, 50.0)),
        gpu(900.0, lists=False),
        gpu(900.0, GpuProcess(7, 10.0)),
    ):
        assert taken_mib(untold, {1, 2}, 100.0, is_alone=True) == 800.0
        assert taken_mib(untold, {1, 2}, 100.0, is_alone=False) is None
        assert taken_mib(untold, {1, 2}, None, is_alone=True) is None
    assert taken_mib(gpu(900.0, GpuProcess(1, 5.0)), None, 100.0, is_alone=True) == 800.0


def test_it_never_has_less_than_nothing() -> None:
    """A replica's memory is never negative, even if other processes freed memory."""
    assert taken_mib(gpu(50.0), None, 100.0, is_alone=True) == 0.0
    assert taken_mib(gpu(None), None, 100.0, is_alone=True) is None


def test_what_processes_hold_is_what_is_reported_of_them() -> None:
    """Processes that are not listed hold nothing; one whose memory is not reported hides it."""
    listed = gpu(9_000.0, GpuProcess(1, 500.0), GpuProcess(2, 300.0), GpuProcess(3, None))

    assert held_mib(listed, {1, 2, 9}) == 800.0
    assert held_mib(listed, {9}) == 0.0
    assert held_mib(listed, {1, 3}) is None
    assert held_mib(gpu(9_000.0, lists=False), {1}) is None


GPUS = (
    Reading("GPU-a", "0"),
    Reading("MIG-1", "1:0", parent="GPU-b"),
    Reading("MIG-2", "1:1", parent="GPU-b"),
    Reading("GPU-c", "10"),
)
SEEN = Snapshot("580", GPUS)


def used(mib: float | None, *processes: GpuProcess, lists: bool = True) -> Reading:
    """A GPU with so much in use."""
    listed = processes if lists else None
    return Reading("GPU-a", "0", total_mib=24_000, used_mib=mib, processes=listed)


@pytest.mark.parametrize(
    ("setting", "uuids"),
    [
        ("all", ["GPU-a", "MIG-1", "MIG-2", "GPU-c"]),
        ("none", []),
        ("0", ["GPU-a"]),
        ("10, GPU-a", ["GPU-c", "GPU-a"]),
        ("1", ["MIG-1", "MIG-2"]),
        ("GPU-b", ["MIG-1", "MIG-2"]),
        ("1:1", ["MIG-2"]),
        ("MIG-1,0", ["MIG-1", "GPU-a"]),
    ],
)
def test_gpus_are_chosen_by_number_and_uuid(setting: str, uuids: list[str]) -> None:
    """GPUs are chosen by number and UUID; those of a GPU in MIG mode select all its slices."""
    assert [gpu.uuid for gpu in choose(setting, SEEN)] == uuids


@pytest.mark.parametrize("setting", ["2", "GPU-x", "0,,1", "-1", "All", "0 1", "1:7"])
def test_a_gpu_that_is_not_there_is_an_error(setting: str) -> None:
    """The error names the unknown GPU and the existing ones."""
    with pytest.raises(BadRequest, match=r"gpus: .*got .*0 \(GPU-a\), 1:0 \(MIG-1\)"):
        choose(setting, SEEN)


def test_without_a_gpu_none_can_be_named() -> None:
    """On a host without GPUs the error says that there are none."""
    with pytest.raises(BadRequest, match="got '0'; it has none"):
        choose("0", Snapshot("580", ()))


@pytest.mark.parametrize("setting", ["0,0", "0,GPU-a", "1,1:0"])
def test_a_gpu_is_named_once(setting: str) -> None:
    """A GPU named twice is an error."""
    with pytest.raises(BadRequest, match=r"got .* again"):
        choose(setting, SEEN)


def test_what_is_in_use_without_replicas_is_foreign() -> None:
    """Without replicas all memory in use is foreign, listed or not."""
    assert foreign_mib(used(700.0, GpuProcess(1, 600.0)), {}) == 700.0
    assert foreign_mib(used(None), {}) == 0.0


def test_what_adopted_replicas_have_is_not_foreign() -> None:
    """Only memory beyond the adopted replicas' is foreign."""
    gpu = used(1_000.0, GpuProcess(1, 600.0), GpuProcess(2, 300.0))

    assert foreign_mib(gpu, {"r1": {1}}) == 400.0
    assert foreign_mib(gpu, {"r1": {1}, "r2": {2}}) == 100.0
    assert foreign_mib(gpu, {"r1": set()}) == 1_000.0
    assert foreign_mib(used(500.0, GpuProcess(1, 600.0)), {"r1": {1}}) == 0.0


@pytest.mark.parametrize(
    ("gpu", "ours"),
    [
        (used(900.0, lists=False), {"r1": {1}}),
        (used(900.0, GpuProcess(1, None)), {"r1": {1}}),
        (used(900.0, GpuProcess(1, 600.0)), {"r1": {1}, "r2": None}),
    ],
)
def test_nothing_is_foreign_where_ours_cannot_be_told(
    gpu: Reading, ours: dict[str, set[int] | None]
) -> None:
    """Nothing counts as foreign beside an adopted replica whose memory is unknown."""
    assert foreign_mib(gpu, ours) == 0.0


def test_a_gpu_is_a_bank_of_its_own() -> None:
    """A GPU's bank excludes the driver's reserve and foreign memory."""
    gpu = Reading("GPU-a", "0", total_mib=24_000, reserved_mib=400)

    assert device(gpu, 1_000.0, NONE) == Device(
        "GPU-a", "cuda", 22_600.0, "GPU-a", model="GPU, 24000 MiB"
    )
    assert device(Reading("GPU-a", "0", total_mib=24_000), 0.0, NONE).memory_mib == 24_000
    assert device(gpu, 99_000.0, NONE).memory_mib == 1.0


def test_a_device_has_its_place_and_its_connections() -> None:
    """PCI address, whether it is a slice, and the connections of the GPU to others."""
    links = (Link("GPU-a", "GPU-b", Ancestor.NODE), Link("GPU-b", "GPU-c", Ancestor.SYSTEM))
    snapshot = Snapshot(None, (), links=links)
    whole = device(Reading("GPU-a", "0", pci_bus="00000000:18:00.0"), 0.0, snapshot)
    part = device(Reading("MIG-1", "1:0", parent="GPU-d"), 0.0, snapshot)

    assert (whole.pci_bus, whole.is_slice, whole.links) == ("00000000:18:00.0", False, links[:1])
    assert (part.pci_bus, part.is_slice, part.links) == ("", True, ())
    assert device(Reading("GPU-b", "1"), 0.0, snapshot).links == links


def test_equal_gpus_have_one_model() -> None:
    """It has everything that is known of what compiled files depend on, and never is empty."""
    known = Reading("GPU-a", "0", "NVIDIA H100 MIG 1g.10gb", 9856.0, capability=(9, 0))

    found = "NVIDIA H100 MIG 1g.10gb, 9856 MiB, sm90, driver 570.1"
    assert model_of(known, "570.1") == model_of(replace(known, uuid="GPU-b"), "570.1") == found
    assert model_of(Reading("GPU-a", "0", "x" * 9999), None) == "x" * MODEL_MAX


def test_a_gpu_of_unknown_size_is_not_accounted() -> None:
    """A GPU of unknown size has 0 MiB, which means not accounted."""
    assert device(Reading("GPU-a", "0"), 0.0, NONE) == Device("GPU-a", "cuda", model="GPU")


def test_a_listed_process_is_still_there() -> None:
    """A replica with a listed process is not gone, whatever the memory in use."""
    listed = gpu(0.0, GpuProcess(9, 5.0), GpuProcess(4711, 1_234.0))

    assert still_taken(listed, {4711}, 9e9, 0.0) == "GPU-a still shows 1,234 MiB of pid 4711"
    untold = gpu(0.0, GpuProcess(4711, None))
    assert still_taken(untold, {4711}, 9e9, 0.0) == "GPU-a still shows pid 4711"
    assert still_taken(untold, {1}, 9e9, 0.0) == ""


@pytest.mark.parametrize("pids", [frozenset({1}), frozenset(), None])
@pytest.mark.parametrize("lists", [True, False])
def test_memory_must_be_back(pids: frozenset[int] | None, lists: bool) -> None:
    """The charges of others, the foreign memory and a slack may be in use; if the pids are unknown
    or not listed, this alone decides."""
    most = 1_000.0 + 300.0 + SLACK_MIB

    assert still_taken(gpu(most, lists=lists), pids, 1_000.0, 300.0) == ""
    assert still_taken(gpu(most + 1, lists=lists), pids, 1_000.0, 300.0) == (
        "GPU-a still has 1,557 MiB in use, expected at most 1,300 of others and 256 of slack"
    )


def test_what_cannot_be_seen_is_not_waited_for() -> None:
    """A driver that reports neither processes nor memory does not block a device."""
    assert still_taken(gpu(None, lists=False), {1}, 0.0, 0.0) == ""


THREE = (
    Reading("GPU-a", "0", pci_bus="00000000:C1:00.0"),
    Reading("GPU-b", "1", pci_bus="00000000:18:00.0"),
    Reading("GPU-c", "2", pci_bus="00000001:01:00.0"),
)


def test_numbers_are_places_by_pci_address() -> None:
    """CUDA numbers GPUs by PCI address with PCI_BUS_ID, whatever the driver's own order."""
    assert cuda_numbers(Snapshot("580", THREE)) == {"GPU-b": 0, "GPU-a": 1, "GPU-c": 2}
    assert cuda_numbers(Snapshot("580", ())) == {}


@pytest.mark.parametrize(
    "snapshot",
    [
        Snapshot("580", THREE, lost={"GPU-d": "GPU is lost"}),
        Snapshot("580", THREE, unreadable=("GPU 3: GPU is lost",)),
        Snapshot("580", (*THREE, Reading("MIG-1", "3:0", parent="GPU-d", pci_bus="0000:D1"))),
        Snapshot("580", (THREE[0], THREE[2])),
        Snapshot("580", (*THREE, Reading("GPU-d", "3"))),
        Snapshot("580", (*THREE, replace(THREE[0], uuid="GPU-d", index="3"))),
    ],
    ids=["lost", "unreadable", "slices", "without slices", "no address", "same address"],
)
def test_numbers_that_may_mean_other_gpus_are_not_used(snapshot: Snapshot) -> None:
    """A wrong number would put a replica on the GPU of another function."""
    assert cuda_numbers(snapshot) == {}


@pytest.mark.parametrize(
    ("used_mib", "expected_mib", "may_load"),
    [
        (0.0, 1000.0, True),
        (50.0, 1000.0, True),
        (50.1, 1000.0, False),
        (999.0, 0.0, True),
        (2000.0, 10.0, False),
    ],
)
def test_a_gpu_has_room_or_not(used_mib: float, expected_mib: float, may_load: bool) -> None:
    """It may be short of what is expected by the twentieth part."""
    reading = Reading("GPU-a", "", total_mib=1000.0, used_mib=used_mib)
    assert (lacks_room(reading, expected_mib) == "") is may_load


def test_a_gpu_that_reports_no_memory_is_not_judged() -> None:
    """A value that is missing is no lack of memory."""
    assert lacks_room(Reading("GPU-a", "", used_mib=10.0), 1e6) == ""
    assert lacks_room(Reading("GPU-a", "", total_mib=10.0), 1e6) == ""


def test_growth_needs_two_readings() -> None:
    """Growth is never negative, and unknown without both values."""
    assert grown_mib(gpu(10.0), gpu(650.0)) == 640.0
    assert grown_mib(gpu(10.0), gpu(5.0)) == 0.0
    assert grown_mib(gpu(None), gpu(5.0)) is grown_mib(gpu(5.0), gpu(None)) is None
