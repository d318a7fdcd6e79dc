"""Chooses among the measured candidates of a model. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from runtime_image.contract.precision import (
    CALIBRATION_MIN,
    JUDGED_MIN,
    CandidateName,
    CandidateReport,
    ColumnReport,
    Optimisation,
    Precision,
    error_max,
)
from runtime_image.verification import proof
from runtime_image.verification.precision.agreement import Agreement
from runtime_image.verification.precision.columns import Column

CANDIDATES: Final[Mapping[Precision, tuple[CandidateName, ...]]] = {
    "fp32": (),
    "fp16": ("fp16",),
    "int8": ("int8", "int8-dynamic"),
    "auto": ("fp16", "int8", "int8-dynamic"),
}
"""Candidates that are made for each precision."""
GAIN: Final = 0.1
GAIN_MS: Final = 0.02
"""Min share of the original's time per row that "auto" must save, and min milliseconds per run at
its best batch: less is noise of the measurement, and little beside the rest of a call."""
ROUNDING: Final = 1e-9
PLACES: Final = 6
"""Decimal places of the least cosine similarity."""
FINE_PLACES: Final = 9
"""Decimal places if the tolerance is smaller than one of the last of `PLACES`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One model file. `why_not` is the reason why it could not be made or measured; the other
    fields are its figures up to there, as in `CandidateReport`. `rounds_ms` are milliseconds per
    run, by rows: one figure for each round, in which all files ran in turn."""

    name: CandidateName
    why_not: str = ""
    rounds_ms: Mapping[int, Sequence[float]] = field(default_factory=dict)
    batchable: bool | None = None
    memory_mib: float | None = None
    file_bytes: int | None = None
    agreement: Agreement | None = None

    @property
    def latency_ms(self) -> dict[int, float]:
        """Milliseconds per run, by rows: of the fastest round, as other work only adds time."""
        return {rows: round(min(found), 4) for rows, found in self.rounds_ms.items()}

    def row_ms(self, rows: int) -> list[float]:
        """Return the milliseconds per row of each round, in runs of `rows`, or alone if rows are
        not joined."""
        together = rows if self.batchable and rows in self.rounds_ms else 1
        return [ms / together for ms in self.rounds_ms[together]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen file and why the others were not, by name. `chosen` is None if the owner demands a
    precision that no candidate has within the tolerance; `refused` is then the reason."""

    chosen: CandidateName | None
    why_not: Mapping[CandidateName, str]
    refused: str = ""


def choose(
    optimisation: Optimisation,
    original: Measured,
    candidates: Sequence[Measured],
    *,
    must_join: bool = False,
) -> Choice:
    """Return the file to serve.

    A demanded precision takes the fastest candidate within the tolerance. "auto" takes it only if
    it saves `GAIN` of the original's time per row, at the original's best batch, by the `share` of
    all rounds. `must_join`: the owner requires joined runs, so a candidate must not lose them.
    """
    is_auto = optimisation.precision == "auto"
    rows = proof.knee(original.latency_ms) if original.batchable else 1
    why_not: dict[CandidateName, str] = {}
    for one in candidates:
        why_not[one.name] = (
            why_outside(one, optimisation.tolerance)
            or (_why_not_joined(original, one) if must_join else "")
            or (_why_too_slow(original, one, rows) if is_auto else "")
        )
    taken = [one for one in candidates if not why_not[one.name]]
    if not taken and is_auto:
        return Choice("original", {**why_not, "original": ""})
    if not taken:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in why_not.items())
        return Choice(None, why_not, f'precision = "{optimisation.precision}": {reasons}')
    before = original.row_ms(rows)
    best = min(taken, key=lambda one: share(before, one.row_ms(rows)))
    why_not |= {one.name: f"{best.name} is faster" for one in taken if one is not best}
    asked = "" if is_auto else f'precision = "{optimisation.precision}" in function.toml: '
    return Choice(best.name, {**why_not, "original": asked + _why_replaced(original, best, rows)})


def share(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the share of the original's time that a candidate takes, by the times of both in the
    same rounds: the ratio of the fastest rounds or the median of the rounds' ratios, whichever is
    larger.

    A slow phase that is longer than a round changes both times of a round, so it moves few ratios
    and not their median. Where a round is longer than a phase, any ratio may be wrong, but each
    file probably has a round without a slow phase. A candidate must be faster by both.
    """
    pairs = zip(before, after, strict=True)
    return max(min(after) / min(before), statistics.median(own / one for one, own in pairs))


def why_outside(one: Measured, tolerance: float) -> str:
    """Return "" if the candidate is within the tolerance, else the reason with figures."""
    if one.why_not:
        return one.why_not
    found = one.agreement
    if found is None or found.broken:
        return found.broken if found else "it was not compared"
    if found.column is not None and found.column.disagreement > tolerance + ROUNDING:
        return column_text(found.column, tolerance)
    if found.cosine is not None and found.cosine < 1 - tolerance - ROUNDING:
        places = PLACES if tolerance >= 10**-PLACES else FINE_PLACES
        return (
            f"output {found.output}: its cosine similarity to the original is"
            f" {found.cosine:.9g}, at least {1 - tolerance:.{places}g} is needed;"
            f" the largest difference is {found.largest_difference:.3g}"
        )
    if found.same_label is not None and 1 - found.same_label > tolerance + ROUNDING:
        changed = round((1 - found.same_label) * found.samples)
        return (
            f"{changed} of {found.samples} samples get another label,"
            f" at most {tolerance * found.samples:.1f} may"
        )
    return ""


def column_text(column: Column, tolerance: float) -> str:
    """Return the figures of a column that is not within the tolerance."""
    is_constant = column.gain is None
    most = error_max(tolerance, is_constant=is_constant)
    of = "the magnitude of the constant column" if is_constant else "the column's spread"
    place = f" {column.part}" if column.part else ""
    figures = f"bias {column.bias:+.3g}"
    if column.gain is not None:
        figures = f"spread {column.spread:.3g}, {figures}, gain {column.gain:.3g}"
    return (
        f"output {column.output}{place}: expected an error of at most {_percent(most)} of {of},"
        f" got {_percent(column.error)} ({figures})"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def why_not_offered(name: CandidateName, source: str, calibrated: int, judged: int) -> str:
    """Return "" if there are samples enough to make and judge a candidate."""
    if name == "fp16":
        known = "no input is known that the model accepts: give a [sample] or optimise.samples"
        return "" if judged else known
    if source != "samples":
        return "INT8 is judged with the owner's inputs only: give optimise.samples"
    if judged < JUDGED_MIN:
        return f"expected at least {JUDGED_MIN} different samples that judge, got {judged}"
    if name == "int8" and not calibrated:
        return (
            f"expected at least {CALIBRATION_MIN + JUDGED_MIN} different samples,"
            f" {CALIBRATION_MIN} to calibrate and {JUDGED_MIN} to judge, got {judged}"
        )
    return ""


def row_of(one: Measured, why_not: str, tolerance: float) -> CandidateReport:
    """Return the candidate's row of the table."""
    row: CandidateReport = {"name": one.name, "why_not": why_not}
    if one.rounds_ms:
        row["latency_ms"] = {str(rows): ms for rows, ms in sorted(one.latency_ms.items())}
    if one.memory_mib is not None:
        row["memory_mib"] = one.memory_mib
    if one.file_bytes is not None:
        row["file_bytes"] = one.file_bytes
    if one.batchable is not None:
        row["batchable"] = one.batchable
    if (found := one.agreement) is not None:
        if found.cosine is not None:
            row["cosine"] = round(found.cosine, FINE_PLACES)
        if found.largest_difference is not None:
            row["largest_difference"] = found.largest_difference
        if found.same_label is not None:
            row["same_label"] = round(found.same_label, 6)
        if (column := found.column) is not None:
            row["column"] = ColumnReport(
                output=column.output,
                part=column.part,
                error=column.error,
                error_max=error_max(tolerance, is_constant=column.gain is None),
                spread=column.spread,
                bias=column.bias,
                gain=column.gain,
            )
    return row


def _why_not_joined(original: Measured, one: Measured) -> str:
    if one.batchable or not original.batchable:
        return ""
    return 'its runs cannot be joined, and function.toml has [batching] mode = "always"'


def _why_too_slow(original: Measured, one: Measured, rows: int) -> str:
    before, after = original.row_ms(rows), one.row_ms(rows)
    before_ms, after_ms = min(before), min(after)
    took = f"a row takes {after_ms:.3g} ms, with the original {before_ms:.3g} ms"
    taken = share(before, after)
    if taken > 1 - GAIN:
        if after_ms <= (1 - GAIN) * before_ms:
            took += f", but {taken:.0%} of its time in the median of {len(after)} rounds"
        return f"{took}: less than {GAIN:.0%} is saved"
    if (before_ms - after_ms) * rows < GAIN_MS:
        return f"{took}: less than {GAIN_MS} ms of a run is saved"
    return ""


def _why_replaced(original: Measured, best: Measured, rows: int) -> str:
    return (
        f"{best.name} takes {min(best.row_ms(rows)):.3g} ms for a row,"
        f" the original {min(original.row_ms(rows)):.3g} ms"
    )
