"""How often a function was at zero, read off the store."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from registry.model.history import ColdStart, StateInterval
from registry.settings import StoreSettings
from registry.store.database import Database
from registry.store.history import History
from tests.chaos.history import Returns, integrity, returns


async def test_returns_are_counted_from_warm_to_warm(tmp_path: Path) -> None:
    """Idle, evicted, killed without a caller; not a death that callers waited out."""
    states = [
        ("waking", "1 held"),
        ("warm", ""),
        ("draining", "idle for 1 s"),
        ("cold", "no calls"),
        ("waking", "1 held"),
        ("warm", ""),
        ("draining", "was killed by SIGKILL"),
        ("waking", "1 held"),
        ("warm", ""),
        ("waking", "was killed by SIGKILL"),
        ("warm", ""),
        ("draining", "evicted for default/g@1"),
        ("waking", "1 held"),
        ("warm", ""),
    ]
    settings = StoreSettings(tmp_path)
    database = await Database.open(settings.database)
    try:
        history = History(database, settings, lambda: 1e9)
        for place, (state, reason) in enumerate(states):
            history.record(
                StateInterval("default", "f", 1, state, reason, 1e9 + place, 1e9 + place + 1)
            )
        history.record(ColdStart("default", "f", 1, "r", "cpu", 1e9, 5.0, {}, "ready"))
        history.record(ColdStart("default", "f", 1, "r", "cpu", 1e9, 5.0, {}, "failed: x"))
        await history.flush()
    finally:
        await database.close()

    assert returns(settings.database) == {"f": Returns(1, 1, 3, 2)}
    assert integrity(settings.database) == "ok"


def test_a_broken_file_is_told(tmp_path: Path) -> None:
    """What does not hold together is named."""
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (a UNIQUE)")
        connection.executemany("INSERT INTO t VALUES (?)", [(str(i) * 50,) for i in range(2000)])
    connection.close()
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 5] = bytes(4096 * 2)
    path.write_bytes(content)

    assert integrity(path) != "ok"
