"""The documents say what the code says: settings, verbs, metrics, places."""

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
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
PRODUCT = ("registry", "runtime_image", "pool_manager", "gateway", "admin")


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


def places() -> list[str]:
    """Every folder of the product with Python files."""
    folders = (
        path.parent.relative_to(ROOT)
        for top in PRODUCT
        for path in (ROOT / top).rglob("__init__.py")
    )
    return sorted(f"{folder}/" for folder in folders)


def designs(folder: Path) -> list[Path]:
    """Every design.md in a folder, but those of fetched packages."""
    return [path for path in folder.rglob("design.md") if "node_modules" not in path.parts]


def metrics() -> list[str]:
    """What /metrics shows of its own, by the names that Prometheus knows."""
    return sorted(one.name for one in families() if one.name.startswith("fngate_"))


def is_named(place: str) -> bool:
    """Whether the map names a folder, or a folder around it that is not a top one."""
    if place in {f"{top}/" for top in PRODUCT}:
        return re.search(rf"(^|\| ){place[:-1]} ", ARCHITECTURE, re.MULTILINE) is not None
    parts = [f"{parent}/" for parent in Path(place).parents if len(parent.parts) > 1]
    return any(f"| `{name}` |" in ARCHITECTURE for name in [place, *parts])


def named_paths() -> list[str]:
    """Every path below a top folder of the product that ARCHITECTURE.md names in backticks."""
    names = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", ARCHITECTURE)
    return [name for name in names if name.partition("/")[0] in PRODUCT]


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


@pytest.mark.parametrize("place", places())
def test_every_folder_is_on_the_map(place: str) -> None:
    """ARCHITECTURE.md says of every folder, or of the one around it, what it holds."""
    assert is_named(place)


def test_architecture_names_no_path_that_is_not_there() -> None:
    """Folders of the map and files of the journeys exist."""
    assert len(named_paths()) > 50
    assert [name for name in named_paths() if not (ROOT / name).exists()] == []


def test_architecture_links_every_design() -> None:
    """A design.md beside the code is found from the map."""
    found = {str(path.relative_to(ROOT)) for top in PRODUCT for path in designs(ROOT / top)}

    assert set(re.findall(r"\]\(([a-z_/]+/design\.md)\)", ARCHITECTURE)) == found


def test_architecture_stays_a_map() -> None:
    """It is read in one go: at most 200 lines of at most 120 columns."""
    lines = ARCHITECTURE.splitlines()

    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 120] == []


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
