"""List of all models that mix rows."""

from __future__ import annotations

from typing import Final

from tests.support.row_models import (
    axes,
    counting,
    domains,
    flow,
    indexing,
    reported,
    shapes,
)

MIXING: Final = (
    *reported.CASES,
    *axes.CASES,
    *indexing.CASES,
    *counting.CASES,
    *shapes.CASES,
    *flow.CASES,
    *domains.CASES,
)
