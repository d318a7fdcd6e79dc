"""Tests of the ledger over all gateway processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from admin.workers import metrics
from admin.workers.messages import Reckon, Reckoned, decode_down
from admin.workers.metrics import LedgerPoll
from admin.workers.shared_counters import CounterReader, CounterWriter, Sample
from gateway.metrics.counters import Exemplar, SampleExemplar
from gateway.metrics.ledger import UNKNOWN_POOL, Ledger


class Worker:
    """A process that has accepted and ended so many, and answers when it is told to."""

    def __init__(self, name: str, all_: LedgerPoll, accepted: int, completed: int) -> None:
        self.name = name
        self.counters = CounterReader(records_max=64)
        self.cells = CounterWriter(os.dup(self.counters.descriptor))
        self.counters.close_descriptor()
        self.ledger = Ledger(self.cells)
        # Others that come later are not looked at.
        self.cells.allocate("fngate_requests_total", (), ())
        for _ in range(accepted):
            self.ledger.accept()
        for _ in range(completed):
            self.ledger.end("completed")
        self.asked: list[int] = []
        self._all = all_
        all_.add_worker(name, self._hear, self.counters)

    def _hear(self, data: bytes) -> None:
        message = decode_down(data)
        assert isinstance(message, Reckon)
        self.asked.append(message.number)

    def answer(self, held: int, in_flight: int, *marked: SampleExemplar) -> None:
        """Say so, to the last question."""
        now = self.ledger.balance({"p": held}, {"p": in_flight})
        ended = dict(now.ended)
        said = Reckoned(
            self.asked[-1], now.accepted, ended, {"p": held}, {"p": in_flight}, list(marked)
        )
        self._all.on_reckoned(self.name, said)


@pytest.fixture
def all_() -> LedgerPoll:
    """Nobody has started."""
    return LedgerPoll()


@pytest.fixture
def two(all_: LedgerPoll) -> Iterator[tuple[Worker, Worker]]:
    """5 accepted and 2 completed at a, 3 and 3 at b."""
    made = Worker("a", all_, 5, 2), Worker("b", all_, 3, 3)
    yield made
    for one in made:
        one.cells.close()
        one.counters.close()


Two = tuple[Worker, Worker]


async def asked(all_: LedgerPoll) -> asyncio.Task[None]:
    """A question that all have got."""
    task = asyncio.create_task(all_.ask())
    await asyncio.sleep(0)
    return task


async def test_all_answer_for_themselves(all_: LedgerPoll, two: Two) -> None:
    """What comes after an answer is no part of it."""
    a, b = two
    task = await asked(all_)
    a.answer(2, 1)
    a.ledger.accept()
    b.answer(0, 0)
    await task
    balance = all_.balance()

    assert (balance.accepted, balance.ended["completed"]) == (8, 5)
    assert (balance.held, balance.in_flight) == ({"p": 2}, {"p": 1})
    assert balance.missing == 0


async def test_a_request_that_a_worker_has_lost_is_missing(all_: LedgerPoll, two: Two) -> None:
    """Nothing is made to fit."""
    a, b = two
    task = await asked(all_)
    a.answer(1, 1)
    b.answer(0, 0)
    await task

    assert all_.balance().missing == 1


async def test_what_a_dead_worker_had_is_aborted(all_: LedgerPoll, two: Two) -> None:
    """It is not waited for when it dies while it is asked; its numbers stay for ever."""
    _, b = two
    task = await asked(all_)
    b.answer(0, 0)
    all_.remove_worker("a")
    await task
    first = all_.balance()
    all_.remove_worker("b")
    await all_.ask()
    last = all_.balance()

    for balance in (first, last):
        assert (balance.accepted, balance.missing) == (8, 0)
        assert (balance.ended["completed"], balance.ended["aborted"]) == (5, 3)


async def test_one_that_dies_after_its_answer_is_not_counted_twice(
    all_: LedgerPoll, two: Two
) -> None:
    """Another makes the question wait meanwhile."""
    a, b = two
    task = await asked(all_)
    a.answer(2, 1)
    all_.remove_worker("a")
    b.answer(0, 0)
    await task
    balance = all_.balance()

    assert (balance.accepted, balance.ended["aborted"], balance.missing) == (8, 3, 0)
    assert balance.held == {"p": 0}


async def test_a_silent_worker_is_counted_by_its_counters(
    all_: LedgerPoll, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for any longer; an answer to an old question is none."""
    monkeypatch.setattr(metrics, "ANSWER_S", 0.0)
    a, b = two
    await all_.ask()
    balance = all_.balance()
    assert (balance.accepted, balance.in_flight, balance.missing) == (8, {UNKNOWN_POOL: 3}, 0)
    a.answer(3, 0)
    b.answer(0, 0)

    assert all_.balance() == balance


async def test_one_that_has_just_come_is_counted_by_its_counters(
    all_: LedgerPoll, two: Two
) -> None:
    """It was not asked."""
    a, b = two
    task = await asked(all_)
    late = Worker("c", all_, 1, 0)
    a.answer(2, 1)
    b.answer(0, 0)
    await task

    assert all_.balance().in_flight == {"p": 1, UNKNOWN_POOL: 1}
    assert late.asked == []
    late.cells.close()
    late.counters.close()


async def test_the_latest_exemplar_of_a_bucket_is_shown(all_: LedgerPoll, two: Two) -> None:
    """Whichever process has it."""
    a, b = two
    labels = ("function", "f", "le", "1.0")
    old, new = (
        Exemplar(("request_id", name), 0.5, at_s) for name, at_s in (("x", 1.0), ("y", 2.0))
    )
    task = await asked(all_)
    a.answer(2, 1, SampleExemplar("n_bucket", labels, new))
    b.answer(0, 0, SampleExemplar("n_bucket", labels, old))
    await task

    assert all_.exemplars == {Sample("n_bucket", labels): new}


async def test_two_may_ask_at_once(all_: LedgerPoll, two: Two) -> None:
    """Each gets its own answers; whoever is not asked cannot answer."""
    a, b = two
    first, second = await asked(all_), await asked(all_)
    assert a.asked == [1, 2]
    a.answer(2, 1)
    b.answer(0, 0)
    await second
    assert not first.done()
    all_.on_reckoned("stranger", Reckoned(1, 99.0, {}, {}, {}, []))
    first.cancel()
    await asyncio.wait([first])

    assert all_.balance().accepted == 8
    assert all_._questions == {}
