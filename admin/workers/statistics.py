"""Statistics of a server with workers: any worker asks, the supervisor answers for all.

`RevisionPage` reads the numbers of all workers, `StatisticsAnswers` answers their questions, and
`StatisticsQuestions` asks in a worker.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Final

from admin.workers.messages import AskStatistics, TellStatistics, encode
from admin.workers.shared_counters import CounterReader
from gateway.metrics.revisions import NAMES, RevisionNumbers
from gateway.oip.statistics import RevisionStatistics
from gateway.ports import ModelStatistics
from registry.catalog import Change
from registry.errors import QueueFull, SupervisorAway
from registry.model.revisions import pool_key
from registry.tasks import Tasks

ANSWER_S: Final = 5.0
"""Max seconds that a worker waits for the supervisor."""
ASKED_MAX: Final = 64
"""Max questions of one worker at once."""
RECORDS_MAX: Final = 2**14
"""Records of one worker: ten for each of 1000 revisions, and as many as rest before their reuse."""
_PLACES: Final = {name: place for place, name in enumerate(NAMES)}
Numbers = dict[str, RevisionNumbers]


def numbers_of(counters: CounterReader) -> Numbers:
    """Return the numbers in a worker's file, by revision."""
    found: dict[str, list[float]] = {}
    for sample, value in counters.read().items():
        place = _PLACES.get(sample.name)
        if place is not None:
            found.setdefault(sample.labels[-1], [0.0] * len(NAMES))[place] = value
    return {pool: RevisionNumbers(*values) for pool, values in found.items()}


class RevisionPage:
    """Numbers of all workers, with those of workers that have ended.

    `is_deployed(namespace, ref)` returns whether that revision exists.
    """

    def __init__(self, is_deployed: Callable[[str, str], bool]) -> None:
        self._is_deployed = is_deployed
        self._counters: dict[str, CounterReader] = {}
        self._ended: Numbers = {}

    def add_worker(self, worker: str, counters: CounterReader) -> None:
        """Read a worker's numbers from now on."""
        self._counters[worker] = counters

    def remove_worker(self, worker: str) -> None:
        """Keep the numbers of a worker that has ended, except those of removed revisions."""
        for pool, numbers in numbers_of(self._counters.pop(worker)).items():
            namespace, _, ref = pool.partition("/")
            if self._is_deployed(namespace, ref):
                self._ended[pool] = numbers.plus(self._ended.get(pool, RevisionNumbers()))

    def on_change(self, change: Change) -> None:
        """Drop the numbers of removed revisions."""
        stay = {pool_key(change.namespace, change.name, number) for number in change.revisions}
        prefix = pool_key(change.namespace, change.name, 0)[:-1]
        for pool in [one for one in self._ended if one.startswith(prefix) and one not in stay]:
            del self._ended[pool]

    def read(self) -> Numbers:
        """Return the sums over all workers, by revision."""
        total = dict(self._ended)
        for counters in self._counters.values():
            for pool, numbers in numbers_of(counters).items():
                total[pool] = numbers.plus(total.get(pool, RevisionNumbers()))
        return total


class StatisticsAnswers:
    """Answers to the workers' questions, by `statistics`. Event loop thread only."""

    def __init__(self, page: RevisionPage, statistics: ModelStatistics) -> None:
        self._page = page
        self._statistics = statistics
        self._tasks = Tasks("statistics")
        self._sends: dict[str, Callable[[bytes], None]] = {}

    async def close(self) -> None:
        """End all pending answers."""
        await self._tasks.close()

    def add_worker(
        self, worker: str, counters: CounterReader, send: Callable[[bytes], None]
    ) -> None:
        """Count and answer a started worker."""
        self._page.add_worker(worker, counters)
        self._sends[worker] = send

    def remove_worker(self, worker: str) -> None:
        """Keep the numbers of a worker that has ended."""
        self._page.remove_worker(worker)
        del self._sends[worker]

    def on_asked(self, worker: str, message: AskStatistics) -> None:
        """Answer a worker's question in the background."""
        self._tasks.spawn(f"answer to {worker}", self._answer(worker, message))

    async def _answer(self, worker: str, message: AskStatistics) -> None:
        found = await self._statistics.statistics(message.pools)
        send = self._sends.get(worker)
        if send is not None:
            send(encode(TellStatistics(message.number, found)))


class StatisticsQuestions(ModelStatistics):
    """Statistics in a worker, which asks its supervisor."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        """`send` takes encoded messages."""
        self._send = send
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[list[RevisionStatistics]]] = {}

    async def statistics(self, pools: Sequence[str]) -> list[RevisionStatistics]:
        """Implement `ModelStatistics.statistics`."""
        if len(self._asked) >= ASKED_MAX:
            raise QueueFull(f"{ASKED_MAX} requests wait for statistics", retry_after_s=1)
        number = next(self._numbers)
        answer: asyncio.Future[list[RevisionStatistics]]
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send(encode(AskStatistics(number, list(pools))))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            text = "the process that has the statistics of this server does not answer"
            raise SupervisorAway(text, retry_after_s=1) from None
        finally:
            del self._asked[number]

    def on_told(self, message: TellStatistics) -> None:
        """Pass an answer on; one that came too late is dropped."""
        answer = self._asked.get(message.number)
        if answer is not None and not answer.done():
            answer.set_result(message.statistics)
