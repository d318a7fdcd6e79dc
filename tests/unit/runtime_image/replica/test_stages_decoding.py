"""Bodies of requests into inputs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.link.meta import RequestMeta
from runtime_image.replica.intake import Job
from runtime_image.replica.stages import Decoder

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
    """Ids of the jobs that cannot be run, with the code."""

    def __call__(self, job: Job, error: RequestError | None) -> None:
        self.append((job.id, error.code if error else "cancelled"))


def seconds() -> Iterator[float]:
    return (float(second) for second in count())


def test_every_form_may_join() -> None:
    """Requests of whatever form have the same shape, if their tensors have, and all know how long
    decoding took for all."""
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
    """A request is one row of a batch of one, however many it has."""
    items = Decoder(SIGNATURE, ModelSpec("d@1"), lambda: 0.0).decode([job(1)], Refused())

    assert [(item.rows, item.shape) for item in items] == [(1, ())]


def test_what_cannot_be_run_is_refused() -> None:
    """A cancelled job, a bad body and a decoder's surprise are each told, the rest goes on."""
    refused = Refused()
    jobs = [job(1, cancelled=True), job(2, b"{}"), job(3), job(4, None)]

    items = Decoder(SIGNATURE, SPEC, lambda: 0.0).decode(jobs, refused)

    assert [item.job.id for item in items] == [3]
    assert refused == [(1, "cancelled"), (2, "bad_input"), (4, "function_failed")]


def test_functions_without_tensors_have_no_reader() -> None:
    """Any JSON object is decoded as it is."""
    decoder = Decoder(Signature("json", (), ()), ModelSpec("d@1"), lambda: 0.0)

    items = decoder.decode([job(1, b'{"inputs": {"any": "thing"}}')], Refused())

    assert decoder.reader is None
    assert [item.arrays for item in items] == [{"any": "thing"}]
