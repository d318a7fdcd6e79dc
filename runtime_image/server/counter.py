"""A server's own counter of its work, read from its metrics in Prometheus' text format.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import math
import re
from itertools import islice
from typing import Final

BODY_MAX: Final = 4 * 1024 * 1024
"""Max bytes of an answer that are read; one that is longer counts as none."""
LIMIT_S: Final = 5.0
"""Seconds after which the metrics count as not answered."""
SERIES_MAX: Final = 10_000
"""Max label sets of the metric that are added up, the first ones."""
_LINE: Final = (
    rb'(?m)^[ \t]*+%b(?:[ \t]*+\{(?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+\}[ \t]*+|[ \t]++)(\S++)'
)
"""A line of a metric: name, labels with texts in quotes, value. Without backtracking."""


def read_counter(answer: bytes, name: str) -> float | None:
    """Return the sum of a metric over its labels in an HTTP answer, None if it has no such metric.

    Lines of other metrics, and values that are no finite number, are skipped. Pure.
    """
    values = [
        value
        for line in islice(re.finditer(_LINE % re.escape(name.encode()), answer), SERIES_MAX)
        if math.isfinite(value := _number(line[1]))
    ]
    total = sum(values)
    return total if values and math.isfinite(total) else None


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
