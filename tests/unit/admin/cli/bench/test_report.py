"""The text and the picture of a benchmark."""

from __future__ import annotations

import importlib.util
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from admin.cli.bench import plot
from admin.cli.bench.benchmark import Options, Outcome, to_json
from admin.cli.bench.cold_starts import ColdStarts
from admin.cli.bench.figures import figures
from admin.cli.bench.load import LoadResult
from admin.cli.bench.payloads import Request
from admin.cli.bench.points import Limits, Point
from admin.cli.bench.report import render

REQUESTS = {
    1: Request("POST", "/fn/digits", {}, bytes(300), 1, "binary tensors"),
    8: Request("POST", "/fn/digits", {}, bytes(2048), 8, "binary tensors"),
}
GOOD = LoadResult(array("d", [0.001] * 150), array("d"), 2.0, 300, 2.0, {})
BAD = replace(
    GOOD,
    taken_s=array("d", [0.1234]),
    in_window=0,
    errors={"503 queue_full": 2, "timeout": 9},
    stopped="x",
)
OUTCOME = Outcome(
    ColdStarts([20.0, 10.0, 30.0], [{"load": 2.0, "bind": 0.0}] * 3, 1, Counter({"500": 2})),
    [(Point(1, 4), figures(GOOD, 1, 4)), (Point(8, 4), figures(BAD, 8, 4))],
    stopped="x",
)


def test_the_table_has_a_row_per_point() -> None:
    """Few values have no high quantiles; errors are listed by kind, the most frequent first."""
    assert render("digits", REQUESTS, OUTCOME).splitlines() == [
        "cold starts: 3, p50 20 ms, 10 ms to 30 ms",
        "  medians of the phases: load 2 ms",
        "  1 calls found it warm: another caller uses it",
        "  2 x 500",
        "",
        "digits, warm: binary tensors, 300 B to 2.0 KiB a call",
        "ROWS  CONC  CALLS/S  ROWS/S  P50 MS  P90 MS  P99 MS  LONGEST  ANSWERS  ERRORS",
        "1     4     150      150     1.00    1.00    1.00    1.00     150      0",
        "8     4     0.5      4.0     123     -       -       123      1        11 (partial)",
        "",
        "errors, which are in no latency",
        "  8 rows, c=4: 9 x timeout, 2 x 503 queue_full",
    ]
    assert render("digits", REQUESTS, Outcome(ColdStarts())) == "cold starts: none"
    assert render("digits", REQUESTS, Outcome(stopped="x")) == "nothing was measured"


def test_an_outcome_is_failed_without_any_answer() -> None:
    """A stopped point may just have had no time."""
    nothing = replace(BAD, taken_s=array("d"), stopped="")
    assert not OUTCOME.is_failed
    assert Outcome(points=[(Point(1, 4), figures(nothing, 1, 4))]).is_failed
    stopped = figures(replace(nothing, stopped="interrupted"), 1, 4)
    assert not Outcome(points=[(Point(1, 4), stopped)]).is_failed
    assert Outcome(ColdStarts(errors=Counter({"503": 1}))).is_failed
    assert Outcome(stopped="the total limit was reached").is_failed


def test_json_has_all_figures() -> None:
    """Also of the load itself, and the reason for a part."""
    data = to_json("digits", REQUESTS, Options(Limits(), rate=5.0, is_poisson=False), OUTCOME)
    assert (data["load"]["rate"], data["load"]["arrivals"], data["partial"]) == (5.0, "fixed", "x")
    assert [one["rows"] for one in data["points"]] == [1, 8]
    assert data["cold"]["latency_ms"]["p50"] == 20.0


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pictures with all figures, and of unknown rows without any quantile. For the module, because
    matplotlib keeps its fonts open."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("pictures")
    nothing = figures(replace(BAD, taken_s=array("d")), 0, 1)
    unknown = {0: replace(REQUESTS[1], rows=0)}
    found = []
    for requests, points in ((REQUESTS, OUTCOME.points), (unknown, [(Point(0, 1), nothing)])):
        found.append(folder / f"{len(found)}.png")
        plot.check(found[-1])
        plot.draw(found[-1], "digits", requests, points)
    return found


def test_a_picture_is_a_png(pictures: list[Path]) -> None:
    """Whatever is known of the points; its size is that of the figure."""
    for path in pictures:
        head = path.read_bytes()[:24]
        assert head.startswith(b"\x89PNG\r\n")
        width, height = (int.from_bytes(head[at : at + 4]) for at in (16, 20))
        assert (width, height) == tuple(round(one * plot.DPI) for one in plot.SIZE)


def test_labels_of_a_logarithmic_axis_do_not_overlap() -> None:
    """Powers of two are all shown; of close numbers the first one is."""
    powers = [2**power for power in range(11)]
    assert plot.spread(powers) == powers
    assert plot.spread([1, 9, 10, 28, 32]) == [1, 9, 28]
    assert plot.spread([7]) == [7]


def test_the_extra_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is measured; as is another kind of picture."""
    with pytest.raises(typer.BadParameter, match=r"ends with \.png, got x\.svg"):
        plot.check(Path("x.svg"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(typer.BadParameter, match=r"make install EXTRAS=bench"):
        plot.check(Path("x.png"))
