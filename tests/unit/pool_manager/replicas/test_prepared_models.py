"""Prepared models, fetched from their trial."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.core.state import Replica, State
from pool_manager.replicas.file_transfer import reader_at
from pool_manager.replicas.prepared_models import PreparedFetcher, TrialFiles, described
from registry.errors import BodyTooLarge, StoreUnavailable
from registry.model.bundles import Bundle, BundleFile
from registry.model.profiles import Optimised, Prepared
from registry.tasks import Tasks
from runtime_image.contract.link import Kind
from runtime_image.contract.model import PART_MAX, ModelSpec, Part, Preparation, SessionPlan
from runtime_image.contract.precision import Optimisation
from runtime_image.link.frames import Frame, LinkError
from tests.support.nouns import sha256
from tests.support.offers import (
    CANDIDATE,
    GRAPH,
    WEIGHTS,
    Answer,
    description,
    frame,
    honest,
    offering,
    precision_report,
)
from tests.support.operator import until
from tests.support.replicas import KEY, ModelFolder, binding

ID = "aaaa0001"
UNTIL_S = 60.0


class Store(ModelFolder):
    """A store that keeps files unless it has an error to raise."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.error: Exception | None = None

    async def keep(self, size: int, parts: Any) -> str:
        if self.error:
            raise self.error
        return await super().keep(size, parts)


class Heard:
    """A `PreparedFetcher` over one trial, and what it passed on."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        (self.run_dir / ID).mkdir(parents=True)
        (folder / "kept").mkdir()
        self.store = Store(folder / "kept")
        self.socket = self.run_dir / ID / "data.sock"
        self.passed: asyncio.Queue[events.Event] = asyncio.Queue()
        self.tasks = Tasks("test")
        replica = Replica(ID, KEY, ("cpu:0",), "trial", 0.0, State.LOADING)
        self.fetching = PreparedFetcher(
            self.passed.put_nowait,
            self.store,
            self.tasks,
            {ID: replica}.get,
            {KEY: binding(ModelSpec("digits@1", model="model.onnx", prepare=True))},
            lambda _id: reader_at(self.socket),
        )

    def loaded(self, id: str = ID, **report: Any) -> events.Loaded:
        """Emit the replica's report."""
        event = events.Loaded(id, 0, True, 50.0, {}, {"load_ms": 5.0, **report})
        self.fetching.emit(event)
        return event

    async def next(self) -> Any:
        """Return the next event passed on."""
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
    """The report contains the prepared files and unchanged measurements."""
    report = await heard.outcome()

    assert isinstance(report["prepared"], Prepared)
    assert (report["why_not_prepared"], report["load_ms"]) == ("", 5.0)


async def test_what_does_not_concern_it_passes_at_once(heard: Heard) -> None:
    """Other events and reports of trials that do not prepare are emitted at once."""
    others = [
        events.FirstRun(ID, 1.0),
        events.Lost(ID, "gone"),
        heard.loaded(),
        heard.loaded(prepares="yes"),
        heard.loaded("bbbb0001", prepares=True),
    ]
    passed = [heard.passed.get_nowait() for _ in range(3)]
    for event in others[:2]:
        heard.fetching.emit(event)
    passed += [heard.passed.get_nowait() for _ in range(2)]

    assert passed == [*others[2:], *others[:2]]
    assert len(heard.tasks) == 0


def rubbish(question: Frame) -> Iterable[bytes]:
    return [frame(Kind.PONG, question.id)]


async def test_a_lie_costs_the_preparation_only(heard: Heard) -> None:
    """An invalid answer loses only the preparation; the report has the reason."""
    report = await heard.outcome(rubbish)

    assert report["prepared"] is None
    assert "expected PART 1, got PONG 1" in report["why_not_prepared"]


async def test_nobody_there_costs_the_preparation_only(heard: Heard) -> None:
    """A trial that announces a prepared model but does not listen loses only the preparation."""
    heard.loaded(prepares=True)

    report = (await heard.next()).report

    assert "could not be fetched" in report["why_not_prepared"]


async def test_one_that_hangs_up_and_lives_costs_the_preparation_only(heard: Heard) -> None:
    """A trial that closes the connection but lives loses only the preparation; its report waits for
    EXIT_S."""
    heard.fetching.exit_s = 0.0

    report = await heard.outcome(lambda _question: [])

    assert "could not be fetched" in report["why_not_prepared"]


async def test_one_that_hangs_up_because_it_dies_is_told_so(heard: Heard) -> None:
    """If a trial closes the connection because it dies, the reason is its exit."""
    hung_up = asyncio.Event()

    def hanging_up(question: Frame) -> Iterable[bytes]:
        hung_up.set()
        return []

    async with offering(heard.socket, hanging_up):
        heard.loaded(prepares=True)
        async with asyncio.timeout(UNTIL_S):
            await hung_up.wait()
    heard.fetching.emit(events.Lost(ID, "was killed for its memory"))

    report = (await heard.next()).report

    assert report["why_not_prepared"].endswith("it was prepared: was killed for its memory")


@pytest.mark.parametrize("error", [StoreUnavailable("disk full"), ValueError("a defect")])
async def test_a_full_disk_costs_the_preparation_only(heard: Heard, error: Exception) -> None:
    """A full disk, or any other error here, loses only the preparation; otherwise the deploy would
    wait."""
    heard.store.error = error

    report = await heard.outcome()

    assert str(error) in report["why_not_prepared"]


async def test_one_that_never_ends_is_not_waited_for(heard: Heard) -> None:
    """The wait for a trial is limited by the bundle's size."""

    def silent(question: Frame) -> Iterable[bytes]:
        return [frame(Kind.PART, question.id, b"{}")]

    heard.fetching.limit_s = lambda _bytes: 0.0

    report = await heard.outcome(silent)

    assert report["why_not_prepared"] == "it did not finish within 0 s"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (events.Lost(ID, "was killed by SIGKILL"), "was killed by SIGKILL"),
        (events.Released(ID), "it was stopped"),
    ],
)
async def test_an_end_is_passed_on_behind_the_report(
    heard: Heard, end: events.Event, reason: str
) -> None:
    """The report of a trial that dies while preparing is emitted before its end, and the fetch is
    cancelled."""
    asked = asyncio.Event()

    def waiting(question: Frame) -> Iterable[bytes]:
        asked.set()
        return [frame(Kind.PART, question.id, b"{}")]

    async with offering(heard.socket, waiting):
        heard.loaded(prepares=True)
        async with asyncio.timeout(UNTIL_S):
            await asked.wait()
        heard.fetching.emit(end)
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
    """Only a trial that was asked to prepare is queried; other replicas cannot fill the store."""
    replica = Replica(ID, KEY, ("cpu:0",), role, 0.0, State.LOADING)
    heard.fetching._find = {ID: replica}.get
    spec = ModelSpec("digits@1", model="model.onnx", prepare=prepare)
    heard.fetching._bindings = {KEY: binding(spec)}
    event = heard.loaded(prepares=True)

    assert heard.passed.get_nowait() == event


CANDIDATE_FILE = BundleFile(".optimised/model.onnx", len(CANDIDATE), sha256(CANDIDATE))


def optimising(heard: Heard, *, prepare: bool = True, asks: bool = True) -> None:
    """Bind the trial to a model with [optimise]."""
    wanted = Optimisation("auto" if asks else "fp32", 0.01)
    spec = ModelSpec("digits@1", model="model.onnx", prepare=prepare, optimise=wanted)
    heard.fetching._bindings = {KEY: binding(spec)}


@pytest.mark.parametrize("prepare", [True, False])
async def test_a_chosen_candidate_comes_first(heard: Heard, prepare: bool) -> None:
    """The candidate is fetched before the description, which a preparation delays; and a second
    session of the candidate itself is a plan that makes sense."""
    optimising(heard, prepare=prepare)
    why = description(preparation__fast__file=".optimised/model.onnx")

    async with offering(heard.socket, lambda question: honest(question, why)) as questions:
        heard.loaded(prepares=True, precision=precision_report())
        report = (await heard.next()).report

    assert report["optimised"].file == CANDIDATE_FILE
    assert (heard.run_dir.parent / "kept" / sha256(CANDIDATE)).read_bytes() == CANDIDATE
    parts = [Part.OPTIMISED, Part.DESCRIPTION, Part.GRAPH, Part.WEIGHTS]
    assert [question.aux for question in questions] == (parts if prepare else parts[:1])
    assert isinstance(report.get("prepared"), Prepared) == prepare


async def test_the_originals_table_passes_at_once(heard: Heard) -> None:
    """Where the original was chosen and nothing is prepared, nothing is fetched."""
    optimising(heard, prepare=False)
    heard.loaded(prepares=True, precision=precision_report(chosen="original"))

    found = heard.passed.get_nowait().report["optimised"]

    assert isinstance(found, Optimised)
    assert (found.table["chosen"], found.file) == ("original", None)


async def test_a_table_that_was_not_asked_for_is_ignored(heard: Heard) -> None:
    """A replica cannot have another file served than its owner wanted."""
    optimising(heard, prepare=False, asks=False)
    event = heard.loaded(prepares=True, precision=precision_report())

    assert heard.passed.get_nowait() == event


async def test_a_malformed_table_fails_the_trial(heard: Heard) -> None:
    """A choice outside the tolerance is a failure of the trial, not a table."""
    optimising(heard)
    heard.loaded(prepares=True, precision=precision_report(size=-1))

    lost = heard.passed.get_nowait()

    assert (lost.id, lost.stage) == (ID, "optimise")
    assert "malformed report of precision" in lost.reason


async def test_a_candidate_that_cannot_be_stored_fails_the_trial(heard: Heard) -> None:
    """The measurements are those of the candidate: without its file they describe nothing."""
    optimising(heard)
    heard.store.error = StoreUnavailable("disk full")
    async with offering(heard.socket):
        heard.loaded(prepares=True, precision=precision_report())
        lost = await heard.next()

    assert isinstance(lost, events.Lost)
    assert lost.reason.startswith("its int8 model is missing: its files could not be fetched")


async def test_a_candidate_outlives_a_preparation_that_kills_the_trial(heard: Heard) -> None:
    """Once the candidate is stored, the end of the trial costs the preparation only; before, the
    end is all there is."""
    optimising(heard)
    died = asyncio.Event()

    def dying(question: Frame) -> Iterable[bytes]:
        if question.aux == Part.OPTIMISED:
            return honest(question)
        died.set()
        return [frame(Kind.PART, question.id, b"{}")]

    async with offering(heard.socket, dying):
        heard.loaded(prepares=True, precision=precision_report())
        async with asyncio.timeout(UNTIL_S):
            await died.wait()
        heard.fetching.emit(events.Lost(ID, "was killed"))
        report, last = (await heard.next()).report, await heard.next()

    assert report["optimised"].file == CANDIDATE_FILE
    assert "was killed" in report["why_not_prepared"]
    assert last == events.Lost(ID, "was killed")

    heard.loaded(prepares=True, precision=precision_report())
    heard.fetching.emit(events.Lost(ID, "was killed"))
    assert heard.passed.get_nowait() == events.Lost(ID, "was killed")
    assert heard.passed.empty()


BOUND = replace(binding(ModelSpec("digits@1", model="model.onnx")), bundle=Bundle("", ()))
MIB = 2**20


async def fetched(folder: Path, answer: Answer = honest) -> Prepared | str:
    kept = folder / "kept"
    kept.mkdir(exist_ok=True)
    path = folder / "data.sock"
    async with offering(path, answer), reader_at(path) as reader:
        return await TrialFiles(reader, ModelFolder(kept), BOUND).prepared("model.onnx")


async def test_files_are_kept_under_the_servers_names(tmp_path: Path) -> None:
    """Files are stored under the server's names and hashes, with plans that name each session's
    file."""
    prepared = await fetched(tmp_path)

    assert isinstance(prepared, Prepared)
    assert prepared.model == "model.onnx"
    assert prepared.preparation == Preparation(
        "onnx-1/cpu-x",
        SessionPlan(".prepared/graph.onnx", optimise=False, prepack=False),
        SessionPlan("model.onnx"),
    )
    assert prepared.files == (
        BundleFile(".prepared/graph.onnx", len(GRAPH), sha256(GRAPH)),
        BundleFile(".prepared/weights.bin", len(WEIGHTS), sha256(WEIGHTS)),
    )
    assert (tmp_path / "kept" / sha256(WEIGHTS)).read_bytes() == WEIGHTS
    assert prepared.quick.cpu_ms == {1: 0.5, 8: 2.0}


async def test_a_reason_is_all_there_is(tmp_path: Path) -> None:
    """If nothing was prepared, no file is requested, and the reason is of limited length."""
    why = description(why_not="x" * 5000)
    questions: list[Frame] = []

    def answer(question: Frame) -> Iterable[bytes]:
        questions.append(question)
        return honest(question, why)

    assert await fetched(tmp_path, answer) == "x" * 1000
    assert [question.aux for question in questions] == [Part.DESCRIPTION]


async def test_weights_may_be_missing(tmp_path: Path) -> None:
    """A graph that needs no second file has none."""
    prepared = await fetched(
        tmp_path, lambda question: honest(question, description(sizes=[len(GRAPH), 0]))
    )

    assert isinstance(prepared, Prepared)
    assert [file.path for file in prepared.files] == [".prepared/graph.onnx"]


def wrong_kind(question: Frame) -> Iterable[bytes]:
    return [frame(Kind.RESPONSE, question.id, b"{}")]


def wrong_id(question: Frame) -> Iterable[bytes]:
    return [frame(Kind.PART, question.id + 1, description())]


def too_much(question: Frame) -> Iterable[bytes]:
    if question.aux != Part.GRAPH:
        return honest(question)
    return [frame(Kind.PART, question.id, GRAPH + b"!"), frame(Kind.END, question.id)]


def no_end(question: Frame) -> Iterable[bytes]:
    if question.aux != Part.GRAPH:
        return honest(question)
    return [frame(Kind.PART, question.id, GRAPH)] * 2


def too_little(question: Frame) -> Iterable[bytes]:
    if question.aux != Part.WEIGHTS:
        return honest(question)
    return [frame(Kind.PART, question.id, WEIGHTS[:PART_MAX]), frame(Kind.END, question.id)]


def in_crumbs(question: Frame) -> Iterable[bytes]:
    if question.aux != Part.WEIGHTS:
        return honest(question)
    return [frame(Kind.PART, question.id, WEIGHTS[:1])]


def too_large_a_part(question: Frame) -> Iterable[bytes]:
    return [frame(Kind.PART, question.id, b" " * (PART_MAX + 1))]


def end_with_a_body(question: Frame) -> Iterable[bytes]:
    return [
        frame(Kind.PART, question.id, description()),
        frame(Kind.END, question.id, b"more"),
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (wrong_kind, "expected PART 1, got RESPONSE 1"),
        (wrong_id, "expected PART 1, got PART 2"),
        (too_much, "expected a part of 7 bytes, got 8"),
        (no_end, "expected END 2, got PART 2"),
        (too_little, "expected PART 3, got END 3"),
        (in_crumbs, "expected a part of 1048576 bytes, got 1"),
        (too_large_a_part, "over the limit"),
        (end_with_a_body, "END has a body"),
    ],
)
async def test_frames_are_exact(answer: Answer, reason: str, tmp_path: Path) -> None:
    """Any deviation from the announced bytes, split into the fewest parts, ends the fetch with the
    reason."""
    with pytest.raises(LinkError, match=reason):
        await fetched(tmp_path, answer)

    assert sha256(WEIGHTS) not in {path.name for path in (tmp_path / "kept").iterdir()}


async def test_one_that_hangs_up(tmp_path: Path) -> None:
    """A trial that ends between two answers raises ConnectionError, since it has most likely
    died."""

    def hanging_up(question: Frame) -> Iterable[bytes]:
        return honest(question) if question.aux == Part.DESCRIPTION else []

    with pytest.raises(ConnectionError):
        await fetched(tmp_path, hanging_up)


async def test_nobody_there(tmp_path: Path) -> None:
    """A trial that does not listen raises OSError."""
    with pytest.raises(OSError, match="No such file"):
        async with reader_at(tmp_path / "data.sock"):
            pass


class Full(ModelFolder):
    """A disk that takes nothing."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def keep(self, size: int, parts: object) -> str:
        raise self.error


@pytest.mark.parametrize("error", [StoreUnavailable("disk full"), BodyTooLarge("too large")])
async def test_what_cannot_be_kept_is_told(error: Exception, tmp_path: Path) -> None:
    """An error of the store is reported as the reason."""
    path = tmp_path / "data.sock"
    async with offering(path), reader_at(path) as reader:
        with pytest.raises(type(error)):
            await TrialFiles(reader, Full(error), BOUND).prepared("model.onnx")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"preparation__quick__file": "../../etc/passwd"}, "file: expected one of"),
        ({"preparation__quick__file": "model.onnx"}, "file: expected one of"),
        ({"preparation__fast__file": "other.onnx"}, "file: expected one of"),
        ({"preparation__quick": None}, "TypeError"),
        ({"preparation": []}, "TypeError"),
        ({"sizes": [0, 5]}, "expected two numbers"),
        ({"sizes": [1, -1]}, "expected two numbers"),
        ({"sizes": [True, 1]}, "expected two numbers"),
        ({"sizes": [1, 2, 3]}, "ValueError"),
        ({"sizes": [1, 66 * MIB]}, "expected at most"),
        ({"original__load_ms": float("nan")}, "expected a number"),
        ({"quick__first_ms": -1}, "expected a number"),
        ({"fast__cpu_ms": {"x": 1}}, "ValueError"),
        ({"fast": None}, "TypeError"),
        ({"quick__cpu_ms": []}, "AttributeError"),
    ],
)
def test_a_description_must_make_sense(changes: dict[str, Any], reason: str) -> None:
    """Foreign file names, sizes above the limit and invalid numbers are refused."""
    with pytest.raises(LinkError, match=reason):
        described(description(**changes), "model.onnx", MIB)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 60000, b'{"why_not": ""}', b"\xff"])
def test_a_description_must_be_an_object(data: bytes) -> None:
    """A description that is not a JSON object is rejected."""
    with pytest.raises(LinkError, match="malformed"):
        described(data, "model.onnx", MIB)


def test_a_description_is_short() -> None:
    """Descriptions that are too long are not parsed."""
    with pytest.raises(LinkError, match="at most 65536 bytes"):
        described(description() + b" " * 65536, "model.onnx", MIB)
    many = {str(rows): 1.0 for rows in range(1, 1000)}
    prepared = described(description(quick__cpu_ms=many), "model.onnx", MIB)
    assert isinstance(prepared, Prepared)
    assert len(prepared.quick.cpu_ms) == 16
