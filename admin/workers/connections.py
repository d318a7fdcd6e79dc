"""Who is connected to a function, asked of all gateway processes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from admin.workers.messages import AskConnected, TellConnected, encode
from gateway.http.connected import Connections, joined

ANSWER_S: Final = 1.0
"""Max seconds to wait for the processes. The exchanges of a slower one are left out."""


@dataclass(slots=True)
class _Question:
    """Pending question: the processes asked, and their answers."""

    asked: frozenset[str]
    answers: dict[str, Connections] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class ConnectionPoll:
    """Open exchanges of functions in all processes. Event loop thread only."""

    def __init__(self) -> None:
        self._sends: dict[str, Callable[[bytes], None]] = {}
        self._numbers = itertools.count(1)
        self._questions: dict[int, _Question] = {}

    def add_worker(self, worker: str, send: Callable[[bytes], None]) -> None:
        """Ask a started process from now on."""
        self._sends[worker] = send

    def remove_worker(self, worker: str) -> None:
        """Stop waiting for a process that has ended."""
        self._sends.pop(worker, None)
        for question in self._questions.values():
            question.news.set()

    def on_told(self, worker: str, message: TellConnected) -> None:
        """Store a process's answer; answers to earlier questions are dropped."""
        question = self._questions.get(message.number)
        if question is not None and worker in question.asked:
            question.answers[worker] = message.connections
            question.news.set()

    async def ask(self, namespace: str, name: str) -> Connections:
        """Return the open exchanges of a function; takes at most ANSWER_S."""
        number, question = next(self._numbers), _Question(frozenset(self._sends))
        self._questions[number] = question
        message = encode(AskConnected(number, namespace, name))
        try:
            for send in list(self._sends.values()):
                send(message)
            async with asyncio.timeout(ANSWER_S):
                while question.asked & self._sends.keys() - question.answers.keys():
                    question.news.clear()
                    await question.news.wait()
        except TimeoutError:
            pass
        finally:
            del self._questions[number]
        return joined(question.answers.values())
