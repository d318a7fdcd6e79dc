"""The verdict of the row-independence analysis, as the trial, the profile and `why` read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PROOF: Final = 1
"""Version of the analysis and of the measured comparison. A profile with a smaller number was
judged by weaker rules and is not believed: its functions run one request at a time."""
CONSTANT: Final = ""
"""In a group of `equal_axes`, in place of an input's name: the number beside it is a size."""


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """Whether row i of every output depends on row i of the inputs alone.

    `analysed` is false where the analysis crashed, ran out of time or memory, or could not read the
    model; `proven` is false then, too. `reason` is "" when proven, else one sentence that names the
    operator and its node; `operator` is the type alone ("Softmax", "com.microsoft.Attention"), ""
    where no single operator is the cause.

    `equal_axes` are the conditions of the proof: groups of (input name, axis) whose sizes are equal
    in every request, (CONSTANT, n) standing for the size n itself. Rows of a request that violates
    one must never join others.
    """

    analysed: bool
    proven: bool
    reason: str = ""
    operator: str = ""
    equal_axes: tuple[tuple[tuple[str, int], ...], ...] = ()
