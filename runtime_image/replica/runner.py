"""Decodes, joins, runs, splits and encodes the requests of one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from runtime_image.codecs.answer import encode
from runtime_image.codecs.arrays import to_arrays
from runtime_image.codecs.request import Parsed, RequestHead, parse
from runtime_image.contract.errors import (
    ANSWER_TOO_LARGE,
    EXECUTION_TIMEOUT,
    FUNCTION_FAILED,
    RequestError,
)
from runtime_image.contract.link import ANSWER_MAX, NotStarted
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.signature import Signature
from runtime_image.engines.base import Engine, Stopped
from runtime_image.link.meta import AnswerMeta
from runtime_image.replica.batching import Candidate, group, row_ranges
from runtime_image.replica.intake import Job


class Answer(NamedTuple):
    """An encoded answer; `json_length` is 0 unless it is binary with a JSON head. `is_first`: it
    came of the engine's first run."""

    meta: AnswerMeta
    json_length: int
    body: bytes
    is_first: bool = False


Outcome = Answer | RequestError | NotStarted | None
"""NotStarted: it is to be sent again. None: the job was cancelled."""

ALONE_S = 1.0
"""How long a request of a batch that ran out of time may run alone before it is handed back."""
ALONE_ALL_S = 3.0
"""How long all of them together may. Gateways wait 5 s longer than the timeout, and the batch has
used that up: whoever takes long must be sent again, so that its time begins anew."""


@dataclass(slots=True, eq=False)
class Run:
    """One engine run that is going on. `why_stopped` is set by whoever stops it. `alone_s` bounds
    a repeated run."""

    jobs: list[Job]
    ticket: Any
    began_s: float
    why_stopped: str = ""
    alone_s: float = inf

    @property
    def timeout_s(self) -> float:
        """When to stop it: after the shortest of its requests' budgets, or after `alone_s`."""
        return min(self.alone_s, *(job.timeout_s for job in self.jobs))

    @property
    def is_cut_short(self) -> bool:
        """Whether its requests had more time than it was given."""
        return self.alone_s < min(job.timeout_s for job in self.jobs)


@dataclass(slots=True)
class _Decoded:
    job: Job
    parsed: Parsed
    arrays: dict[str, Any]
    rows: int
    decode_us: int


class Runner:
    """Runs jobs on one engine. `emit(job, outcome)` is called once for every job.

    `on_run(run)` is called when an engine run begins and `on_run(None)` when it ended, so that a
    timer elsewhere can stop it. Errors of one job never reach another: a joined run that fails or
    runs out of time is repeated request by request. After a timeout that is a matter of seconds;
    what takes longer is handed back, to be run again with all its time.
    """

    def __init__(self, engine: Engine, spec: ModelSpec, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._spec = spec
        self._clock = clock
        self.signature: Signature = engine.signature
        self._has_run = False

    def run(
        self,
        jobs: list[Job],
        emit: Callable[[Job, Outcome], None],
        on_run: Callable[[Run | None], None],
    ) -> None:
        """Answer every job; never raises for what a request or a model does."""
        decoded = [item for job in jobs if (item := self._decode(job, emit)) is not None]
        candidates = [(item, Candidate(item.rows, self._shape(item))) for item in decoded]
        for members in group(candidates, self._spec.batch_max):
            self._run_group(members, emit, on_run)

    def stop(self, run: Run, why: str) -> None:
        """End `run` early, from another thread."""
        run.why_stopped = why
        self._engine.stop(run.ticket)

    def _decode(self, job: Job, emit: Callable[[Job, Outcome], None]) -> _Decoded | None:
        if job.cancelled:
            emit(job, None)
            return None
        began = self._clock()
        meta = job.meta
        head = RequestHead(
            meta.content_type, meta.accept, meta.json_length if meta.json_length >= 0 else None
        )
        try:
            parsed = parse(head, memoryview(job.body), self.signature, self._spec.inputs)
            arrays = to_arrays(parsed, self.signature, self._spec.inputs)
        except RequestError as error:
            emit(job, error)
            return None
        except Exception as error:  # noqa: BLE001 - a decoder's surprise is this request's alone
            emit(job, RequestError(FUNCTION_FAILED, f"the input could not be decoded: {error!r}"))
            return None
        decode_us = int((self._clock() - began) * 1e6)
        return _Decoded(job, parsed, arrays, self._rows(arrays), decode_us)

    def _rows(self, arrays: dict[str, Any]) -> int:
        if self._spec.batch_max == 1:
            return 1
        return int(next(iter(arrays.values())).shape[0])

    def _shape(self, item: _Decoded) -> tuple[Any, ...]:
        if self._spec.batch_max == 1:
            return ()
        return tuple((name, array.dtype, array.shape[1:]) for name, array in item.arrays.items())

    def _run_group(
        self,
        members: list[_Decoded],
        emit: Callable[[Job, Outcome], None],
        on_run: Callable[[Run | None], None],
        alone_s: float = inf,
    ) -> None:
        """One engine run; what a joined run cannot answer is run again, each request alone."""
        wanted = [item for item in members if not item.job.cancelled]
        for item in members:
            if item.job.cancelled:
                emit(item.job, None)
        if not wanted:
            return
        jobs = [item.job for item in wanted]
        run = Run(jobs, self._engine.ticket(), self._clock(), alone_s=alone_s)
        on_run(run)
        try:
            outputs = self._engine.run(self._join(wanted), run.ticket)
            self._split(wanted, outputs, run, emit)
            return
        except BaseException as error:  # noqa: BLE001 - the thread must outlive any handler
            failure = _failure(error, run)
        finally:
            on_run(None)
        if len(wanted) == 1:
            emit(wanted[0].job, failure)
            return
        self._repeat(wanted, emit, on_run, is_late=run.why_stopped == "timeout")

    def _repeat(
        self,
        members: list[_Decoded],
        emit: Callable[[Job, Outcome], None],
        on_run: Callable[[Run | None], None],
        *,
        is_late: bool,
    ) -> None:
        """Each alone; after a timeout only while there is time for it."""
        until_s = self._clock() + ALONE_ALL_S if is_late else inf
        for item in members:
            left_s = until_s - self._clock()
            if left_s > 0:
                self._run_group([item], emit, on_run, min(ALONE_S, left_s) if is_late else inf)
            else:
                emit(item.job, NotStarted.BATCH_TIMEOUT)

    @staticmethod
    def _join(members: list[_Decoded]) -> dict[str, Any]:
        if len(members) == 1:
            return members[0].arrays
        names = members[0].arrays
        return {name: np.concatenate([item.arrays[name] for item in members]) for name in names}

    def _split(
        self,
        members: list[_Decoded],
        outputs: dict[str, Any],
        run: Run,
        emit: Callable[[Job, Outcome], None],
    ) -> None:
        ended = self._clock()
        rows = row_ranges(item.rows for item in members)
        parts = [
            outputs
            if len(members) == 1
            else {name: value[start:stop] for name, value in outputs.items()}
            for start, stop in rows
        ]
        compute_us = int((ended - run.began_s) * 1e6)
        is_first, self._has_run = not self._has_run, True
        for item, part in zip(members, parts, strict=True):
            waited_us = int((run.began_s - item.job.arrived_s) * 1e6) - item.decode_us
            times = (item.decode_us, max(0, waited_us), compute_us)
            outcome = self._encode(item, part, times, rows[-1][1])
            if isinstance(outcome, Answer):
                outcome = outcome._replace(is_first=is_first)
            emit(item.job, outcome)

    def _encode(
        self, item: _Decoded, outputs: dict[str, Any], times: tuple[int, int, int], rows: int
    ) -> Answer | RequestError:
        began = self._clock()
        try:
            answer = encode(
                outputs,
                item.parsed.answer,
                self.signature,
                self._spec.output,
                self._spec.revision,
                item.parsed.id,
            )
        except RequestError as error:
            return error
        except Exception as error:  # noqa: BLE001 - outputs of a handler can be anything
            return RequestError(FUNCTION_FAILED, f"the outputs cannot be encoded: {error!r}")
        if len(answer.body) > ANSWER_MAX:
            text = f"the answer has {len(answer.body)} bytes, at most {ANSWER_MAX} are allowed"
            return RequestError(ANSWER_TOO_LARGE, text)
        encode_us = int((self._clock() - began) * 1e6)
        meta = AnswerMeta(answer.content_type, *times, encode_us, rows)
        return Answer(meta, answer.json_length, answer.body)


def _failure(error: BaseException, run: Run) -> Outcome:
    if run.why_stopped == "cancelled":
        return None
    if run.why_stopped and run.is_cut_short:
        return NotStarted.BATCH_TIMEOUT
    if run.why_stopped or isinstance(error, Stopped):
        text = f"the run was stopped after its timeout of {run.timeout_s:g} s"
        return RequestError(EXECUTION_TIMEOUT, text)
    return RequestError(FUNCTION_FAILED, f"{type(error).__name__}: {error}")
