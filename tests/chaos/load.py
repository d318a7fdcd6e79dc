"""Load generator: concurrent clients that work through a schedule of requests."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp

from tests.chaos.ledger import Ledger
from tests.chaos.subjects import Subject

TIMEOUT_S = 120.0
"""Longer than any answer may take: wait budget plus execution timeout."""
TOGETHER = (2, 2, 1, 1)
"""Functions called concurrently, phase by phase. All others become idle meanwhile."""


@dataclass(frozen=True)
class Request:
    """One scheduled request. `leaves_s`: seconds until the client disconnects, None = never."""

    number: int
    subject: Subject
    leaves_s: float | None = None


@dataclass
class Tally:
    """Outcomes of the requests. `waits_s` and `answered_s` (monotonic) hold the right answers
    only."""

    right: int = 0
    left: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    answered_s: list[float] = field(default_factory=list)


def bursts(chance: random.Random, subjects: Sequence[Subject], phases: int) -> list[list[Subject]]:
    """Return the functions called in each phase. They take turns, so each is idle most of the
    time."""
    found: list[list[Subject]] = []
    while len(found) < phases:
        line = list(subjects)
        chance.shuffle(line)
        sizes = itertools.cycle(TOGETHER)
        while line:
            size = next(sizes)
            found.append(line[:size])
            line = line[size:]
    return found[:phases]


def schedule(
    chance: random.Random,
    phases: Sequence[Sequence[Subject]],
    requests: int,
    first: int,
    leavers: float,
) -> Iterator[Request]:
    """Yield requests numbered from `first`, spread evenly over the phases."""
    for index in range(requests):
        active = phases[index * len(phases) // requests]
        [subject] = chance.choices(active, [s.share for s in active])
        leaves_s = chance.uniform(0.0, 0.3) if chance.random() < leavers else None
        yield Request(first + index, subject, leaves_s)


async def clients(
    url: str,
    requests: Iterator[Request],
    at_once: int,
    ledger: Ledger,
    tally: Tally | None = None,
) -> Tally:
    """Send all requests; each failure is a violation with its whole body.

    Outcomes are added to `tally`, or to a new one; it is returned.
    """
    tally = Tally() if tally is None else tally
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(at_once):
            group.create_task(_client(session, requests, tally, ledger))
    return tally


async def _client(
    session: aiohttp.ClientSession, requests: Iterator[Request], tally: Tally, ledger: Ledger
) -> None:
    for request in requests:
        try:
            async with asyncio.timeout(request.leaves_s):
                await call(session, request, tally, ledger)
        except TimeoutError:
            if request.leaves_s is None:
                ledger.violated(f"{request.subject.name} #{request.number}: no answer in time")
            else:
                tally.left += 1


async def call(
    session: aiohttp.ClientSession, request: Request, tally: Tally, ledger: Ledger
) -> None:
    """Send one request and check its answer."""
    body, headers = request.subject.request(request.number)
    who = f"{request.subject.name} #{request.number}"
    began = time.monotonic()
    try:
        path = f"/fn/{request.subject.name}"
        async with session.post(path, data=body, headers=headers) as response:
            answer = await response.read()
    except aiohttp.ClientError as error:
        tally.statuses["connection"] += 1
        ledger.violated(f"{who}: {error!r}")
        return
    tally.statuses[str(response.status)] += 1
    if response.status != 200:
        ledger.violated(f"{who}: {response.status} {answer.decode('utf-8', 'replace')}")
    elif complaint := request.subject.complaint(request.number, answer):
        ledger.violated(f"{who}: wrong content: {complaint} {answer[:2000]!r}")
    else:
        tally.right += 1
        tally.answered_s.append(time.monotonic())
        tally.waits_s.append(tally.answered_s[-1] - began)
