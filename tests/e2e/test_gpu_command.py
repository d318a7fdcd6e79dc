"""Tests of `make gpu` without a GPU, and over stand-ins for the driver's library and PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.nvml import board as boards
from tests.support.nvml.board import Board, Gpu
from tests.support.sleepy_engine.sleepers import Sleepers

STAND_IN = Path(boards.__file__).with_name("stand_ins") / "torch.py"
UUID = "GPU-aaaaaaaa"
POLL_S = 0.02
TRIED = ("inventory", "handler", "ledger", "sharing", "memory-back", "phases", "metrics", "swap")
"""Checks that run here; the others wait for fair turns and quarantine and have their own tests."""
UNTRIED = ("session", "resnet-onnx", "resnet-fp16", "libraries", "tensorrt", "standby")
"""Checks that need ONNX Runtime's CUDA provider."""


def gpu_command(*options: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the command as `make gpu` does."""
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *options],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def claims(folder: Path, board: Board) -> dict[tuple[str, int], int]:
    """Return the MiB of each living process with a memory claim in a folder of the stand-in for
    PyTorch, and tell those that the board lists."""
    found = {}
    for file in folder.iterdir():
        if file.name.isdecimal() and Path("/proc", file.name).exists():
            found[UUID, int(file.name)] = int(file.read_text())
    for _, pid in found.keys() & board.processes.keys():
        (folder / f"{pid}.seen").touch()
    return found


@contextmanager
def shown_on(board: Board, used: Callable[[], dict[tuple[str, int], int]]) -> Iterator[None]:
    """During the block, list on the board what is in use: MiB by GPU and pid."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(POLL_S):
            found = used()
            if found != board.processes:
                board.processes = found
                board.write()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_without_a_gpu_the_command_says_so(tmp_path: Path) -> None:
    """Without a GPU the command stops at the driver, writes no report and exits with 2."""
    report = tmp_path / "report.md"
    done = gpu_command("--out", str(report), environment={})
    assert done.returncode == 2, done.stderr
    assert "there is no GPU to check" in done.stderr
    assert not report.exists()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_checks_hold_over_a_stand_in(tmp_path: Path) -> None:
    """Over the stand-ins the checks pass; only the GPU memory is simulated."""
    library, packages, report = tmp_path / "lib", tmp_path / "packages", tmp_path / "report.md"
    library.mkdir()
    (packages / "claims").mkdir(parents=True)
    boards.build(library)
    shutil.copy(STAND_IN, packages)
    board = Board(tmp_path / "nvml")
    board.add(Gpu(UUID, 24_000, name="NVIDIA Stand-in"))
    environment = {
        "LD_LIBRARY_PATH": str(library),
        "FN_STANDIN_NVML": str(board.file),
        "PYTHONPATH": str(packages),
    }
    chosen = [word for name in (*TRIED, *UNTRIED) for word in ("--check", name)]
    with shown_on(board, lambda: claims(packages / "claims", board)):
        done = gpu_command(*chosen, "--out", str(report), environment=environment)

    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    for name in TRIED:
        assert any(line.startswith(f"holds     {name} ") for line in lines), (name, lines)
    for name in UNTRIED:
        assert any(line.startswith(f"not tried {name} ") for line in lines), (name, lines)
    written = report.read_text()
    assert "NVIDIA Stand-in" in written
    assert f"{len(TRIED)} holds, 0 fails, {len(UNTRIED)} not tried" in written


TWO = ("two-cards", "two-cards-back", "two-cards-nccl")


def two_cards(root: Path, count: int) -> tuple[Board, Path, dict[str, str]]:
    """Return a board of `count` GPUs in another order than that of their PCI addresses, the folder
    of their users, and the environment of the command."""
    library = root / "lib"
    (library / "claims").mkdir(parents=True)
    boards.build(library)
    cuda = boards.build(library, boards.CUDA, "libcuda.so.1")
    board = Board(root / "nvml")
    board.add(*(Gpu(f"GPU-{card}") for card in reversed(range(count))))
    for card in range(count):
        board.sense(f"GPU-{card}", pci_bus=0x10 + card)
    environment = {
        "LD_LIBRARY_PATH": str(library),
        "FN_STANDIN_NVML": str(board.file),
        "FN_TEST_LIBCUDA": str(cuda),
    }
    return board, library / "claims", environment


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_server_on_two_stand_in_gpus(tmp_path: Path) -> None:
    """It has memory on both, sees them in the order of their PCI addresses, and leaves both free;
    without PyTorch nothing is tried over NCCL."""
    board, folder, environment = two_cards(tmp_path, 2)

    def used() -> dict[tuple[str, int], int]:
        return {(f"GPU-{card}", pid): 1100 for card, pid in boards.locks(folder).items()}

    chosen = [word for name in TWO for word in ("--check", name)]
    with shown_on(board, used):
        done = gpu_command(*chosen, "--out", str(tmp_path / "r.md"), environment=environment)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[:2]] == ["holds"] * 2
    assert "1100 and 1100 MiB" in done.stdout
    assert "2 of 2 with peer access" in done.stdout
    assert "not tried two-cards-nccl" in done.stdout


PARK = ("park", "park-nothing", "park-garbage")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_engine_sleeps_on_a_stand_in_gpu(tmp_path: Path) -> None:
    """Its memory is simulated; what parks it, proves that and wakes it is not."""
    sleepers = Sleepers(tmp_path, 1)
    environment = {
        **sleepers.environment,
        "FN_TEST_HELD": str(sleepers.held),
        "FN_TEST_PARK_CYCLES": "3",
    }
    chosen = [word for name in PARK for word in ("--check", name)]

    done = gpu_command(*chosen, "--out", str(tmp_path / "r.md"), environment=environment)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[:3]] == ["holds"] * 3
    assert "3 times: 8192 MiB awake, 512 to 512 asleep" in done.stdout


@pytest.mark.slow
def test_one_gpu_is_too_few_for_two(tmp_path: Path) -> None:
    """The checks of two GPUs are left out with the reason."""
    _, _, environment = two_cards(tmp_path, 1)
    chosen = [word for name in TWO for word in ("--check", name)]

    done = gpu_command(*chosen, "--out", str(tmp_path / "r.md"), environment=environment)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("it needs 2 GPUs, this machine has 1") == len(TWO)
