"""The GPUs of a host, through the real pynvml."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pynvml
import pytest
from structlog.testing import capture_logs

from pool_manager.calls import BlockingCalls
from pool_manager.core.events import DeviceBack, DeviceLost
from pool_manager.core.state import Device
from pool_manager.gpus.monitor import POLLS_PER_RENEWAL, PROOF_POLL_S, PROOF_S, XIDS_MAX, GpuMonitor
from pool_manager.ports import GpuView
from registry.errors import DriverError
from runtime_image.gpus.nvml import Nvml
from tests.support.nvml.board import NO_DRIVER, NOT_SUPPORTED, Board, Gpu

A, B = "GPU-aaaa", "GPU-bbbb"
LIMIT_S = 10.0


class Time:
    """A clock that advances by each pause and then calls `then`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.then: Callable[[], None] = lambda: None

    def clock(self) -> float:
        return self.now_s

    async def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.then()
        await asyncio.sleep(0)


@pytest.fixture
def time() -> Time:
    return Time()


Make = Callable[..., GpuMonitor]


@pytest.fixture
async def make(board: Board, time: Time) -> AsyncIterator[Make]:
    """Makes the GPUs as they are on the board; B has 300 MiB of others."""
    board.add(Gpu(A, 24_000, 400), Gpu(B, 24_000, other_mib=300))
    made: list[GpuMonitor] = []

    def gpus(limit_s: float = LIMIT_S) -> GpuMonitor:
        nvml = Nvml()
        nvml.open()
        calls = BlockingCalls("the driver", limit_s=limit_s)
        seen, foreign = nvml.read(), {A: 0.0, B: 300.0}
        made.append(
            GpuMonitor(nvml, calls, seen, foreign, pause=time.pause, clock=time.clock),
        )
        return made[-1]

    yield gpus
    board.hang(False)
    for one in made:
        await one.close()


@pytest.fixture
def gpus(make: Make) -> GpuMonitor:
    return make()


async def polled(gpus: GpuMonitor, times: int = 1) -> list[Any]:
    """The events of so many polls."""
    return [event for _ in range(times) for event in await gpus.poll()]


def test_the_chosen_gpus_are_devices(gpus: GpuMonitor) -> None:
    """The devices are the chosen GPUs without the memory of the driver and of others."""
    model = "NVIDIA Stand-in, 24000 MiB, sm90, driver 580.65.06"
    assert gpus.devices() == [
        Device(A, "cuda", 23_600.0, model=model),
        Device(B, "cuda", 23_700.0, model=model),
    ]


async def test_several_gpus_are_visible_by_their_numbers(gpus: GpuMonitor, board: Board) -> None:
    """In the order of their PCI addresses, which is that of the numbers. One GPU is named by its
    UUID; so are several while the numbers may mean others: without addresses, while one of them is
    gone, and while the driver is silent."""
    assert gpus.visible((A, B)) == f"{A},{B}"
    for uuid, bus in ((A, 0xC1), (B, 0x18)):
        board.sense(uuid, pci_bus=bus)
    await polled(gpus)
    assert gpus.visible((A, B)) == gpus.visible((B, A)) == "0,1"
    assert (gpus.visible((A,)), gpus.visible(())) == (A, "")
    assert gpus.visible((A, "GPU-cccc")) == f"{A},GPU-cccc"

    board.lose(B)
    await polled(gpus)
    assert gpus.visible((A, B)) == f"{A},{B}"
    board.find(B)
    await polled(gpus, POLLS_PER_RENEWAL)
    assert gpus.visible((A, B)) == "0,1"
    board.answer("nvmlDeviceGetCount_v2", NO_DRIVER)
    await polled(gpus)
    assert gpus.silence
    assert gpus.visible((A, B)) == f"{A},{B}"


async def test_they_can_be_looked_at(gpus: GpuMonitor, board: Board) -> None:
    """`view` has constant properties and the memory in use of the last poll."""
    board.claim(A, 7, 1_000)
    assert gpus.used_mib(A) == 0.0
    await polled(gpus)

    assert gpus.view(A) == GpuView(
        "NVIDIA Stand-in", "0", "9.0", "580.65.06", 24_000.0, 1_000.0, 0.0, utilization=0.1
    )
    assert gpus.used_mib(A) == 1_000.0
    assert (gpus.view("cpu:0"), gpus.used_mib("cpu:0")) == (None, None)


async def test_a_capability_may_be_unknown(make: Make, board: Board) -> None:
    """An unknown compute capability is shown as None."""
    board.answer("nvmlDeviceGetCudaComputeCapability", NOT_SUPPORTED)
    shown = make().view(A)

    assert shown is not None
    assert shown.capability is None


async def test_they_are_watched(gpus: GpuMonitor, board: Board) -> None:
    """GPUs are polled every second from `start` until `close`."""
    news: asyncio.Queue[Any] = asyncio.Queue(10)
    gpus.start(news.put_nowait)
    board.remove(B)

    async with asyncio.timeout(60):
        lost = await news.get()
    assert lost == DeviceLost(B, "the driver no longer lists it", is_gone=True)


@pytest.mark.parametrize(
    ("xid", "wanted"),
    [
        (79, [DeviceLost(A, "XID 79: has fallen off the bus", is_gone=True)]),
        (48, [DeviceLost(A, "XID 48: double-bit ECC error; it needs a reset", is_gone=False)]),
        (13, []),
    ],
)
async def test_reported_errors_are_judged(
    gpus: GpuMonitor, board: Board, xid: int, wanted: list[Any]
) -> None:
    """Each reported error is judged once; application errors are only logged."""
    await polled(gpus)
    board.report(A, xid)

    with capture_logs() as logs:
        assert await polled(gpus) == wanted
    assert await polled(gpus) == []
    assert [line["reported"] for line in logs if "reported" in line] == (
        [] if wanted else [f"{A}: XID 13: graphics engine exception"]
    )


async def test_a_lost_gpu_may_come_back(gpus: GpuMonitor, board: Board) -> None:
    """A lost GPU is searched for in a new session every few polls; other GPUs are not affected."""
    board.lose(A)
    (lost,) = await polled(gpus)
    assert (lost.device, lost.is_gone) == (A, True)
    assert await polled(gpus, 2 * POLLS_PER_RENEWAL) == []
    board.find(A)

    assert await polled(gpus, POLLS_PER_RENEWAL) == [DeviceBack(A)]
    assert await polled(gpus, 2 * POLLS_PER_RENEWAL) == []


async def test_errors_are_heard_in_a_new_session(gpus: GpuMonitor, board: Board) -> None:
    """Event registration is renewed with the session."""
    board.lose(A)
    await polled(gpus)
    board.find(A)
    await polled(gpus, POLLS_PER_RENEWAL)
    board.report(B, 95)

    assert [event.device for event in await polled(gpus)] == [B]


async def test_a_driver_that_hangs_is_said(make: Make, board: Board) -> None:
    """No caller waits longer than the limit; a silent driver loses no GPU and is reported while it
    is silent."""
    gpus = make(0.05)
    board.hang()

    assert await polled(gpus, 2) == []
    assert gpus.silence.startswith("the driver has not answered for") or "did not" in gpus.silence
    assert await gpus.taken_mib(A, frozenset({1}), 0.0, is_alone=True) is None
    assert await gpus.held_mib(A, frozenset({1})) is None
    with pytest.raises(DriverError, match=f"cannot verify that {A} is free: the driver"):
        await gpus.prove_free(A, None, lambda: 0.0)

    board.hang(False)
    async with asyncio.timeout(60):
        while gpus.silence:
            await asyncio.to_thread(lambda: None)
            await gpus.poll()


async def test_what_came_too_late_is_judged_with_the_next_answer(make: Make, board: Board) -> None:
    """Errors from a poll that was answered too late are judged with the next answer, since the
    driver reports them once."""
    gpus = make(0.05)
    assert await polled(gpus) == []
    board.report(A, 119)
    board.hang()
    assert await polled(gpus) == []
    board.hang(False)

    found: list[Any] = []
    async with asyncio.timeout(60):
        while gpus.silence:
            await asyncio.to_thread(lambda: None)
            found = await gpus.poll()
    assert found == [
        DeviceLost(
            A,
            "XID 119: its system processor (GSP) does not answer; it needs a reset",
            is_gone=False,
        )
    ]


async def test_a_session_that_has_ended_is_begun_anew(gpus: GpuMonitor) -> None:
    """After the driver was reloaded, the session is renewed, though no GPU is missing."""
    with suppress(pynvml.NVMLError_Uninitialized):
        while True:  # NVML counts sessions: those that other tests of this process left open, too
            pynvml.nvmlShutdown()

    assert await polled(gpus) == []
    assert gpus.silence == "the NVIDIA driver cannot be used: Uninitialized"
    assert await polled(gpus, POLLS_PER_RENEWAL) == []
    assert gpus.silence == ""


async def test_a_driver_that_is_gone_is_said(gpus: GpuMonitor, board: Board) -> None:
    """An unloaded driver is reported, and no GPU is lost for it: the driver may be loaded again."""
    board.answer("nvmlDeviceGetCount_v2", NO_DRIVER)
    assert await polled(gpus) == []
    assert gpus.silence == "the NVIDIA driver cannot be used: Driver Not Loaded"

    board.answer("nvmlDeviceGetCount_v2", 0)
    assert await polled(gpus) == []
    assert gpus.silence == ""


async def test_a_replica_s_memory_is_measured(gpus: GpuMonitor, board: Board) -> None:
    """A replica's memory is measured by its processes, else by the increase; on a lost GPU it is
    unknown."""
    board.claim(A, 7, 1_000)
    board.claim(A, 8, 500)

    assert await gpus.taken_mib(A, frozenset({7}), 0.0, is_alone=False) == 1_000.0
    assert await gpus.held_mib(A, frozenset({7})) == 1_000.0
    assert await gpus.taken_mib(A, None, 200.0, is_alone=True) == 1_300.0
    assert gpus.used_mib(A) == 1_500.0
    board.lose(A)
    assert await gpus.taken_mib(A, frozenset({7}), 0.0, is_alone=False) is None


async def test_a_gpu_is_free_once_it_shows_it(gpus: GpuMonitor, board: Board, time: Time) -> None:
    """`prove_free` polls until the replica's processes and memory are gone."""
    board.claim(A, 7, 4_000)
    steps = iter([lambda: board.claim(A, 7, 100), lambda: board.end(7)])
    time.then = lambda: next(steps)()

    await gpus.prove_free(A, frozenset({7}), lambda: 0.0)

    assert time.now_s == pytest.approx(2 * PROOF_POLL_S)
    assert gpus.used_mib(A) == 0.0


async def test_a_gpu_that_does_not_show_it_is_not_free(
    gpus: GpuMonitor, board: Board, time: Time
) -> None:
    """After the limit `prove_free` raises with what is left; memory of others does not count."""
    board.claim(B, 7, 4_000)

    with pytest.raises(DriverError, match=f"{B} still shows 4,000 MiB of pid 7"):
        await gpus.prove_free(B, frozenset({7}), lambda: 0.0)
    assert PROOF_S <= time.now_s < PROOF_S + 2 * PROOF_POLL_S
    with pytest.raises(DriverError, match="4,300 MiB in use, expected at most 300 of others"):
        await gpus.prove_free(B, None, lambda: 0.0)
    await gpus.prove_free(B, frozenset({8}), lambda: 4_000.0)


async def test_others_are_counted_as_they_are_then(
    gpus: GpuMonitor, board: Board, time: Time
) -> None:
    """Charges of replicas that start during a proof are taken into account."""
    board.claim(A, 8, 4_000)
    others = [0.0]
    time.then = lambda: others.__setitem__(0, 4_000.0)

    await gpus.prove_free(A, frozenset({7}), lambda: others[0])


async def test_nothing_is_left_on_a_gpu_that_is_gone(gpus: GpuMonitor, board: Board) -> None:
    """Replicas on a lost GPU, and on other devices, are released without a proof. The GPU is back
    only without their processes, and what was released earlier does not count again."""
    board.claim(A, 7, 4_000)
    board.lose(A)
    await polled(gpus)

    await gpus.prove_free(A, frozenset({7}), lambda: 0.0)
    await gpus.prove_free("cpu:0", frozenset({7}), lambda: 0.0)
    board.find(A)
    assert await polled(gpus, 2 * POLLS_PER_RENEWAL) == []
    board.end(7)
    assert await polled(gpus, POLLS_PER_RENEWAL) == [DeviceBack(A)]
    board.claim(A, 7, 4_000)
    board.lose(A)
    await polled(gpus)
    board.find(A)
    assert await polled(gpus, POLLS_PER_RENEWAL) == [DeviceBack(A)]


async def test_a_gpu_that_is_not_found_proves_nothing(gpus: GpuMonitor, board: Board) -> None:
    """Until a poll has found a GPU gone, one that the driver does not find may still hold the
    replica's memory: the proof fails, and is tried again."""
    board.claim(A, 7, 4_000)
    board.lose(A)

    with pytest.raises(DriverError, match=f"{A} is not found by the driver"):
        await gpus.prove_free(A, frozenset({7}), lambda: 0.0)


async def test_closing_waits_for_no_driver(make: Make, board: Board) -> None:
    """`close` does not wait for a driver that hangs."""
    gpus = make(0.05)
    board.hang()

    with capture_logs() as logs:
        await gpus.close()
    assert logs[0]["event"] == "the NVIDIA driver is left as it is"


async def test_errors_of_a_gpu_are_counted_by_their_number(gpus: GpuMonitor, board: Board) -> None:
    """The last error is the last one in the counts, and those of other GPUs are not among them."""
    await polled(gpus)
    for xid in (31, 43, 31):
        board.report(A, xid)
    board.report("GPU-elsewhere", 13)
    await polled(gpus)
    one, other = gpus.view(A), gpus.view(B)

    assert one is not None
    assert other is not None
    assert list(one.xids.items()) == [(43, 1), (31, 2)]
    assert other.xids == {}


async def test_a_flood_of_different_errors_takes_no_room(gpus: GpuMonitor, board: Board) -> None:
    """Beyond XIDS_MAX different numbers, errors are counted together under 0."""
    await polled(gpus)
    for xid in range(1000, 1000 + XIDS_MAX + 5):
        board.report(A, xid)
    await polled(gpus)
    view = gpus.view(A)

    assert view is not None
    assert len(view.xids) == XIDS_MAX + 1
    assert list(view.xids.items())[-1] == (0, 5)


async def test_slices_are_parts_of_their_gpu_by_memory(board: Board) -> None:
    """The parts of all slices are 1, also if only some of them were chosen."""
    board.add(
        Gpu(B, 40_000),
        Gpu("MIG-1", 10_000, parent=B, instance=1),
        Gpu("MIG-2", 30_000, parent=B, instance=5),
    )
    board.sense(B, energy_mj=5)
    nvml = Nvml()
    nvml.open()
    calls = BlockingCalls("the driver", limit_s=LIMIT_S)
    monitor = GpuMonitor(nvml, calls, nvml.read(), {"MIG-1": 0.0})
    await monitor.poll()
    view = monitor.view("MIG-1")
    await monitor.close()

    assert view is not None
    assert view.part == 0.25
    assert view.reading is not None
    assert view.reading.telemetry is not None
    assert view.reading.telemetry.energy_mj == 5


async def test_values_of_a_moment_end_with_the_gpu(gpus: GpuMonitor, board: Board) -> None:
    """A GPU that is gone, or whose driver is silent, is not shown as busy for ever. Its memory is
    that of the last reading, and a view that was taken before does not change."""
    board.sense(A, power_mw=300_000)
    await polled(gpus)
    before = gpus.view(A)
    assert before is not None
    assert before.reading is not None
    assert before.reading.telemetry
    board.report(A, 13)
    board.lose(A)
    await polled(gpus)
    gone = gpus.view(A)
    board.find(A)
    await polled(gpus, POLLS_PER_RENEWAL)
    board.answer("nvmlDeviceGetCount_v2", NO_DRIVER)
    await polled(gpus)

    for view in (gone, gpus.view(A)):
        assert view is not None
        assert view.reading is not None
        assert (view.utilization, view.reading.utilization, view.reading.telemetry) == (None,) * 3
        assert (view.reading.used_mib, view.used_mib) == (None, before.used_mib)
    assert before.xids == {}
