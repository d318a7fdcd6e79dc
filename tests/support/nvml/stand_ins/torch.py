"""Stand-in for the part of PyTorch used by the GPU checks, computing with NumPy.

An array on "cuda" claims its bytes for this process in the folder "claims" next to this file: one
file per pid, which the test turns into processes of the stand-in driver. The test copies this file,
because replicas get no environment that could name another folder.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

__version__ = "0.0+standin"
version = SimpleNamespace(cuda="13.0")
cuda = SimpleNamespace(is_available=lambda: True)
WAIT_S = 5.0


class Tensor:
    """An array and its device name."""

    def __init__(self, array: Any, device: str) -> None:
        self.array = array
        self.device = "cuda:0" if device.startswith("cuda") else device
        if device.startswith("cuda") and array.nbytes > 2**20:
            _claim(array.nbytes)

    def to(self, device: str) -> Tensor:
        return Tensor(self.array, device)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def tolist(self) -> Any:
        return self.array.tolist()

    def __matmul__(self, other: Tensor) -> Tensor:
        return Tensor(self.array @ other.array, self.device)


class Generator:
    """Random number generator, the same on every device."""

    def manual_seed(self, seed: int) -> Generator:
        self.random = np.random.default_rng(seed)
        return self


def randn(*shape: int, generator: Generator) -> Tensor:
    return Tensor(generator.random.standard_normal(shape, np.float32), "cpu")


def tensor(values: Any, device: str = "cpu") -> Tensor:
    return Tensor(np.asarray(values, np.float32), device)


def ones(size: int, device: str = "cpu") -> Tensor:
    return Tensor(np.ones(size, np.float32), device)


def _claim(size: int) -> None:
    """Claim the size of the largest array as this process's memory in MiB; wait until the test has
    registered it. A real driver knows of the memory before its owner does."""
    folder = Path(__file__).with_name("claims")
    if not folder.is_dir():
        return
    beside = folder / f"{os.getpid()}.new"
    beside.write_text(str(size // 2**20))
    beside.rename(folder / str(os.getpid()))
    until = time.monotonic() + WAIT_S
    while not (folder / f"{os.getpid()}.seen").exists() and time.monotonic() < until:
        time.sleep(0.005)
