"""The best classes of an output, as text. Only replicas import this.

Source: Triton's "Classification extension": an output becomes BYTES, each element
`value:index[:label]`. Its text leaves open what Triton's server does, which holds here: floats have
six digits after the point, integers none; the shape is [rows, count], or [count] for a model that
is not batched, whose output is one row with all its elements; the count is at most the number of
classes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs import bfloat16
from runtime_image.codecs.oip import CLASSES_MAX, NOT_CLASSES
from runtime_image.codecs.tensors import bad_body, shorten

ENTRIES_MAX: Final = 1_000_000
"""Max elements of a classification in all rows: each takes a hundred bytes while it is written."""


def best_order(rows: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Return the places of the `count` best values of each row, best first, equal ones by place;
    NaN is the last."""
    # Negated, the least integer would be itself; inverted, order and range are kept.
    keys = ~rows if rows.dtype.kind in "iu" else -rows
    return np.argsort(keys, axis=1, kind="stable")[:, :count]


def classify(
    name: str,
    array: NDArray[Any],
    datatype: str,
    count: int,
    labels: tuple[str, ...],
    *,
    is_batched: bool,
) -> NDArray[Any]:
    """Return an output's `count` best classes per row as an array of text.

    `labels` by index; a class beyond them has none. Raises BAD_INPUT if the output has no scores or
    too many.
    """
    if datatype in NOT_CLASSES:
        got = f"{datatype}"
        raise bad_body(f"output {shorten(name)!r}: numbers for a classification", got)
    if datatype == bfloat16.NAME:
        array = bfloat16.widened(array)
    if is_batched and array.ndim:
        rows = array.reshape(array.shape[0], -1) if array.size else array.reshape(0, 1)
    else:
        rows = array.reshape(1, -1)
    classes = rows.shape[1]
    count = min(count, classes)
    if classes > CLASSES_MAX or rows.shape[0] * count > ENTRIES_MAX:
        expected = (
            f"output {shorten(name)!r}: a classification of at most {CLASSES_MAX} classes"
            f" and {ENTRIES_MAX} elements"
        )
        raise bad_body(expected, f"{classes} classes and {rows.shape[0] * count} elements")
    order = best_order(rows, count)
    values = np.take_along_axis(rows, order, axis=1).ravel().tolist()
    form = "%f:%d" if array.dtype.kind == "f" else "%d:%d"
    texts = np.empty(order.size, object)
    for at, (value, place) in enumerate(zip(values, order.ravel().tolist(), strict=True)):
        text = form % (value, place)
        texts[at] = f"{text}:{labels[place]}" if place < len(labels) else text
    return texts.reshape(order.shape if is_batched and array.ndim else -1)
