"""Runs batches of decoded requests on the engine, and repeats failed ones request by request."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from runtime_image.contract.errors import EXECUTION_TIMEOUT, FUNCTION_FAILED, RequestError, describe
from runtime_image.contract.link import NotStarted
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.base import Engine, Stopped
from runtime_image.replica.intake import Job
from runtime_image.replica.stages import (
    Answerer,
    Candidate,
    Decoded,
    Decoder,
    Done,
    Emit,
    Outcome,
    group,
    join,
    violates,
)

ALONE_S = 1.0
"""How long a request of a batch that ran out of time may run alone before it is handed back."""
ALONE_ALL_S = 3.0
"""How long all of them together may run. Gateways wait 5 s longer than the timeout, which the batch
has used up: a slow request must be sent again, so that its time begins anew."""


@dataclass(slots=True, eq=False)
class Run:
    """One engine run. `why_stopped` is set when it is stopped early, `alone_s` bounds a repeated
    run."""

    jobs: list[Job]
    ticket: Any
    began_s: float
    why_stopped: str = ""
    alone_s: float = inf

    @property
    def timeout_s(self) -> float:
        """Its timeout: the shortest of its requests' timeouts, or `alone_s`."""
        return min(self.alone_s, min([job.timeout_s for job in self.jobs]))

    @property
    def is_cut_short(self) -> bool:
        """Whether its timeout is shorter than that of its requests."""
        return self.alone_s < min([job.timeout_s for job in self.jobs])


class RowsMixed(Exception):
    """A joined run gave an output without exactly one row per row of its requests."""


OnRun = Callable[[Run | None], None]


class _Sinks(NamedTuple):
    """Receivers of the results of a batch; see `Runner`."""

    emit: Emit
    on_run: OnRun
    deliver: Callable[[Done], None]


class Runner:
    """Runs jobs on one engine. `emit(job, outcome)` is called once for every job.

    `on_run(run)` is called when an engine run begins and `on_run(None)` when it ended, so that a
    timer elsewhere can stop it. Errors of one job never reach another: a joined run that fails or
    runs out of time is repeated request by request. After a timeout that is a matter of seconds;
    what takes longer is handed back, to be run again with all its time.

    A joined run whose outputs have not exactly its rows shows that rows are not independent: its
    requests run alone, or all fail where they may not run twice, nothing is joined from then on,
    and `on_mixed(reason)` is called once, in the thread of the run.
    """

    def __init__(
        self,
        engine: Engine,
        spec: ModelSpec,
        clock: Callable[[], float],
        on_mixed: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._engine = engine
        self.batch_max = spec.batch_max
        """Rows of a joined run; 1 once `stop_batching` was called."""
        self._may_rerun = spec.may_rerun
        self._equal_axes = spec.equal_axes
        self._on_mixed = on_mixed
        self._clock = clock
        self._has_run = False
        # During a run its start time is subtracted: another thread never sees half a change of one
        # number.
        self._ran_s = 0.0
        self._decoder = Decoder(engine.signature, spec, clock)
        self._answerer = Answerer(engine.signature, spec, clock)
        self._trace: Callable[[str], None] | None = getattr(engine, "trace", None)
        """Sets the trace of the next run; only a handler's engine makes spans of its own."""

    def run(self, jobs: list[Job], emit: Emit, on_run: OnRun) -> None:
        """Answer every job; never raises for what a request or a model does."""
        self.run_decoded(
            self.decode(jobs, emit), emit, on_run, lambda done: self.answer(done, emit)
        )

    def decode(self, jobs: list[Job], emit: Emit) -> list[Decoded]:
        """The stage before a run: the requests that can run; the rest is emitted. Thread-safe."""
        return self._decoder.decode(jobs, emit)

    def answer(self, done: Done, emit: Emit) -> None:
        """The stage after a run: emit the outcome of each of its jobs. Thread-safe."""
        self._answerer.answer(done, emit)

    def run_decoded(
        self,
        items: list[Decoded],
        emit: Emit,
        on_run: OnRun,
        deliver: Callable[[Done], None],
    ) -> None:
        """Run decoded requests: `deliver` gets every successful run, for its jobs to be answered;
        all other jobs are emitted."""
        sinks = _Sinks(emit, on_run, deliver)
        for members in self._grouped(items):
            # Batching may have been stopped since they were grouped.
            if len(members) > 1 and self.batch_max == 1:
                self._repeat(members, sinks, is_late=False)
            else:
                self._run_group(members, sinks)

    def _grouped(self, items: list[Decoded]) -> list[list[Decoded]]:
        is_one_shape = len({id(item.shape) for item in items}) == 1
        if is_one_shape and sum([item.rows for item in items]) <= self.batch_max:
            return [items]
        shaped = [(item, Candidate(item.rows, self._shape(item))) for item in items]
        return group(shaped, self.batch_max)

    def _shape(self, item: Decoded) -> Hashable:
        """The key that requests are grouped by; one that the proof does not cover runs alone."""
        if not self._equal_axes or item.arrays is None:
            return item.shape
        shapes = {name: array.shape for name, array in item.arrays.items()}
        return item if violates(shapes, self._equal_axes) else item.shape

    def busy_s(self) -> float:
        """Seconds that the engine has run until now, including the current run. Thread-safe."""
        ran_s = self._ran_s
        return ran_s if ran_s >= 0 else ran_s + self._clock()

    def stop_batching(self) -> None:
        """Join no requests from the next run on. Thread-safe."""
        self.batch_max = 1

    def stop(self, run: Run, why: str) -> None:
        """End `run` early, from another thread."""
        run.why_stopped = why
        self._engine.stop(run.ticket)

    def _run_group(self, members: list[Decoded], sinks: _Sinks, alone_s: float = inf) -> None:
        """One engine run; the requests of a failed joined run are run again, each alone."""
        wanted: list[Decoded] = []
        for item in members:
            if item.job.cancelled:
                sinks.emit(item.job, None)
            else:
                wanted.append(item)
        if not wanted:
            return
        jobs = [item.job for item in wanted]
        run = Run(jobs, self._engine.ticket(), self._clock(), alone_s=alone_s)
        try:
            done = self._done(wanted, run, sinks.on_run)
        except RowsMixed as error:
            self._mixed(wanted, str(error), sinks)
            return
        except BaseException as error:  # noqa: BLE001 - the thread must outlive any handler
            failure = _failure(error, run)
        else:
            sinks.deliver(done)
            return
        if len(wanted) == 1:
            sinks.emit(wanted[0].job, failure)
        else:
            self._repeat(wanted, sinks, is_late=run.why_stopped == "timeout")

    def _done(self, members: list[Decoded], run: Run, on_run: OnRun) -> Done:
        """Raises whatever the engine does, and RowsMixed."""
        inputs = join(members, self._decoder.reader)
        if self._trace is not None:
            self._trace(next((j.meta.traceparent for j in run.jobs if j.meta.traceparent), ""))
        on_run(run)
        run.began_s = self._clock()
        self._ran_s -= run.began_s
        try:
            outputs = self._engine.run(inputs, run.ticket)
        finally:
            ended_s = self._clock()
            self._ran_s += ended_s
            on_run(None)
        if len(members) > 1:
            check_rows(outputs, sum([item.rows for item in members]))
        is_first, self._has_run = not self._has_run, True
        return Done(members, outputs, run.began_s, ended_s, is_first)

    def _mixed(self, members: list[Decoded], reason: str, sinks: _Sinks) -> None:
        was_batching, self.batch_max = self.batch_max > 1, 1
        if was_batching:
            self._on_mixed(reason)
        if self._may_rerun:
            self._repeat(members, sinks, is_late=False)
            return
        failure = RequestError(FUNCTION_FAILED, f"{reason}; it may not be run again")
        for item in members:
            sinks.emit(item.job, failure)

    def _repeat(self, members: list[Decoded], sinks: _Sinks, *, is_late: bool) -> None:
        """Run each request alone; after a timeout only while there is time left."""
        until_s = self._clock() + ALONE_ALL_S if is_late else inf
        for item in members:
            left_s = until_s - self._clock()
            if left_s > 0:
                self._run_group([item], sinks, min(ALONE_S, left_s) if is_late else inf)
            else:
                sinks.emit(item.job, NotStarted.BATCH_TIMEOUT)


def check_rows(outputs: dict[str, Any], rows: int) -> None:
    """Raises RowsMixed unless every output is an array with exactly so many rows on axis 0."""
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray):
            raise RowsMixed(f"output {name!s:.80} of a joined run is no array")
        if not value.ndim or value.shape[0] != rows:
            shape = list(value.shape)
            text = f"output {name!s:.80} of a joined run of {rows} rows has shape {shape}"
            raise RowsMixed(text)


def _failure(error: BaseException, run: Run) -> Outcome:
    if run.why_stopped == "cancelled":
        return None
    if run.why_stopped and run.is_cut_short:
        return NotStarted.BATCH_TIMEOUT
    if run.why_stopped or isinstance(error, Stopped):
        text = f"the run was stopped after its timeout of {run.timeout_s:g} s"
        return RequestError(EXECUTION_TIMEOUT, text)
    text = describe(error, lambda error: f"{type(error).__name__}: {error}")
    return RequestError(FUNCTION_FAILED, text)
