"""The last stage: outputs of a run into the answers of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from runtime_image.codecs.accept import JSON, SHORT
from runtime_image.codecs.answer import Answer as EncodedAnswer
from runtime_image.codecs.answer import encode
from runtime_image.codecs.plain.writing import PlainWriter
from runtime_image.contract.errors import ANSWER_TOO_LARGE, FUNCTION_FAILED, RequestError, describe
from runtime_image.contract.link import ANSWER_MAX, NotStarted
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.signature import Signature
from runtime_image.link.meta import AnswerMeta
from runtime_image.replica.batching import row_ranges
from runtime_image.replica.intake import Job
from runtime_image.replica.stages.decoding import Decoded

SHORT_MAX: Final = 64 * 1024
"""Bytes of outputs whose encoding holds up the loop less than handing it to a thread costs."""


class Answer(NamedTuple):
    """An encoded answer; `json_length` is 0 unless it is binary with a JSON head. `is_first`: it
    came of the engine's first run."""

    meta: AnswerMeta
    json_length: int
    body: bytes
    is_first: bool = False


Outcome = Answer | RequestError | NotStarted | None
"""NotStarted: it is to be sent again. None: the job was cancelled."""
Emit = Callable[[Job, Outcome], None]
# Without the Python function that a named tuple's own constructor is.
_answer: Callable[[tuple[AnswerMeta, int, bytes, bool]], Answer] = partial(tuple.__new__, Answer)

Encoded = bytes | EncodedAnswer | RequestError
"""A short JSON body, an answer of another form, or why there is none."""


@dataclass(slots=True, eq=False)
class Done:
    """A run that went well: whose it was, what came out, when. Times are monotonic seconds."""

    members: list[Decoded]
    outputs: dict[str, Any]
    began_s: float
    ended_s: float
    is_first: bool


def is_short(done: Done) -> bool:
    """Whether encoding its answers takes no longer than handing them to another thread."""
    size = 0
    for value in done.outputs.values():
        # A subclass is a handler's: its attributes are code, too.
        if type(value) is not np.ndarray or value.dtype.kind not in "fiub":
            return False
        size += value.nbytes
    return size <= SHORT_MAX


class Answerer:
    """Encodes the answers of one model; used by one thread at a time for each run."""

    def __init__(self, signature: Signature, spec: ModelSpec, clock: Callable[[], float]) -> None:
        self._signature = signature
        self._spec = spec
        self._clock = clock
        self._writer = PlainWriter(spec.output, spec.revision)

    def answer(self, done: Done, emit: Emit) -> None:
        """Emit the outcome of every member. What encoding took is told of all of them together."""
        members = done.members
        began_s = self._clock()
        ranges = row_ranges([item.rows for item in members])
        encoded = self._plain(done, ranges) or [
            self._encoded(item, done, place) for item, place in zip(members, ranges, strict=True)
        ]
        encode_us = int((self._clock() - began_s) * 1e6)
        stamp = _Stamp(done, encode_us, ranges[-1][1])
        for item, one in zip(members, encoded, strict=True):
            if isinstance(one, bytes):
                emit(item.job, _answer((stamp.meta(item, JSON), 0, one, done.is_first)))
            elif isinstance(one, RequestError):
                emit(item.job, one)
            else:
                meta = stamp.meta(item, one.content_type)
                emit(item.job, Answer(meta, one.json_length, one.body, done.is_first))

    def _plain(self, done: Done, ranges: Sequence[tuple[int, int]]) -> Sequence[Encoded] | None:
        """All at once, where all are of the commonest form. What goes wrong here is told by the way
        for single requests: that one knows whose fault it is."""
        for item in done.members:
            if item.answer is not SHORT:
                return None
        try:
            bodies = self._writer.write(done.outputs, ranges)
        except BaseException:  # noqa: BLE001 - outputs of a handler can be anything
            return None
        if bodies is None or max(map(len, bodies)) > ANSWER_MAX:
            return None
        return bodies

    def _encoded(self, item: Decoded, done: Done, place: tuple[int, int]) -> Encoded:
        """One answer in whatever form its request asked for."""
        outputs = done.outputs
        if len(done.members) > 1:
            outputs = {name: value[slice(*place)] for name, value in outputs.items()}
        try:
            answer = encode(
                outputs,
                item.answer,
                self._signature,
                self._spec.output,
                self._spec.revision,
                item.id,
            )
        except RequestError as error:
            return error
        except BaseException as error:  # noqa: BLE001 - outputs of a handler can be anything
            text = f"the outputs cannot be encoded: {describe(error)}"
            return RequestError(FUNCTION_FAILED, text)
        if len(answer.body) > ANSWER_MAX:
            text = f"the answer has {len(answer.body)} bytes, at most {ANSWER_MAX} are allowed"
            return RequestError(ANSWER_TOO_LARGE, text)
        return answer


class _Stamp:
    """The metas of one run's answers. What came in one read shares all its times."""

    def __init__(self, done: Done, encode_us: int, rows: int) -> None:
        self._began_s = done.began_s
        self._compute_us = int((done.ended_s - done.began_s) * 1e6)
        self._encode_us = encode_us
        self._rows = rows
        self._last: tuple[tuple[str, int, float], AnswerMeta] | None = None

    def meta(self, item: Decoded, content_type: str) -> AnswerMeta:
        key = (content_type, item.decode_us, item.job.arrived_s)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        batch_us = int((self._began_s - item.job.arrived_s) * 1e6) - item.decode_us
        times = (item.decode_us, max(0, batch_us), self._compute_us, self._encode_us)
        meta = AnswerMeta(content_type, *times, self._rows)
        self._last = key, meta
        return meta
