"""Amount of work per test: a small dose in `make test`, the full one in `make test-full`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

IS_FULL = os.environ.get("FN_FULL") == "1"


def amount(small: T, full: T) -> T:
    """`full` in `make test-full` (FN_FULL=1), else `small`."""
    return full if IS_FULL else small
