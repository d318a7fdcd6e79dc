"""The map names every place of the product."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
PRODUCT = ("registry", "runtime_image", "pool_manager", "gateway", "admin")


def places() -> list[str]:
    """Every folder of the product with Python files, and every file right in one of its roots."""
    folders = [
        f"{path.parent.relative_to(ROOT)}/"
        for top in PRODUCT
        for path in (ROOT / top).rglob("__init__.py")
    ]
    files = [
        str(path.relative_to(ROOT))
        for top in PRODUCT
        for path in (ROOT / top).glob("*.py")
        if not path.name.startswith("__")
    ]
    return sorted([*folders, *files])


def is_named(place: str) -> bool:
    """Whether the map names a place, or a part of it that has a row of its own."""
    if place in {f"{top}/" for top in PRODUCT}:
        return re.search(rf"^{place} ", ARCHITECTURE, re.MULTILINE) is not None
    parts = [f"{parent}/" for parent in Path(place).parents if len(parent.parts) > 1]
    return any(f"`{name}" in ARCHITECTURE for name in [place, *parts])


@pytest.mark.parametrize("place", places())
def test_every_place_is_on_the_map(place: str) -> None:
    """ARCHITECTURE.md says of every folder and every top module what it is for."""
    assert is_named(place)


def test_the_map_names_no_place_that_is_not_there() -> None:
    """What the map's table names exists."""
    rows = re.findall(r"^\| (`.*?`) \|", ARCHITECTURE, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([a-z_/]+(?:\.py)?)`", row)]

    assert [name for name in named if "/" in name and not (ROOT / name).exists()] == []
