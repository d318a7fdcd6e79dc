"""Tables as Markdown text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.measuring.record import Record, differences, ratios, spread

Cell = str | float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of several cases, compared with one of them.

    `targets` describes the goal of a case, e.g. "ratio <= 1.25".
    """

    metric: str
    values: Mapping[str, Sequence[float]]
    reference: str = ""
    targets: Mapping[str, str] = field(default_factory=dict)
    title: str = ""

    def __post_init__(self) -> None:
        if self.reference and self.reference not in self.values:
            known = ", ".join(self.values)
            raise ValueError(f"reference: expected one of {known}, got {self.reference!r}")

    def lines(self) -> list[str]:
        """Return a Markdown table."""
        heads = ["case", f"median {self.metric}", "min", "max"]
        if self.reference:
            heads += [f"ratio to {self.reference}", "range of ratios", "difference"]
        if self.targets:
            heads.append("wanted")
        rows = [self._row(case) for case in self.values]
        return [*([self.title, ""] if self.title else []), *table(heads, rows)]

    def _row(self, case: str) -> list[str]:
        values = self.values[case]
        at = spread(values)
        cells = [case, *(number(value) for value in (at.median, at.min, at.max))]
        if self.reference:
            base = self.values[self.reference]
            by, apart = ratios(values, base), differences(values, base)
            cells += [f"{by.median:.2f}", f"{by.min:.2f} to {by.max:.2f}"] if by else ["", ""]
            cells.append(number(apart.median) if apart else "")
        if self.targets:
            cells.append(self.targets.get(case, ""))
        return cells

    def to_json(self) -> dict[str, Any]:
        """Return every value, and the figures of the table."""
        base = self.values.get(self.reference, ())
        cases = []
        for case, values in self.values.items():
            by, apart = ratios(values, base), differences(values, base)
            cases.append(
                {
                    "case": case,
                    "values": list(values),
                    **asdict(spread(values)),
                    "ratio": asdict(by) if by else None,
                    "difference": asdict(apart) if apart else None,
                    "wanted": self.targets.get(case),
                }
            )
        return {
            "title": self.title,
            "metric": self.metric,
            "reference": self.reference or None,
            "cases": cases,
        }


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of arbitrary form."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""

    def lines(self) -> list[str]:
        """Return a Markdown table."""
        rows = [
            [cell if isinstance(cell, str) else number(cell) for cell in row] for row in self.rows
        ]
        return [*([self.title, ""] if self.title else []), *table(self.heads, rows)]

    def to_json(self) -> dict[str, Any]:
        """Return the cells."""
        return {"title": self.title, "heads": list(self.heads), "rows": [*map(list, self.rows)]}


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence below the tables."""

    text: str

    def lines(self) -> list[str]:
        """Return the sentence as text."""
        return [self.text]

    def to_json(self) -> dict[str, Any]:
        """Return the sentence as plain data."""
        return {"note": self.text}


Part = Comparison | Grid | Note


def compare(
    record: Record,
    reference: str,
    *,
    cases: Sequence[str] | None = None,
    targets: Mapping[str, Mapping[str, str]] | None = None,
    title: str = "",
) -> list[Comparison]:
    """Return one table per metric; `targets` are by metric and case. If the reference has no value
    of a metric, its table has no ratios."""
    tables = []
    for metric in record.metrics:
        values = record.of(metric, cases)
        if values:
            base = reference if reference in values else ""
            wanted = (targets or {}).get(metric, {})
            tables.append(Comparison(metric, values, base, wanted, title))
    return tables


def number(value: float) -> str:
    """Format a number with its significant digits."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table as lines."""
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]
