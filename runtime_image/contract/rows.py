"""Verdict of the row-independence analysis, as used by trials, profiles and `why`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PROOF: Final = 1
"""Version of the analysis and of the measured comparison. Profiles with a smaller number come from
weaker rules and are not trusted: their functions run one request at a time."""
CONSTANT: Final = ""
"""Replaces an input's name in a group of `equal_axes`: the number beside it is a constant size."""


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """Whether row i of every output depends on row i of the inputs alone.

    `analysed` is false if the analysis crashed, ran out of time or memory, or could not read the
    model; `proven` is false then, too. `reason` is "" if proven, otherwise one sentence with the
    operator and its node; `operator` is the type alone ("Softmax", "com.microsoft.Attention"), ""
    if no single operator is the cause.

    `equal_axes` are the conditions of the proof: groups of (input name, axis) whose sizes must be
    equal in every request; (CONSTANT, n) stands for the size n itself. Rows of a request that
    violates one must never be batched with others.
    """

    analysed: bool
    proven: bool
    reason: str = ""
    operator: str = ""
    equal_axes: tuple[tuple[tuple[str, int], ...], ...] = ()
