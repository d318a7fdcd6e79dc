"""Generated files in docs/reference/ and docs/images/ match the code: regenerate and compare."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from admin.settings import Settings
from pool_manager.core.state import TRANSITIONS, State, Step
from tests.reference.diagrams import PICTURES, replica_life, replica_park
from tests.reference.documents import DOCS, pages
from tests.reference.markdown import described, first_clause
from tests.reference.settings import options

WRITE = "make reference"


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    """Text of each generated file."""
    return pages()


@pytest.mark.slow
def test_generated_files_are_up_to_date(generated: dict[Path, str]) -> None:
    """Each committed file equals the regenerated one."""
    shown = "\n".join(
        change
        for path, wanted in generated.items()
        for change in difflib.unified_diff(
            path.read_text("utf-8").splitlines() if path.exists() else [],
            wanted.splitlines(),
            f"{path.name}, written",
            f"{path.name}, generated",
            n=1,
            lineterm="",
        )
    )

    assert not shown, f"run `{WRITE}`:\n{shown}"


def test_no_page_is_left_over(generated: dict[Path, str]) -> None:
    """Every file of docs/reference/ and every SVG of docs/images/ is generated."""
    found = {*(DOCS / "reference").iterdir(), *(DOCS / "images").glob("*.svg")}

    assert found - generated.keys() == set()


@pytest.mark.parametrize("name", options())
def test_the_help_of_an_option_begins_as_its_setting(name: str) -> None:
    """`fnctl serve --help` does not import the settings, so it holds a copy of their texts; the
    beginnings must match."""
    words = described(Settings)[name]

    assert first_clause(options()[name].help) == first_clause(words)


def test_the_life_of_a_replica_has_every_state_and_step() -> None:
    """The diagrams are drawn from the transition table and name every state and step."""
    shown = texts(replica_life()) | texts(replica_park())

    assert {state.value for state in State} <= shown
    assert {step.value for step in Step if step is not Step.LOST} <= shown


def test_a_step_without_a_place_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new row of the table fails the drawing until the diagram has a place for it."""
    monkeypatch.setitem(TRANSITIONS, State.STOPPED, {Step.GREETED: State.STARTING})

    with pytest.raises(ValueError, match="has no place in the picture"):
        replica_life()


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
def test_a_picture_loads_nothing(draw: Callable[[], str]) -> None:
    """A diagram is one well-formed document with a title, without links, scripts and fonts."""
    source = draw()

    assert texts(source)
    assert not re.search(r"href|<script|@import|@font-face|url\((?!#)", source)


def texts(svg: str) -> set[str]:
    """Return its lines of text."""
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return {one.text or "" for one in found}
