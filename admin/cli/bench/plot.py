"""Picture of a benchmark: throughput and latency by concurrency, one line per number of rows.

matplotlib is an optional package (the extra `bench`), imported only here.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from admin.cli.bench.figures import Figures
from admin.cli.bench.payloads import Request
from admin.cli.bench.points import Point
from admin.cli.inputs import wrong

PACKAGE: Final = "matplotlib"
SUFFIX: Final = ".png"
OPTION: Final = "--plot"
SIZE: Final = (10.0, 4.8)
DPI: Final = 120
LEGEND_COLUMNS: Final = 6
TICKS_MAX: Final = 14
"""Labels of numbers that fit beside each other."""

Points = Sequence[tuple[Point, Figures]]


def check(path: Path) -> None:
    """Raise BadParameter unless a picture can be written to `path` later."""
    if path.suffix.lower() != SUFFIX:
        wrong(OPTION, f"expected a file that ends with {SUFFIX}, got {path}")
    if importlib.util.find_spec(PACKAGE) is None:
        wrong(OPTION, "needs a package that is not installed: make install EXTRAS=bench")


def draw(path: Path, ref: str, requests: Mapping[int, Request], points: Points) -> None:
    """Write the picture. Raises OSError."""
    # Figure without pyplot: no display, no global state.
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    figure.suptitle(ref)
    rate, delay = figure.subplots(1, 2)
    series = _series(requests, points)
    is_rows = all(one.rows_per_s is not None for _, one in points)
    # Numbers of rows are ordered, and so are the colours; the last one would be too light.
    colors = colormaps["viridis"].resampled(max(2, len(series) + 1))
    legend: list[Any] = []
    styles: dict[str, str] = {}
    for index, (label, items) in enumerate(series.items()):
        legend += _draw_rates(rate, label, items, colors(index), is_rows=is_rows)
        styles |= _draw_latencies(delay, items, colors(index))
    for name, style in styles.items():
        mark = Line2D([], [], color="grey", label=name, marker=style[0], linestyle=style[1:])
        legend.append(mark)
    if failed := [(point, one) for point, one in points if one.result.failed]:
        xs = [point.concurrency for point, _ in failed]
        ys = [_rate(one, is_rows=is_rows) for _, one in failed]
        legend += rate.plot(xs, ys, "X", color="red", zorder=3, label="with errors")
    ticks = spread(sorted({point.concurrency for point, _ in points}))
    _axis(rate, "rows per second" if is_rows else "calls per second", ticks)
    _axis(delay, "latency in ms", ticks)
    rate.set_ylim(bottom=0)
    rate.yaxis.set_major_formatter("{x:,g}")
    _latency_axis(delay)
    figure.legend(handles=legend, loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False)
    figure.savefig(path, format="png")


_QUANTILES: Final[tuple[tuple[str, str, Callable[[Figures], float | None]], ...]] = (
    ("p50", "o-", lambda one: one.latency.p50_ms),
    ("p99", "^--", lambda one: one.latency.p99_ms),
)


def _draw_rates(axes: Any, label: str, items: Points, color: Any, *, is_rows: bool) -> list[Any]:
    xs = [point.concurrency for point, _ in items]
    ys = [_rate(one, is_rows=is_rows) for _, one in items]
    lines: list[Any] = axes.plot(xs, ys, "o-", label=label, color=color)
    return lines


def _draw_latencies(axes: Any, items: Points, color: Any) -> dict[str, str]:
    """Draw the quantiles that are known; return the styles of their lines by name."""
    styles = {}
    for name, style, value in _QUANTILES:
        found = [(point.concurrency, value(one)) for point, one in items]
        known = [(x, ms) for x, ms in found if ms is not None]
        if known:
            axes.plot(*zip(*known, strict=True), style, color=color)
            styles[name] = style
    return styles


def spread(ticks: Sequence[int]) -> list[int]:
    """Return the ticks whose labels do not overlap on a logarithmic axis; of two that would, the
    larger one is left out."""
    least = math.log(ticks[-1] / ticks[0]) / TICKS_MAX
    found = [ticks[0]]
    for one in ticks[1:]:
        if math.log(one / found[-1]) > least:
            found.append(one)
    return found


def _series(requests: Mapping[int, Request], points: Points) -> dict[str, list[Any]]:
    """Return the points by the label of their rows, each in order of concurrency."""
    found: dict[str, list[Any]] = {}
    for point, one in sorted(points, key=lambda item: (item[0].batch, item[0].concurrency)):
        rows = requests[point.batch].rows
        label = f"{rows} row{'' if rows == 1 else 's'} a call" if rows else "as given"
        found.setdefault(label, []).append((point, one))
    return found


def _rate(one: Figures, *, is_rows: bool) -> float:
    return one.rows_per_s if is_rows and one.rows_per_s is not None else one.calls_per_s


def _latency_axis(axes: Any) -> None:
    """Make the axis of latencies logarithmic, over a factor of 4 at least."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    least, most = axes.get_ylim()
    widen = max(1.0, math.sqrt(4 * least / most))
    axes.set_ylim(least / widen, most * widen)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    axes.yaxis.set_minor_formatter("{x:,g}")


def _axis(axes: Any, title: str, ticks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(one) for one in ticks])
    axes.minorticks_off()
    axes.set_xlabel("calls at once")
    axes.set_ylabel(title)
    axes.grid(visible=True, which="both", alpha=0.3)
