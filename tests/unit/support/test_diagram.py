"""Tests of the diagram of a replica's states."""

from __future__ import annotations

from pathlib import Path

import pytest

from pool_manager.core.state import TRANSITIONS
from tests.support.diagram import BEGIN, END, diagram, replaced, write


def test_every_row_of_the_table_is_drawn() -> None:
    """Each transition is one labelled arrow, between a start and an end."""
    arrows = [line.strip() for line in diagram().splitlines() if "-->" in line]

    assert arrows[0] == "[*] --> starting"
    assert arrows[-1] == "stopped --> [*]"
    assert len(arrows) == 2 + sum(map(len, TRANSITIONS.values()))
    assert "draining --> ready: not idle" in arrows


def test_only_text_between_the_markers_changes(tmp_path: Path) -> None:
    """The text around the diagram stays, and a second write changes nothing."""
    page = tmp_path / "ARCHITECTURE.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    write(page)

    assert page.read_text() == f"before\n{BEGIN}\n{diagram()}\n{END}\nafter\n"
    assert replaced(page.read_text()) == page.read_text()


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}{END}"])
def test_missing_markers_are_named(text: str) -> None:
    """Without both markers, once each and in order, nothing is written."""
    with pytest.raises(ValueError, match="expected <!-- replica-diagram -->"):
        replaced(text)
