"""Scheduling of accepted jobs: when they run and in which thread."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from sys import modules, path
from typing import Any

import pytest

from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.engines.loading import load_engine
from runtime_image.link.meta import RequestMeta
from runtime_image.replica import execution as executions
from runtime_image.replica.execution import BINARY_BODY_MAX, INLINE_BODY_MAX, Execution
from runtime_image.replica.intake import Intake, Job
from runtime_image.replica.loop import Loop
from runtime_image.replica.runner import Run, Runner
from runtime_image.replica.stages import Answer, Outcome
from runtime_image.replica.worker import Worker
from tests.support import models

ENDLESS = 100_000_000
META = RequestMeta("application/json", "", -1, "")
ROW = json.dumps({"inputs": {"x": [[1, 2, 3, 4]]}}).encode()


class Body(bytearray):
    """Bytes whose release can be observed."""


class Rig:
    """An execution with its dependencies; `run` turns the loop until `count` jobs have an
    outcome."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        made = ModelSpec("digits@1", **spec)
        engine = load_engine(made, folder, device_kind="cpu", threads=1)
        self.loop = Loop(time.monotonic)
        self.intake = Intake(limit=100)
        self.started: list[list[int]] = []
        self.outcomes: dict[int, Outcome] = {}
        self.threads: set[threading.Thread] = set()
        self.stuck: list[Run] = []
        self.on_start: Callable[[], None] = lambda: None
        self.execution = Execution(
            self.loop,
            Worker(),
            self.intake,
            Runner(engine, made, time.monotonic),
            made,
            started=self._start,
            emit=self._emit,
            stuck=self._stick,
        )
        self._wanted = 0

    def accept(
        self,
        *ids: int,
        body: bytes | bytearray = ROW,
        timeout_s: float = 60.0,
        meta: RequestMeta = META,
        alone: bool = False,
    ) -> None:
        for id in ids:
            job = Job(1, id, meta, body, timeout_s, time.monotonic(), alone)
            self.intake.accept(job)

    def run(self, outcomes: int) -> None:
        self._wanted = outcomes
        self.loop._running = True
        self.loop.turn_end = self._turn_end
        self.loop.post(lambda: None)
        self.loop.run()

    def cancel(self, id: int) -> None:
        self.intake.cancel(1, id)
        self.execution.stop_unwanted()

    def _turn_end(self) -> None:
        self.execution.pump()
        if len(self.outcomes) >= self._wanted and not self.execution._is_busy:
            self.loop.stop()

    def _start(self, jobs: list[Job]) -> None:
        self.on_start()
        self.started.append([job.id for job in jobs])

    def _emit(self, job: Job, outcome: Outcome) -> None:
        self.intake.finish(job, time.monotonic())
        self.outcomes[job.id] = outcome
        self.threads.add(threading.current_thread())

    def _stick(self, run: Run) -> None:
        self.stuck.append(run)
        self.loop.stop()


@pytest.fixture
def rigs() -> Iterator[list[Rig]]:
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.loop.close()


@pytest.fixture
def rig(rigs: list[Rig], tmp_path: Path) -> Rig:
    """A rig with the model add_one, batches of up to four rows, in the worker thread."""
    models.add_one(tmp_path)
    rigs.append(Rig(tmp_path, model="add_one.onnx", batch_max=4))
    return rigs[0]


@pytest.fixture
def inline(rigs: list[Rig], tmp_path: Path) -> Rig:
    models.add_one(tmp_path)
    rigs.append(Rig(tmp_path, model="add_one.onnx", batch_max=4, inline=True))
    return rigs[0]


@pytest.fixture
def slow(rigs: list[Rig], tmp_path: Path) -> Rig:
    """A rig with a model that does not end by itself."""
    models.slow(tmp_path, ENDLESS)
    rigs.append(Rig(tmp_path, model="slow.onnx", batch_max=1))
    return rigs[0]


def test_waiting_requests_form_batches(rig: Rig) -> None:
    """Batches are announced before they run, one at a time, and outcomes arrive in the loop's
    thread."""
    rig.accept(1, 2, 3, 4, 5)

    rig.run(5)

    assert rig.started == [[1, 2, 3, 4], [5]]
    assert rig.threads == {threading.current_thread()}
    assert all(isinstance(outcome, Answer) for outcome in rig.outcomes.values())


@pytest.mark.slow  # the watch checks four times a second
def test_an_inline_run_is_stopped_after_its_timeout(rigs: list[Rig], tmp_path: Path) -> None:
    """The loop is inside the run, so its own alarm cannot fire. Only the late request times out."""
    models.affine_by_input(tmp_path)
    rigs.append(Rig(tmp_path, model="affine_by_input.onnx", batch_max=4, inline=True))
    rigs[0].accept(1, timeout_s=0.1)
    late = json.dumps({"inputs": {"x": [[ENDLESS, 0, 0, 0]]}}).encode()
    rigs[0].accept(2, body=late, timeout_s=0.1)
    rigs[0].accept(3, timeout_s=0.1)

    rigs[0].run(3)

    failure = rigs[0].outcomes[2]
    assert isinstance(failure, RequestError)
    assert failure.code == "execution_timeout"
    assert isinstance(rigs[0].outcomes[1], Answer)
    assert isinstance(rigs[0].outcomes[3], Answer)
    assert rigs[0].started == []


@pytest.fixture
def patient(rigs: list[Rig], tmp_path: Path) -> Rig:
    """A rig that lets an incomplete batch of up to 3 wait for an hour."""
    models.add_one(tmp_path)
    rigs.append(Rig(tmp_path, model="add_one.onnx", batch_max=3, batch_wait_ms=3_600_000.0))
    return rigs[-1]


def test_an_incomplete_batch_waits(patient: Rig) -> None:
    """With `wait_ms` a batch starts once it is full."""
    patient.accept(1, 2)
    patient.execution.pump()
    held = list(patient.started)
    patient.accept(3)
    patient.run(3)

    assert held == []
    assert patient.started == [[1, 2, 3]]


@pytest.mark.parametrize("why", ["alone", "draining"])
def test_a_batch_that_cannot_grow_runs_at_once(patient: Rig, why: str) -> None:
    """A request that runs alone and a draining replica do not wait for a full batch."""
    patient.accept(1, alone=why == "alone")
    patient.intake.draining = why == "draining"

    patient.run(1)

    assert patient.started == [[1]]


def test_the_wait_for_a_full_batch_ends(rigs: list[Rig], tmp_path: Path) -> None:
    """After `wait_ms` the incomplete batch runs, woken by a single timer."""
    models.add_one(tmp_path)
    rig = Rig(tmp_path, model="add_one.onnx", batch_max=3, batch_wait_ms=5.0)
    rigs.append(rig)
    rig.accept(1)
    rig.execution.pump()
    rig.execution.pump()

    rig.run(1)

    assert rig.started == [[1]]


def test_short_runs_stay_in_the_loop(inline: Rig) -> None:
    """With an inline profile no run is passed to the thread or reported as started."""
    inline.accept(1, 2)

    inline.execution.pump()

    assert sorted(inline.outcomes) == [1, 2]
    assert inline.started == []


@pytest.mark.parametrize(
    "fields",
    [
        {"alone": True},
        {"body": ROW + b" " * INLINE_BODY_MAX},
        {"meta": RequestMeta("image/png", "", -1, "")},
        {"meta": RequestMeta("audio/wav", "", -1, "")},
    ],
    ids=["alone", "large", "picture", "sound"],
)
def test_some_runs_need_the_thread(inline: Rig, fields: dict[str, Any]) -> None:
    """A suspect, a large body and slow decoding are passed to the thread."""
    inline.accept(1, **fields)

    inline.run(1)

    assert inline.started == [[1]]
    assert list(inline.outcomes) == [1]


def test_slow_decoding_has_its_own_thread(rig: Rig) -> None:
    """A slow body is marked as started once, before it is decoded; a bad one gets its reason."""
    rig.accept(1, body=ROW + b" " * INLINE_BODY_MAX)
    rig.accept(2, body=b" " * 2 * INLINE_BODY_MAX)

    rig.run(2)

    assert rig.started == [[1], [2]]
    assert isinstance(rig.outcomes[1], Answer)
    assert isinstance(rig.outcomes[2], RequestError)
    assert "decoding" in {thread.name for thread in threading.enumerate()}
    assert rig.threads == {threading.current_thread()}


def test_a_request_starts_with_its_decoding(rig: Rig) -> None:
    """A request's time starts, and it becomes a suspect, only when its decoding starts."""
    gate = threading.Event()
    rig.accept(1, body=ROW + b" " * INLINE_BODY_MAX)
    rig.run(1)
    assert rig.execution._decoding is not None
    rig.execution._decoding.submit(lambda: gate.wait(10) and None)
    rig.accept(2, body=ROW + b" " * INLINE_BODY_MAX)
    rig.execution.pump()

    assert rig.started == [[1]]
    gate.set()
    rig.run(2)
    assert rig.started == [[1], [2]]


@pytest.mark.parametrize(
    ("content_type", "json_length", "size", "expected"),
    [
        ("image/png", -1, 1, True),
        ("audio/wav", -1, 1, True),
        ("application/json", -1, INLINE_BODY_MAX, False),
        ("application/json", -1, INLINE_BODY_MAX + 1, True),
        ("", -1, INLINE_BODY_MAX + 1, True),
        ("application/x-npy", -1, BINARY_BODY_MAX, False),
        ("application/x-npy", -1, BINARY_BODY_MAX + 1, True),
        ("application/octet-stream", 100, BINARY_BODY_MAX, False),
        ("application/octet-stream", INLINE_BODY_MAX + 1, BINARY_BODY_MAX, True),
    ],
)
def test_text_is_long_sooner_than_numbers(
    content_type: str, json_length: int, size: int, expected: bool
) -> None:
    """A body that becomes an array by a view is decoded in the loop, where it costs nothing."""
    meta = RequestMeta(content_type, "", json_length, "")

    assert executions._is_long(Job(1, 1, meta, bytes(size), 60.0, 0.0)) is expected


def test_waiting_requests_are_decoded_ahead(slow: Rig) -> None:
    """While one batch runs the next is decoded; a suspect is not decoded before it is marked. Both
    can still be withdrawn."""
    began = threading.Event()
    slow.on_start = began.set
    slow.accept(1)
    slow.execution.pump()
    assert began.wait(30)
    slow.accept(2)
    slow.accept(3, alone=True)
    slow.accept(4, body=b"{}")
    slow.execution.pump()
    waiting = [(entry.job.id, entry.decoded) for entry in slow.execution._backlog._entries]
    back = [job.id for job in slow.execution.hand_back()]
    slow.loop.post(lambda: slow.cancel(1))
    slow.run(2)

    assert [(id, decoded is not None) for id, decoded in waiting] == [(2, True), (3, False)]
    assert back == [2, 3]
    assert sorted(slow.outcomes) == [1, 4]


def test_a_batch_begins_where_nothing_runs(rig: Rig) -> None:
    """A batch passed to the worker cannot be withdrawn even if the worker has not woken yet."""
    rig.accept(1)

    rig.execution.pump()

    assert rig.execution.hand_back() == []
    rig.run(1)
    assert isinstance(rig.outcomes[1], Answer)


def test_a_large_answer_is_written_in_the_thread(tmp_path: Path, rigs: list[Rig]) -> None:
    """All answers of a handler are encoded in the thread, because their cost is unknown."""
    (tmp_path / "large.py").write_text("def predict(inputs, ctx): return {'y': 'z' * 1_000_000}\n")
    rig = Rig(tmp_path, handler="large.py", inputs={"x": InputRule("json")}, batch_max=1)
    rigs.append(rig)
    rig.accept(1, 2)

    rig.run(2)

    bodies = [one.body for one in rig.outcomes.values() if isinstance(one, Answer)]
    assert [len(body) > 1_000_000 for body in bodies] == [True, True]
    forget_handler()


def test_a_handlers_answers_leave_before_the_next_run(tmp_path: Path, rigs: list[Rig]) -> None:
    """A handler is not run again for a request whose answer was sent, so no answered request may
    become a suspect."""
    (tmp_path / "fast.py").write_text("def predict(inputs, ctx): return {'y': 1}\n")
    rig = Rig(tmp_path, handler="fast.py", inputs={"x": InputRule("json")}, batch_max=1)
    rigs.append(rig)
    seen: list[list[int]] = []
    rig.on_start = lambda: seen.append(sorted(rig.outcomes))
    rig.accept(1, 2, 3)

    rig.run(3)

    assert seen == [[], [1], [1, 2]]
    forget_handler()


def test_a_late_run_is_stopped(slow: Rig) -> None:
    """A late run is stopped, its request times out, and the next run has its full time."""
    slow.accept(1, 2, timeout_s=0.01)

    slow.run(2)

    outcomes = list(slow.outcomes.values())
    assert [o.code for o in outcomes if isinstance(o, RequestError)] == ["execution_timeout"] * 2
    assert slow.stuck == []


def test_a_shorter_time_is_kept_behind_a_longer_one(slow: Rig) -> None:
    """An alarm for a long run does not delay the deadline of a later, shorter run."""
    slow.accept(1, timeout_s=60.0)
    slow.accept(2, timeout_s=0.01)
    slow.loop.post(lambda: slow.cancel(1))

    slow.run(2)

    assert slow.outcomes[1] is None
    assert isinstance(slow.outcomes[2], RequestError)


def test_an_alarm_that_came_early_is_set_again(slow: Rig) -> None:
    """A run is stopped by its own alarm, not by that of the finished run before it."""
    slow.accept(1, timeout_s=0.02)
    slow.run(1)
    slow.accept(2, timeout_s=0.03)
    slow.run(2)

    outcomes = [slow.outcomes[1], slow.outcomes[2]]
    assert [str(o) for o in outcomes] == [
        "the run was stopped after its timeout of 0.02 s",
        "the run was stopped after its timeout of 0.03 s",
    ]


def test_an_unwanted_run_is_stopped(slow: Rig) -> None:
    """A run whose only job was cancelled is stopped long before its timeout."""
    slow.accept(1)
    slow.loop.post(lambda: slow.cancel(1))

    slow.run(1)

    assert slow.outcomes == {1: None}


def test_a_shared_run_survives_a_cancelled_job(rigs: list[Rig], tmp_path: Path) -> None:
    """Cancelling one job does not stop the run that it shares."""
    models.slow(tmp_path, 2_000)
    rig = Rig(tmp_path, model="slow.onnx", batch_max=2)
    rigs.append(rig)
    rig.accept(1, 2)
    rig.loop.post(lambda: rig.cancel(1))

    rig.run(2)

    assert isinstance(rig.outcomes[2], Answer)


def test_a_run_that_does_not_stop_is_given_up(
    rigs: list[Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that the engine cannot stop is reported as stuck after the grace period."""
    monkeypatch.setattr(executions, "STOP_GRACE_S", 0.0)
    (tmp_path / "waits.py").write_text(
        "import threading\nEND = threading.Event()\n"
        "def predict(inputs, ctx):\n    END.wait()\n    return {}\n"
    )
    rig = Rig(tmp_path, handler="waits.py", inputs={"x": InputRule("json")}, batch_max=1)
    rigs.append(rig)
    rig.accept(1, timeout_s=0.01)

    rig.run(1)

    assert [[job.id for job in run.jobs] for run in rig.stuck] == [[1]]
    end_handler()
    rig.run(1)
    assert 1 in rig.outcomes


def test_an_answered_request_is_forgotten(rig: Rig) -> None:
    """An answered request's body is not retained until its timeout; a minute of large bodies would
    fill the memory."""
    body = Body(ROW)
    seen = weakref.ref(body)
    rig.accept(1, body=body)
    del body

    rig.run(1)
    rig.accept(2)
    rig.run(2)
    gc.collect()

    assert seen() is None


def end_handler() -> None:
    """Release the waiting handler, so that its thread is free again."""
    modules["handler"].END.set()
    forget_handler()


def forget_handler() -> None:
    """Forget the imported handler: a process has only one, these tests one each."""
    modules.pop("handler")
    path.pop(0)
