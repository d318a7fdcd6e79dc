"""Tests of a server with GPUs: placement, and what happens when a GPU fails."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from prometheus_client.parser import text_string_to_metric_families

from admin.settings import Settings
from pool_manager import usage
from pool_manager.core import eviction, replicas
from pool_manager.gpus import monitor
from pool_manager.settings import PoolSettings
from registry.errors import BadRequest
from tests.support import models
from tests.support.doses import amount
from tests.support.nvml.board import Board, Gpu
from tests.support.nvml.fixtures import board
from tests.support.nvml.tenants import GpuDriver, function_of
from tests.support.server import ServingServer, serving

__all__ = ["board"]

BODY: dict[str, Any] = {"inputs": {}}
MODEL = {"m.onnx": b"\x3a\x00"}
A, B, C, D = (f"GPU-{letter * 8}" for letter in "abcd")
TOTAL_MIB, RESERVED_MIB, FOREIGN_MIB = 24_000, 400, 600
RETRY_S = 0.05

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals that the tests wait for."""
    monkeypatch.setattr(monitor, "POLL_S", 0.01)
    monkeypatch.setattr(monitor, "PROOF_S", 0.03)
    monkeypatch.setattr(monitor, "PROOF_POLL_S", 0.005)
    monkeypatch.setattr(replicas, "RELEASE_RETRY_S", RETRY_S)
    monkeypatch.setattr(eviction, "PREEMPT_AFTER_S", 0.2)
    monkeypatch.setattr(eviction, "RESIDENCY_S", 0.3)


class Quick(Settings):
    """Settings with a short tick, so that changes that only time brings come quickly."""

    def pool(self) -> PoolSettings:
        return replace(super().pool(), tick_s=0.02)


def manifest(name: str, share: float = 1.0) -> str:
    """Return the manifest of a function that needs this much of a GPU."""
    device = f'[device]\nkind = "cuda"\nshare = {share}\n'
    return f'schema = 1\nname = "{name}"\nmodel = "m.onnx"\n{device}'


@asynccontextmanager
async def gpu_server(
    folder: Path, driver: GpuDriver, **settings: Any
) -> AsyncIterator[ServingServer]:
    """A server without standbys, so that only functions are placed."""
    async with serving(folder, driver, kind=Quick, standbys=0, cpu_slots=1, **settings) as server:
        yield server


async def devices(server: ServingServer) -> dict[str, dict[str, Any]]:
    """Return what the admin API shows of every device, by id."""
    items = (await server.admin("GET", "/devices")).json()["items"]
    return {item["id"]: item for item in items}


async def until_state(server: ServingServer, device: str, state: str) -> dict[str, Any]:
    """Wait until a device has this state."""

    async def asks() -> bool:
        return bool((await devices(server))[device]["state"] == state)

    await server.until(asks)
    return (await devices(server))[device]


async def test_a_function_runs_on_a_gpu(board: Board, tmp_path: Path) -> None:
    """A deploy measures the GPU memory that the function takes, and the device shows its
    replicas."""
    board.add(Gpu(A, TOTAL_MIB, RESERVED_MIB, FOREIGN_MIB, name="NVIDIA H200"))
    async with gpu_server(tmp_path, GpuDriver(board, {"f": 5_000})) as server:
        await server.deploy(MODEL, name="f", manifest=manifest("f"))
        assert (await server.call("f", BODY)).status == 200
        shown = (await devices(server))[A]
        document = await server.function("f")
        ready = (await server.readiness()).json()

    assert (shown["name"], shown["kind"], shown["index"]) == ("NVIDIA H200", "cuda", "0")
    assert (shown["memory_mib"], shown["total_mib"], shown["foreign_mib"]) == (23_000, 24_000, 600)
    assert (shown["state"], shown["charged_mib"], shown["used_mib"]) == ("taken", 5_000, 5_600)
    assert len(shown["replicas"]) == 1
    (revision,) = document["revisions"]
    assert revision["profile"]["memory_mib"] == 5_000
    assert ready.get("reasons", []) == []


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="this onnxruntime can compute on a GPU",
)
async def test_a_gpu_function_is_never_deployed_on_the_cpu(board: Board, tmp_path: Path) -> None:
    """A model whose function asks for a GPU fails its deploy in a replica without ONNX Runtime's
    CUDA provider, also under a handler; the GPU is free again. One that demands TensorRT says what
    is missing, and which setting serves the model without it."""
    board.add(Gpu(A, TOTAL_MIB, RESERVED_MIB, FOREIGN_MIB))
    model = {"m.onnx": models.add_one(tmp_path).read_bytes()}
    handler = {"handler.py": b"def predict(inputs, ctx): return ctx.run(inputs)\n"}
    async with serving(tmp_path, kind=Quick, standbys=0, cpu_slots=1) as server:
        for name, files in (("model", model), ("handler", {**model, **handler})):
            with pytest.raises(AssertionError, match="device cuda: this onnxruntime has no CUDAEx"):
                await server.deploy(files, name=name, manifest=manifest(name))
        demand = f'{manifest("model")}[runtime]\nengine = "tensorrt"\n'
        operation = (await server.try_deploy(model, name="model", manifest=demand)).json()
        await until_state(server, A, "free")
        functions = (await server.admin("GET", "/functions")).json()["items"]

    assert (operation["state"], operation["error"]["code"]) == ("failed", "model_refused")
    detail = operation["error"]["detail"]
    assert detail.startswith('engine = "tensorrt": ')
    assert any(one in detail for one in ("no NVIDIA driver", "no TensorrtExecutionProvider"))
    assert detail.endswith('; with engine = "auto" the model is served without it')
    assert functions == []


async def test_a_gpu_that_is_not_given_back_is_quarantined(board: Board, tmp_path: Path) -> None:
    """A GPU whose memory is not released is quarantined until the driver shows it free; a held call
    gets the reason and is then served."""
    board.add(Gpu(A, TOTAL_MIB))
    lingers = False
    driver = GpuDriver(board, {"f": 5_000, "g": 5_000}, lingers=lambda _id: lingers)
    async with gpu_server(tmp_path, driver) as server:
        for name in ("f", "g"):
            await server.deploy(MODEL, name=name, manifest=manifest(name))
        assert (await server.call("f", BODY)).status == 200
        pid = next(iter(driver.known.values()))
        lingers = True
        held = asyncio.create_task(server.call("g", BODY))
        shown = await until_state(server, A, "quarantined")
        lingers = False
        why = (await server.admin("GET", "/functions/f/why")).json()
        assert f"{A} still shows 5,000 MiB of pid {pid}" in shown["reason"]
        assert "still shows 5,000 MiB" in str(why["decisions"])
        assert not held.done()

        driver.let_go()
        assert (await held).status == 200
        assert (await devices(server))[A]["state"] == "taken"


SEVERAL = """schema = 1
name = "f"
[runtime]
engine = "python"
[device]
count = 2
[input.x]
kind = "json"
"""
HANDLER = {"handler.py": b"def predict(inputs, ctx): return inputs"}


async def test_each_of_several_gpus_is_charged_and_proved_free(
    board: Board, tmp_path: Path
) -> None:
    """The most that a replica takes of one of its GPUs is stored by its trial and charged on each
    of them. One GPU that is not given back keeps the replica on both until
    the driver shows it free."""
    board.add(Gpu(A, TOTAL_MIB), Gpu(B, TOTAL_MIB))
    lingers = False
    driver = GpuDriver(
        board, {"f": 3_000, "g": 5_000}, lingers=lambda _id: lingers, more_mib={B: 2_000}
    )
    async with gpu_server(tmp_path, driver) as server:
        await server.deploy(HANDLER, name="f", manifest=SEVERAL)
        await server.deploy(MODEL, name="g", manifest=manifest("g"))
        assert (await server.call("f", {"inputs": {"x": 1}})).status == 200
        (revision,) = (await server.function("f"))["revisions"]
        shown = await devices(server)
        assert revision["profile"]["memory_mib"] == 5_000
        assert [shown[one]["charged_mib"] for one in (A, B)] == [5_000, 5_000]
        assert [shown[one]["used_mib"] for one in (A, B)] == [3_000, 5_000]
        assert shown[A]["replicas"] == shown[B]["replicas"] != []

        pid = next(iter(driver.known.values()))
        lingers = True
        held = asyncio.create_task(server.call("g", BODY))
        await until_state(server, A, "quarantined")
        lingers = False
        board.processes.pop((A, pid))
        board.write()

        async def waits_for_the_other() -> bool:
            reasons = [one["reason"] for one in (await devices(server)).values()]
            return all(f"{B} still shows 5,000 MiB of pid {pid}" in one for one in reasons[:2])

        await server.until(waits_for_the_other)
        assert not held.done()
        driver.let_go()
        assert (await held).status == 200


async def test_a_driver_that_hangs_does_not_stop_the_server(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the GPU driver hangs the server answers with the reason; it goes on when the driver
    does."""
    monkeypatch.setattr("pool_manager.gpus.discovery.CALL_S", 0.05)
    board.add(Gpu(A, TOTAL_MIB))
    async with gpu_server(tmp_path, GpuDriver(board, {"f": 5_000})) as server:
        await server.deploy(MODEL, name="f", manifest=manifest("f"))
        assert (await server.call("f", BODY)).status == 200
        board.hang()

        async def is_said() -> bool:
            reasons = (await server.readiness()).json().get("reasons", [])
            return any(reason.startswith("gpus: the NVIDIA driver") for reason in reasons)

        await server.until(is_said)
        assert (await server.call("f", BODY)).status == 200
        board.hang(False)

        async def is_over() -> bool:
            return not await is_said()

        await server.until(is_over)


async def test_a_gpu_that_is_not_there_is_an_error_at_the_start(
    board: Board, tmp_path: Path
) -> None:
    """A server does not start without a GPU that its settings name."""
    board.add(Gpu(A, TOTAL_MIB))
    with pytest.raises(BadRequest, match=r"gpus: .*got '7'; it has 0"):
        async with gpu_server(tmp_path, GpuDriver(board, {}), gpus="7"):
            pass


async def test_slices_are_devices(board: Board, tmp_path: Path) -> None:
    """A GPU in MIG mode is used through its instances only."""
    board.add(Gpu(A, TOTAL_MIB), Gpu("MIG-1", 6_000, parent=A), Gpu("MIG-2", 12_000, parent=A))
    async with gpu_server(tmp_path, GpuDriver(board, {"f": 9_000})) as server:
        await server.deploy(MODEL, name="f", manifest=manifest("f"))
        assert (await server.call("f", BODY)).status == 200
        shown = await devices(server)

    assert list(shown)[:2] == ["MIG-1", "MIG-2"]
    assert sum(one["charged_mib"] for one in shown.values()) == 9_000


@pytest.mark.parametrize(("xid", "state"), [(79, "cordoned"), (48, "cordoned"), (31, "taken")])
async def test_an_error_is_answered_by_what_it_means(
    board: Board, tmp_path: Path, xid: int, state: str
) -> None:
    """A GPU that is lost or needs a reset gets no replicas, and other GPUs serve the calls; an
    application's error has no effect."""
    board.add(Gpu(A, TOTAL_MIB), Gpu(B, TOTAL_MIB))
    async with gpu_server(tmp_path, GpuDriver(board, {"f": 5_000})) as server:
        await server.deploy(MODEL, name="f", manifest=manifest("f"))
        assert (await server.call("f", BODY)).status == 200
        used = next(id for id, one in (await devices(server)).items() if one["replicas"])
        if xid == 79:
            board.lose(used)
        board.report(used, xid)
        shown = await until_state(server, used, state)
        assert (await server.call("f", BODY)).status == 200
        reasons = (await server.readiness()).json().get("reasons", [])

    assert ("XID" in shown["reason"] or "lost" in shown["reason"]) == (state == "cordoned")
    assert any(reason.startswith(f"device {used}: out of use") for reason in reasons) == (
        state == "cordoned"
    )


async def test_a_gpu_that_comes_back_is_used_again(board: Board, tmp_path: Path) -> None:
    """A GPU that returns is used again and serves the held calls."""
    board.add(Gpu(A, TOTAL_MIB))
    driver = GpuDriver(board, {"f": 5_000})
    async with gpu_server(tmp_path, driver) as server:
        await server.deploy(MODEL, name="f", manifest=manifest("f"))
        assert (await server.call("f", BODY)).status == 200
        board.lose(A)
        await until_state(server, A, "cordoned")
        held = asyncio.create_task(server.call("f", BODY))
        await server.until_shown("f", held=1)
        board.find(A)

        assert (await held).status == 200
        assert (await devices(server))[A]["state"] == "taken"


# name: share of a GPU, MiB there
FUNCTIONS = {
    "alone-a": (1.0, 20_000),
    "alone-b": (1.0, 8_000),
    "alone-c": (1.0, 3_000),
    "half-a": (0.5, 11_000),
    "half-b": (0.5, 9_000),
    "quarter": (0.25, 6_000),
}
SIZES_MIB = {name: size for name, (_, size) in FUNCTIONS.items()}
STEPS = 1_000
HELD_MAX = 24


class Storm:
    """Random calls and faults on four GPUs; after every step no GPU may be over-committed."""

    def __init__(self, board: Board, seed: int) -> None:
        self.board = board
        self.random = random.Random(seed)
        self.driver = GpuDriver(board, SIZES_MIB, lingers=self._lingers)
        self.calls: set[asyncio.Task[Any]] = set()
        self.answered = 0
        self.most = 0
        self.seen: set[str] = set()
        self.is_over = False
        self.lingered = 0
        self._worn = False

    def _lingers(self, _id: str) -> bool:
        lingers = not self.is_over and self.random.random() < 0.3
        self.lingered += lingers
        return lingers

    async def step(self, server: ServingServer) -> None:
        """Make one random action and let its consequences begin."""
        chance = self.random.random()
        if chance < 0.9:
            await self._call(server)
        elif chance < 0.94:
            self.driver.let_go()
        elif chance < 0.97:
            self.board.report(self.random.choice([A, B, C, D]), self.random.choice([13, 31, 43]))
        elif chance < 0.985:
            self._lose_or_find()
        elif not self._worn and not self._lost():
            self._worn = True
            self.board.report(D, 95)
        await asyncio.sleep(0)
        self.check(server)

    async def _call(self, server: ServingServer) -> None:
        if len(self.calls) >= HELD_MAX:
            self.driver.let_go()
            await asyncio.wait(self.calls, return_when=asyncio.FIRST_COMPLETED)
        name = self.random.choice(list(FUNCTIONS))
        task = asyncio.create_task(server.call(name, BODY), name=name)
        self.calls.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.calls.discard(task)
        answer = task.result()
        assert answer.status == 200, (task.get_name(), answer.status, answer.body)
        self.answered += 1

    def _lost(self) -> list[str]:
        return [uuid for uuid, gpu in self.board.gpus.items() if gpu.is_lost]

    def _lose_or_find(self) -> None:
        """Lose or return a GPU; of A, B and C at most one is lost at a time."""
        lost = self._lost()
        if lost:
            self.board.find(lost[0])
            return
        gone = self.random.choice([A, B, C])
        self.board.lose(gone)
        self.board.report(gone, 79)

    def check(self, server: ServingServer) -> None:
        """Check shares and memory by the replicas on each GPU, not by the ledger."""
        there: dict[str, list[str]] = {uuid: [] for uuid in self.board.gpus}
        for replica in server.server.manager.replicas():
            for uuid in there.keys() & replica.devices:
                there[uuid].append(replica.pool)
        for uuid, pools in there.items():
            names = [function_of(pool) for pool in pools]
            assert sum(FUNCTIONS[name][0] for name in names) <= 1.0, (uuid, pools)
            taken_mib = sum(SIZES_MIB[name] for name in names)
            assert taken_mib <= TOTAL_MIB - RESERVED_MIB - FOREIGN_MIB, (uuid, pools)
            if not self.board.gpus[uuid].is_lost:
                assert self.board.used_mib(uuid) <= TOTAL_MIB - RESERVED_MIB, (uuid, pools)
            self.most = max(self.most, len(names))
        self.seen |= {one.state for one in server.server.manager.occupancies()}


@pytest.fixture
def four(board: Board) -> Board:
    """Four GPUs, each with memory of a foreign process."""
    board.add(*(Gpu(uuid, TOTAL_MIB, RESERVED_MIB, FOREIGN_MIB) for uuid in (A, B, C, D)))
    return board


@pytest.mark.parametrize("seed", amount([1], [1, 2, 3]))
async def test_a_storm_loses_no_call_and_over_commits_nothing(
    four: Board, tmp_path: Path, seed: int
) -> None:
    """Under random calls and GPU faults no call is lost and no GPU is over-committed."""
    storm = Storm(four, seed)
    async with gpu_server(tmp_path, storm.driver, idle_s=1.0) as server:
        for number, (name, (share, _)) in enumerate(FUNCTIONS.items(), 1):
            storm.driver.let_go()
            # A model of its own for each function, since a measurement applies to every copy of a
            # model.
            model = {"m.onnx": MODEL["m.onnx"] * number}
            await server.deploy(model, name=name, manifest=manifest(name, share), max=2)
        for _ in range(STEPS):
            await storm.step(server)
        for uuid in storm._lost():
            four.find(uuid)
        async with asyncio.timeout(60):
            while storm.calls:
                storm.driver.let_go()
                await asyncio.wait(storm.calls, timeout=RETRY_S)
                storm.check(server)
        storm.is_over = True
        storm.driver.let_go()

    assert storm.answered > STEPS / 2
    assert storm.most >= 2
    assert storm.lingered >= 5
    assert storm.seen >= {"free", "taken", "cordoned"}


async def function_joules(server: ServingServer) -> dict[str, float]:
    """Return the stored joules by function, by way of the admin API; unknown ones are left out."""
    await server.server.store.history.flush()
    items = (await server.admin("GET", "/cost")).json()["items"]
    return {item["function"]: item["joules"] for item in items if item["joules"] is not None}


async def until_joules(server: ServingServer, function: str, joules: float) -> None:
    """Wait until so much energy of a function is stored."""

    async def asks() -> bool:
        return (await function_joules(server)).get(function) == pytest.approx(joules)

    await server.until(asks)


async def until_held(server: ServingServer, function: str, joules: float) -> None:
    """Wait until a function held a device and has at least so much energy."""

    async def asks() -> bool:
        totals = server.server.manager.held_totals()
        return any(one.joules >= joules for one in totals if one.function == function)

    await server.until(asks)


async def test_energy_is_that_of_the_function_that_holds_the_gpu(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Energy goes to the function from its first hold on, over a driver that was loaded again and a
    server that was restarted. Unheld energy is idle, and both add up to what was counted."""
    monkeypatch.setattr(usage, "FLUSH_S", 0.02)
    board.add(Gpu(A, TOTAL_MIB, name="NVIDIA H200"))
    board.sense(A, energy_mj=7_000_000, power_mw=99_500, temperature=41)
    options = {
        "price_device_hour": "cpu=0.04,NVIDIA H200=3.9",
        "price_kwh": 0.3,
        "currency": "EUR",
        "dcgm_metrics": True,
    }
    async with gpu_server(tmp_path, GpuDriver(board, {"f": 5_000}), **options) as server:
        await server.deploy(MODEL, name="f", manifest=manifest("f"))
        assert (await server.call("f", BODY)).status == 200
        # A tick samples the energy before it adds to the totals.
        await until_held(server, "f", 0.0)
        board.sense(A, energy_mj=7_001_000)
        await until_held(server, "f", 1e-9)
        before_j = (await function_joules(server))["f"]
        board.sense(A, energy_mj=7_021_000)
        await until_joules(server, "f", before_j + 20.0)
        board.sense(A, energy_mj=3_000)  # the driver was loaded again
        await until_joules(server, "f", before_j + 23.0)
        page = (await server.get("/metrics")).body.decode()
    board.sense(A, energy_mj=900_000)
    async with gpu_server(tmp_path, GpuDriver(board, {"f": 5_000}), **options) as server:
        found = (await server.admin("GET", "/cost")).json()

    assert 0 < before_j < 1.0  # the rest was before the function held the GPU
    assert found["total"]["joules"] == pytest.approx(24.0)
    assert sum(one["joules"] or 0 for one in found["items"]) == pytest.approx(24.0)
    values = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    bus = ""  # not set on this board
    labels = sorted(["0", A, bus, "nvidia0", "NVIDIA H200", socket.gethostname(), "local"])
    assert values["DCGM_FI_DEV_POWER_USAGE", *labels] == 99.5
    assert values["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", *labels] == 3000
    assert values["fngate_device_power_watts", A, "cuda", "local"] == 99.5
    assert values["fngate_function_energy_joules_total", "cuda", "default", "f"] > 20.0
    (item,) = [item for item in found["items"] if item["function"] == "f"]
    assert item["device_cost"] == pytest.approx(item["held_s"] / 3600 * 3.9, abs=1e-6)
    assert item["energy_cost"] == pytest.approx(item["joules"] / 3.6e6 * 0.3, abs=1e-6)
    assert item["held_s"] >= item["busy_s"]
    assert found["total"]["no_counter_s"] > 0  # the CPU slot
