"""Secrets of servers: sealed values in the database, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from registry.errors import BadRequest, Conflict, Unknown
from registry.model.functions import NAMESPACE
from registry.names import check_name
from registry.store.database import Database, Row
from registry.store.sealing import KeyFile, SealingKey

VALUE_MAX: Final = 64 * 1024
"""Max bytes of a value. One variable of a process has at most 128 KiB (execve(2))."""
SECRETS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A secret without its value. `set_s` in Unix seconds; `problem` says why the value cannot be
    read, "" if it can."""

    name: str
    set_s: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SecretChange:
    """Outcome of setting a secret. `is_changed`: its value differs from the earlier one, if there
    was one. `unreadable` are other secrets whose values cannot be read."""

    secret: StoredSecret
    is_new: bool
    is_changed: bool
    unreadable: tuple[str, ...] = ()


class SecretStore:
    """Durable storage of secrets. Values are sealed with the key of `key_file` and are returned by
    `values` only."""

    def __init__(self, database: Database, key_file: KeyFile) -> None:
        self._database = database
        self._key_file = key_file
        self._setting = asyncio.Lock()

    async def set(
        self, name: str, value: str, *, now_s: float, namespace: str = NAMESPACE
    ) -> SecretChange:
        """Store a secret, or replace its value.

        Raises BadRequest on a bad name or value, Conflict if there are SECRETS_MAX secrets,
        StoreUnavailable.
        """
        check_name(name)
        data = _checked(value)
        # One at a time: the first one creates the key.
        async with self._setting:
            key = await asyncio.to_thread(self._key_file.read_or_create)
            sealed = await asyncio.to_thread(key.seal, data, _about(namespace, name))
            async with self._database.write(is_vital=True) as transaction:
                rows = await transaction.query(
                    "SELECT name, key FROM secrets WHERE namespace = ?", (namespace,)
                )
                before = await transaction.query(
                    "SELECT sealed FROM secrets WHERE namespace = ? AND name = ?", (namespace, name)
                )
                if not before and len(rows) >= SECRETS_MAX:
                    raise Conflict(f"there are {SECRETS_MAX} secrets already; remove one first")
                await transaction.query(
                    "INSERT OR REPLACE INTO secrets VALUES (?, ?, ?, ?, ?)",
                    (namespace, name, key.id, sealed, now_s),
                )
        is_equal = bool(before) and key.unseal(before[0][0], _about(namespace, name)) == data
        unreadable = tuple(sorted(row[0] for row in rows if row[1] != key.id and row[0] != name))
        return SecretChange(StoredSecret(name, now_s), not before, not is_equal, unreadable)

    async def list(self, namespace: str = NAMESPACE) -> list[StoredSecret]:
        """Return every secret by name. Raises StoreUnavailable."""
        rows = await self._database.read(
            "SELECT name, key, set_s FROM secrets WHERE namespace = ? ORDER BY name", (namespace,)
        )
        key = await asyncio.to_thread(self._key_file.read) if rows else None
        return [StoredSecret(name, set_s, self._problem(name, id, key)) for name, id, set_s in rows]

    async def remove(self, name: str, namespace: str = NAMESPACE) -> None:
        """Remove a secret. Raises Unknown."""
        async with self._database.write(is_vital=True) as transaction:
            rows = await transaction.query(
                "DELETE FROM secrets WHERE namespace = ? AND name = ? RETURNING name",
                (namespace, name),
            )
        if not rows:
            raise Unknown(f"no secret {name[:80]!r}")

    async def values(self, names: Collection[str], namespace: str = NAMESPACE) -> dict[str, str]:
        """Return the present values by name. Raises Unknown or Conflict, naming the secrets that
        are missing or cannot be read and what to do; StoreUnavailable."""
        if not names:
            return {}
        marks = ", ".join("?" * len(names))
        rows = await self._database.read(
            f"SELECT name, key, sealed FROM secrets WHERE namespace = ? AND name IN ({marks})",  # noqa: S608 - marks only
            (namespace, *names),
        )
        if missing := sorted(set(names) - {row[0] for row in rows}):
            raise Unknown(
                f"no secret {' and '.join(missing)}; set it: fnctl secret set {missing[0]}"
            )
        return await asyncio.to_thread(self._unseal, rows, namespace)

    def _unseal(self, rows: Sequence[Row], namespace: str) -> dict[str, str]:
        key = self._key_file.read()
        found: dict[str, str] = {}
        for name, id, sealed in rows:
            if problem := self._problem(name, id, key):
                raise Conflict(problem)
            assert key is not None
            value = key.unseal(sealed, _about(namespace, name))
            if value is None:
                raise Conflict(f"secret {name}: its row is damaged; {_again(name)}")
            found[name] = value.decode()
        return found

    def _problem(self, name: str, id: str, key: SealingKey | None) -> str:
        """Return why a secret that was sealed with the key `id` cannot be read, "" if it can."""
        path = self._key_file.path
        if key is None:
            what = f"its key is missing: {path} does not exist"
        elif key.id != id:
            what = f"it was sealed with another key than that of {path}"
        else:
            return ""
        return f"secret {name}: {what}; put that file back, or {_again(name)}"


def _checked(value: str) -> bytes:
    """Return the bytes of a value. Raises BadRequest, which does not quote it."""
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise BadRequest("value: expected UTF-8 text, got other bytes") from None
    if not data:
        raise BadRequest("value: expected at least one byte, got none")
    if len(data) > VALUE_MAX:
        raise BadRequest(f"value: expected at most {VALUE_MAX} bytes, got {len(data)}")
    if b"\0" in data:
        raise BadRequest("value: expected text without a zero byte, as variables have none")
    return data


def _about(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


def _again(name: str) -> str:
    return f"set it again: fnctl secret set {name}"
