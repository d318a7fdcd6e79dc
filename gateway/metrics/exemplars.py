"""Which request a bucket of a histogram was last of: the way from a number to its trace or log."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

Labels = tuple[str, ...]
"""Label names and values in turns."""

CHARACTERS_MAX: Final = 128
"""Of all names and values of one exemplar together: OpenMetrics 1.0, section "Exemplars"."""
FRESH_S: Final = 1.0
"""How long a bucket keeps its exemplar: a new one for each request would cost as much as counting
it, and Prometheus scrapes less often."""
_TRACEPARENT: Final = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")
"""W3C Trace Context: version, trace id, parent id, flags."""
_SAMPLED: Final = 0x01


class Exemplar(NamedTuple):
    """A request by its `labels`, the value that was observed of it, and when (Unix seconds)."""

    labels: Labels
    value: float
    at_s: float

    def is_fresh(self, at_s: float) -> bool:
        """Whether it is good enough at `at_s`; not so after the clock was set back."""
        return 0.0 <= at_s - self.at_s < FRESH_S


class Marked(NamedTuple):
    """The exemplar of one sample, which is known by its name and labels."""

    name: str
    labels: Labels
    exemplar: Exemplar


def exemplar_of(request_id: str, traceparent: str) -> Labels | None:
    """What leads to a request: its id and its trace, where that is kept. "" is what it has not, and
    an id that leaves no room for the trace is left out; None where there is nothing to say."""
    labels: Labels = ()
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    if found is not None and int(found[2], 16) & _SAMPLED:
        labels = ("trace_id", found[1])
    if request_id and sum(map(len, labels)) + len("request_id" + request_id) <= CHARACTERS_MAX:
        labels = ("request_id", request_id, *labels)
    return labels or None
