"""Which GPUs are lost, and which come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core.events import DeviceBack, DeviceLost
from pool_manager.gpus.monitor import GpuHealth, Verdict
from runtime_image.contract.gpus import GpuProcess, Reading, Snapshot, XidEvent

A = Reading("GPU-a", "0")
M1 = Reading("MIG-1", "1:0", parent="GPU-b", instance=1)
M2 = Reading("MIG-2", "1:1", parent="GPU-b", instance=2)
FALLEN = "XID 79: has fallen off the bus"


@pytest.fixture
def watch() -> GpuHealth:
    return GpuHealth([A, M1, M2])


def look(
    watch: GpuHealth, *gpus: Reading, xids: tuple[XidEvent, ...] = (), **seen: object
) -> Verdict:
    """A look in an old session, or in one that is `renewed`."""
    renewed = bool(seen.pop("renewed", False))
    snapshot = Snapshot("580", gpus, **seen)  # type: ignore[arg-type]
    return watch.judge(snapshot, xids, {"GPU-a": {7}}, renewed=renewed)


def test_nothing_happens_while_all_is_well(watch: GpuHealth) -> None:
    """Without errors there are no events, in an old or a new session."""
    assert look(watch, A, M1, M2) == Verdict()
    assert look(watch, A, M1, M2, renewed=True) == Verdict()
    assert watch.gone == frozenset()


def test_a_gpu_that_is_missing_is_gone(watch: GpuHealth) -> None:
    """A missing GPU is reported as lost once, with the driver's reason if it has one."""
    assert look(watch, M1, M2).events == [
        DeviceLost("GPU-a", "the driver no longer lists it", is_gone=True)
    ]
    assert look(watch, M1, M2) == Verdict()
    assert watch.gone == {"GPU-a"}


def test_the_reason_of_a_loss_is_said(watch: GpuHealth) -> None:
    """The reason of a loss is that of the GPU, of the slice's GPU, or of an index without UUID."""
    lost = look(watch, A, lost={"GPU-b": "GPU is lost"}).events

    assert [event.device for event in lost] == ["MIG-1", "MIG-2"]
    assert lost[0] == DeviceLost("MIG-1", "the driver has lost it: GPU is lost", is_gone=True)
    assert look(watch, unreadable=("GPU 0: GPU is lost",)).events == [
        DeviceLost("GPU-a", "the driver no longer finds it (GPU 0: GPU is lost)", is_gone=True)
    ]


def test_a_gpu_that_answers_again_is_back(watch: GpuHealth) -> None:
    """A GPU counts as back only in a renewed session; an old one may answer from its cache."""
    look(watch, M1, M2)

    assert look(watch, A, M1, M2) == Verdict()
    assert look(watch, A, M1, M2, renewed=True).events == [DeviceBack("GPU-a")]
    assert look(watch, A, M1, M2, renewed=True) == Verdict()


def test_a_gpu_is_not_back_with_processes_of_released_replicas(watch: GpuHealth) -> None:
    """A GPU that answers again is back once no replica released in the meantime is listed."""
    look(watch, M1, M2)
    stuck = replace(A, processes=(GpuProcess(7, 4_000.0),))
    foreign = replace(A, processes=(GpuProcess(8, 4_000.0),))

    assert look(watch, stuck, M1, M2, renewed=True) == Verdict()
    assert look(watch, foreign, M1, M2, renewed=True).events == [DeviceBack("GPU-a")]


def test_a_gpu_that_fell_off_the_bus_is_gone_at_once(watch: GpuHealth) -> None:
    """A GPU with XID 79 is lost although the driver still lists it, and is back only after a poll
    without errors."""
    fallen = (XidEvent("GPU-a", 79),)

    assert look(watch, A, M1, M2, xids=fallen, renewed=True).events == [
        DeviceLost("GPU-a", FALLEN, is_gone=True)
    ]
    assert look(watch, M1, M2) == Verdict()
    assert look(watch, A, M1, M2, renewed=True).events == [DeviceBack("GPU-a")]


def test_a_gpu_that_needs_a_reset_is_left(watch: GpuHealth) -> None:
    """A GPU that needs a reset is lost once and never comes back, even if it was gone in
    between."""
    ecc = (XidEvent("GPU-a", 48),)

    assert look(watch, A, M1, M2, xids=ecc).events == [
        DeviceLost("GPU-a", "XID 48: double-bit ECC error; it needs a reset", is_gone=False)
    ]
    again = look(watch, A, M1, M2, xids=ecc)
    assert (again.events, again.notes) == ([], ["GPU-a: XID 48: double-bit ECC error, again"])
    assert [event.device for event in look(watch, M1, M2).events] == ["GPU-a"]
    assert look(watch, A, M1, M2, renewed=True) == Verdict()
    assert watch.gone == frozenset()


def test_an_application_s_error_is_only_noted(watch: GpuHealth) -> None:
    """An application's error is only logged."""
    seen = look(watch, A, M1, M2, xids=(XidEvent("GPU-a", 31), XidEvent("GPU-a", 9999)))

    assert seen == Verdict([], ["GPU-a: XID 31: memory page fault", "GPU-a: XID 9999"])


def test_errors_of_other_gpus_are_only_noted(watch: GpuHealth) -> None:
    """Errors of unused or unnamed GPUs are only logged."""
    assert look(watch, A, M1, M2, xids=(XidEvent("GPU-x", 79),)) == Verdict(
        [], [f"GPU-x: {FALLEN}"]
    )


@pytest.mark.parametrize(("instance", "hit"), [(None, ["MIG-1", "MIG-2"]), (2, ["MIG-2"]), (7, [])])
def test_a_slice_is_hit_by_what_is_its_own(
    watch: GpuHealth, instance: int | None, hit: list[str]
) -> None:
    """An error of the whole GPU affects all its slices."""
    seen = look(watch, A, M1, M2, xids=(XidEvent("GPU-b", 95, instance),))

    assert [event.device for event in seen.events] == hit
