"""ARCHITECTURE.md is a short and complete map of the code; documents that explain the code name
only existing paths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.structure import PRODUCT

ROOT = Path(__file__).parent.parent
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
FOLDERS = (*PRODUCT, "tests", "benchmarks", "functions", "docs")
LINES_MAX, COLUMNS_MAX = 200, 120


def folders() -> list[str]:
    """Return every folder of the product with Python files."""
    inits = (path for top in PRODUCT for path in (ROOT / top).rglob("__init__.py"))
    return sorted(f"{path.parent.relative_to(ROOT)}/" for path in inits)


def designs() -> set[str]:
    """Return every design.md of the product, except those of fetched packages."""
    found = (path.relative_to(ROOT) for top in PRODUCT for path in (ROOT / top).rglob("design.md"))
    return {path.as_posix() for path in found if "node_modules" not in path.parts}


def is_named(folder: str) -> bool:
    """Return whether the map has a row for a folder or for an enclosing folder below the top
    level."""
    if folder in {f"{top}/" for top in PRODUCT}:
        return re.search(rf"(^|\| ){folder[:-1]} ", ARCHITECTURE, re.MULTILINE) is not None
    around = [f"{parent}/" for parent in Path(folder).parents if len(parent.parts) > 1]
    return any(f"| `{name}` |" in ARCHITECTURE for name in [folder, *around])


def named_paths(text: str) -> list[str]:
    """Return every path of the repository that a document has in backticks."""
    names = re.findall(r"`([\w-]+/[\w./-]*)`", text)
    return [name for name in names if name.partition("/")[0] in FOLDERS]


def explaining() -> list[str]:
    """Return the documents that explain the present code, or how to extend it."""
    pages = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/explanation/*.md")}
    return sorted({"ARCHITECTURE.md", "CONTRIBUTING.md"} | pages | designs())


@pytest.mark.parametrize("folder", folders())
def test_every_folder_is_on_the_map(folder: str) -> None:
    """The map states the contents of every folder, or of the enclosing one."""
    assert is_named(folder)


@pytest.mark.parametrize("document", explaining())
def test_a_document_names_only_existing_paths(document: str) -> None:
    """Files and folders that a document names exist."""
    named = named_paths((ROOT / document).read_text("utf-8"))

    assert [name for name in named if not (ROOT / name).exists()] == []


def test_paths_are_found() -> None:
    """The lists above are not empty by mistake."""
    assert len(named_paths(ARCHITECTURE)) > 50
    assert len(explaining()) > 15


def test_the_map_leads_to_every_design() -> None:
    """The map links every design.md."""
    assert {*re.findall(r"\]\(([a-z0-9_/]+/design\.md)\)", ARCHITECTURE)} == designs()


def test_the_map_stays_short() -> None:
    """The map stays short enough to be read at once."""
    lines = ARCHITECTURE.splitlines()

    assert len(lines) <= LINES_MAX
    assert [line for line in lines if len(line) > COLUMNS_MAX] == []
