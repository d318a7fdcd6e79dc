"""A trial's report is held until what it prepared is here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.core.state import Replica, State
from pool_manager.replicas.prepared_models import Fetching
from registry.errors import StoreUnavailable
from registry.model import Prepared
from registry.tasks import Tasks
from runtime_image.contract.link import Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.link.frames import Frame
from tests.support.offers import Answer, frame, honest, offering
from tests.support.operator import until
from tests.support.replicas import KEY, ModelFolder, binding

ID = "aaaa0001"
UNTIL_S = 60.0


class Store(ModelFolder):
    """Keeps what comes, unless it has an error to raise."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.error: Exception | None = None

    async def keep(self, size: int, parts: Any) -> str:
        if self.error:
            raise self.error
        return await super().keep(size, parts)


class Heard:
    """A `Fetching` over one trial, and what it passed on."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        (self.run_dir / ID).mkdir(parents=True)
        (folder / "kept").mkdir()
        self.store = Store(folder / "kept")
        self.socket = self.run_dir / ID / "data.sock"
        self.passed: asyncio.Queue[events.Event] = asyncio.Queue()
        self.tasks = Tasks("test")
        replica = Replica(ID, KEY, "cpu:0", "trial", 0.0, State.LOADING)
        self.fetching = Fetching(
            self.passed.put_nowait,
            self.store,
            self.tasks,
            self.run_dir,
            {ID: replica}.get,
            {KEY: binding(ModelSpec("digits@1", model="model.onnx", prepare=True))},
        )

    def loaded(self, id: str = ID, **report: Any) -> events.Loaded:
        """The replica's report comes."""
        event = events.Loaded(id, 0, True, 50.0, {}, {"load_ms": 5.0, **report})
        self.fetching.feed(event)
        return event

    async def next(self) -> Any:
        """What is passed on next."""
        async with asyncio.timeout(UNTIL_S):
            return await self.passed.get()

    async def outcome(self, answer: Answer = honest) -> dict[str, Any]:
        """The report as it is passed on after a fetch from a trial that answers so."""
        async with offering(self.socket, answer):
            self.loaded(prepares=True)
            report: dict[str, Any] = (await self.next()).report
        return report


@pytest.fixture
async def heard() -> AsyncIterator[Heard]:
    with TemporaryDirectory(prefix="fn-") as folder:
        made = Heard(Path(folder))
        yield made
        await made.tasks.close()


async def test_files_come_with_the_report(heard: Heard) -> None:
    """Who asked for the trial gets both together; what was measured stays as it is."""
    report = await heard.outcome()

    assert isinstance(report["prepared"], Prepared)
    assert (report["why_not_prepared"], report["load_ms"]) == ("", 5.0)


async def test_what_does_not_concern_it_passes_at_once(heard: Heard) -> None:
    """Reports of trials that do not prepare, replicas it does not know, and everything else."""
    others = [
        events.FirstRun(ID, 1.0),
        events.Lost(ID, "gone"),
        heard.loaded(),
        heard.loaded(prepares="yes"),
        heard.loaded("bbbb0001", prepares=True),
    ]
    passed = [heard.passed.get_nowait() for _ in range(3)]
    for event in others[:2]:
        heard.fetching.feed(event)
    passed += [heard.passed.get_nowait() for _ in range(2)]

    assert passed == [*others[2:], *others[:2]]
    assert len(heard.tasks) == 0


def rubbish(question: Frame) -> Iterable[bytes]:
    return [frame(Kind.PONG, question.id)]


async def test_a_lie_costs_the_preparation_only(heard: Heard) -> None:
    """The report is passed on with the reason."""
    report = await heard.outcome(rubbish)

    assert report["prepared"] is None
    assert "expected PART 1, got PONG 1" in report["why_not_prepared"]


async def test_nobody_there_costs_the_preparation_only(heard: Heard) -> None:
    """A trial that says it prepares and does not listen is no reason to wait."""
    heard.loaded(prepares=True)

    report = (await heard.next()).report

    assert "could not be fetched" in report["why_not_prepared"]


async def test_one_that_hangs_up_and_lives_costs_the_preparation_only(heard: Heard) -> None:
    """It is given a moment to be told dead, then the report is passed on."""
    heard.fetching.news_s = 0.0

    report = await heard.outcome(lambda _question: [])

    assert "could not be fetched" in report["why_not_prepared"]


async def test_one_that_hangs_up_because_it_dies_is_told_so(heard: Heard) -> None:
    """How it ended says more than that it hung up, and comes a moment later."""
    hung_up = asyncio.Event()

    def hanging_up(question: Frame) -> Iterable[bytes]:
        hung_up.set()
        return []

    async with offering(heard.socket, hanging_up):
        heard.loaded(prepares=True)
        async with asyncio.timeout(UNTIL_S):
            await hung_up.wait()
    heard.fetching.feed(events.Lost(ID, "was killed for its memory"))

    report = (await heard.next()).report

    assert report["why_not_prepared"].endswith("it was prepared: was killed for its memory")


@pytest.mark.parametrize("error", [StoreUnavailable("disk full"), ValueError("a defect")])
async def test_a_full_disk_costs_the_preparation_only(heard: Heard, error: Exception) -> None:
    """So does whatever else happens here: untold, the deploy would wait for long."""
    heard.store.error = error

    report = await heard.outcome()

    assert str(error) in report["why_not_prepared"]


async def test_one_that_never_ends_is_not_waited_for(heard: Heard) -> None:
    """The time is bounded by the bundle's size."""

    def silent(question: Frame) -> Iterable[bytes]:
        return [frame(Kind.PART, question.id, b"{}")]

    heard.fetching.limit_s = lambda _bytes: 0.0

    report = await heard.outcome(silent)

    assert report["why_not_prepared"] == "that was not done within 0 s"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (events.Lost(ID, "was killed by SIGKILL"), "was killed by SIGKILL"),
        (events.Released(ID), "it was ended"),
    ],
)
async def test_an_end_is_passed_on_behind_the_report(
    heard: Heard, end: events.Event, reason: str
) -> None:
    """What a trial measured before it died preparing counts; the fetch ends with it."""
    asked = asyncio.Event()

    def waiting(question: Frame) -> Iterable[bytes]:
        asked.set()
        return [frame(Kind.PART, question.id, b"{}")]

    async with offering(heard.socket, waiting):
        heard.loaded(prepares=True)
        async with asyncio.timeout(UNTIL_S):
            await asked.wait()
        heard.fetching.feed(end)
        report, last = await heard.next(), await heard.next()
        await until(lambda: not len(heard.tasks))

    assert report.report["prepared"] is None
    assert reason in report.report["why_not_prepared"]
    assert last == end
    assert heard.passed.empty()


@pytest.mark.parametrize(
    ("role", "prepare"), [("serve", True), ("trial", False), ("standby", True)]
)
async def test_only_a_trial_that_was_to_prepare_is_asked(
    heard: Heard, role: Any, prepare: bool
) -> None:
    """A function that says so at other times cannot fill the store."""
    replica = Replica(ID, KEY, "cpu:0", role, 0.0, State.LOADING)
    heard.fetching._find = {ID: replica}.get
    spec = ModelSpec("digits@1", model="model.onnx", prepare=prepare)
    heard.fetching._bindings = {KEY: binding(spec)}
    event = heard.loaded(prepares=True)

    assert heard.passed.get_nowait() == event
