"""The schema's history: numbered SQL files, applied in order, never changed afterwards."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FILE: Final = re.compile(r"([0-9]{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step forward. `sql` holds statements only: the transaction around it is not its own."""

    number: int
    name: str
    sql: str


def load_migrations(folder: Path) -> tuple[Migration, ...]:
    """Read `NNNN_name.sql` files in order. Raises ValueError unless the numbers are 1, 2, 3, …"""
    found = []
    for path in sorted(folder.glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name}: expected NNNN_name.sql")
        found.append(Migration(int(match[1]), match[2], path.read_text()))
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations: expected numbers 1 to {len(found)}, got {numbers}")
    return tuple(found)


MIGRATIONS: Final = load_migrations(Path(__file__).parent / "migrations")
