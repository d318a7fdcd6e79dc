"""How much the tests with a dose do: a part of it in `make test`, all of it in `make test-full`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

IS_FULL = os.environ.get("FN_FULL") == "1"


def dose(part: T, whole: T) -> T:
    """`whole` in `make test-full`, else `part`."""
    return whole if IS_FULL else part
