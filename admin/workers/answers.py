"""The server's answers to its gateways' questions."""

from __future__ import annotations

from typing import Final

from admin.model_control import RETRY_S, warm_up
from admin.workers.messages import LoadModel, ReadStatistics, UnloadModel
from admin.workers.requests import Handlers
from gateway.oip.statistics import RevisionStatistics
from gateway.ports import ModelStatistics
from pool_manager.manager import Manager
from registry.catalog import Catalog
from registry.errors import QueueFull

WAITING_MAX: Final = 10_000
"""Max clients of all gateways that wait for a model at once."""


class ServerAnswers:
    """Answers from what is in the server's process. Event loop thread only."""

    def __init__(self, catalog: Catalog, manager: Manager, statistics: ModelStatistics) -> None:
        self._catalog = catalog
        self._manager = manager
        self._statistics = statistics
        self._waiting = 0

    def handlers(self) -> Handlers:
        """Return the handler of each kind of question."""
        return {ReadStatistics: self._read, LoadModel: self._load, UnloadModel: self._unload}

    async def _read(self, asked: ReadStatistics) -> list[RevisionStatistics]:
        return await self._statistics.statistics(asked.pools)

    async def _load(self, asked: LoadModel) -> None:
        deployed = self._catalog.resolve(asked.ref, asked.namespace)
        if self._waiting >= WAITING_MAX:
            raise QueueFull(f"{self._waiting} requests wait for models", retry_after_s=RETRY_S)
        self._waiting += 1
        try:
            await warm_up(self._catalog, self._manager, deployed, asked.wait_s)
        finally:
            self._waiting -= 1

    def _unload(self, asked: UnloadModel) -> None:
        for one in self._catalog.revisions(asked.name, asked.namespace):
            self._manager.unload(one.revision.key)
