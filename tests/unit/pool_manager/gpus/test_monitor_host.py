"""The GPUs of a host, through the real pynvml."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pynvml
import pytest
from structlog.testing import capture_logs

from pool_manager.calls import BlockingCalls
from pool_manager.core.events import DeviceBack, DeviceLost
from pool_manager.core.state import Device
from pool_manager.gpus.monitor import LOOKS_PER_RENEWAL, PROOF_POLL_S, PROOF_S, HostGpus
from pool_manager.gpus.nvml import Nvml
from pool_manager.ports import GpuView
from registry.errors import DriverError
from tests.support.nvml.board import NO_DRIVER, NOT_SUPPORTED, Board, Gpu

A, B = "GPU-aaaa", "GPU-bbbb"
LIMIT_S = 10.0


class Time:
    """A clock that goes on by what is paused, and does `then` at each pause."""

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


Make = Callable[..., HostGpus]


@pytest.fixture
async def make(board: Board, time: Time) -> AsyncIterator[Make]:
    """Makes the GPUs as they are on the board; B has 300 MiB of others."""
    board.add(Gpu(A, 24_000, 400), Gpu(B, 24_000, other_mib=300))
    made: list[HostGpus] = []

    def gpus(limit_s: float = LIMIT_S) -> HostGpus:
        nvml = Nvml()
        nvml.open()
        calls = BlockingCalls("the driver", limit_s=limit_s)
        seen, foreign = nvml.read(), {A: 0.0, B: 300.0}
        made.append(
            HostGpus(nvml, calls, seen, foreign, pause=time.pause, clock=time.clock),
        )
        return made[-1]

    yield gpus
    board.hang(False)
    for one in made:
        await one.close()


@pytest.fixture
def gpus(make: Make) -> HostGpus:
    return make()


class Heard(list[Any]):
    """What was fed, and a look at the GPUs of whom it was fed by."""

    def __init__(self, gpus: HostGpus) -> None:
        super().__init__()
        self.gpus = gpus
        gpus._feed = self.append  # as `start` does, without looking by itself

    async def look(self, times: int = 1) -> list[Any]:
        """What came of so many looks."""
        self.clear()
        for _ in range(times):
            await self.gpus.look()
        return list(self)


@pytest.fixture
def heard(gpus: HostGpus) -> Heard:
    return Heard(gpus)


def test_the_chosen_gpus_are_devices(gpus: HostGpus) -> None:
    """Without what the driver and others have of them."""
    assert gpus.devices() == [Device(A, "cuda", 23_600.0), Device(B, "cuda", 23_700.0)]


async def test_they_can_be_looked_at(gpus: HostGpus, board: Board, heard: Heard) -> None:
    """What they are does not change, what is in use does, with the next look."""
    board.claim(A, 7, 1_000)
    assert gpus.used_mib(A) == 0.0
    await heard.look()

    assert gpus.view(A) == GpuView(
        "NVIDIA Stand-in", "0", "9.0", "580.65.06", 24_000.0, 1_000.0, 0.0, utilization=0.1
    )
    assert gpus.used_mib(A) == 1_000.0
    assert (gpus.view("cpu:0"), gpus.used_mib("cpu:0")) == (None, None)


async def test_a_capability_may_be_unknown(make: Make, board: Board) -> None:
    """Then it is not shown."""
    board.answer("nvmlDeviceGetCudaComputeCapability", NOT_SUPPORTED)
    shown = make().view(A)

    assert shown is not None
    assert shown.capability is None


async def test_they_are_watched(gpus: HostGpus, board: Board) -> None:
    """From the start until they are closed, every second."""
    news: asyncio.Queue[Any] = asyncio.Queue(10)
    gpus.start(news.put_nowait)
    board.remove(B)

    async with asyncio.timeout(30):
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
    heard: Heard, board: Board, xid: int, wanted: list[Any]
) -> None:
    """Each is told once, and an application's is only in the log."""
    await heard.look()
    board.report(A, xid)

    with capture_logs() as logs:
        assert await heard.look() == wanted
    assert await heard.look() == []
    assert [line["reported"] for line in logs if "reported" in line] == (
        [] if wanted else [f"{A}: XID 13: graphics engine exception"]
    )


async def test_a_lost_gpu_may_come_back(heard: Heard, board: Board) -> None:
    """It is looked for in a new session every few looks; the others do not notice."""
    board.lose(A)
    (lost,) = await heard.look()
    assert (lost.device, lost.is_gone) == (A, True)
    assert await heard.look(2 * LOOKS_PER_RENEWAL) == []
    board.find(A)

    assert await heard.look(LOOKS_PER_RENEWAL) == [DeviceBack(A)]
    assert await heard.look(2 * LOOKS_PER_RENEWAL) == []


async def test_errors_are_heard_in_a_new_session(heard: Heard, board: Board) -> None:
    """What was registered is registered again."""
    board.lose(A)
    await heard.look()
    board.find(A)
    await heard.look(LOOKS_PER_RENEWAL)
    board.report(B, 95)

    assert [event.device for event in await heard.look()] == [B]


async def test_a_driver_that_hangs_is_said(make: Make, board: Board) -> None:
    """Nobody waits longer than the limit, no GPU is given up, and it is said as long as it is
    so."""
    gpus = make(0.05)
    heard = Heard(gpus)
    board.hang()

    assert await heard.look(2) == []
    assert gpus.silence.startswith("the driver has not answered for") or "did not" in gpus.silence
    assert await gpus.taken_mib(A, frozenset({1}), 0.0, is_alone=True) is None
    with pytest.raises(DriverError, match=f"{A} cannot be seen to be free: the driver"):
        await gpus.prove_free(A, None, lambda: 0.0)

    board.hang(False)
    async with asyncio.timeout(30):
        while gpus.silence:
            await asyncio.to_thread(lambda: None)
            await gpus.look()


async def test_what_came_too_late_is_judged_with_the_next_answer(make: Make, board: Board) -> None:
    """A driver tells an error once, most likely when it has just been silent because of that."""
    gpus = make(0.05)
    heard = Heard(gpus)
    assert await heard.look() == []
    board.report(A, 119)
    board.hang()
    assert await heard.look() == []
    board.hang(False)

    async with asyncio.timeout(30):
        while gpus.silence:
            await asyncio.to_thread(lambda: None)
            await gpus.look()
    assert [(event.device, event.is_gone) for event in heard] == [(A, False)]


async def test_a_session_that_has_ended_is_begun_anew(heard: Heard) -> None:
    """A driver that was loaded anew answers no session from before, though no GPU is missing."""
    pynvml.nvmlShutdown()

    assert await heard.look() == []
    assert heard.gpus.silence == "the NVIDIA driver cannot be used: Uninitialized"
    assert await heard.look(LOOKS_PER_RENEWAL) == []
    assert heard.gpus.silence == ""


async def test_a_driver_that_is_gone_is_said(heard: Heard, board: Board) -> None:
    """It may be loaded anew: no GPU is given up for it."""
    board.answer("nvmlDeviceGetCount_v2", NO_DRIVER)
    assert await heard.look() == []
    assert heard.gpus.silence == "the NVIDIA driver cannot be used: Driver Not Loaded"

    board.answer("nvmlDeviceGetCount_v2", 0)
    assert await heard.look() == []
    assert heard.gpus.silence == ""


async def test_a_replica_s_memory_is_measured(gpus: HostGpus, board: Board) -> None:
    """By its processes, else by what came with it; of a lost GPU nothing is known."""
    board.claim(A, 7, 1_000)
    board.claim(A, 8, 500)

    assert await gpus.taken_mib(A, frozenset({7}), 0.0, is_alone=False) == 1_000.0
    assert await gpus.taken_mib(A, None, 200.0, is_alone=True) == 1_300.0
    assert gpus.used_mib(A) == 1_500.0
    board.lose(A)
    assert await gpus.taken_mib(A, frozenset({7}), 0.0, is_alone=False) is None


async def test_a_gpu_is_free_once_it_shows_it(gpus: HostGpus, board: Board, time: Time) -> None:
    """It is asked until the replica's processes and its memory are gone."""
    board.claim(A, 7, 4_000)
    steps = iter([lambda: board.claim(A, 7, 100), lambda: board.end(7)])
    time.then = lambda: next(steps)()

    await gpus.prove_free(A, frozenset({7}), lambda: 0.0)

    assert time.now_s == pytest.approx(2 * PROOF_POLL_S)
    assert gpus.used_mib(A) == 0.0


async def test_a_gpu_that_does_not_show_it_is_not_free(
    gpus: HostGpus, board: Board, time: Time
) -> None:
    """After some seconds it is said what is left; what others have is theirs."""
    board.claim(B, 7, 4_000)

    with pytest.raises(DriverError, match=f"{B} still shows 4,000 MiB of pid 7"):
        await gpus.prove_free(B, frozenset({7}), lambda: 0.0)
    assert PROOF_S <= time.now_s < PROOF_S + 2 * PROOF_POLL_S
    with pytest.raises(DriverError, match="4,300 MiB in use, expected at most 300 of others"):
        await gpus.prove_free(B, None, lambda: 0.0)
    await gpus.prove_free(B, frozenset({8}), lambda: 4_000.0)


async def test_others_are_counted_as_they_are_then(
    gpus: HostGpus, board: Board, time: Time
) -> None:
    """Who has come meanwhile is not taken for what is left."""
    board.claim(A, 8, 4_000)
    others = [0.0]
    time.then = lambda: others.__setitem__(0, 4_000.0)

    await gpus.prove_free(A, frozenset({7}), lambda: others[0])


async def test_nothing_is_left_on_a_gpu_that_is_gone(gpus: HostGpus, board: Board) -> None:
    """Its replicas can be released; so can those on other devices."""
    board.claim(A, 7, 4_000)
    board.lose(A)

    await gpus.prove_free(A, frozenset({7}), lambda: 0.0)
    await gpus.prove_free("cpu:0", frozenset({7}), lambda: 0.0)


async def test_closing_waits_for_no_driver(make: Make, board: Board) -> None:
    """One that hangs is left as it is."""
    gpus = make(0.05)
    board.hang()

    with capture_logs() as logs:
        await gpus.close()
    assert logs[0]["event"] == "the NVIDIA driver is left as it is"
