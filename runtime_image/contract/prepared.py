"""How the files of a prepared model are named, asked for and described, on both sides.

A trial that was told to prepare says so in its report and then listens on its data socket for
FETCH frames, whose `aux` is a `Part`. It answers each with PART frames of the same id and an END.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NotRequired, TypedDict

FOLDER: Final = ".prepared"
"""Of prepared files, below a replica's model folder; no bundle may hold such a path."""
GRAPH_FILE: Final = "graph.onnx"
WEIGHTS_FILE: Final = "weights.bin"
"""The graph names this one as the place of its weights."""
PART_MAX: Final = 1024 * 1024
"""Bytes of one PART."""
DESCRIPTION_MAX: Final = 64 * 1024
PREPARES: Final = "prepares"
"""In a trial's report: whether it goes on to prepare, so that it is worth waiting for."""


class Part(IntEnum):
    """What a FETCH asks for."""

    DESCRIPTION = 0
    GRAPH = 1
    WEIGHTS = 2


class Timing(TypedDict):
    """Of one kind of session: load and first run in milliseconds, CPU time per run in
    milliseconds by rows."""

    load_ms: float
    first_ms: float
    cpu_ms: dict[str, float]


class Described(TypedDict):
    """The description. `why_not` says why there are no files; all else is there where it is ""."""

    why_not: str
    preparation: NotRequired[dict[str, Any]]
    """`Preparation` as JSON."""
    sizes: NotRequired[list[int]]
    """Bytes of the graph and of the weights, 0 where there is no such file."""
    original: NotRequired[Timing]
    quick: NotRequired[Timing]
    fast: NotRequired[Timing | None]


def files_max(bundle_bytes: int) -> int:
    """Bytes that all prepared files of a bundle may have: some graphs grow when constants are
    worked out ahead, but one that grows without end is not to fill a disk."""
    return 2 * bundle_bytes + 64 * 1024 * 1024


def patience_s(bundle_bytes: int) -> float:
    """How long a trial may take to prepare, and its server to fetch what it made."""
    return 30.0 + 30.0 * bundle_bytes / 2**30
