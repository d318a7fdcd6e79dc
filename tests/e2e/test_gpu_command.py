"""Tests of `make gpu` without a GPU, and over stand-ins for the driver's library and PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.nvml import board as boards
from tests.support.nvml.board import Board, Gpu

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


@contextmanager
def claims_on(board: Board, folder: Path) -> Iterator[None]:
    """During the block, list each living process with a memory claim on the board."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(POLL_S):
            found = {}
            for file in folder.iterdir():
                if file.name.isdecimal() and Path("/proc", file.name).exists():
                    found[UUID, int(file.name)] = int(file.read_text())
            if found != board.processes:
                board.processes = found
                board.write()
                for _, pid in found:
                    (folder / f"{pid}.seen").touch()

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
    with claims_on(board, packages / "claims"):
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
