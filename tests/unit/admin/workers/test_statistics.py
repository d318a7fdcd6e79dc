"""Statistics of several workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from admin.workers import statistics
from admin.workers.messages import AskStatistics, TellStatistics, decode_down, decode_up
from admin.workers.shared_counters import CounterReader, CounterWriter
from admin.workers.statistics import (
    ASKED_MAX,
    RevisionPage,
    StatisticsAnswers,
    StatisticsQuestions,
)
from gateway.metrics.revisions import RevisionCounts, RevisionNumbers
from gateway.oip.statistics import UNCALLED, Duration, RevisionStatistics
from registry.catalog import Change
from registry.errors import QueueFull, SupervisorAway
from tests.support.operator import until

POOL = "default/f@1"
COUNTED = replace(UNCALLED, success=Duration(1, 2**62))


class Counting:
    """The numbers of one worker, in the file that the supervisor reads."""

    def __init__(self) -> None:
        self.reader = CounterReader(records_max=256)
        self.writer = CounterWriter(os.dup(self.reader.descriptor))
        self.reader.close_descriptor()
        self.counts = RevisionCounts(lambda _namespace, _name: True, self.writer)


def page(is_deployed: Callable[[str, str], bool] = lambda _namespace, _ref: True) -> RevisionPage:
    """Return the numbers of no worker yet."""
    return RevisionPage(is_deployed)


def test_numbers_survive_their_worker() -> None:
    """The sum never falls: neither when a worker ends, nor when its successor begins at zero."""
    seen, workers = page(), [Counting(), Counting()]
    for name, worker in enumerate(workers):
        seen.add_worker(str(name), worker.reader)
        worker.counts.count_failure(POOL, 1.0)
    assert seen.read() == {POOL: RevisionNumbers(fail=2, fail_s=2.0)}

    seen.remove_worker("0")
    assert seen.read() == {POOL: RevisionNumbers(fail=2, fail_s=2.0)}

    successor = Counting()
    seen.add_worker("2", successor.reader)
    successor.counts.count_failure(POOL, 1.0)
    seen.remove_worker("1")
    seen.remove_worker("2")
    assert seen.read() == {POOL: RevisionNumbers(fail=3, fail_s=3.0)}


def test_a_removed_revision_is_forgotten() -> None:
    """Numbers of ended workers go with their revision, and are not kept for one already gone."""
    seen, worker, late = page(lambda _namespace, ref: ref != "late@1"), Counting(), Counting()
    seen.add_worker("0", worker.reader)
    for pool in (POOL, "default/f@2", "default/f2@1", "default/late@1"):
        worker.counts.count_failure(pool, 1.0)
    seen.remove_worker("0")
    assert set(seen.read()) == {POOL, "default/f@2", "default/f2@1"}
    seen.on_change(Change("put", "default", "f", None, None, (2,)))
    assert set(seen.read()) == {"default/f@2", "default/f2@1"}
    seen.on_change(Change("remove", "default", "f", None, None))
    assert set(seen.read()) == {"default/f2@1"}
    late.reader.close()


class Fixed:
    """Statistics that count one success for each revision asked for."""

    async def statistics(self, pools: Sequence[str]) -> list[RevisionStatistics]:
        """Implement the port."""
        return [RevisionStatistics(pool, inference_stats=COUNTED) for pool in pools]


async def test_a_question_is_answered_to_the_worker_that_asked() -> None:
    """Questions cross the channel with their numbers; an ended worker gets no answer."""
    answers, workers = StatisticsAnswers(page(), Fixed()), (Counting(), Counting())
    told: list[tuple[str, bytes]] = []
    for name, worker in zip("ab", workers, strict=True):
        answers.add_worker(name, worker.reader, lambda data, name=name: told.append((name, data)))
    asked: list[AskStatistics] = []
    questions = StatisticsQuestions(lambda data: asked.append(_asked(data)))

    pending = asyncio.ensure_future(questions.statistics([POOL]))
    await until(lambda: bool(asked))
    answers.on_asked("b", asked[0])
    answers.on_asked("a", asked[0])
    answers.remove_worker("a")
    await until(lambda: bool(told))
    await answers.close()

    [(name, data)] = told
    answer = decode_down(data)
    assert isinstance(answer, TellStatistics)
    questions.on_told(answer)
    assert name == "b"
    assert await pending == [RevisionStatistics(POOL, inference_stats=COUNTED)]
    questions.on_told(answer)  # too late, dropped


def _asked(data: bytes) -> AskStatistics:
    message = decode_up(data)
    assert isinstance(message, AskStatistics)
    return message


async def test_a_mute_supervisor_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question without an answer fails after its limit, and leaves nothing behind."""
    monkeypatch.setattr(statistics, "ANSWER_S", 0.0)
    questions = StatisticsQuestions(lambda _data: None)
    with pytest.raises(SupervisorAway):
        await questions.statistics([POOL])
    assert not questions._asked


async def test_questions_are_bounded() -> None:
    """One more question than the limit is refused at once; a cancelled one makes room."""
    questions = StatisticsQuestions(lambda _data: None)
    pending = [asyncio.ensure_future(questions.statistics([POOL])) for _ in range(ASKED_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await questions.statistics([POOL])
    pending[0].cancel()
    await asyncio.wait(pending[:1])
    more = asyncio.ensure_future(questions.statistics([POOL]))
    await asyncio.sleep(0)
    assert not more.done()
    for one in (*pending, more):
        one.cancel()
    await asyncio.wait([*pending, more])
