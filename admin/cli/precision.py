"""Rendering of the candidates of other precision that a deploy measured."""

from __future__ import annotations

from typing import Any, Final

from admin.text import NONE, duration, get, number, size, table

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


def render_precision(report: dict[str, Any] | None) -> str:
    """Render the table of a deploy with [optimise], and why each candidate does not serve; ""
    without one."""
    if not report:
        return ""
    candidates = report.get("candidates") or []
    rows = compared_rows(report)
    lines = [table(HEAD, [_row(one, get(report, "chosen"), rows) for one in candidates])]
    lines += [f"{get(one, 'name')}: {one['why_not']}" for one in candidates if one.get("why_not")]
    # The reason against a candidate has the figures of a column that is not within the tolerance.
    lines += [
        f"{get(one, 'name')}: {_figures(column)}"
        for one in candidates
        if (column := one.get("column")) and column["error"] <= column["error_max"]
    ]
    calibrated = report.get("calibrated") or 0
    text = f", {calibrated} others calibrated" if calibrated else ""
    count = int(report.get("judged") or 0)
    judged = f"{count} {_source(report)}{'' if count == 1 else 's'}{text}"
    return "\n".join([*lines, f"judged by {judged}; tolerance {get(report, 'tolerance')}"])


def summary(report: dict[str, Any] | None) -> str:
    """Return the choice in one line; "" if the deploy made no candidates."""
    if not report:
        return ""
    rows = {get(one, "name"): one for one in report.get("candidates") or []}
    chosen = rows.get(get(report, "chosen")) or {}
    if get(chosen, "name") == "original":
        others = [name for name, one in rows.items() if one is not chosen]
        return f"the original; fnctl show says why not {' or '.join(others)}"
    parts = [get(chosen, "name")]
    together = compared_rows(report)
    before, now = (row_ms(one, together) for one in (rows.get("original") or {}, chosen))
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


def compared_rows(report: dict[str, Any]) -> int:
    """Return the rows of a run at which the trial compared times: beyond them larger batches of the
    original saved less than a tenth per row (`knee` of the trial); 1 if its rows are not joined."""
    candidates = report.get("candidates") or []
    named = {get(one, "name"): one for one in candidates}
    original: dict[str, Any] = named.get("original", {})
    found, best = 1, float("inf")
    for rows, ms in sorted((int(rows), ms) for rows, ms in _latencies(original).items()):
        if ms / rows < best * KNEE and (rows == 1 or original.get("batchable")):
            found, best = rows, ms / rows
    return found


def row_ms(one: dict[str, Any], rows: int) -> tuple[float, int] | None:
    """Return a candidate's milliseconds per row in runs of `rows`, or of one row if its rows are
    not joined; and the rows of that run."""
    latencies = _latencies(one)
    together = rows if one.get("batchable") and str(rows) in latencies else 1
    ms = latencies.get(str(together))
    return None if ms is None else (ms / together, together)


def _latencies(one: dict[str, Any]) -> dict[str, float]:
    return {rows: float(ms) for rows, ms in (one.get("latency_ms") or {}).items()}


def _row(one: dict[str, Any], chosen: str, rows: int) -> tuple[str, ...]:
    latencies, best = one.get("latency_ms") or {}, row_ms(one, rows)
    single = latencies.get("1")
    return (
        get(one, "name"),
        duration(float(single)) if single is not None else NONE,
        f"{duration(best[0])} at {best[1]}" if best else NONE,
        f"{number(float(one['memory_mib']))} MiB" if "memory_mib" in one else NONE,
        size(int(one["file_bytes"])) if "file_bytes" in one else NONE,
        f"{one['cosine']:.5f}" if "cosine" in one else NONE,
        f"{_percent(one['column']['error'])} {_place(one['column'])}" if "column" in one else NONE,
        _share(one["same_label"]) if "same_label" in one else NONE,
        {True: "yes", False: "no"}.get(one.get("batchable"), NONE),  # type: ignore[arg-type] # None
        "yes" if get(one, "name") == chosen else NONE,
    )


def _share(value: float) -> str:
    return f"{value:.1%}"


def _figures(column: dict[str, Any]) -> str:
    """Return the figures of the column that agrees least, and what is permitted."""
    is_constant = column.get("gain") is None
    of = "its magnitude, it is constant" if is_constant else f"its spread {column['spread']:.3g}"
    gain = "" if is_constant else f", gain {column['gain']:.4g}"
    return (
        f"{_place(column)} has an error of {_percent(column['error'])} of {of}, at most"
        f" {_percent(column['error_max'])} is permitted; bias {column['bias']:+.3g}{gain}"
    )


def _place(column: dict[str, Any]) -> str:
    return f"{get(column, 'output')} {column.get('part') or ''}".rstrip()


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _source(report: dict[str, Any]) -> str:
    return "sample" if get(report, "source") == "samples" else "random input"
