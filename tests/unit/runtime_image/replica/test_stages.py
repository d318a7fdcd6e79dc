"""Stages of a request: decode, backlog, group, join, answer."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from runtime_image.codecs.accept import SHORT, AnswerForm
from runtime_image.codecs.fast_json import plain_reader
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.rows import CONSTANT
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.link.meta import AnswerMeta, RequestMeta
from runtime_image.link.run_counts import RunCount, unpack_runs
from runtime_image.replica.intake import Job
from runtime_image.replica.stages import (
    SHORT_MAX,
    Answer,
    Answerer,
    Backlog,
    Candidate,
    Decoded,
    Decoder,
    Done,
    Entry,
    Outcome,
    group,
    is_short,
    join,
    row_ranges,
    violates,
)

SIGNATURE = Signature("tensors", (TensorSpec("x", "FP32", (-1, 2)),), ())
SPEC = ModelSpec("d@1", batch_max=8)
JSON = RequestMeta("application/json", "", -1, "")
ROWS = b'{"inputs": {"x": [[1, 2], [3, 4]]}}'


def job(id: int, body: Any = ROWS, meta: RequestMeta = JSON, **fields: Any) -> Job:
    return Job(1, id, meta, body, 60.0, 0.0, **fields)


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((3, 2), np.float32))
    return buffer.getvalue()


class Refused(list[tuple[int, str]]):
    """Ids of the jobs refused, with their codes."""

    def __call__(self, job: Job, error: RequestError | None) -> None:
        self.append((job.id, error.code if error else "cancelled"))


def seconds() -> Iterator[float]:
    return (float(second) for second in count())


def test_every_form_may_join() -> None:
    """Requests of different formats can join if their tensors have equal shapes; all carry the
    total decoding time."""
    clock = seconds()
    decoder = Decoder(SIGNATURE, SPEC, lambda: next(clock))
    bodies = [
        job(1),
        job(2, npy(), RequestMeta("application/x-npy", "", -1, "")),
        job(3, bytearray(ROWS)),
        job(4, meta=RequestMeta("application/json", "application/x-npy", -1, "")),
    ]

    items = decoder.decode(bodies, Refused())

    assert len({item.shape for item in items}) == 1
    assert [item.rows for item in items] == [2, 3, 2, 2]
    assert [item.lists is not None for item in items] == [True, False, False, False]
    assert [item.answer.form for item in items] == ["short", "short", "short", "npy"]
    assert [item.decode_us for item in items] == [1_000_000] * 4


def test_without_batching_rows_do_not_count() -> None:
    """Without batching a request counts as one row, however many it has."""
    items = Decoder(SIGNATURE, ModelSpec("d@1"), lambda: 0.0).decode([job(1)], Refused())

    assert [(item.rows, item.shape) for item in items] == [(1, ())]


def test_invalid_jobs_are_refused() -> None:
    """A cancelled job, a bad body and an unexpected decoder error are each reported; the others
    continue."""
    refused = Refused()
    jobs = [job(1, cancelled=True), job(2, b"{}"), job(3), job(4, None)]

    items = Decoder(SIGNATURE, SPEC, lambda: 0.0).decode(jobs, refused)

    assert [item.job.id for item in items] == [3]
    assert refused == [(1, "cancelled"), (2, "bad_input"), (4, "function_failed")]


def test_functions_without_tensors_have_no_reader() -> None:
    """Functions without tensors accept any JSON object unchanged."""
    decoder = Decoder(Signature("json", (), ()), ModelSpec("d@1"), lambda: 0.0)

    items = decoder.decode([job(1, b'{"inputs": {"any": "thing"}}')], Refused())

    assert decoder.reader is None
    assert [item.arrays for item in items] == [{"any": "thing"}]


def job_backlog(id: int, alone: bool = False) -> Job:
    return Job(1, id, RequestMeta("", "", -1, ""), b"", 60.0, 0.0, alone)


def filled(*jobs: Job) -> Backlog:
    backlog = Backlog()
    backlog.add(map(Entry, jobs))
    return backlog


def ids(entries: list[Entry]) -> list[int]:
    return [entry.job.id for entry in entries]


def test_entries_are_taken_in_order() -> None:
    """At most the requested number is taken, and a job that must run alone is taken alone."""
    backlog = filled(
        job_backlog(1), job_backlog(2), job_backlog(3), job_backlog(4, alone=True), job_backlog(5)
    )

    assert [ids(backlog.take(2)) for _ in range(5)] == [[1, 2], [3], [4], [5], []]


def test_the_worker_is_woken_once() -> None:
    """Adding work wakes the worker only while it is idle. It is idle again once it found nothing or
    took nothing."""
    backlog = filled()
    assert backlog.begin(9) == []

    backlog.add([Entry(job_backlog(1)), Entry(job_backlog(2))])
    woken = [ids(backlog.begin(1)), ids(backlog.begin(1))]
    backlog.add([Entry(job_backlog(3))])
    taken = ids(backlog.take(1))
    backlog.take(0)

    assert woken == [[1], []]
    assert taken == [2]
    assert ids(backlog.begin(9)) == [3]


def test_a_job_can_be_withdrawn_until_it_is_taken() -> None:
    """A job can be withdrawn only before the worker has taken it."""
    one, two = job_backlog(1), job_backlog(2)
    backlog = filled(one, two)
    backlog.take(1)

    assert not backlog.withdraw(one)
    assert backlog.withdraw(two)
    assert backlog.first is None


def test_waiting_jobs_are_handed_back() -> None:
    """Waiting jobs are handed back in order; jobs already marked as started stay."""
    one, two, told = job_backlog(1), job_backlog(2), job_backlog(3)
    backlog = filled(one, two)
    backlog.add([Entry(told, is_marked=True)])

    assert backlog.first is one
    assert backlog.clear() == [one, two]
    assert ids(backlog.take(2)) == [3]


@pytest.mark.parametrize(
    ("items", "rows_max", "groups"),
    [
        ([], 4, []),
        ([("a", 1, "s"), ("b", 1, "s")], 4, [["a", "b"]]),
        ([("a", 3, "s"), ("b", 2, "s"), ("c", 2, "s")], 4, [["a"], ["b", "c"]]),
        ([("a", 1, "s"), ("b", 1, "t"), ("c", 1, "s")], 4, [["a", "c"], ["b"]]),
        ([("a", 9, "s"), ("b", 1, "s")], 4, [["a"], ["b"]]),
        ([("a", 1, "s"), ("b", 1, "s")], 1, [["a"], ["b"]]),
    ],
)
def test_requests_are_grouped(
    items: list[tuple[str, int, str]], rows_max: int, groups: list[list[str]]
) -> None:
    """Requests of equal shape join up to the max rows; a request with more rows runs alone."""
    candidates = [(name, Candidate(rows, shape)) for name, rows, shape in items]

    assert group(candidates, rows_max) == groups


def test_rows_are_found_again() -> None:
    """Each request's rows follow those before it without a gap."""
    assert row_ranges([1, 3, 2]) == [(0, 1), (1, 4), (4, 6)]
    assert row_ranges([]) == []


@pytest.mark.parametrize(
    ("shapes", "is_violated"),
    [
        ({"a": (1, 2), "b": (1, 2)}, False),
        ({"a": (3, 2), "b": (3, 2)}, False),
        ({"a": (1, 2), "b": (1, 3)}, True),
    ],
)
def test_conditions_of_the_proof(shapes: dict[str, tuple[int, ...]], is_violated: bool) -> None:
    """Shapes violate a condition of the proof if axes assumed equal differ."""
    assert violates(shapes, ((("a", 1), ("b", 1)),)) is is_violated
    assert not violates(shapes, ())


def test_a_condition_may_name_the_size_itself() -> None:
    """A condition may require a constant size; a dynamic axis (-1) does not satisfy it."""
    condition = ((("a", 1), (CONSTANT, 12)),)

    assert not violates({"a": (3, 12)}, condition)
    assert violates({"a": (3, 11)}, condition)
    assert violates({"a": (-1, -1)}, condition)


READER = plain_reader(Signature("tensors", (TensorSpec("x", "FP32", (-1, 2)),), ()))
JOB = Job(1, 1, RequestMeta("", "", -1, ""), b"", 60.0, 0.0)


def listed(*rows: list[float]) -> Decoded:
    return Decoded(JOB, len(rows), (), (list(rows),))


def arrayed(*rows: list[float]) -> Decoded:
    return Decoded(JOB, len(rows), (), None, {"x": np.array(rows, np.float32)})


def test_rows_keep_their_order() -> None:
    """Lists and arrays may alternate in any order."""
    members = [listed([1, 1]), listed([2, 2], [3, 3]), arrayed([4, 4]), listed([5, 5])]

    found = join(members, READER)["x"]

    assert found.dtype == np.float32
    assert found.tolist() == [[at, at] for at in (1, 2, 3, 4, 5)]


def test_a_single_request_is_not_copied() -> None:
    """A single request's array is passed to the engine without a copy."""
    member = arrayed([1, 1])

    assert member.arrays is not None
    assert join([member], None)["x"] is member.arrays["x"]


SIGNATURE_ANSWERING = Signature("tensors", (), (TensorSpec("y", "FP32", (-1,)),))


def member(id: int, rows: int = 1, arrived_s: float = 0.0, form: AnswerForm = SHORT) -> Decoded:
    job = Job(1, id, RequestMeta("", "", -1, ""), b"", 60.0, arrived_s)
    return Decoded(job, rows, (), None, {}, form, "", 1_000_000)


def answers(members: list[Decoded], outputs: dict[str, Any], **fields: Any) -> dict[int, Outcome]:
    """Return the outcomes of a run from second 5 to 7, by job id; encoding takes 1 s."""
    found: dict[int, Outcome] = {}
    clock = iter([10.0, 11.0])
    done = Done(members, outputs, 5.0, 7.0, fields.get("is_first", False))
    Answerer(SIGNATURE_ANSWERING, SPEC, lambda: next(clock)).answer(
        done, lambda job, outcome: found.update({job.id: outcome})
    )
    return found


def test_each_request_has_its_own_wait_time() -> None:
    """Wait time and rows are individual (arrival to run, less decoding); all else is shared."""
    found = answers([member(1, 2, 1.0), member(2, 1, 3.5), member(3, 1, 4.5)], {"y": np.arange(4)})

    metas = [one.meta for one in found.values() if isinstance(one, Answer)]
    kind = "application/json"
    assert metas == [
        AnswerMeta(kind, 1_000_000, 3_000_000, 2_000_000, 1_000_000, 4, 2),
        AnswerMeta(kind, 1_000_000, 500_000, 2_000_000, 1_000_000, 4),
        AnswerMeta(kind, 1_000_000, 0, 2_000_000, 1_000_000, 4),
    ]


def test_a_run_is_counted_before_its_first_answer_leaves() -> None:
    """A client that has its answer finds the run in the counts; the batch counts as one run."""
    clock = iter([10.0, 11.0])
    answerer = Answerer(SIGNATURE_ANSWERING, SPEC, lambda: next(clock))
    reports: list[bytes] = []
    done = Done([member(1, 2), member(2)], {"y": np.arange(3.0)}, 5.0, 7.0, is_first=False)

    answerer.answer(done, lambda _job, _outcome: reports.append(answerer.runs.report()))

    first, *later = reports
    assert unpack_runs(first) == [RunCount(3, 1, 1_000_000_000, 2_000_000_000, 1_000_000_000)]
    assert later == [b""]


def test_each_request_gets_its_format() -> None:
    """A request for another format is answered in it, next to those in the usual one."""
    found = answers(
        [member(1, 2), member(2, form=AnswerForm("npy"))], {"y": np.arange(3.0)}, is_first=True
    )

    short, npy = found[1], found[2]
    assert isinstance(short, Answer)
    assert isinstance(npy, Answer)
    assert json.loads(short.body)["outputs"] == {"y": [0.0, 1.0]}
    assert npy.meta.content_type == "application/x-npy"
    assert npy.body.endswith(np.array([2.0]).tobytes())
    assert short.is_first
    assert npy.is_first


def test_an_output_without_json_fails() -> None:
    """An output without a JSON form fails the requests that want JSON."""
    found = answers([member(1)], {"y": object()})

    assert isinstance(found[1], RequestError)


class Odd:
    """A key that JSON cannot express."""


@pytest.mark.parametrize("name", [np.str_("a"), "\ud800", Odd(), 1, None, (1, 2)])
def test_any_output_name_is_answered(name: Any) -> None:
    """Any output name gives what the single-request encoder gives: valid JSON or an error, never an
    unhandled exception."""
    found = answers([member(1), member(2)], {name: np.arange(2.0)})

    for one in found.values():
        assert isinstance(one, Answer | RequestError)
        if isinstance(one, Answer):
            assert json.loads(one.body)["outputs"] in ({str(name): [0.0]}, {str(name): [1.0]})
    assert sorted(found) == [1, 2]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ({"y": np.zeros(SHORT_MAX, np.uint8)}, True),
        ({"y": np.zeros(SHORT_MAX, np.uint8), "z": np.zeros(1)}, False),
        ({"y": "text"}, False),
        ({"y": np.array(["text"], object)}, False),
    ],
)
def test_only_few_numbers_are_short(outputs: dict[str, Any], expected: bool) -> None:
    """Encoding counts as short only for few numbers; texts and handler outputs have unknown
    cost."""
    assert is_short(Done([], outputs, 0.0, 0.0, False)) is expected
