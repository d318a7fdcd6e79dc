"""Picture of a benchmark: throughput and latency by concurrency, one line per number of rows.

matplotlib is an optional package (the extra `bench`), imported only here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from admin.cli.bench.figures import Figures
from admin.cli.bench.payloads import Request
from admin.cli.bench.points import BadPlan, Point

PACKAGE: Final = "matplotlib"
SUFFIX: Final = ".png"
OPTION: Final = "--plot"
SIZE: Final = (10.0, 4.2)
DPI: Final = 120

Points = Sequence[tuple[Point, Figures]]


def check(path: Path) -> None:
    """Raise BadPlan unless a picture can be written to `path` later."""
    if path.suffix.lower() != SUFFIX:
        raise BadPlan(OPTION, f"expected a file that ends with {SUFFIX}, got {path}")
    if importlib.util.find_spec(PACKAGE) is None:
        raise BadPlan(OPTION, "needs a package that is not installed: pip install 'fngate[bench]'")


def draw(path: Path, ref: str, requests: Mapping[int, Request], points: Points) -> None:
    """Write the picture. Raises OSError."""
    # Figure without pyplot: no display, no global state.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator

    styles = [
        Line2D([], [], color="grey", marker=style[0], linestyle=style[1:], label=name)
        for name, style, _ in _QUANTILES
    ]
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    figure.suptitle(ref)
    rate, delay = figure.subplots(1, 2)
    series = _series(requests, points)
    is_rows = all(one.rows_per_s is not None for _, one in points)
    unit = "rows per second" if is_rows else "calls per second"
    for label, items in series.items():
        xs = [point.concurrency for point, _ in items]
        rates = [_rate(one, is_rows=is_rows) for _, one in items]
        (line,) = rate.plot(xs, rates, "o-", label=label)
        for _, style, value in _QUANTILES:
            found = [(x, value(one)) for x, (_point, one) in zip(xs, items, strict=True)]
            known = [(x, ms) for x, ms in found if ms is not None]
            if known:
                delay.plot(*zip(*known, strict=True), style, color=line.get_color())
    ticks = sorted({point.concurrency for point, _ in points})
    _axis(rate, unit, ticks)
    _axis(delay, "latency in ms", ticks)
    rate.set_ylim(bottom=0)
    delay.set_yscale("log")
    delay.yaxis.set_major_formatter("{x:g}")
    delay.yaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    delay.yaxis.set_minor_formatter("{x:g}")
    rate.legend(fontsize="small")
    delay.legend(handles=styles, fontsize="small")
    figure.savefig(path, format="png")


_QUANTILES: Final[tuple[tuple[str, str, Callable[[Figures], float | None]], ...]] = (
    ("p50", "o-", lambda one: one.latency.p50_ms),
    ("p99", "^--", lambda one: one.latency.p99_ms),
)


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


def _axis(axes: Any, title: str, ticks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(one) for one in ticks])
    axes.minorticks_off()
    axes.set_xlabel("calls at once")
    axes.set_ylabel(title)
    axes.grid(visible=True, which="both", alpha=0.3)
