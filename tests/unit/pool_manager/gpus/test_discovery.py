"""Finding the GPUs when the server starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pool_manager.core.commands import Launch
from pool_manager.core.state import Device
from pool_manager.gpus import discovery
from pool_manager.gpus.absent import NoGpus
from pool_manager.gpus.discovery import find_gpus, open_gpus
from pool_manager.gpus.monitor import GpuMonitor
from pool_manager.replicas.records import unbound
from pool_manager.settings import PoolSettings
from registry.errors import BadRequest, EngineDown
from runtime_image.contract.control import ReplicaRecord
from tests.support.fake_driver.driver import FakeDriver, FakeProcesses
from tests.support.nvml.board import NO_DRIVER, WRONG_VERSION, Board, Gpu

A, B = "GPU-aaaa", "GPU-bbbb"


class Two(FakeProcesses):
    """Those of r1, and none of another replica."""

    async def pids(self, id: str) -> frozenset[int] | None:
        return frozenset({7, 8}) if id == "r1" else frozenset()


class Adopting(FakeDriver):
    """Replicas of an earlier manager run, r1 with the processes 7 and 8."""

    async def list(self) -> set[str]:
        return {"r1", "r2"}

    def __init__(self) -> None:
        super().__init__()
        self.processes = Two(lambda _id: True)


def record(id: str, device: str) -> ReplicaRecord:
    """A replica's record."""
    settings = PoolSettings(Path(), Path(), Path())
    command = Launch(id, "", (device,), "serve", {})
    return replace(unbound(command, "cuda", settings, 0.0), devices=(device,))


@pytest.fixture(autouse=True)
def gpus(board: Board) -> None:
    """Two GPUs."""
    board.add(Gpu(A, 24_000, other_mib=100), Gpu(B, 24_000))


async def devices(setting: str) -> list[Device]:
    """Return the devices that a server with this setting uses."""
    found = await open_gpus(await find_gpus(setting), FakeDriver(), {})
    await found.close()
    return found.devices()


MODEL = "NVIDIA Stand-in, 24000 MiB, sm90, driver 580.65.06"


async def test_all_gpus_are_used() -> None:
    """All GPUs are used by default."""
    first, second = (
        Device(id, "cuda", size, model=MODEL) for id, size in ((A, 23_900.0), (B, 24_000.0))
    )
    assert await devices("all") == [first, second]
    assert [gpu.memory_mib for gpu in (await find_gpus("all")).devices()] == [24_000.0, 24_000.0]
    assert await devices("1") == [second]


async def test_none_may_be_used(board: Board) -> None:
    """With "none" the driver is not queried."""
    board.hang()

    assert await devices("none") == []


async def test_a_host_without_a_driver_has_no_gpus(board: Board) -> None:
    """A host without a driver has no GPUs; that is an error only if GPUs are named."""
    board.init = NO_DRIVER
    board.write()
    found = await open_gpus(await find_gpus("all"), FakeDriver(), {})

    assert isinstance(found, NoGpus)
    assert found.silence == ""
    with pytest.raises(BadRequest, match="gpus: expected all, none or GPUs of this host: the NV"):
        await find_gpus("0")


async def test_a_driver_that_cannot_be_used_is_said(board: Board) -> None:
    """With an unusable driver the server starts without GPUs and reports the reason."""
    board.init = WRONG_VERSION
    board.write()
    found = await open_gpus(await find_gpus("all"), FakeDriver(), {})

    assert "NVML/RM version mismatch" in found.silence


async def test_a_driver_that_hangs_is_said(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that does not answer is reported."""
    monkeypatch.setattr(discovery, "START_S", 0.05)
    board.hang()
    found = await open_gpus(await find_gpus("all"), FakeDriver(), {})

    assert found.silence == "the NVIDIA driver did not answer for 0.05 s"
    with pytest.raises(BadRequest, match="did not answer"):
        await find_gpus(A)


async def test_what_is_not_there_is_an_error() -> None:
    """A named GPU that does not exist is an error, and the session is closed."""
    with pytest.raises(BadRequest, match="got 'GPU-x'; it has 0"):
        await find_gpus("GPU-x")


async def test_replicas_whose_driver_is_away_cannot_be_told() -> None:
    """The server does not start if the replicas' driver does not answer."""
    driver = FakeDriver()
    driver.away = "nobody listens"
    with pytest.raises(EngineDown):
        await open_gpus(await find_gpus("all"), driver, {})


async def test_adopted_replicas_are_not_foreign(board: Board) -> None:
    """Memory of adopted replicas is not foreign; memory of other processes is."""
    board.claim(A, 7, 1_000)
    board.claim(A, 8, 500)
    board.claim(A, 9, 2_000)
    records = {"r1": record("r1", A), "r2": record("r2", ""), "r3": record("r3", A), "r4": None}
    found = await open_gpus(await find_gpus("all"), Adopting(), records)
    shown = found.view(A)
    await found.close()

    assert isinstance(found, GpuMonitor)
    assert found.devices()[0].memory_mib == 24_000 - 2_100
    assert shown is not None
    assert shown.foreign_mib == 2_100


async def test_what_went_while_the_server_started_is_not_foreign(board: Board) -> None:
    """Memory of replicas that end during the server's start is not foreign, even if the driver then
    falls silent."""
    board.claim(A, 7, 1_000)
    found = await find_gpus("all")
    board.end(7)
    gpus = await open_gpus(found, FakeDriver(), {})
    await gpus.close()
    board.answer("nvmlDeviceGetCount_v2", NO_DRIVER)
    unseen = await open_gpus(found, FakeDriver(), {})
    await unseen.close()

    assert gpus.devices()[0].memory_mib == 23_900
    assert unseen.devices()[0].memory_mib == 24_000 - 1_100


async def test_what_ends_while_replicas_are_listed_is_not_foreign(board: Board) -> None:
    """The GPUs are read after that."""
    board.claim(A, 7, 1_000)

    class Ending(FakeProcesses):
        async def pids(self, id: str) -> frozenset[int] | None:
            board.end(7)
            return frozenset()

    driver = Adopting()
    driver.processes = Ending(lambda _id: True)
    found = await open_gpus(await find_gpus("all"), driver, {"r1": record("r1", A)})
    await found.close()

    assert found.devices()[0].memory_mib == 23_900


async def test_an_adopted_replica_is_known_on_each_of_its_gpus(board: Board) -> None:
    """Its memory is foreign on none of them."""
    board.claim(A, 7, 1_000)
    board.claim(B, 8, 500)
    records = {"r1": replace(record("r1", A), devices=(A, B)), "r2": record("r2", B)}
    found = await open_gpus(await find_gpus("all"), Adopting(), records)
    await found.close()

    assert [one.memory_mib for one in found.devices()] == [23_900, 24_000]
