"""Runs batches of decoded requests on the engine; repeats a failed batch request by request."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from runtime_image.codecs.tensors import unequal_rows
from runtime_image.contract.errors import (
    BAD_INPUT,
    EXECUTION_TIMEOUT,
    FUNCTION_FAILED,
    RequestError,
    UnfitInput,
)
from runtime_image.contract.link import NotStarted
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.base import Engine, Stopped
from runtime_image.engines.failures import reason_of
from runtime_image.engines.refused_values import refused_values
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
    shapes_of,
    violates,
)

ALONE_S = 1.0
"""Max run time of one request of a timed-out batch in its repeated run."""
ALONE_ALL_S = 3.0
"""Max run time of all repeated runs of a timed-out batch. Gateways wait for 5 s beyond the timeout,
and the batch has used up the timeout: a slower request must be sent again with a new timeout."""


@dataclass(slots=True, eq=False)
class Run:
    """One engine run. `why_stopped` is set if it is stopped early; `alone_s` limits a repeated
    run."""

    jobs: list[Job]
    ticket: Any
    began_s: float
    why_stopped: str = ""
    alone_s: float = inf

    @property
    def timeout_s(self) -> float:
        """Timeout of the run: the shortest of its requests' timeouts, or `alone_s`."""
        return min(self.alone_s, min([job.timeout_s for job in self.jobs]))

    @property
    def is_cut_short(self) -> bool:
        """Whether `alone_s` makes the timeout shorter than that of its requests."""
        return self.alone_s < min([job.timeout_s for job in self.jobs])


class RowsMixed(Exception):
    """A joined run returned an output without exactly one row per row of its requests."""


OnRun = Callable[[Run | None], None]


class _Sinks(NamedTuple):
    """Receivers of a batch's results; see `Runner`."""

    emit: Emit
    on_run: OnRun
    deliver: Callable[[Done], None]


class Runner:
    """Runs jobs on one engine. `emit(job, outcome)` is called once for every job.

    `on_run(run)` is called when an engine run begins and `on_run(None)` when it has ended, so that
    a timer elsewhere can stop it. Errors of one job never affect another: a joined run that fails
    or times out is repeated request by request. After a timeout, the repetition takes a few seconds
    at most; slower requests are returned to their gateways, to be sent again with a full timeout.

    A joined run whose outputs do not have exactly its rows shows that rows are not independent. Its
    requests then run alone, or fail if they may not run twice. From then on nothing is joined, and
    `on_mixed(reason)` is called once, in the thread of the run.
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
        """Max rows of a joined run; 1 after `stop_batching`."""
        self._may_rerun = spec.may_rerun
        self._equal_axes = spec.equal_axes
        self._on_mixed = on_mixed
        self._clock = clock
        self._has_run = False
        # During a run, its start time is subtracted. Both updates replace one number, so another
        # thread never sees a half-made change.
        self._ran_s = 0.0
        self._decoder = Decoder(engine.signature, spec, clock)
        self._answerer = Answerer(engine.signature, spec, clock)
        self.runs = self._answerer.runs
        """Counts of the successful runs."""
        self._trace: Callable[[str], None] | None = getattr(engine, "trace", None)
        """Sets the trace of the next run; None unless the engine is a handler's."""

    def run(self, jobs: list[Job], emit: Emit, on_run: OnRun) -> None:
        """Answer every job. Errors of requests and models do not raise."""
        self.run_decoded(
            self.decode(jobs, emit), emit, on_run, lambda done: self.answer(done, emit)
        )

    def decode(self, jobs: list[Job], emit: Emit) -> list[Decoded]:
        """Decode requests before a run. Returns those that can run, emits the rest. Thread-safe."""
        return self._decoder.decode(jobs, emit)

    def answer(self, done: Done, emit: Emit) -> None:
        """Encode the answers after a run: emit the outcome of each of its jobs. Thread-safe."""
        self._answerer.answer(done, emit)

    def run_decoded(
        self,
        items: list[Decoded],
        emit: Emit,
        on_run: OnRun,
        deliver: Callable[[Done], None],
    ) -> None:
        """Run decoded requests. `deliver` receives every successful run; the jobs of all others are
        emitted."""
        sinks = _Sinks(emit, on_run, deliver)
        for members in self._grouped(items):
            # Batching may have been turned off since they were grouped.
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
        """Return the grouping key of a request, unique for one that violates `equal_axes`."""
        if not self._equal_axes or item.arrays is None:
            return item.shape
        return item if violates(shapes_of(item.arrays), self._equal_axes) else item.shape

    def busy_s(self) -> float:
        """Return the engine's run time in seconds, including the current run. Thread-safe."""
        ran_s = self._ran_s
        return ran_s if ran_s >= 0 else ran_s + self._clock()

    def stop_batching(self) -> None:
        """Stop joining requests, from the next run on. Thread-safe."""
        self.batch_max = 1

    def limit_rows(self, rows_max: int) -> None:
        """Join at most `rows_max` rows, from the next run on. Thread-safe."""
        self.batch_max = min(self.batch_max, rows_max)

    def stop(self, run: Run, why: str) -> None:
        """End `run` early, from another thread."""
        run.why_stopped = why
        self._engine.stop(run.ticket)

    def _run_group(self, members: list[Decoded], sinks: _Sinks, alone_s: float = inf) -> None:
        """Run the engine once; repeat each request of a failed joined run alone."""
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
            failure = self._explained(wanted, _failure(error, run))
        else:
            sinks.deliver(done)
            return
        if len(wanted) == 1:
            sinks.emit(wanted[0].job, failure)
        else:
            self._repeat(wanted, sinks, is_late=run.why_stopped == "timeout")

    def _explained(self, members: list[Decoded], failure: Outcome) -> Outcome:
        """Return the failure of a run as BAD_INPUT if its inputs differ in rows: that may be right
        for a model, but is why most runs of such inputs fail."""
        signature, arrays = self._engine.signature, members[0].arrays
        if len(members) > 1 or arrays is None or signature.kind != "tensors":
            return failure
        if not isinstance(failure, RequestError) or isinstance(failure, UnfitInput):
            return failure
        if failure.code not in (BAD_INPUT, FUNCTION_FAILED):
            return failure
        refused = unequal_rows(shapes_of(arrays), signature)
        if refused is None:
            return failure
        text = f"{refused.message}; the run failed: {failure.message}"
        return RequestError(
            refused.code, text, input=refused.input, expected=refused.expected, got=refused.got
        )

    def _done(self, members: list[Decoded], run: Run, on_run: OnRun) -> Done:
        """Run the engine. Raises any error of the engine, and RowsMixed."""
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
        failure = RequestError(FUNCTION_FAILED, f"{reason}; the request may not run again")
        for item in members:
            sinks.emit(item.job, failure)

    def _repeat(self, members: list[Decoded], sinks: _Sinks, *, is_late: bool) -> None:
        """Run each request alone; after a timeout, only within ALONE_S and ALONE_ALL_S."""
        until_s = self._clock() + ALONE_ALL_S if is_late else inf
        for item in members:
            left_s = until_s - self._clock()
            if left_s > 0:
                self._run_group([item], sinks, min(ALONE_S, left_s) if is_late else inf)
            else:
                sinks.emit(item.job, NotStarted.BATCH_TIMEOUT)


def check_rows(outputs: dict[str, Any], rows: int) -> None:
    """Raise RowsMixed unless every output is an array with exactly `rows` rows on axis 0."""
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray):
            raise RowsMixed(f"output {name!s:.80} of a joined run is not an array")
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
    if isinstance(error, UnfitInput):
        return error
    if refused := refused_values(error):
        return RequestError(BAD_INPUT, refused)
    return RequestError(FUNCTION_FAILED, reason_of(error))
