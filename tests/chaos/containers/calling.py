"""Clients of a server that is killed and restarted; requests cut off by a kill are repeated."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp

from tests.chaos.footprint import pause
from tests.chaos.ledger import Ledger
from tests.chaos.subjects import Subject
from tests.support.caller import Answer
from tests.support.process_server import ServerProcess

TIMEOUT_S = 120.0
"""Longer than any answer may take: wait budget plus execution timeout."""


class Front:
    """Address of a server, and which of its lives were ended by force."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.life = 1
        self._killed = 0
        self.up = asyncio.Event()
        self.up.set()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Block new requests while the server is killed and restarted; open ones may break."""
        self.up.clear()
        self._killed = self.life
        yield
        self.life += 1
        self.up.set()

    def is_excused(self, life: int) -> bool:
        """Return whether connections made in that life may break."""
        return life <= self._killed


@dataclass
class Tally:
    """Outcomes of one function's requests. `cut`: requests cut off by a kill and repeated."""

    right: int = 0
    cut: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)


class Clients:
    """Callers of all functions. Each caller serves one function, so that an unavailable function
    does not block callers of the others. `think_s`: pause of a caller after each answer."""

    def __init__(
        self,
        front: Front,
        subjects: tuple[Subject, ...],
        ledger: Ledger,
        think_s: float = 0.0,
    ) -> None:
        self._think_s = think_s
        self._front = front
        self._ledger = ledger
        self._numbers = itertools.count(1)
        self.tallies = {subject: Tally() for subject in subjects}

    @property
    def answered(self) -> int:
        """Return the number of right answers of all functions."""
        return sum(tally.right for tally in self.tallies.values())

    async def run(self, at_once: int, requests: int, ended: asyncio.Event) -> None:
        """Call until `ended` is set and at least `requests` further right answers have arrived."""
        least = self.answered + requests
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        lines = itertools.islice(itertools.cycle(self.tallies), at_once)
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
            asyncio.TaskGroup() as group,
        ):
            for subject in lines:
                group.create_task(self._client(session, subject, least, ended))

    async def _client(
        self, session: aiohttp.ClientSession, subject: Subject, least: int, ended: asyncio.Event
    ) -> None:
        while not ended.is_set() or self._owed(least):
            number = next(self._numbers)
            while not await self._is_done(session, subject, number):
                self.tallies[subject].cut += 1
                if not self.repeats(subject):
                    break
            if self._think_s:
                await pause(self._think_s)

    def repeats(self, _subject: Subject) -> bool:
        """Return whether a request that was cut off is sent again."""
        return True

    def refused(self, who: str, _subject: Subject, answer: Answer, _began_s: float) -> None:
        """Judge an answer that is not 200; by default each is a violation."""
        self._ledger.violated(f"{who}: {answer.status} {answer.body.decode('utf-8', 'replace')}")

    def _owed(self, least: int) -> bool:
        return self.answered < least and not self._ledger.violations

    async def _is_done(self, session: aiohttp.ClientSession, subject: Subject, number: int) -> bool:
        """Send one request; return False if it was cut off by a kill of the server."""
        await self._front.up.wait()
        life, who = self._front.life, f"{subject.name} #{number}"
        tally, began_s = self.tallies[subject], time.monotonic()
        body, headers = subject.request(number)
        url = f"{self._front.server.url}/fn/{subject.name}"
        try:
            async with session.post(url, data=body, headers=headers) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            if self._front.is_excused(life):
                return False
            self._ledger.violated(f"{who}: {error!r} after {time.monotonic() - began_s:.1f} s")
            return True
        tally.statuses[str(response.status)] += 1
        if response.status != 200:
            got = Answer(response.status, response.headers, answer)
            self.refused(who, subject, got, began_s)
        elif complaint := subject.complaint(number, answer):
            self._ledger.violated(f"{who}: wrong content: {complaint} {answer[:2000]!r}")
        else:
            tally.right += 1
            tally.waits_s.append(time.monotonic() - began_s)
        return True
