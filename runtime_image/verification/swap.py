"""The neighbour swap: a row of a batch must not change if the other rows do.

The same row is run at the same position of a batch of the same size, next to different neighbours.
Only those neighbours can then change its outputs, so on a CPU the outputs must be equal bit for
bit, NaN payloads included. Kernels of a GPU may change the order of additions from run to run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np

from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import TensorSpec
from runtime_image.engines.base import Engine, Stopped
from runtime_image.verification.proof import has_rows

BUDGET_S: Final = 5.0
"""Time for one session. A slow model is compared until the time is over, smallest batches first.
The comparison can only refute; the analysis proves."""
BATCHES: Final = ((2, 1), (2, 0), (3, 1), (8, 7), (33, 16))
"""Batch size and position of the kept row, in this order; larger batches run the same code."""
FLOATS: Final = (1e5, 3e38, float("nan"), float("inf"), float("-inf"), 0.0, -3e38)
INTEGERS: Final = (0, 1, -1, 1000)
"""Integer extremes. An index that the model refuses drops the row; -1 may read before the row."""
TEXTS: Final = ("", "a", "zzz zz z", "\u00e9\u4e16 0 -1e9")
ULPS: Final = 4
"""Allowed difference between two runs on a GPU, in units in the last place of the row's largest
value."""

Row = dict[str, Any]
"""One row: arrays by input name, with a first axis of 1."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that the engine accepts alone. `plain` are like the sample; `extreme` are neighbours
    whose values would spread to any dependent row."""

    plain: list[Row]
    extreme: list[tuple[str, Row]]


class NeighbourSwap:
    """Compares runs of one engine, within a time budget."""

    def __init__(
        self,
        engine: Engine,
        device_kind: str,
        *,
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._ulps = ULPS if device_kind == "cuda" else 0
        self._clock = clock
        self._budget_s = budget_s
        self._ends_s = clock() + budget_s
        self._row_s = 0.0
        self._ticket: Any = None

    def refutation(self, plain: list[Row], rules: Mapping[str, InputRule]) -> str:
        """Return the finding that rows are not independent, "" if there is none.

        `plain` are rows like the sample, which is the first of them; `rules` state which inputs
        must be finite.
        """
        # An extreme value may cause a loop of any length in the model.
        alarm = threading.Timer(2 * self._budget_s, lambda: self._engine.stop(self._ticket))
        alarm.daemon = True
        alarm.start()
        try:
            return self._refutation(self._accepted(plain, rules))
        finally:
            alarm.cancel()

    def _refutation(self, rows: Rows) -> str:
        kept = [*rows.plain, *(row for _, row in rows.extreme)]
        beside = [("another row", rows.plain[-1]), *rows.extreme]
        for size, place in BATCHES:
            for row in kept:
                if not self._has_time(size):
                    return ""
                reason = self._compare(row, rows.plain[0], beside, size, place)
                if reason:
                    return reason
        return ""

    def _accepted(self, plain: list[Row], rules: Mapping[str, InputRule]) -> Rows:
        """Return the rows that run alone: requests that the model refuses never reach a batch."""
        named = extremes(self._engine.signature.inputs, plain[0], rules)
        taken = [row for row in plain if self._runs_alone(row)]
        extreme = [
            (name, row) for name, row in named if self._has_time(1) and self._runs_alone(row)
        ]
        return Rows(taken or plain[:1], extreme)

    def _compare(
        self, row: Row, usual: Row, beside: list[tuple[str, Row]], size: int, place: int
    ) -> str:
        wanted, failure = self._row_of(row, usual, size, place)
        if failure:
            return failure
        for name, neighbour in beside:
            if not self._has_time(size):
                return ""
            got, failure = self._row_of(row, neighbour, size, place)
            if failure:
                return failure
            if wanted is None or got is None:
                continue
            for output, value in wanted.items():
                if not equal(value, got[output], self._ulps):
                    return (
                        f"output {output} of a row changes beside {name},"
                        f" in place {place + 1} of a batch of {size}"
                    )
        return ""

    def _row_of(self, row: Row, neighbour: Row, size: int, place: int) -> tuple[Row | None, str]:
        """Return the outputs of `row` at `place` among copies of `neighbour`, or a refutation.

        Returns neither if a row that ran alone before now fails alone: the batch is not the cause.
        """
        members = [neighbour] * size
        members[place] = row
        joined = {name: np.concatenate([one[name] for one in members]) for name in row}
        try:
            outputs = self._run(joined, size)
        except Stopped:
            return None, ""
        except Exception as error:  # noqa: BLE001 - a model may raise anything on a batch
            if not (self._runs_alone(row) and self._runs_alone(neighbour)):
                return None, ""
            return None, f"a batch of {size} rows failed, though each runs alone: {error}"[:300]
        for name, value in outputs.items():
            if not has_rows(value, size):
                return None, f"output {name} does not have one row per row of a batch of {size}"
        return {name: value[place] for name, value in outputs.items()}, ""

    def _runs_alone(self, row: Row) -> bool:
        try:
            self._run(row, 1)
        except Exception:  # noqa: BLE001 - a model may raise anything on synthetic inputs
            return False
        return True

    def _run(self, feed: Row, rows: int) -> Row:
        began_s = self._clock()
        self._ticket = self._engine.ticket()
        try:
            return self._engine.run(feed, self._ticket)
        finally:
            self._row_s = (self._clock() - began_s) / rows

    def _has_time(self, rows: int) -> bool:
        """Whether a run with this many rows will probably end within the budget."""
        return self._clock() + rows * self._row_s < self._ends_s


def equal(one: Any, other: Any, ulps: int = 0) -> bool:
    """Whether two arrays have the same bits, or, for floats, differ by at most `ulps` units in the
    last place of the largest finite value in them."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind == "O":
        return bool(np.array_equal(one, other))
    if one.tobytes() == other.tobytes():
        return True
    if not ulps or one.dtype.kind != "f":
        return False
    finite = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return False
    first, second = one[finite].astype(np.float64), other[finite].astype(np.float64)
    largest = max(np.abs(first).max(initial=0.0), np.abs(second).max(initial=0.0))
    allowed = ulps * float(np.spacing(one.dtype.type(largest)))
    return bool(np.abs(first - second).max(initial=0.0) <= allowed)


def extremes(
    tensors: tuple[TensorSpec, ...], row: Row, rules: Mapping[str, InputRule]
) -> Iterator[tuple[str, Row]]:
    """Yield named rows far from `row`. Only one kind of input is changed at a time, because a row
    that fails for one input's value is dropped together with the others' values."""
    kinds = {tensor.name: row[tensor.name].dtype.kind for tensor in tensors}
    finite = {name for name, rule in rules.items() if rule.finite}
    floats = [name for name, kind in kinds.items() if kind == "f"]
    whole = [name for name, kind in kinds.items() if kind in "iub"]
    texts = [name for name, kind in kinds.items() if kind == "O"]
    yield from chain(
        _with_floats(row, floats, finite), _with_integers(row, whole), _with_texts(row, texts)
    )


def _with_floats(row: Row, names: list[str], finite: set[str]) -> Iterator[tuple[str, Row]]:
    for value in FLOATS:
        changed = [name for name in names if np.isfinite(value) or name not in finite]
        if changed:
            yield f"rows of {value:g}", {**row, **{n: _filled(row[n], value) for n in changed}}
    if names:
        random = np.random.default_rng(0)
        values = [value for value in FLOATS if np.isfinite(value)]
        mixed = {n: _clipped(row[n], random.choice(values, row[n].shape)) for n in names}
        yield "rows of extremes", {**row, **mixed}


def _with_integers(row: Row, names: list[str]) -> Iterator[tuple[str, Row]]:
    if not names:
        return
    for value in INTEGERS:
        yield f"rows of {value}", {**row, **{n: _filled(row[n], value) for n in names}}
    above = {n: _filled(row[n], int(row[n].max(initial=0)) + 1) for n in names}
    yield "rows above the sample's largest value", {**row, **above}


def _with_texts(row: Row, names: list[str]) -> Iterator[tuple[str, Row]]:
    random = np.random.default_rng(0)
    for text in TEXTS if names else ():
        yield f"rows of {text!r}", {**row, **{n: _texts(row[n], [text], random) for n in names}}
    if names:
        yield "rows of other texts", {**row, **{n: _texts(row[n], TEXTS, random) for n in names}}


def _texts(like: Any, texts: Any, random: np.random.Generator) -> Any:
    made = np.empty(like.shape, dtype=object)
    made.reshape(-1)[:] = random.choice(np.array(texts, dtype=object), like.size)
    return made


def _filled(like: Any, value: float) -> Any:
    return _clipped(like, np.full(like.shape, value))


def _clipped(like: Any, values: Any) -> Any:
    """Convert to the dtype of `like`, finite values clipped to its range."""
    kind = like.dtype.kind
    if kind == "f":
        limits = np.finfo(like.dtype)
        held = np.clip(values, float(limits.min), float(limits.max))
        return np.where(np.isfinite(values), held, values).astype(like.dtype)
    if kind in "iu":
        limit = np.iinfo(like.dtype)
        return np.clip(values, limit.min, limit.max).astype(like.dtype)
    return values.astype(like.dtype)
