"""The documents say what the code says: settings, verbs, metrics."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer

from admin.cli.main import app
from tests.support.families import families

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def fields(path: str, name: str) -> dict[str, str]:
    """The annotated fields of a class and the string that stands below each, "" for none."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name).body
    found = {}
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            found[node.target.id] = str(below.value.value) if is_text else ""
    return found


SETTINGS = fields("admin/settings.py", "Settings")


def verbs() -> list[str]:
    """The verbs of fnctl, as its help lists them."""
    return sorted(typer.main.get_group(app).commands)


def metrics() -> list[str]:
    """What /metrics shows of its own, by the names that Prometheus knows."""
    return sorted(one.name for one in families() if one.name.startswith("fngate_"))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_says_what_it_is(name: str) -> None:
    """The string below a field is its documentation."""
    assert SETTINGS[name].endswith(".")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_in_the_readme(name: str) -> None:
    """It has a row in the table of settings, by its variable."""
    assert re.search(rf"^\| `FN_{name.upper()}` \|", README, re.MULTILINE)


def test_the_readme_names_no_setting_that_is_not_there() -> None:
    """A row of the table is a field of the settings."""
    rows = re.findall(r"^\| `FN_([A-Z_]+)` \|", README, re.MULTILINE)

    assert sorted(row.lower() for row in rows) == sorted(SETTINGS)


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_is_in_the_readme(verb: str) -> None:
    """What fnctl can do is said where people look first."""
    assert f"`fnctl {verb}" in README


@pytest.mark.parametrize("metric", metrics())
def test_every_metric_is_in_the_readme(metric: str) -> None:
    """What /metrics shows is explained."""
    assert f"`{metric}`" in README


def test_the_readme_explains_no_metric_that_is_not_there() -> None:
    """A row of the table is a family of the page."""
    rows = re.findall(r"^\| (`fngate_.*?) \|", README, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(fngate_\w+)`", row)]

    assert sorted(named) == metrics()


def test_metrics_and_verbs_are_found() -> None:
    """The lists above are not empty by mistake."""
    assert len(metrics()) >= 35
    assert len(verbs()) >= 10
