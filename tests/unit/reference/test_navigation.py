"""The navigation of the site holds every page, in the order of the start page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reference.navigation import MARK, configuration

HEAD = f"site_name: x\n{MARK}"


def write(docs: Path, **pages: str) -> None:
    """Pages by their paths; __ stands for a slash."""
    for name, text in pages.items():
        path = docs / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_pages_stand_in_the_order_of_the_start_page(tmp_path: Path) -> None:
    """Linked pages first, then generated ones, then the rest by name; an index leads its folder."""
    write(
        tmp_path,
        index="[b](guides/b.md) [a](guides/a.md#x)",
        guides__a="",
        guides__b="",
        guides__c="",
        upgrade="",
    )
    made = [tmp_path / "reference" / name for name in ("z.md", "y.md", "index.md")]

    shown = configuration(f"{HEAD}nav: old\n", tmp_path, made)

    assert shown.removeprefix(HEAD).split() == [
        *("nav:", "-", "Home:", "index.md", "-", "How-to", "guides:"),
        *("-", "guides/b.md", "-", "guides/a.md", "-", "guides/c.md", "-", "Reference:"),
        *("-", "reference/index.md", "-", "reference/z.md", "-", "reference/y.md"),
        *("-", "Upgrade:", "upgrade.md"),
    ]


def test_a_folder_without_pages_is_left_out(tmp_path: Path) -> None:
    """An empty section would be refused by a strict build."""
    write(tmp_path, tutorials__first="")

    shown = configuration(HEAD, tmp_path, [])

    assert shown == f"{HEAD}nav:\n  - Tutorials:\n      - tutorials/first.md\n"


def test_a_page_in_a_folder_without_a_section_is_refused(tmp_path: Path) -> None:
    """Such a page would be reachable by links alone."""
    write(tmp_path, other__page="")

    with pytest.raises(ValueError, match=r"other/page\.md is in no section"):
        configuration(HEAD, tmp_path, [])


def test_a_configuration_without_the_mark_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten where the place is not known."""
    with pytest.raises(ValueError, match="has no line"):
        configuration("site_name: x\n", tmp_path, [])
