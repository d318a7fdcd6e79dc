"""Times the original and its candidates in rounds, in a process of their own.

A slow phase of the machine should affect all of them alike: in each round every model runs for a
moment at every batch size, in an order that changes from round to round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from runtime_image.contract.precision import CandidateName
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.verification.measure import Bench, Clocks
from runtime_image.verification.precision.judging import repeated, samples_of
from runtime_image.verification.precision.order import Order

ROUNDS: Final = 11
"""Max rounds. Odd, so that their median is a figure of one round."""
ROUNDS_MIN: Final = 5
"""Rounds for which slow models may take longer than `ROUNDS_S`."""
ROUNDS_S: Final = 6.0
"""Seconds after which no further round begins."""
LIMIT_SHARE: Final = 0.5
"""Share of the child's time after which no further round begins, not even the second one."""
CHUNKS: Final = 2
"""Means of a model at one batch size in one round; the smallest counts."""
SEED: Final = 0

Rounds = dict[CandidateName, dict[int, list[float]]]
"""Milliseconds per run by name and rows, one for each round."""


def in_rounds(
    sizes: Mapping[CandidateName, Sequence[int]],
    run_ms: Callable[[CandidateName, int], float],
    clock: Callable[[], float],
    *,
    together: bool,
    limit_s: float,
) -> Rounds:
    """Return the milliseconds of each model at each of its sizes, in equally many rounds.

    `together`: the models alternate at each size, so that equal sizes are close in time. Otherwise
    each one runs all its sizes at once, since changing between models takes long.
    """
    found: Rounds = {name: {rows: [] for rows in own} for name, own in sizes.items()}
    random = Random(SEED)  # noqa: S311 - an order, no secret
    began_s = clock()
    for number in range(ROUNDS):
        most_s = LIMIT_SHARE * limit_s
        if number >= ROUNDS_MIN:
            most_s = min(most_s, ROUNDS_S)
        if number and clock() - began_s > most_s:
            break
        names = random.sample(list(sizes), len(sizes))
        steps = [(name, rows) for name in names for rows in sizes[name]]
        if together:
            steps.sort(key=lambda step: step[1])  # stable: names keep the round's order
        for name, rows in steps:
            found[name][rows].append(run_ms(name, rows))
    return found


def time_all(order: Order) -> dict[CandidateName, dict[str, list[float]]]:
    """Return the milliseconds per run of all files, one for each round. Raises LoadError, or ONNX
    Runtime's error, if one of them cannot be run."""
    sessions = _Sessions(order)
    rounds = in_rounds(
        sessions.sizes,
        sessions.run_ms,
        time.perf_counter,
        together=order.together,
        limit_s=order.limit_s,
    )
    return {
        name: {str(rows): [round(ms, 6) for ms in found] for rows, found in own.items()}
        for name, own in rounds.items()
    }


class _Sessions:
    """The sessions of all files: all open at once, or one at a time."""

    def __init__(self, order: Order) -> None:
        assert order.signature is not None
        self._order = order
        self._files = {one.name: Path(one.model) for one in order.timed}
        self.sizes = {one.name: order.rows if one.batchable else (1,) for one in order.timed}
        samples = samples_of(order, order.signature)
        # Copies: a view would keep all samples in memory.
        feed = {name: array.copy() for name, array in samples.feed(order.judged[0]).items()}
        self._feed: dict[str, Any] = feed
        self._bench = Bench({}, order.device_kind, order.threads, Clocks(cpu=time.perf_counter))
        self._open: dict[CandidateName, OnnxEngine] = {}

    def run_ms(self, name: CandidateName, rows: int) -> float:
        """Return the milliseconds of a run, for a moment's mean."""
        return self._bench.run_ms(self._engine(name), repeated(self._feed, rows), CHUNKS)

    def _engine(self, name: CandidateName) -> OnnxEngine:
        """Return a file's engine, warm at all its sizes. Closes the others, unless all fit."""
        if name not in self._open:
            if not self._order.together:
                self._open.clear()
            engine = OnnxEngine(
                self._files[name],
                device_kind=self._order.device_kind,
                threads=self._order.threads,
            )
            for rows in self.sizes[name]:
                engine.run(repeated(self._feed, rows), engine.ticket())
            self._open[name] = engine
        return self._open[name]
