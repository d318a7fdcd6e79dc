"""The neighbour swap: a row of a batch must not change when the other rows do.

The same row is run in the same place of a batch of the same size, beside neighbours that differ.
Nothing but those neighbours can then change its outputs, so on a CPU they must be equal bit for
bit, NaN payloads included. Kernels of a GPU may add in another order from run to run.
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
"""Time for one session. A slow model is compared for as long as this lasts, smallest batches first:
the comparison can refute, the analysis proves."""
BATCHES: Final = ((2, 1), (2, 0), (3, 1), (8, 7), (33, 16))
"""Rows of a batch and the place of the kept row, in this order; larger ones run the same code."""
FLOATS: Final = (1e5, 3e38, float("nan"), float("inf"), float("-inf"), 0.0, -3e38)
INTEGERS: Final = (0, 1, -1, 1000)
"""An index that the model refuses drops the row; one of -1 may read what lies before the row."""
TEXTS: Final = ("", "a", "zzz zz z", "\u00e9\u4e16 0 -1e9")
ULPS: Final = 4
"""Units in the last place of the row's largest value that two runs on a GPU may differ by."""

Row = dict[str, Any]
"""One row: arrays with a first axis of 1 by input name."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that the engine takes alone. `plain` are like the sample, `extreme` are neighbours that
    nothing but independent rows withstand."""

    plain: list[Row]
    extreme: list[tuple[str, Row]]


class NeighbourSwap:
    """Compares runs of one engine, within a budget of time."""

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
        """What shows that rows are not independent, "" where nothing does.

        `plain` are rows like the sample, the first of them the sample itself; `rules` say which
        inputs callers must keep finite.
        """
        # An extreme may send a model into a loop of any length.
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
        """Rows that run alone: what the model refuses never reaches a batch."""
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
        """The outputs of `row` at `place` among copies of `neighbour`, or what refutes.

        Neither, where a row that ran alone before fails alone now: then it is not the batch.
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
            return None, f"a batch of {size} rows failed that run alone: {error}"[:300]
        for name, value in outputs.items():
            if not has_rows(value, size):
                return None, f"output {name} does not have one row per row of a batch of {size}"
        return {name: value[place] for name, value in outputs.items()}, ""

    def _runs_alone(self, row: Row) -> bool:
        try:
            self._run(row, 1)
        except Exception:  # noqa: BLE001 - a model may raise anything on made-up inputs
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
        """Whether a run of so many rows probably ends within the budget."""
        return self._clock() + rows * self._row_s < self._ends_s


def equal(one: Any, other: Any, ulps: int = 0) -> bool:
    """Whether two arrays are the same bits, or of floats within so many units in the last place of
    the largest finite value in them."""
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
    """Rows far from `row`, each with its name: one kind of input is changed at a time, since a
    value that one input refuses would drop the other's with it."""
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
    """In the dtype of `like`, finite values held to its range."""
    kind = like.dtype.kind
    if kind == "f":
        limits = np.finfo(like.dtype)
        held = np.clip(values, float(limits.min), float(limits.max))
        return np.where(np.isfinite(values), held, values).astype(like.dtype)
    if kind in "iu":
        limit = np.iinfo(like.dtype)
        return np.clip(values, limit.min, limit.max).astype(like.dtype)
    return values.astype(like.dtype)
