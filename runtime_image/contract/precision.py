"""Precision of a model: candidates that a trial makes and measures beside the original."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict

Precision = Literal["fp32", "fp16", "int8", "auto"]
"""Precision that the owner asks for; "fp32" leaves the model as it is, "auto" takes the fastest
candidate within the tolerance."""
CandidateName = Literal["original", "fp16", "int8", "int8-dynamic"]
"""int8: static quantisation, calibrated with samples. int8-dynamic: scales are computed for every
run from all its rows, so runs are never joined."""
FOLDER: Final = ".optimised"
"""Folder of a candidate's file in a replica's model folder; bundles must not contain this path."""
MODEL_FILE: Final = "model.onnx"
"""Name of the candidate there, weights included."""
CALIBRATION_MIN: Final = 32
"""Min samples for the calibration of static quantisation."""
JUDGED_MIN: Final = 64
"""Min further samples that judge an INT8 candidate."""
RULES: Final = 1
"""Version of the rules by which candidates are judged. A candidate that was chosen by weaker rules
is judged again."""
SPREAD_SHARE: Final = 2.0
CONSTANT_SHARE: Final = 0.1
"""Errors that a tolerance of 1 permits: of a column, as a share of its spread, and of a constant
column, as a share of its magnitude."""


@dataclass(frozen=True, slots=True)
class Optimisation:
    """The manifest's [optimise] as a trial gets it.

    `samples` is the bundle's file with inputs (.npz: one array per input, equal rows), "" for none.
    `labels` is the output whose largest entry is the label, "" for none. A candidate is within
    `tolerance` if no column's error is above `error_max`, no output's cosine similarity to the
    original's is below 1 - `tolerance`, and no larger share of the samples changes its label.
    """

    precision: Precision
    tolerance: float
    samples: str = ""
    labels: str = ""


class ColumnReport(TypedDict):
    """The column of a candidate's outputs that agrees least with the original's."""

    output: str
    part: str
    """Name of the column in the output, such as "column 3"; "" if it is the only one."""
    error: float
    """Root of the mean squared error, as a share of the column's spread in the original; of a
    constant column, of its magnitude."""
    error_max: float
    """Largest `error` within the tolerance."""
    spread: float
    """Standard deviation of the original, in units of the output; 0 for a constant column."""
    bias: float
    """Mean error, in units of the output."""
    gain: float | None
    """Slope of the candidate on the original; null for a constant column."""


class CandidateReport(TypedDict):
    """One row of the table. `why_not` is "" for the chosen candidate, and for no other one but the
    original if that is chosen."""

    name: CandidateName
    why_not: str
    latency_ms: NotRequired[dict[str, float]]
    """Milliseconds per run, by rows."""
    memory_mib: NotRequired[float]
    file_bytes: NotRequired[int]
    cosine: NotRequired[float]
    largest_difference: NotRequired[float]
    same_label: NotRequired[float]
    """Share of the judged samples whose label is the original's."""
    column: NotRequired[ColumnReport]
    """Absent without an output of floats, and in tables of earlier rules."""
    batchable: NotRequired[bool]


class PrecisionReport(TypedDict):
    """Table of a trial, in its report as `precision`. `judged` counts samples, `source` tells where
    they come from: "samples" (the owner's) or "synthetic"."""

    chosen: CandidateName
    candidates: list[CandidateReport]
    tolerance: float
    calibrated: int
    judged: int
    source: Literal["samples", "synthetic"]
    rules: NotRequired[int]
    """Version of the rules; absent in tables from before they had versions."""
    size: NotRequired[int]
    """Bytes of the chosen candidate's file, sent for FETCH with `Part.OPTIMISED`; absent for the
    original."""


def error_max(tolerance: float, *, is_constant: bool = False) -> float:
    """Return the largest error of a column within a tolerance, as in `ColumnReport`."""
    return tolerance * (CONSTANT_SHARE if is_constant else SPREAD_SHARE)


def patience_s(bundle_bytes: int) -> float:
    """Return the seconds a trial has to make and measure its candidates, before it sends LOADED."""
    return 300.0 + 600.0 * bundle_bytes / 2**30


def optimisation_from_json(data: dict[str, Any]) -> Optimisation:
    """Rebuild an optimisation from `asdict`. Raises TypeError on unknown or missing fields."""
    return Optimisation(**data)
