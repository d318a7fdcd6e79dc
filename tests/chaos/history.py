"""How often functions scaled to zero and returned, read from the server's store."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BY_ITSELF = ("idle for", "evicted for")
"""Prefixes of the reasons for ends that the pool manager decided (idle or evicted)."""


@dataclass(frozen=True)
class Returns:
    """Cold starts that succeeded and failed, and `zeros`: times a function went from warm to zero
    and back. `decided` counts those caused by idleness or eviction."""

    cold_starts: int
    failed_starts: int
    zeros: int
    decided: int


def returns(database: Path) -> dict[str, Returns]:
    """Return the counts by function over the whole store."""
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
    """Count the times at zero between two warm intervals, and those caused by idleness or
    eviction."""
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
    """Return SQLite's integrity check of the file: "ok", or the defects."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        lines = connection.execute("PRAGMA integrity_check").fetchall()
        lines += connection.execute("PRAGMA foreign_key_check").fetchall()
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        connection.close()
    return "; ".join(str(line[0]) for line in lines)
