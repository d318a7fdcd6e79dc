"""Server function of the checks of parks: the engine of `tests/support/sleepy_engine` with its
memory on each visible GPU.

The weights are in host memory, too, as those of vLLM are in a sleep of level 1. Each wake copies
them to the GPU anew, and reads them back for their checksum, on which all answers depend. Without
PyTorch it talks to CUDA's driver library, and needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import sys
import zlib
from pathlib import Path
from typing import Any, Protocol

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "support" / "sleepy_engine"))

import engine
from cuda_driver import Context, Cuda
from memory import StandInMemory

MIB = 2**20
PART_MIB = 512
"""MiB that the weights have of each GPU, which a sleep moves to the host, and as many that a cache
has, which it drops."""
DAMAGED_MIB = 16
"""MiB of the weights that a wrong refill leaves out, the last ones."""


class Cards(Protocol):
    """The memory of all visible GPUs, by their number."""

    count: int

    def take(self, card: int, size: int) -> Any:
        """Return `size` bytes of a GPU."""

    def write(self, card: int, taken: Any, data: bytes) -> None:
        """Fill them from the host."""

    def checksum(self, card: int, taken: Any, size: int) -> int:
        """Return the CRC-32 of what is there now."""

    def give_back(self, card: int, taken: Any) -> None:
        """Free them."""


class CudaCards:
    """By CUDA's driver library."""

    def __init__(self, library: str) -> None:
        cuda = Cuda(library)
        self.count = cuda.count()
        self._contexts = [Context(cuda, number) for number in range(self.count)]

    def take(self, card: int, size: int) -> ctypes.c_uint64:
        return self._contexts[card].take(size)

    def write(self, card: int, taken: ctypes.c_uint64, data: bytes) -> None:
        self._contexts[card].write(taken, data)

    def checksum(self, card: int, taken: ctypes.c_uint64, size: int) -> int:
        return zlib.crc32(self._contexts[card].read(taken, size))

    def give_back(self, card: int, taken: ctypes.c_uint64) -> None:
        self._contexts[card].give_back(taken)


class TorchCards:
    """By PyTorch, whose allocator keeps what is freed until it is told otherwise."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.count = torch.cuda.device_count()

    def take(self, card: int, size: int) -> list[Any]:
        # In a list, so that `give_back` can drop the last reference.
        return [self._torch.empty(size, dtype=self._torch.uint8, device=f"cuda:{card}")]

    def write(self, card: int, taken: list[Any], data: bytes) -> None:
        taken[0].copy_(self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8))
        self._torch.cuda.synchronize(card)

    def checksum(self, card: int, taken: list[Any], size: int) -> int:
        host = taken[0].cpu()
        return zlib.crc32((ctypes.c_char * size).from_address(host.data_ptr()))

    def give_back(self, card: int, taken: list[Any]) -> None:
        taken.clear()
        self._torch.cuda.synchronize(card)
        self._torch.cuda.empty_cache()


class CardMemory:
    """The memory of the engine: weights of `part_mib` on each GPU, and a cache of the same size."""

    def __init__(self, cards: Cards, part_mib: int = PART_MIB) -> None:
        self._cards = cards
        pieces = (hashlib.shake_128(f"{number}".encode()) for number in range(part_mib))
        self._weights = b"".join(piece.digest(MIB) for piece in pieces)
        self._checksum = zlib.crc32(self._weights)
        self._taken: dict[tuple[int, str], Any] = {}
        self._is_right = True

    def fill(self, *, is_right: bool) -> None:
        """Take what is missing, copy the weights, and read them back."""
        size = len(self._weights)
        weights = self._weights
        if not is_right:
            weights = weights[: -DAMAGED_MIB * MIB].ljust(size, b"\0")
        found = set()
        for card in range(self._cards.count):
            for name in ("weights", "cache"):
                if (card, name) not in self._taken:
                    self._taken[card, name] = self._cards.take(card, size)
            taken = self._taken[card, "weights"]
            self._cards.write(card, taken, weights)
            found.add(self._cards.checksum(card, taken, size))
        self._is_right = found == {self._checksum}

    def free(self, kept: float) -> None:
        """Free weights and cache of each GPU, or the cache alone, or nothing."""
        for card, name in list(self._taken):
            if kept == 0.0 or (kept < 1.0 and name == "cache"):
                self._cards.give_back(card, self._taken.pop((card, name)))

    def is_right(self) -> bool:
        """Whether the weights on the GPUs have the checksum of those on the host."""
        return self._is_right


def opened(given: argparse.Namespace) -> engine.Memory:
    """Return the memory that the command line names."""
    if given.held:
        return StandInMemory(given.held, given.gpu_mib)
    return CardMemory(TorchCards() if given.torch else CudaCards(given.library))


def main() -> None:
    """Take the memory, then serve."""
    parser = engine.parser()
    parser.add_argument("--torch", action="store_true", help="use PyTorch")
    parser.add_argument("--library", default="libcuda.so.1", help="CUDA's driver library")
    given = parser.parse_args()
    engine.serve(given, opened(given))


if __name__ == "__main__":
    main()
