"""Deploys of a server with a table [park]: the trial parks a real process once.

The GPU is the stand-in for NVML, which lists what the engine says that it holds. Whatever goes
wrong, the revision is deployed, without parks, and says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from admin.settings import Settings
from pool_manager import parks
from pool_manager.core.state import ParkSpec
from pool_manager.replicas import trial_parks
from tests.support.nvml.board import Board, Gpu, locks
from tests.support.nvml.fixtures import board
from tests.support.server import ServingServer, serving
from tests.support.sleepy_engine import held_mib
from tests.support.sleepy_engine.memory import RESIDUE_MIB
from tests.support.sleepy_engine.sleepers import manifest

__all__ = ["board"]

pytestmark = pytest.mark.slow
GPU = "GPU-stand-in-0"
SHORT_S = 2.0
"""Limit of an engine's call where the engine never answers."""


@asynccontextmanager
async def gpu_server(folder: Path, board: Board) -> AsyncIterator[ServingServer]:
    """A server with processes as replicas, and one GPU."""
    board.holders = folder / "held"
    board.holders.mkdir()
    board.add(Gpu(GPU))
    async with serving(folder, kind=Settings, standbys=0, cpu_slots=1) as server:
        yield server


def sleeper(folder: Path, *options: str, device: str = "") -> str:
    """Return the manifest of an engine with options of its own. `device`: a line of [device]."""
    return manifest("llm", "--held", str(folder / "held"), *options, rest=device)


async def deploy(server: ServingServer, text: str) -> dict[str, Any]:
    """Deploy; return what is shown of the only revision."""
    await server.deploy({"readme.txt": b"-"}, name="llm", manifest=text)
    (revision,) = (await server.function("llm"))["revisions"]
    return dict(revision)


def spec_of(server: ServingServer) -> ParkSpec | None:
    """Return what the manager knows of the function's parks."""
    return server.server.manager._machine.pools["default/llm@1"].spec.park


async def test_a_park_that_works_is_measured(board: Board, tmp_path: Path) -> None:
    """The pool learns times and sizes, which are of the real processes and of the stand-in GPU."""
    async with gpu_server(tmp_path, board) as server:
        text = sleeper(tmp_path, "--slow", "0.5", "--host-mib", "300")
        park = (await deploy(server, text))["profile"]["park"]
        known = spec_of(server)

    assert (park["works"], park["reason"]) == (True, "")
    assert 0.5 <= park["sleep_s"] < 30
    assert 0.5 <= park["wake_s"] < 30
    assert 0 < park["verify_s"] < 30
    assert park["residue_mib"] == RESIDUE_MIB
    assert 295 <= park["host_mib"] <= 340
    times = {key: park[key] for key in ("sleep_s", "wake_s", "verify_s")}
    sizes = {key: park[key] for key in ("host_mib", "residue_mib")}
    assert known == ParkSpec(**times, **sizes, park_s=3600)


HANGS = {"sleep-hangs", "wake-hangs", "no-sleep-mode", "stays-asleep"}
"""Faults that only the limit of a call finds."""
SEEN = {
    "sleep-fails": "POST /sleep?level=1: expected a status from 200 to 299, got 500",
    "sleep-hangs": "POST /sleep?level=1: expected an answer, got no whole answer within 2 s",
    "sleep-dies": "it ended as it slept: exited with code 1: the server exited with code 1",
    "frees-nothing": "hold 8,192 MiB of GPU-stand-in-0 asleep and 8,192 awake, expected less",
    "frees-half": "hold 4,096 MiB of GPU-stand-in-0 asleep and 8,192 awake, expected less than",
    "no-sleep-mode": "GET /is_sleeping: expected is_sleeping true within 2 s",
    "wake-fails": "POST /wake_up: expected a status from 200 to 299, got 500",
    "wake-hangs": "POST /wake_up: expected an answer, got no whole answer within 2 s",
    "wake-dies": "it ended as it woke: exited with code 1: the server exited with code 1",
    "stays-asleep": "GET /is_sleeping: expected is_sleeping false within 2 s",
    "lies": "the golden sample after the wake",
    "garbage": "the golden sample after the wake: wrong",
    "garbage-later": "the golden sample after the wake: wrong",
    "stale-prefix": "the golden sample after the wake, with a prompt that was cached: wrong",
}
"""Faults, and what the reason has."""


@pytest.mark.parametrize("fault", SEEN)
async def test_a_fault_leaves_a_revision_without_parks(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Whatever goes wrong, it serves, is not parked, and says why."""
    if fault.startswith("frees"):
        monkeypatch.setattr(parks, "PROOF_S", parks.MARGIN_S + 3 * SHORT_S)
    if fault in HANGS:
        monkeypatch.setattr(trial_parks, "CALL_LEAST_S", SHORT_S)
    async with gpu_server(tmp_path, board) as server:
        revision = await deploy(server, sleeper(tmp_path, "--fault", fault))
        known = spec_of(server)

    park = revision["profile"]["park"]
    assert (park["works"], known) == (False, None)
    assert SEEN[fault] in park["reason"]
    assert revision["profile"]["golden"], "what the trial had learnt before counts"


def engine(folder: Path) -> int:
    """Return the pid of the engine."""
    (pid,) = locks(folder / "held").values()
    return pid


def sidecar(folder: Path) -> int:
    """Return the pid of the engine's sidecar: the first process with its run folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"runtime_image" in words and any(os.fsencode(folder) in word for word in words):
                found.append(int(process.name))
    return min(found)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (engine, "exited with code 1: the server was killed by SIGKILL"),
        (sidecar, "was killed by SIGKILL"),
    ],
)
async def test_what_dies_asleep_leaves_a_revision_without_parks(
    board: Board, tmp_path: Path, found: Callable[[Path], int], said: str
) -> None:
    """The deploy neither waits nor fails, and no second trial runs."""
    async with gpu_server(tmp_path, board) as server:
        work = asyncio.create_task(deploy(server, sleeper(tmp_path, "--slow", "3")))

        async def is_asleep() -> bool:
            return RESIDUE_MIB in held_mib(tmp_path / "held").values()

        await server.until(is_asleep)
        os.kill(found(tmp_path), signal.SIGKILL)
        park = (await work)["profile"]["park"]

    assert not park["works"]
    assert park["reason"].startswith("it ended as it ")
    assert said in park["reason"]


async def test_a_sleep_over_the_memory_cap_says_so(board: Board, tmp_path: Path) -> None:
    """The trial has the function's own cap; a function that is not parked keeps it."""
    async with gpu_server(tmp_path, board) as server:
        text = sleeper(tmp_path, "--slow", "3", "--host-mib", "900", device="memory_mib = 400")
        park = (await deploy(server, text))["profile"]["park"]

    assert not park["works"]
    assert "MiB of memory, its cap is 400 MiB" in park["reason"]
    assert park["reason"].endswith("[device] memory_mib in function.toml is that cap")


async def test_a_park_may_take_its_memory_beside_the_cap(board: Board, tmp_path: Path) -> None:
    """What the trial measured is added to the cap of the replicas that serve."""
    async with gpu_server(tmp_path, board) as server:
        text = sleeper(tmp_path, "--host-mib", "200", device="memory_mib = 600")
        park = (await deploy(server, text))["profile"]["park"]
        assert park["works"]
        assert (await server.get("/fn/llm/is_sleeping")).status == 403
        assert (await server.get("/fn/llm/other")).status == 404
        (record,) = (tmp_path / "data").rglob("replica.json")
        cap_mib = json.loads(record.read_text())["memory_mib"]

    assert cap_mib == 600 + math.ceil(park["host_mib"])
