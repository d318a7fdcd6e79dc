"""The Grafana dashboard and rules use exactly the metrics that /metrics shows."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from tests.support import promql
from tests.support.families import families

SAMPLES = {sample for family in families() for sample in family.samples}
RECORDS = {rule.name for rule in promql.rules() if rule.kind == "record"}
KNOWN = SAMPLES | RECORDS | {"up"}
USED = {
    name
    for expression in [*promql.queries(), *(rule.expression for rule in promql.rules())]
    for name in promql.names(expression)
}
UNITS = {"s": "_seconds", "bytes": "_bytes", "Bps": "_bytes"}
"""Metric suffix that a panel's unit requires."""
VARIABLES = {"datasource", "instance", "function", "__rate_interval"}


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("up", {"up"}),
        ('sum by (a) (rate(b_total{c="d{e}"}[5m]))', {"b_total"}),
        ("a - on (job) sum by (job) (b) > 3 and c != 0 or 0 * d", {"a", "b", "c", "d"}),
        ("x:y:z offset 5m / on (a) group_left (b) w", {"x:y:z", "w"}),
        ("2^30 * 1e3 + time()", set()),
    ],
)
def test_expressions_are_read(expression: str, names: set[str]) -> None:
    """Functions, labels, strings and numbers are not metrics."""
    assert promql.names(expression) == names


def test_every_queried_metric_exists() -> None:
    """Every queried name exists: a typo would be an empty panel, or an alert that never fires."""
    assert sorted(USED - KNOWN) == []


def test_every_metric_is_used() -> None:
    """Every own metric family is used by a panel or alert, and every record is used."""
    ours = [one for one in families() if one.name.startswith("fngate_")]
    unused = [family.name for family in ours if not family.samples & USED]

    assert unused == []
    assert sorted(RECORDS - USED) == []


@pytest.mark.parametrize("panel", promql.panels(), ids=lambda one: one["title"])
def test_the_unit_of_a_panel_matches_its_metrics(panel: dict[str, Any]) -> None:
    """A panel's unit matches the suffix of its metrics."""
    word = UNITS.get(panel["fieldConfig"]["defaults"]["unit"])
    shown = {name for target in panel["targets"] for name in promql.names(target["expr"])}

    assert word is None or all(word in name for name in shown)


@pytest.mark.parametrize("panel", promql.panels(), ids=lambda one: one["title"])
def test_a_panel_is_described_and_follows_the_selection(panel: dict[str, Any]) -> None:
    """A panel has a description, and queries by the chosen data source, server and function."""
    assert panel["description"].endswith(".")
    assert panel["datasource"]["uid"] == "${datasource}"
    for target in panel["targets"]:
        assert "$instance" in target["expr"]
        variables = re.findall(r"\$\{?(\w+)", target["expr"])
        assert set(variables) <= VARIABLES


def test_panels_have_places_of_their_own() -> None:
    """Panels have unique ids and do not overlap; the grid has 24 columns."""
    all_panels = promql.dashboard()["panels"]
    assert len({panel["id"] for panel in all_panels}) == len(all_panels)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in all_panels)
        for x, y in itertools.product(
            range(grid["x"], grid["x"] + grid["w"]), range(grid["y"], grid["y"] + grid["h"])
        )
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_the_dashboard_has_its_rows_and_variables() -> None:
    """The dashboard has these rows and variables."""
    document = promql.dashboard()
    rows = [panel["title"] for panel in document["panels"] if panel["type"] == "row"]

    first = ["Overview", "Latency", "Cold starts", "Pools", "Devices"]
    assert rows == [*first, "Hosts", "Failures", "Server functions", "Models"]
    named = {one["name"] for one in document["templating"]["list"]}
    assert named == VARIABLES - {"__rate_interval"}


@pytest.mark.parametrize(
    "rule", [one for one in promql.rules() if one.kind == "alert"], ids=lambda one: one.name
)
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: promql.Rule) -> None:
    """An alert has a severity, a summary and a description."""
    assert re.search(r"labels: \{severity: (critical|warning|info)\}", rule.text)
    assert re.search(r'summary: "\S.*"', rule.text)
    assert re.search(r'description: "\S.*\."', rule.text)
