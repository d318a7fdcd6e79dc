"""The schema's numbered steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.store.database import MIGRATIONS, Migration, load_migrations


def test_files_in_order(tmp_path: Path) -> None:
    """Files are read by number; other files are nothing to it."""
    (tmp_path / "0002_more.sql").write_text("two")
    (tmp_path / "0001_first.sql").write_text("one")
    (tmp_path / "README").touch()

    assert load_migrations(tmp_path) == (Migration(1, "first", "one"), Migration(2, "more", "two"))


@pytest.mark.parametrize("name", ["1_first.sql", "0001.sql", "0001_First.sql", "0001_a'b.sql"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    """A file that is no NNNN_name.sql is a mistake, and never skipped in silence."""
    (tmp_path / name).touch()

    with pytest.raises(ValueError, match="expected NNNN_name"):
        load_migrations(tmp_path)


@pytest.mark.parametrize("names", [["0002_a.sql"], ["0001_a.sql", "0001_b.sql"]])
def test_gaps_and_doubles_are_refused(tmp_path: Path, names: list[str]) -> None:
    """The numbers are 1, 2, 3 and so on."""
    for name in names:
        (tmp_path / name).touch()

    with pytest.raises(ValueError, match="expected numbers 1 to"):
        load_migrations(tmp_path)


def test_the_shipped_steps() -> None:
    """The migrations that come with the package are there and leave transactions to the store."""
    assert [one.number for one in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))
    assert MIGRATIONS
    assert not any("COMMIT" in one.sql.upper() for one in MIGRATIONS)
