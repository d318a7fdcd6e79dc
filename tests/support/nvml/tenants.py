"""Fake replicas that use memory on the GPUs of a board."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

from pool_manager.ports import ServerContainer
from runtime_image.contract.control import ReplicaRecord
from tests.support.fake_driver.driver import BEHAVES, FakeDriver, FakeProcesses, Script
from tests.support.fake_driver.service import Sleep
from tests.support.nvml.board import Board


def function_of(pool: str) -> str:
    """Return the function name in a pool key: "digits" of "default/digits@3"."""
    return pool.partition("/")[2].partition("@")[0]


class KnownProcesses(FakeProcesses):
    """One process for each replica on a GPU; `known` has the pids by replica id."""

    def __init__(self, runs: Callable[[str], bool], known: Mapping[str, int]) -> None:
        super().__init__(runs)
        self._known = known

    async def pids(self, id: str) -> frozenset[int] | None:
        return frozenset({self._known[id]}) if id in self._known else await super().pids(id)


class GpuDriver(FakeDriver):
    """Fake driver that gives each GPU replica a process with the `sizes_mib` of its function on
    each of its GPUs, and `more_mib` on some.

    If `lingers(id)` is true when a replica ends, its process and memory stay on the board until
    `let_go`.
    """

    def __init__(
        self,
        board: Board,
        sizes_mib: Mapping[str, int],
        script: Script = BEHAVES,
        *,
        sleep: Sleep = asyncio.sleep,
        lingers: Callable[[str], bool] = lambda _id: False,
        more_mib: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(script, sleep=sleep)
        self._board = board
        self._sizes_mib = sizes_mib
        self._lingers = lingers
        self._more_mib = more_mib or {}
        self._numbers = itertools.count(1001)
        self.known: dict[str, int] = {}
        self.processes = KnownProcesses(self._runs, self.known)
        self.lingering: list[int] = []

    async def start(
        self,
        record: ReplicaRecord,
        run_dir: Path,
        log: Path,
        server: ServerContainer | None = None,
    ) -> None:
        await super().start(record, run_dir, log, server)
        self._claim(record)

    async def limit(self, record: ReplicaRecord) -> None:
        await super().limit(record)
        self._claim(record)

    async def release(self, id: str) -> None:
        await super().release(id)
        pid = self.known.pop(id, None)
        if pid is None:
            return
        if self._lingers(id):
            self.lingering.append(pid)
        else:
            self._board.end(pid)

    def let_go(self) -> None:
        """Remove all lingering processes."""
        while self.lingering:
            self._board.end(self.lingering.pop())

    def _claim(self, record: ReplicaRecord) -> None:
        for device in record.devices if record.bound else ():
            if device in self._board.gpus:
                pid = self.known.setdefault(record.id, next(self._numbers))
                size_mib = self._sizes_mib[function_of(record.bound)]
                self._board.claim(device, pid, size_mib + self._more_mib.get(device, 0))
