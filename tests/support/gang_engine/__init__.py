"""Functions whose replicas have several GPUs: their stand-in engine, and what it has seen."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.faulty_server import MARK
from tests.support.nvml.board import Board, Gpu, locks
from tests.support.process_server import ServerProcess

SOURCE = Path(__file__).with_name("engine.py")
MEMORY_MIB = 9000
"""Memory that each process of an engine has on its GPU."""
MANIFEST = """schema = 1
name = "{name}"

[server]
command = [{command}]
ready = "/ready"
stop_grace_s = 1

[server.env]
{mark} = "{data}"

[device]
kind = "cuda"
count = {count}

[limits]
concurrency = 8
retry = "always"
wait_s = 120
"""


def uuid(card: int | str) -> str:
    """Return the UUID of a GPU of the stand-in board."""
    return f"GPU-stand-in-{card}"


class Cards:
    """A stand-in board and the locks that the engines hold on its GPUs."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder / "cards"
        self.folder.mkdir(parents=True)
        self.board = Board(folder / "nvml")
        # The driver lists them in another order than that of their PCI addresses, by which CUDA
        # numbers them.
        self.board.add(*(Gpu(uuid(card)) for card in reversed(range(count))))
        for card in range(count):
            self.board.sense(uuid(card), pci_bus=0x10 + card)

    def deploy(self, server: ServerProcess, bundles: Path, name: str, count: int) -> None:
        """Deploy a function whose replicas have `count` GPUs; it must succeed."""
        bundle = bundles / name
        bundle.mkdir(parents=True)
        shutil.copy(SOURCE, bundle)
        options = ("--name", name, "--folder", str(self.folder), "--load-s", "0.3")
        words = [sys.executable, "-B", "-E", "-S", "engine.py", "--port", "${PORT}", *options]
        text = MANIFEST.format(
            name=name,
            command=", ".join(f'"{word}"' for word in words),
            mark=MARK,
            data=server.data,
            count=count,
        )
        (bundle / "function.toml").write_text(text)
        server.fnctl_json("deploy", str(bundle), "--trust")

    def holders(self) -> dict[str, int]:
        """Return the pid of the process that holds each GPU, by the GPU's number."""
        return locks(self.folder)

    def show_memory(self) -> None:
        """Let the board list what the processes hold now."""
        held = {(uuid(card), pid): MEMORY_MIB for card, pid in self.holders().items()}
        if held != self.board.processes:
            self.board.processes = held
            self.board.write()

    def conflicts(self) -> list[str]:
        """Return the reports of engines that found a GPU taken."""
        return self._lines("conflicts")

    def starts(self) -> Iterator[tuple[str, list[int]]]:
        """Yield each start of an engine: its function, and the numbers of its GPUs in its order."""
        for line in self._lines("starts"):
            name, *cards = line.split()
            yield name, [int(card) for card in cards]

    def _lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []


def environment(cards: Cards, library: Path) -> dict[str, str]:
    """Return the variables that make a server see the board through the library in a folder."""
    return {
        "LD_LIBRARY_PATH": os.fspath(library),
        "FN_STANDIN_NVML": os.fspath(cards.board.file),
        "FN_STANDBYS": "0",
    }
