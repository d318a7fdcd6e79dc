"""How often functions went to zero and came back, as the server's own store tells it."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BY_ITSELF = ("idle for", "evicted for")
"""How the reasons of ends begin that were decided and not suffered."""


@dataclass(frozen=True)
class Returns:
    """`cold_starts` went well, `failed_starts` did not; `zeros`: times at zero and warm again, of
    which `decided` went because they were idle or evicted."""

    cold_starts: int
    failed_starts: int
    zeros: int
    decided: int


def returns(database: Path) -> dict[str, Returns]:
    """By function, from the first day of the store."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        starts = connection.execute("SELECT name, outcome = 'ready' FROM cold_starts").fetchall()
        rows = connection.execute("SELECT name, record FROM state_intervals ORDER BY id")
        intervals: dict[str, list[tuple[str, str]]] = {}
        for name, record in rows:
            interval = json.loads(record)
            pair = (interval["state"], interval["reason"])
            intervals.setdefault(name, []).append(pair)
    finally:
        connection.close()
    counted = Counter(starts)
    return {
        name: Returns(counted[name, 1], counted[name, 0], *_zeros(states))
        for name, states in intervals.items()
    }


def _zeros(intervals: Iterable[tuple[str, str]]) -> tuple[int, int]:
    """Times between two warm intervals with nothing, and of them those by decision."""
    zeros = decided = 0
    is_zero = is_decided = was_warm = False
    for state, reason in intervals:
        if state == "warm":
            zeros += is_zero and was_warm
            decided += is_decided and was_warm
            is_zero = is_decided = False
            was_warm = True
        elif state in ("cold", "draining"):
            is_zero = True
            is_decided = is_decided or reason.startswith(BY_ITSELF)
    return zeros, decided


def integrity(database: Path) -> str:
    """What SQLite says of the file: "ok", or what is broken."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        lines = connection.execute("PRAGMA integrity_check").fetchall()
        lines += connection.execute("PRAGMA foreign_key_check").fetchall()
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        connection.close()
    return "; ".join(str(line[0]) for line in lines)
