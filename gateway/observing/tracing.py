"""Decides which requests are traced, and hands their records over."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from gateway.observing import trace_context
from gateway.observing.handover import Handover, Write
from gateway.observing.record import RequestRecord
from gateway.observing.trace_context import Trace

BATCHES_MAX: Final = 8
"""Batches that may wait for a collector that is slow: some 2,000 requests."""


class Tracer:
    """`write` has the records of traced requests, in a thread of its own.

    Whoever sent a trace along has decided whether it is recorded. Of all other requests the share
    `ratio` is. `ended` is called at the end, in the thread, behind the last record.
    """

    def __init__(
        self,
        ratio: float,
        write: Write[RequestRecord],
        random: Random,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self._ratio = ratio
        self._random = random
        self._records = Handover("traces", write, batches_max=BATCHES_MAX, ended=ended)
        self.note = self._records.note
        self.flush = self._records.flush
        self.close = self._records.close

    def begin(self, traceparent: str) -> Trace | None:
        """The trace of a request that came with this header, which `trace_context.read` let
        through, or "" ; None where it is not recorded."""
        random = self._random
        if traceparent:
            if not trace_context.is_sampled(traceparent):
                return None
            return trace_context.continued(traceparent, _id(random, 64))
        if random.random() >= self._ratio:
            return None
        return trace_context.begun(_id(random, 128), _id(random, 64))


def _id(random: Random, bits: int) -> str:
    """As the standard has it: not all zeros."""
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"
