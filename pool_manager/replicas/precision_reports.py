"""Checks of the table that a trial reports about candidates of other precision. Pure.

The trial may run foreign code. The table decides which file is served, so the server judges the
chosen candidate by its own tolerance again.
"""

from __future__ import annotations

import math
from typing import Any, Final, get_args

from pool_manager.replicas.messages import count, is_number, number, text
from registry.model.bundles import BundleFile
from registry.model.profiles import Optimised
from runtime_image.contract.model import files_max
from runtime_image.contract.precision import (
    FOLDER,
    MODEL_FILE,
    CandidateName,
    CandidateReport,
    ColumnReport,
    Optimisation,
    PrecisionReport,
    error_max,
)
from runtime_image.link.frames import LinkError

REPORTED: Final = "precision"
"""Key of a trial's report with the table."""
CANDIDATE_FILE: Final = f"{FOLDER}/{MODEL_FILE}"
ORIGINAL: Final = "original"
ROWS_MAX: Final = 16
"""Max batch sizes with which one candidate is measured."""
TEXT_MAX: Final = 1000
NAME_MAX: Final = 200
ROUNDING: Final = 1e-6
"""Slack of comparisons with the tolerance: figures may be rounded."""
_ALLOWED: Final = {
    "fp16": ("fp16",),
    "int8": ("int8", "int8-dynamic"),
    "auto": get_args(CandidateName),
}
_MEASURED: Final = ("memory_mib", "largest_difference")
_SHARES: Final = {"cosine": -1.0, "same_label": 0.0}
"""Figures up to 1, and their smallest value."""


def optimised(data: Any, wanted: Optimisation, model: str, bundle_bytes: int) -> Optimised:
    """Parse the table of a trial that was asked for candidates; return it with the chosen file,
    still without its hash. `model` is the path of the original. Raises LinkError on a malformed
    table, and on a choice that the settings do not allow.

    Only numbers, flags and reasons are taken from it; the file's name is chosen by this server.
    """
    try:
        table = _table(data, wanted)
        size = _size(data, table, bundle_bytes)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LinkError(f"malformed report of precision: {error!r}"[:300]) from error
    return Optimised(model, table, BundleFile(CANDIDATE_FILE, size, "") if size else None)


def _table(data: Any, wanted: Optimisation) -> PrecisionReport:
    rows = data["candidates"]
    if not isinstance(rows, list) or not 1 <= len(rows) <= len(get_args(CandidateName)):
        raise ValueError("candidates: expected a list of 1 to 4")
    found = [_candidate(row, wanted.tolerance) for row in rows]
    names = [one["name"] for one in found]
    if len(set(names)) < len(names) or ORIGINAL not in names:
        raise ValueError(f"candidates: expected different ones and the original, got {names}")
    if data["chosen"] not in names or data["chosen"] not in _ALLOWED[wanted.precision]:
        raise ValueError(
            f"chosen: expected one of {_ALLOWED[wanted.precision]} among {names},"
            f" got {str(data['chosen'])[:80]!r}"
        )
    chosen = found[names.index(data["chosen"])]
    _check_chosen(chosen, wanted)
    return PrecisionReport(
        chosen=chosen["name"],
        candidates=found,
        tolerance=wanted.tolerance,
        calibrated=count(data["calibrated"]),
        judged=count(data["judged"]),
        source="samples" if data["source"] == "samples" else "synthetic",
        rules=count(data.get("rules", 0)),
    )


def _candidate(row: dict[str, Any], tolerance: float) -> CandidateReport:
    """Return one row. An implausible figure is left out: a broken candidate may differ by more
    than a number can say."""
    if row["name"] not in get_args(CandidateName):
        raise ValueError(f"name: expected {get_args(CandidateName)}, got {str(row['name'])[:80]!r}")
    found = CandidateReport(name=row["name"], why_not=text(row["why_not"], TEXT_MAX))
    latencies = list(row.get("latency_ms", {}).items())[:ROWS_MAX]
    if latencies:
        found["latency_ms"] = {str(count(int(rows))): number(ms) for rows, ms in latencies}
    for key in _MEASURED:
        if is_number(row.get(key)):
            found[key] = float(row[key])
    for key, least in _SHARES.items():
        value = row.get(key)
        if isinstance(value, int | float) and least <= value <= 1.0 + ROUNDING:
            found[key] = float(value)  # type: ignore[literal-required] # keys of the type
    if "column" in row:
        found["column"] = _column(row["column"], tolerance)
    if "file_bytes" in row:
        found["file_bytes"] = count(row["file_bytes"], 2**53)
    if "batchable" in row:
        found["batchable"] = bool(row["batchable"])
    return found


def _column(data: dict[str, Any], tolerance: float) -> ColumnReport:
    gain = data["gain"]
    return ColumnReport(
        output=text(data["output"], NAME_MAX),
        part=text(data["part"], NAME_MAX),
        error=number(data["error"]),
        error_max=error_max(tolerance, is_constant=gain is None),
        spread=_finite(data["spread"]),
        bias=_finite(data["bias"]),
        gain=None if gain is None else _finite(gain),
    )


def _finite(value: Any) -> float:
    """Return a number of either sign; a broken candidate may have any."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {str(value)[:80]!r}")
    return float(value)


def _check_chosen(chosen: CandidateReport, wanted: Optimisation) -> None:
    if chosen["why_not"]:
        raise ValueError(f"chosen: expected no reason against it, got {chosen['why_not'][:80]!r}")
    if chosen["name"] == ORIGINAL:
        return
    # A model whose only output is a label has no cosine.
    shares = [chosen[key] for key in _SHARES if key in chosen]  # type: ignore[literal-required]
    if not shares or min(shares) < 1.0 - wanted.tolerance - ROUNDING:
        raise ValueError(
            f"chosen: expected agreement within {wanted.tolerance}, got cosine"
            f" {chosen.get('cosine')}, same_label {chosen.get('same_label')}"
        )
    column = chosen.get("column")
    if "cosine" in chosen and column is None:
        raise ValueError("chosen: expected its worst column, got none")
    if column is not None and column["error"] > column["error_max"] + ROUNDING:
        raise ValueError(
            f"chosen: expected an error of at most {column['error_max']} of a column, got"
            f" {column['error']}"
        )


def _size(data: dict[str, Any], table: PrecisionReport, bundle_bytes: int) -> int:
    """Return the bytes of the chosen file, 0 for the original."""
    if table["chosen"] == ORIGINAL:
        return 0
    size = count(data["size"], files_max(bundle_bytes))
    if not size:
        raise ValueError("size: expected the bytes of the chosen candidate, got 0")
    table["size"] = size
    return size
