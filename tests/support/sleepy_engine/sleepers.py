"""Functions whose engine sleeps, on the GPUs of a stand-in board, which lists what each holds."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from runtime_image.gpus.nvml import Nvml
from tests.support.caller import Caller
from tests.support.chat import answers
from tests.support.nvml import board as boards
from tests.support.nvml.board import Board, Gpu
from tests.support.process_server import ServerProcess
from tests.support.sleepy_engine import command

MANIFEST = """schema = 1
name = "{name}"

[server]
command = [{command}]
ready = "/health"
network = "none"
stop_grace_s = 1

[openai]

[park]
engine = "vllm"
park_s = 3600

[device]
kind = "cuda"
count = {count}
{rest}
"""


def manifest(name: str, *options: str, count: int = 1, rest: str = "") -> str:
    """Return the manifest of a function whose engine listens on a Unix socket. `options` are of the
    engine, `rest` further lines of [device] and further tables."""
    words = command("${SOCKET}", "--enable-sleep-mode", *options)
    line = ", ".join(json.dumps(word) for word in words)
    return MANIFEST.format(name=name, command=line, count=count, rest=rest)


class Holding(NamedTuple):
    """What a living engine holds of a GPU."""

    uuid: str
    pid: int
    mib: int


class Sleepers:
    """A board with GPUs, and the functions on them. Everything is below one folder."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self.folder = folder
        self.held, library, self._faults, self._bundles = (
            folder / name for name in ("held", "library", "faults", "bundles")
        )
        for one in (self.held, library, self._faults, self._bundles):
            one.mkdir(parents=True)
        self.board = Board(folder / "nvml", holders=self.held)
        self.uuids = [f"GPU-stand-in-{card}" for card in range(gpus)]
        self.board.add(*(Gpu(uuid) for uuid in self.uuids))
        for card, uuid in enumerate(self.uuids):
            self.board.sense(uuid, pci_bus=0x10 + card)
        self.environment = {
            "LD_LIBRARY_PATH": os.fspath(boards.build(library).parent),
            "FN_STANDIN_NVML": os.fspath(self.board.file),
            "FN_STANDBYS": "0",
        }
        """Variables that make a server see the board."""

    def deploy(
        self, server: ServerProcess, name: str, *options: str, count: int = 1, tables: str = ""
    ) -> dict[str, Any]:
        """Deploy a function whose replicas have `count` GPUs; it must succeed. `options` are of
        its engine, `tables` further ones of its manifest."""
        bundle = self._bundles / name
        bundle.mkdir(exist_ok=True)
        given = ("--held", str(self.held), "--fault-file", str(self._faults / name), *options)
        text = manifest(name, *given, count=count, rest=tables)
        (bundle / "function.toml").write_text(text)
        deployed: dict[str, Any] = server.fnctl_json("deploy", str(bundle), "--trust")
        return deployed

    def used_mib(self) -> dict[str, float]:
        """Return what the driver reports as used, by GPU."""
        boards.use(self.board.file)
        nvml = Nvml()
        nvml.open()
        try:
            return {gpu.uuid: gpu.used_mib or 0.0 for gpu in nvml.read().gpus}
        finally:
            nvml.close()
            boards.use(None)

    def holdings(self) -> list[Holding]:
        """Return what the living engines hold, whatever the driver reports."""
        found = []
        for name, pid in boards.locks(self.held).items():
            uuid, is_engine, _ = name.partition("@")
            with suppress(FileNotFoundError):  # it has just ended, and another one has started
                if is_engine:
                    found.append(Holding(uuid, pid, int((self.held / name).read_text())))
        return found

    def break_down(self, name: str, fault: str) -> None:
        """Give the engines of a function a fault from now on, "" for none."""
        file = self._faults / name
        fresh = file.with_suffix(".new")
        fresh.write_text(fault)
        fresh.rename(file)


async def completion(caller: Caller, name: str, prompt: str) -> tuple[int, str]:
    """Ask a function; return the status, and what is wrong with the answer, "" for nothing."""
    body = {"model": name, "prompt": prompt, "max_tokens": 8, "logprobs": 1}
    answer = await caller.request("POST", f"/fn/{name}/v1/completions", body)
    if answer.status != 200:
        return answer.status, answer.body[:500].decode(errors="replace")
    expected = answers.completion(body, prompt).document["choices"]
    got = answer.json()["choices"]
    return 200, "" if got == expected else f"expected {expected}, got {got}"


async def states(caller: Caller) -> dict[str, dict[str, str]]:
    """Return the states of all replicas, by function and id."""
    found: dict[str, dict[str, str]] = {}
    for one in (await caller.admin("GET", "/replicas")).json()["items"]:
        found.setdefault(one["function"], {})[one["id"]] = one["state"]
    return found
