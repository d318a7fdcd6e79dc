"""Scans of bodies at /v1 without turns of the loop in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def run(scanning: Generator[None, None, T]) -> T:
    """Return the result of a scan."""
    while True:
        try:
            next(scanning)
        except StopIteration as stop:
            found: T = stop.value
            return found
