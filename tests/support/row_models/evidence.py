"""Runs that show whether a row's answer depends on its neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from tests.support.row_models.case import Case

Feed = dict[str, np.ndarray[Any, Any]]
Answer = tuple[bytes, ...]

FAILURES: Final = (Fail, InvalidArgument, RuntimeException)
"""Exceptions of ONNX Runtime for a failed run."""
SIZES: Final = (3, 2, 5)
"""Batch sizes to try."""
ANY_SIZE: Final = 5
"""Size of every dynamic axis except the batch."""
RANDOM: Final = np.random.default_rng(3)
FLOATS: Final = (0.5, 1e5, 0.0, -3.0, 2.0, float("nan"))
INTEGERS: Final = (0, 1, 3, 2, 5)
STRINGS: Final = ("a", "b c d e", "the a", "b", "")
DTYPES: Final = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    """Return a single-threaded CPU session."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def answers(running: ort.InferenceSession, feed: Feed, rows: int) -> list[Answer] | str:
    """Return the answer to each row as bytes, or a text with the wrong shapes. Raises FAILURES."""
    outputs = [np.asarray(output) for output in running.run(None, feed)]
    if any(output.ndim == 0 or len(output) != rows for output in outputs):
        return f"shapes {[output.shape for output in outputs]} for {rows} rows"
    return [tuple(bits(output[at]) for output in outputs) for at in range(rows)]


def bits(values: Any) -> bytes:
    array = np.asarray(values)
    return repr(array.tolist()).encode() if array.dtype == np.object_ else array.tobytes()


def tried(case: Case, wanted: Any) -> list[np.ndarray[Any, Any]]:
    """Return the rows to try for an input: random ones, and rows of one value each."""
    dtype = DTYPES[wanted.type]
    given = case.rows.get(wanted.name)
    if given is not None:
        return [np.asarray(row, dtype) for row in given]
    shape = [size if isinstance(size, int) else ANY_SIZE for size in wanted.shape[1:]]
    if dtype is np.object_:
        return [np.full(shape, text, np.object_) for text in STRINGS]
    if np.issubdtype(dtype, np.floating):
        spread = RANDOM.normal(size=shape)
        return [spread.astype(dtype), *(np.full(shape, value, dtype) for value in FLOATS)]
    return [np.full(shape, value).astype(dtype) for value in INTEGERS]


def batch(wanted: Sequence[str], rows: Sequence[Sequence[Any]]) -> Feed:
    """Stack `rows`, each with a value per input, into one batch."""
    return {name: np.stack([row[at] for row in rows]) for at, name in enumerate(wanted)}


def mixing(case: Case) -> str:
    """Return the first run that shows the mixing as the case expects it, "" if none does."""
    running = session(case.model())
    names = [wanted.name for wanted in running.get_inputs()]
    each = [tried(case, wanted) for wanted in running.get_inputs()]
    most = max(len(rows) for rows in each)
    rows = [[some[at % len(some)] for some in each] for at in range(most)]
    if case.shown == "again":
        feed = batch(names, rows)
        return "" if answers(running, feed, most) == answers(running, feed, most) else "not again"
    if case.shown == "alone":
        return next(beside_itself(running, names, rows), "")
    return next(beside_others(running, names, rows), "")


def beside_others(
    running: ort.InferenceSession, names: list[str], rows: list[list[Any]]
) -> Iterator[str]:
    """Yield every run in which a row at a fixed position changed with its neighbours."""
    for size, place in itertools.product(SIZES, range(max(SIZES))):
        if place >= size:
            continue
        for kept in range(len(rows)):
            before: Answer | None = None
            for other in range(len(rows)):
                lot = [rows[other]] * size
                lot[place] = rows[kept]
                try:
                    got = answers(running, batch(names, lot), size)
                except FAILURES:  # no evidence: these rows may fail alone, too
                    continue
                if isinstance(got, str):
                    yield f"{size} rows beside row {other}: {got}"
                elif before not in (None, got[place]):
                    yield f"row {kept} at {place} of {size} changes beside row {other}"
                else:
                    before = got[place]


def beside_itself(
    running: ort.InferenceSession, names: list[str], rows: list[list[Any]]
) -> Iterator[str]:
    """Yield every run in which copies of a row get another answer than the row alone."""
    for at, row in enumerate(rows):
        alone = answers(running, batch(names, [row]), 1)
        for size in SIZES:
            got = answers(running, batch(names, [row] * size), size)
            if isinstance(alone, str) or isinstance(got, str) or set(got) != set(alone):
                yield f"row {at} alone and in {size}"
