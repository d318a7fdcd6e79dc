"""docs/reference/ is what the code says: regenerated and compared."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from admin.settings import Settings
from tests.reference.documents import DOCS, pages
from tests.reference.markdown import described, first_clause
from tests.reference.settings import options

WRITE = "make reference"
PAGES = pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_file_is_up_to_date(path: Path) -> None:
    """The committed text is the one made of the code, to the line."""
    written, wanted = path.read_text("utf-8").splitlines(), PAGES[path].splitlines()
    changes = difflib.unified_diff(written, wanted, "written", "generated", n=1, lineterm="")

    shown = "\n".join(changes)

    assert not shown, f"run `{WRITE}`:\n{shown}"


def test_no_page_is_left_over() -> None:
    """Every file of docs/reference/ is generated."""
    found = {path for path in (DOCS / "reference").iterdir() if path.is_file()}

    assert found - PAGES.keys() == set()


@pytest.mark.parametrize("name", options())
def test_the_help_of_an_option_begins_as_its_setting(name: str) -> None:
    """`fnctl serve --help` does not import the settings, so it has a copy of their words."""
    words = described(Settings)[name]

    assert first_clause(options()[name].help) == first_clause(words)
