"""What a network of the row models says of itself before it is exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

BOTH: Final = ("torchscript", "dynamo")
SAMPLE_SIZE: Final = 7
"""Size that a dynamic axis other than the batch has during the export."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a network; the batch axis comes before `dims`.

    A name in `dims` is a dynamic axis, a number a fixed one. `below` is 0 for float32 values, else
    the input holds int64 values from 0 to `below` - 1.
    """

    name: str
    dims: tuple[int | str, ...]
    below: int = 0


@dataclass(frozen=True, slots=True)
class Network:
    """A torch module with random weights and how to export it."""

    name: str
    family: str
    build: Callable[[], Any]
    inputs: tuple[Input, ...]
    exporters: tuple[str, ...] = BOTH
    leaks: Mapping[str, str] = field(default_factory=dict)
    """Why rows mix, by the exporters with which they do."""
    unjudged: Mapping[str, str] = field(default_factory=dict)
    """The operator at which the analysis gives up, by the exporters with which it does."""
