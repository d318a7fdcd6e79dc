"""Stages of a request around a run: decoding, backlog, grouping, joining, encoding.

Requests of different shapes go to different groups, in order of arrival; nothing is padded.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from runtime_image.codecs.accept import JSON, OIP, SHORT, AnswerForm
from runtime_image.codecs.answer import Answer as EncodedAnswer
from runtime_image.codecs.answer import encode, served_model
from runtime_image.codecs.arrays import DTYPES, to_arrays
from runtime_image.codecs.fast_json import PlainReader, PlainWriter, is_plain, plain_reader
from runtime_image.codecs.fast_oip import Found, Missed, OipReader, OipWriter, oip_reader
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.codecs.tensors import unequal_rows
from runtime_image.contract.errors import ANSWER_TOO_LARGE, FUNCTION_FAILED, RequestError, describe
from runtime_image.contract.link import ANSWER_MAX, NotStarted
from runtime_image.contract.model import EqualAxes, ModelSpec
from runtime_image.contract.rows import CONSTANT
from runtime_image.contract.signature import Signature
from runtime_image.link.meta import AnswerMeta, RequestMeta
from runtime_image.replica.intake import Job
from runtime_image.replica.runs import RunCounts

T = TypeVar("T")

SHORT_MAX: Final = 64 * 1024
"""Max bytes of outputs whose encoding blocks the loop for less time than a thread hop costs."""
Refuse = Callable[[Job, RequestError | None], None]
"""Emits the error of a job; None for a cancelled job."""


@dataclass(slots=True, eq=False)
class Decoded:
    """One request, ready to run. Requests with the same `shape` may run together.

    The inputs are `lists`, one per input of the signature, if the body was plain JSON; otherwise
    `arrays` by name. `decode_us` is the total decode time of all requests decoded together.
    """

    job: Job
    rows: int
    shape: Hashable
    lists: tuple[list[Any], ...] | None
    arrays: dict[str, Any] | None = None
    answer: AnswerForm = SHORT
    id: str = ""
    decode_us: int = 0


class Decoder:
    """Decodes requests for one model. Thread-safe."""

    def __init__(self, signature: Signature, spec: ModelSpec, clock: Callable[[], float]) -> None:
        self._signature = signature
        self._rules = spec.inputs
        self._is_batched = spec.batch_max > 1
        self._equal_axes = spec.equal_axes
        self._clock = clock
        self._plain = self._plain_reader()
        self._oip = oip_reader(signature, spec.inputs)
        # Only tensors are views of the body; other inputs are decoded to independent objects.
        self._keeps_inputs = bool(spec.handler) and signature.kind == "tensors"
        self._last_meta: tuple[RequestMeta | None, bool] = None, False
        # Equal to the result of `_shape` for arrays with these specs.
        self._plain_shape = tuple(
            (tensor.name, DTYPES.get(tensor.dtype), (tensor.shape or ())[1:])
            for tensor in (signature.inputs if self._is_batched else ())
        )

    def _plain_reader(self) -> PlainReader | None:
        """Return None also if fixed axes violate the proof: then every request runs alone."""
        shapes = {tensor.name: tensor.shape or () for tensor in self._signature.inputs}
        if self._is_batched and violates(shapes, self._equal_axes):
            return None
        return plain_reader(self._signature)

    @property
    def reader(self) -> PlainReader | None:
        """Converts `Decoded.lists` to arrays."""
        return self._plain

    def decode(self, jobs: list[Job], refuse: Refuse) -> list[Decoded]:
        """Return the requests that can run; `refuse` is called for each of the others."""
        began = self._clock()
        decoded: list[Decoded] = []
        for job in jobs:
            if job.cancelled:
                refuse(job, None)
                continue
            if self._oip is not None and job.meta.content_type == OIP:
                item = self._read_oip(self._oip, job, refuse)
            else:
                item = self._read(job) or self._parsed(job, refuse)
            if item is not None:
                decoded.append(item)
        decode_us = int((self._clock() - began) * 1e6)
        for item in decoded:
            item.decode_us = decode_us
        return decoded

    def _read(self, job: Job) -> Decoded | None:
        """Decode a request of the most common form; None for any other."""
        body = job.body
        if self._plain is None or type(body) is not bytes or not self._is_plain(job.meta):
            return None
        try:
            lists = self._plain.read(body)
        except Exception:  # noqa: BLE001 - `_parsed` reports the error
            return None
        if lists is None:
            return None
        rows = len(lists[0]) if self._is_batched else 1
        return Decoded(job, rows, self._plain_shape, lists)

    def _is_plain(self, meta: RequestMeta) -> bool:
        # Nearly always the same object as last time: the link caches parsed metas.
        last, answer = self._last_meta
        if meta is not last:
            answer = is_plain(meta.content_type, meta.accept, meta.json_length)
            self._last_meta = meta, answer
        return answer

    def _read_oip(self, reader: OipReader, job: Job, refuse: Refuse) -> Decoded | None:
        """Decode a request of /v2; None after its error was emitted."""
        body, found = job.body, None
        if type(body) is bytes and not job.meta.accept:
            try:
                found = reader.read(body, job.meta.json_length)
            except Exception:  # noqa: BLE001 - `_parsed` reports the error
                found = None
        if isinstance(found, Found):
            return self._decoded(job, found.arrays, found.answer, found.id)
        return self._parsed(job, refuse, found)

    def _parsed(self, job: Job, refuse: Refuse, missed: Missed | None = None) -> Decoded | None:
        """Decode a request of any form; None after its error was emitted. `missed`: what the fast
        path may remember of it."""
        meta = job.meta
        head = RequestHead(
            meta.content_type, meta.accept, meta.json_length if meta.json_length >= 0 else None
        )
        try:
            parsed = parse(head, self._body(job), self._signature, self._rules)
            arrays = to_arrays(parsed, self._signature, self._rules)
        except RequestError as error:
            refuse(job, error)
            return None
        except Exception as error:  # noqa: BLE001 - a decoder's bug affects this request only
            text = f"the input could not be decoded: {error!r}"
            refuse(job, RequestError(FUNCTION_FAILED, text))
            return None
        if missed is not None and self._oip is not None:
            self._oip.remember(missed, len(job.body), meta.json_length, parsed)
        return self._decoded(job, arrays, parsed.answer, parsed.id)

    def _decoded(self, job: Job, arrays: dict[str, Any], answer: AnswerForm, id: str) -> Decoded:
        rows, shape = 1, self._shape(arrays)
        if self._is_batched and type(shape) is tuple:
            rows = int(next(iter(arrays.values())).shape[0])
        return Decoded(job, rows, shape, None, arrays, answer, id)

    def _body(self, job: Job) -> memoryview:
        """Return the body; a copy of the gateway's memory for handlers, which may keep inputs."""
        if isinstance(job.body, memoryview) and self._keeps_inputs:
            return memoryview(bytes(job.body))
        return memoryview(job.body)

    def _shape(self, arrays: dict[str, Any]) -> Hashable:
        """Return the grouping key of a request, unique for one with an empty axis or different
        numbers of rows: no proof is about those."""
        if not self._is_batched:
            return ()
        if any(not array.size for array in arrays.values()):
            return object()
        if len(arrays) > 1 and unequal_rows(shapes_of(arrays), self._signature) is not None:
            return object()
        return tuple((name, array.dtype, array.shape[1:]) for name, array in arrays.items())


@dataclass(slots=True, eq=False)
class Entry:
    """A job for the worker, which decodes it if `decoded` is None.

    `is_marked`: STARTED was sent.
    """

    job: Job
    decoded: Decoded | None = None
    is_marked: bool = False


class Backlog:
    """Queue of entries for the worker thread; other threads add and withdraw entries.

    `is_worked` is set while the worker is busy. It changes atomically with the entries: a thread
    that adds entries either sees a busy worker, which will take them, or must wake it.
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._lock = threading.Lock()
        self.is_worked = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first(self) -> Job | None:
        """The next job."""
        with self._lock:
            return self._entries[0].job if self._entries else None

    def add(self, entries: Iterable[Entry]) -> None:
        """Append entries."""
        with self._lock:
            self._entries.extend(entries)

    def begin(self, most: int) -> list[Entry]:
        """Take entries and set the worker busy; [] if it is busy already."""
        with self._lock:
            return [] if self.is_worked else self._take(most)

    def take(self, most: int) -> list[Entry]:
        """Return the next entries, at most `most`; one that must run alone is returned alone. If
        there are none, or `most` is 0, the worker no longer counts as busy."""
        with self._lock:
            return self._take(most)

    def _take(self, most: int) -> list[Entry]:
        taken: list[Entry] = []
        while self._entries and len(taken) < most:
            is_alone = self._entries[0].job.alone
            if is_alone and taken:
                break
            taken.append(self._entries.popleft())
            if is_alone:
                break
        self.is_worked = bool(taken)
        return taken

    def withdraw(self, job: Job) -> bool:
        """Remove `job`; return False if its run has begun or it is being decoded."""
        with self._lock:
            for entry in self._entries:
                if entry.job is job:
                    self._entries.remove(entry)
                    return True
            return False

    def clear(self) -> list[Job]:
        """Remove and return all jobs that are not marked as started."""
        with self._lock:
            jobs = [entry.job for entry in self._entries if not entry.is_marked]
            self._entries = deque(entry for entry in self._entries if entry.is_marked)
            return jobs


class Candidate(NamedTuple):
    """Size and shape of a request. `rows` along the first axis; requests with the same `shape` (all
    other axes and dtypes) may be joined."""

    rows: int
    shape: Hashable


def group(items: Sequence[tuple[T, Candidate]], rows_max: int) -> list[list[T]]:
    """Split into groups of at most `rows_max` rows; a request with more rows is a group by itself.

    Every item is in exactly one group.
    """
    groups: list[list[T]] = []
    open_groups: dict[Hashable, tuple[list[T], int]] = {}
    for item, (rows, shape) in items:
        members, filled = open_groups.get(shape, ([], 0))
        if not members or filled + rows > rows_max:
            members, filled = [], 0
            groups.append(members)
        members.append(item)
        open_groups[shape] = (members, filled + rows)
    return groups


def shapes_of(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input."""
    return {name: array.shape for name, array in arrays.items()}


def violates(shapes: Mapping[str, Sequence[int]], equal_axes: EqualAxes) -> bool:
    """Whether inputs of these shapes violate the conditions of the row-independence proof: all axes
    of a group in `equal_axes` must have the same size, and that of its constant if it has one.

    The proof's other conditions, no empty axis and equal rows in all inputs, are part of the
    grouping key that a request gets when it is decoded.
    """
    for group in equal_axes:
        sizes = {axis if name == CONSTANT else shapes[name][axis] for name, axis in group}
        if len(sizes) > 1:
            return True
    return False


def row_ranges(rows: Iterable[int]) -> list[tuple[int, int]]:
    """Return each request's rows in the joined batch as half-open (start, stop) pairs."""
    ranges: list[tuple[int, int]] = []
    start = 0
    for count in rows:
        ranges.append((start, start + count))
        start += count
    return ranges


def join(members: list[Decoded], reader: PlainReader | None) -> dict[str, Any]:
    """Return the joined rows of all members in order, by input name; `reader` made the lists."""
    parts: list[dict[str, Any]] = []
    for is_list, group in groupby(members, lambda item: item.lists is not None):
        if is_list:
            assert reader is not None, "only a reader returns lists"
            parts.append(reader.arrays([item.lists for item in group if item.lists is not None]))
        else:
            parts += [item.arrays for item in group if item.arrays is not None]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Answer(NamedTuple):
    """An encoded answer. `json_length` is 0 unless it is binary with a JSON head. `is_first`: it
    comes from the engine's first run."""

    meta: AnswerMeta
    json_length: int
    body: bytes
    is_first: bool = False


Outcome = Answer | RequestError | NotStarted | None
"""Result of a job. NotStarted: the gateway must send it again. None: the job was cancelled."""
Emit = Callable[[Job, Outcome], None]
# Skips the named tuple's constructor, which is a slower Python function.
_answer: Callable[[tuple[AnswerMeta, int, bytes, bool]], Answer] = partial(tuple.__new__, Answer)

Encoded = bytes | EncodedAnswer | RequestError
"""A short JSON body, an answer in another form, or the error."""


@dataclass(slots=True, eq=False)
class Done:
    """A successful run: requests, outputs, times in monotonic seconds."""

    members: list[Decoded]
    outputs: dict[str, Any]
    began_s: float
    ended_s: float
    is_first: bool


def is_short(done: Done) -> bool:
    """Whether encoding its answers takes no longer than a thread hop."""
    size = 0
    for value in done.outputs.values():
        # Attributes of a subclass are code of a handler.
        if type(value) is not np.ndarray or value.dtype.kind not in "fiub":
            return False
        size += value.nbytes
    return size <= SHORT_MAX


class Answerer:
    """Encodes the answers of one model, and counts its runs. Used by one thread at a time for each
    run."""

    def __init__(self, signature: Signature, spec: ModelSpec, clock: Callable[[], float]) -> None:
        self._signature = signature
        self._spec = spec
        self._clock = clock
        self._model = served_model(
            spec.revision, spec.oip_name, spec.oip_version, is_batched=spec.batch_max > 1
        )
        self._writer = PlainWriter(spec.output, spec.revision)
        self._oip_writer = OipWriter(self._model)
        self.runs = RunCounts()

    def answer(self, done: Done, emit: Emit) -> None:
        """Emit the outcome of every member. The encode time is the total of all members."""
        members = done.members
        began_s = self._clock()
        ranges = row_ranges([item.rows for item in members])
        encoded = self._plain(done, ranges) or [
            one or self._encoded(item, done, place)
            for item, place, one in zip(members, ranges, self._oip(done, ranges), strict=True)
        ]
        encode_us = int((self._clock() - began_s) * 1e6)
        rows = ranges[-1][1]
        metas = _AnswerMetas(done, encode_us, rows)
        # Before the first answer leaves: a client that has it finds its run counted.
        decode_us = max([item.decode_us for item in members])
        self.runs.count(rows, decode_us, metas.compute_us, encode_us)
        for item, one in zip(members, encoded, strict=True):
            if isinstance(one, bytes):
                emit(item.job, _answer((metas.meta(item, JSON), 0, one, done.is_first)))
            elif isinstance(one, RequestError):
                emit(item.job, one)
            else:
                meta = metas.meta(item, one.content_type)
                emit(item.job, Answer(meta, one.json_length, one.body, done.is_first))

    def _plain(self, done: Done, ranges: Sequence[tuple[int, int]]) -> Sequence[Encoded] | None:
        """Return the answers of all members if all have the most common form. None after an error:
        encoding one by one finds the faulty request."""
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

    def _oip(
        self, done: Done, ranges: Sequence[tuple[int, int]]
    ) -> Sequence[bytes | EncodedAnswer | None]:
        """Return the answers of members that asked by the Open Inference Protocol, with None for
        each that is not encoded."""
        members = done.members
        try:
            found = self._oip_writer.write(
                done.outputs, ranges, [(item.answer, item.id) for item in members]
            )
        except BaseException:  # noqa: BLE001 - outputs of a handler can be anything
            found = None
        if found is None:
            return (None,) * len(members)
        return [None if one is None or len(one) > ANSWER_MAX else one for one in found]

    def _encoded(self, item: Decoded, done: Done, place: tuple[int, int]) -> Encoded:
        """Encode one answer in the form that its request chose."""
        outputs = done.outputs
        if len(done.members) > 1:
            outputs = {name: value[slice(*place)] for name, value in outputs.items()}
        try:
            answer = encode(
                outputs,
                item.answer,
                self._signature,
                self._spec.output,
                self._model,
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


class _AnswerMetas:
    """Metas of one run's answers. Requests received in one read share one meta."""

    def __init__(self, done: Done, encode_us: int, rows: int) -> None:
        self._began_s = done.began_s
        self.compute_us = int((done.ended_s - done.began_s) * 1e6)
        self._encode_us = encode_us
        self._rows = rows
        self._last: tuple[tuple[str, int, float, int], AnswerMeta] | None = None

    def meta(self, item: Decoded, content_type: str) -> AnswerMeta:
        key = (content_type, item.decode_us, item.job.arrived_s, item.rows)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        batch_us = int((self._began_s - item.job.arrived_s) * 1e6) - item.decode_us
        times = (item.decode_us, max(0, batch_us), self.compute_us, self._encode_us)
        meta = AnswerMeta(content_type, *times, self._rows, item.rows)
        self._last = key, meta
        return meta
