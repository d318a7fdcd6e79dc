"""Rendering of the candidates of other precision that a deploy measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from admin.text import NONE, duration, number, size, table

if TYPE_CHECKING:
    from runtime_image.contract.precision import CandidateReport, ColumnReport, PrecisionReport

KNEE: Final = 0.9
HEAD: Final = (
    "PRECISION",
    "ONE ROW",
    "PER ROW",
    "MEMORY",
    "FILE",
    "COSINE",
    "WORST COLUMN",
    "SAME LABEL",
    "BATCHES",
    "SERVES",
)


def render_precision(report: PrecisionReport | None) -> str:
    """Render the table of a deploy with [optimise], and why each candidate does not serve; ""
    without one."""
    if report is None:
        return ""
    candidates, rows = report["candidates"], compared_rows(report)
    lines = [table(HEAD, [_row(one, report["chosen"], rows) for one in candidates])]
    lines += [f"{one['name']}: {one['why_not']}" for one in candidates if one["why_not"]]
    # The reason against a candidate has the figures of a column that is not within the tolerance.
    lines += [
        f"{one['name']}: {_figures(column)}"
        for one in candidates
        if (column := one.get("column")) and column["error"] <= column["error_max"]
    ]
    calibrated, count = report["calibrated"], report["judged"]
    text = f", {calibrated} others calibrated" if calibrated else ""
    source = "sample" if report["source"] == "samples" else "random input"
    judged = f"{count} {source}{'' if count == 1 else 's'}{text}"
    return "\n".join([*lines, f"judged by {judged}; tolerance {report['tolerance']}"])


def summary(report: PrecisionReport) -> str:
    """Return the choice in one line."""
    rows = {one["name"]: one for one in report["candidates"]}
    name = report["chosen"]
    if name == "original":
        others = [one for one in rows if one != name]
        return f"the original; fnctl show says why not {' or '.join(others)}"
    parts, chosen, together = [str(name)], rows[name], compared_rows(report)
    before, now = row_ms(_original(report), together), row_ms(chosen, together)
    if before and now:
        parts.append(f"{duration(now[0])} per row instead of {duration(before[0])}")
    if "same_label" in chosen:
        parts.append(f"same label {_share(chosen['same_label'])}")
    if "column" in chosen:
        column = chosen["column"]
        parts.append(f"error {_percent(column['error'])} in {_place(column)}")
    elif "cosine" in chosen:
        parts.append(f"cosine {chosen['cosine']:.5f}")
    return ", ".join(parts)


def compared_rows(report: PrecisionReport) -> int:
    """Return the rows of a run at which the trial compared times: beyond them larger batches of the
    original saved less than a tenth per row (`knee` of the trial); 1 if its rows are not joined."""
    original = _original(report)
    found, best = 1, float("inf")
    latencies = original.get("latency_ms", {})
    for rows, ms in sorted((int(rows), ms) for rows, ms in latencies.items()):
        if ms / rows < best * KNEE and (rows == 1 or original.get("batchable")):
            found, best = rows, ms / rows
    return found


def _original(report: PrecisionReport) -> CandidateReport:
    """Return the row of the original, without measurements if there is none."""
    unmeasured: CandidateReport = {"name": "original", "why_not": ""}
    return next((one for one in report["candidates"] if one["name"] == "original"), unmeasured)


def row_ms(one: CandidateReport, rows: int) -> tuple[float, int] | None:
    """Return a candidate's milliseconds per row in runs of `rows`, or of one row if its rows are
    not joined; and the rows of that run."""
    latencies = one.get("latency_ms", {})
    together = rows if one.get("batchable") and str(rows) in latencies else 1
    ms = latencies.get(str(together))
    return None if ms is None else (ms / together, together)


def _row(one: CandidateReport, chosen: str, rows: int) -> tuple[str, ...]:
    best, single = row_ms(one, rows), one.get("latency_ms", {}).get("1")
    batches = NONE
    if "batchable" in one:
        batches = "yes" if one["batchable"] else "no"
    return (
        one["name"],
        duration(single) if single is not None else NONE,
        f"{duration(best[0])} at {best[1]}" if best else NONE,
        f"{number(one['memory_mib'])} MiB" if "memory_mib" in one else NONE,
        size(one["file_bytes"]) if "file_bytes" in one else NONE,
        f"{one['cosine']:.5f}" if "cosine" in one else NONE,
        f"{_percent(one['column']['error'])} {_place(one['column'])}" if "column" in one else NONE,
        _share(one["same_label"]) if "same_label" in one else NONE,
        batches,
        "yes" if one["name"] == chosen else NONE,
    )


def _share(value: float) -> str:
    return f"{value:.1%}"


def _figures(column: ColumnReport) -> str:
    """Return the figures of the column that agrees least, and what is permitted."""
    if column["gain"] is None:
        of, gain = "its magnitude, it is constant", ""
    else:
        of, gain = f"its spread {column['spread']:.3g}", f", gain {column['gain']:.4g}"
    return (
        f"{_place(column)} has an error of {_percent(column['error'])} of {of}, at most"
        f" {_percent(column['error_max'])} is permitted; bias {column['bias']:+.3g}{gain}"
    )


def _place(column: ColumnReport) -> str:
    return f"{column['output']} {column['part']}".rstrip()


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
