"""The ledger over all gateway processes, each as it was in one turn of its loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from admin.workers.cells import Sample, Table
from admin.workers.messages import Reckon, Reckoned, encode
from gateway.metrics.exemplars import Exemplar
from gateway.metrics.ledger import ACCEPTED, ENDED, Balance, Ledger, total

ANSWER_S: Final = 1.0
"""How long a scrape waits for the processes. One that takes longer is counted by its counters."""


@dataclass(slots=True)
class _Process:
    """A gateway process: what sends to it, and what it counts in."""

    send: Callable[[bytes], None]
    table: Table


@dataclass(slots=True)
class _Question:
    """What was asked of some, and who has answered."""

    asked: frozenset[str]
    answers: dict[str, Reckoned] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Reckonings:
    """`balance` and `exemplars` are what the last question led to.

    A process that is gone has ended all it had accepted; what it had not answered is aborted. One
    that says nothing in time has in flight whatever it has not ended, as far as its counters tell.
    """

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._ended = Balance()
        self._numbers = itertools.count(1)
        self._questions: dict[int, _Question] = {}
        self._last: dict[str, Reckoned] = {}
        self.exemplars: dict[Sample, Exemplar] = {}

    def join(self, worker: str, send: Callable[[bytes], None], table: Table) -> None:
        """A process has started. `table` is its owner's to close, after `leave`."""
        self._processes[worker] = _Process(send, table)

    def leave(self, worker: str) -> None:
        """A process has ended."""
        process = self._processes.pop(worker)
        self._ended = total([self._ended, counted(process.table).aborted()])
        for question in self._questions.values():
            question.news.set()

    def answered(self, worker: str, message: Reckoned) -> None:
        """A process has answered; an answer that is too late is of no use."""
        question = self._questions.get(message.number)
        if question is not None and worker in question.asked:
            question.answers[worker] = message
            question.news.set()

    async def ask(self) -> None:
        """Have every process say how it is, and take it as `balance`; a second at most."""
        number, question = next(self._numbers), _Question(frozenset(self._processes))
        self._questions[number] = question
        message = encode(Reckon(number))
        try:
            for process in list(self._processes.values()):
                process.send(message)
            async with asyncio.timeout(ANSWER_S):
                while question.asked & self._processes.keys() - question.answers.keys():
                    question.news.clear()
                    await question.news.wait()
        except TimeoutError:
            pass
        finally:
            del self._questions[number]
        self._last = question.answers
        self.exemplars = _newest(self._last.values())

    def balance(self) -> Balance:
        """Over all, the ended ones as well."""
        return total([self._ended, *(self._one(worker) for worker in self._processes)])

    def _one(self, worker: str) -> Balance:
        said = self._last.get(worker)
        if said is None:
            return counted(self._processes[worker].table).unheard()
        return Balance(said.accepted, said.ended, said.held, said.in_flight)


def counted(table: Table) -> Balance:
    """What a process has accepted and ended, by the first of its counters."""
    found = table.read(Ledger.NUMBERS)
    ended = {s.by_label["how"]: value for s, value in found.items() if s.name == ENDED}
    return Balance(found.get(Sample(ACCEPTED, ()), 0.0), ended)


def _newest(answers: Iterable[Reckoned]) -> dict[Sample, Exemplar]:
    """The latest of each sample."""
    found: dict[Sample, Exemplar] = {}
    for one in (marked for answer in answers for marked in answer.exemplars):
        sample = Sample(one.name, one.labels)
        if sample not in found or found[sample].at_s < one.exemplar.at_s:
            found[sample] = one.exemplar
    return found
