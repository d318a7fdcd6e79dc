"""Access keys: durable storage, the key ring that requests are checked against, and revocations."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

import structlog

from registry.errors import BadRequest, Conflict, RevokedNotStored, StoreUnavailable, Unknown
from registry.key_form import PREFIX, KeyPriority
from registry.model.functions import NAMESPACE
from registry.model.keys import Key
from registry.names import is_name
from registry.openness import CLOSED, Openness
from registry.store.database import Database
from registry.store.openness import save_decision
from registry.store.records import decode_record, encode_record

log = structlog.get_logger()

SCOPES: Final = ("invoke", "read", "deploy", "admin")
KEYS_MAX: Final = 10_000
NOTE_MAX: Final = 200
TOKEN_NOTE: Final = "admin token"  # noqa: S105 - a note
RETRY_S: Final = 1.0
"""Seconds until a revocation that could not be stored is stored again; doubled each time."""
RETRY_MAX_S: Final = 60.0
_SECRET_MAX: Final = 256
_ID_CHARS: Final = 12
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def fingerprint(secret: str) -> str:
    """Return the sha256 of a secret in hex: the only form that is stored.

    A plain hash suffices because the secret has 256 random bits and cannot be guessed.
    """
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def check_scope(scope: str) -> str:
    """Return `scope` unchanged. Raises BadRequest if it is not a valid scope."""
    word, colon, name = scope.partition(":")
    if scope in SCOPES or (word == "invoke" and colon and is_name(name)):
        return scope
    raise BadRequest(
        f"scope: expected one of {', '.join(SCOPES)} or invoke:NAME, got {scope[:80]!r}"
    )


def random_secret() -> str:
    """Return 43 URL-safe characters that encode 256 random bits."""
    return secrets.token_urlsafe(32)


class Keys:
    """Durable storage of keys. `secret` generates the 43 characters after "fn_"."""

    def __init__(self, database: Database, secret: Callable[[], str] = random_secret) -> None:
        self._database = database
        self._secret = secret

    async def add(
        self,
        scopes: Iterable[str],
        note: str = "",
        *,
        now_s: float,
        priority: KeyPriority = KeyPriority.NORMAL,
        namespace: str = NAMESPACE,
    ) -> tuple[Key, str]:
        """Create a key; return it with its secret, which is shown once and not stored. The first
        one closes the server to callers without a key.

        Raises BadRequest on a bad scope or note, Conflict if there are KEYS_MAX keys.
        """
        checked = tuple(dict.fromkeys(check_scope(scope) for scope in scopes))
        if not checked:
            raise BadRequest(f"scopes: expected at least one of {', '.join(SCOPES)}, got none")
        if len(note) > NOTE_MAX or not note.isprintable():
            raise BadRequest(f"note: expected at most {NOTE_MAX} visible characters")
        secret = PREFIX + self._secret()
        if not _SECRET.fullmatch(secret.removeprefix(PREFIX)):
            raise ValueError("the secret generator must give 43 URL-safe characters")
        sha256 = fingerprint(secret)
        key = Key(sha256[:_ID_CHARS], sha256, checked, note, now_s, priority)
        await self._insert(key, namespace)
        return key, secret

    async def list(self, namespace: str = NAMESPACE) -> list[Key]:
        """Return every key, oldest first."""
        rows = await self._database.read(
            "SELECT record FROM keys WHERE namespace = ? ORDER BY rowid", (namespace,)
        )
        return [decode_record(row[0], Key) for row in rows]

    async def remove(self, id: str, namespace: str = NAMESPACE) -> Key:
        """Remove a key and return it. Raises Unknown."""
        async with self._database.write(is_vital=True) as transaction:
            rows = await transaction.query(
                "DELETE FROM keys WHERE namespace = ? AND id = ? RETURNING record", (namespace, id)
            )
        if not rows:
            raise Unknown(f"no key {id[:80]!r}")
        return decode_record(rows[0][0], Key)

    async def _insert(self, key: Key, namespace: str) -> None:
        async with self._database.write(is_vital=True) as transaction:
            count = await transaction.query("SELECT count(*) FROM keys")
            if count[0][0] >= KEYS_MAX:
                raise Conflict(f"there are {KEYS_MAX} keys already; remove one first")
            if not count[0][0]:
                await save_decision(transaction, CLOSED)
            await transaction.query(
                "INSERT INTO keys VALUES (?, ?, ?, ?)",
                (namespace, key.id, key.sha256, encode_record(key)),
            )


def token_key(token: str) -> Key:
    """Return the admin token as a key, which is in a ring but not in the store."""
    sha256 = fingerprint(token)
    return Key(sha256[:_ID_CHARS], sha256, ("admin",), TOKEN_NOTE, priority=KeyPriority.HIGH)


class KeyRing:
    """The valid keys in memory, the admin token among them, and whether callers without one are let
    in. Keys are found by hash: comparing hashes leaks nothing about secrets."""

    def __init__(
        self, keys: Iterable[Key] = (), token: str = "", openness: Openness = Openness.LOCAL
    ) -> None:
        """`token` is the admin token, "" for none. Keys close a ring that nobody has decided
        about."""
        self._keys = {key.sha256: key for key in keys}
        undecided = openness is Openness.LOCAL
        self.openness = Openness.CLOSED if undecided and self._keys else openness
        """Who may call without a key."""
        self.token_id = ""
        """Id of the admin token, "" for none."""
        if token:
            key = token_key(token)
            self._keys[key.sha256], self.token_id = key, key.id
        self._by_id = {key.id: key for key in self._keys.values()}
        self._subscribers: list[Callable[[Key, bool], None]] = []
        self._deciding: list[Callable[[Openness], None]] = []
        self.version = 0
        """Changes with every modification."""

    @property
    def has_keys(self) -> bool:
        """Whether there is a key besides the admin token."""
        return len(self._keys) > bool(self.token_id)

    def all(self) -> tuple[Key, ...]:
        """Return every valid key, the admin token among them."""
        return tuple(self._keys.values())

    def subscribe(self, callback: Callable[[Key, bool], None]) -> Callable[[], None]:
        """Call `callback(key, is_let_in)` after each change.

        Returns a function that ends the subscription.
        """
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def find(self, secret: str) -> Key | None:
        """Return the key with this secret, None if there is none."""
        if len(secret) > _SECRET_MAX:
            return None
        return self._keys.get(fingerprint(secret))

    def with_id(self, id: str) -> Key | None:
        """Return the key with this id, None if there is none."""
        return self._by_id.get(id)

    def put(self, key: Key) -> None:
        """Accept a key from now on. The first one closes the server to callers without a key, as it
        does in the store."""
        if key.id != self.token_id and not self.has_keys:
            self.decide(Openness.CLOSED)
        self._keys[key.sha256] = self._by_id[key.id] = key
        self._tell(key, is_let_in=True)

    def remove(self, key: Key) -> None:
        """Stop accepting a key; an unknown key is ignored, and so is the admin token, which only
        another one replaces."""
        if key.id == self.token_id:
            return
        self._keys.pop(key.sha256, None)
        self._by_id.pop(key.id, None)
        self._tell(key, is_let_in=False)

    def replace_token(self, token: str) -> None:
        """Accept another admin token from now on, and no longer the one before, which subscribers
        see as a key that is removed."""
        before, key = self.with_id(self.token_id), token_key(token)
        self.token_id = key.id
        self.put(key)
        if before is not None:
            self.remove(before)

    def decide(self, openness: Openness) -> None:
        """Change who may call without a key, from now on."""
        if openness is self.openness:
            return
        self.openness = openness
        self.version += 1
        for callback in list(self._deciding):
            callback(openness)

    def on_decision(self, callback: Callable[[Openness], None]) -> Callable[[], None]:
        """Call `callback(openness)` after each change. Returns a function that ends that."""
        self._deciding.append(callback)
        return lambda: self._deciding.remove(callback)

    def _tell(self, key: Key, *, is_let_in: bool) -> None:
        self.version += 1
        for callback in list(self._subscribers):
            callback(key, is_let_in)


class Revocations:
    """Revokes keys: in memory at once, whatever the disk does, then in the store.

    What follows from a revocation in memory (other processes, open connections) hears of it from
    the key ring. A key whose removal cannot be stored would be valid after a restart; so the
    removal is repeated until it is stored.
    """

    def __init__(
        self,
        keys: Keys,
        ring: KeyRing,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._keys = keys
        self._ring = ring
        self._pause = pause
        self._unstored: set[str] = set()
        self._failed = asyncio.Event()

    async def revoke(self, id: str) -> None:
        """Revoke the key with this id, also again if that is not stored yet.

        Raises Unknown, and RevokedNotStored for a key that is refused from now on but that a
        restarted server would accept.
        """
        if id == self._ring.token_id:
            raise Unknown(f"no key {id[:80]!r}: the admin token is replaced, not removed")
        key = self._ring.with_id(id)
        if key is not None:
            self._unstored.add(id)
            self._ring.remove(key)
        elif id not in self._unstored:
            raise Unknown(f"no key {id[:80]!r}")
        try:
            await self._store(id)
        except StoreUnavailable as error:
            self._failed.set()
            raise RevokedNotStored(
                f"key {id} is refused from now on, but a restarted server would accept it: its"
                f" removal could not be stored ({error.message}); the server repeats that, and so"
                f" does fnctl key rm {id}"
            ) from error

    async def keep_storing(self) -> None:
        """Repeat removals that could not be stored, until cancelled."""
        while True:
            await self._failed.wait()
            self._failed.clear()
            pause_s = RETRY_S
            while self._unstored:
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                for id in list(self._unstored):
                    with suppress(StoreUnavailable):
                        await self._store(id)
                        log.info("a key's removal is stored", key=id)

    def reasons(self) -> list[str]:
        """Return the reason for `/readyz` if removals wait to be stored."""
        count = len(self._unstored)
        if not count:
            return []
        return [
            f"keys: {count} revoked, but not in the store: a restarted server would accept them"
        ]

    async def _store(self, id: str) -> None:
        with suppress(Unknown):  # another attempt was first
            await self._keys.remove(id)
        self._unstored.discard(id)
