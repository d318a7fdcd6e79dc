"""Tests of access keys."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from registry.errors import BadRequest, RevokedNotStored, StoreUnavailable, Unknown
from registry.key_form import KeyPriority
from registry.model.functions import NAMESPACE
from registry.model.keys import Key
from registry.openness import CLOSED, Decision, Openness
from registry.store.database import MIGRATIONS, Database
from registry.store.keys import (
    KeyRing,
    Keys,
    Revocations,
    check_scope,
    fingerprint,
    random_secret,
)
from registry.store.openness import OpennessStore

SECRET = "A" * 43


async def test_only_the_hash_is_kept(database: Database) -> None:
    """The secret is returned once; the store has its sha256 and the key's other fields."""
    keys = Keys(database, lambda: SECRET)

    key, secret = await keys.add(["read", "invoke:digits", "read"], "laptop", now_s=7)

    sha256 = hashlib.sha256(secret.encode()).hexdigest()
    assert secret == f"fn_{SECRET}"
    assert key == Key(sha256[:12], sha256, ("read", "invoke:digits"), "laptop", 7)
    assert await keys.list() == [key]
    assert SECRET not in str(await database.read("SELECT * FROM keys"))


async def test_keys_are_listed_oldest_first(database: Database) -> None:
    """Keys are listed in the order of creation, each with its own secret."""
    keys = Keys(database)

    made = [await keys.add(["read"], now_s=n) for n in range(3)]

    assert await keys.list() == [key for key, _ in made]
    assert len({secret for _, secret in made}) == 3


async def test_a_removed_key_is_gone(database: Database) -> None:
    """Removing a key returns it; a second removal raises."""
    keys = Keys(database)
    key, _ = await keys.add(["admin"], now_s=0)

    assert await keys.remove(key.id) == key
    assert await keys.list() == []
    with pytest.raises(Unknown, match=f"no key '{key.id}'"):
        await keys.remove(key.id)


async def test_keys_of_another_namespace(database: Database) -> None:
    """A namespace neither lists nor removes the keys of another."""
    keys = Keys(database)
    key, _ = await keys.add(["read"], now_s=0, namespace="team")

    assert await keys.list() == []
    with pytest.raises(Unknown):
        await keys.remove(key.id)
    assert await keys.list("team") == [key]


@pytest.mark.parametrize("scope", ["invoke", "read", "deploy", "admin", "invoke:digits"])
def test_valid_scopes(scope: str) -> None:
    """The four scopes and invoke:NAME are valid."""
    assert check_scope(scope) == scope


@pytest.mark.parametrize("scope", ["", "write", "invoke:", "invoke:A", "read:digits", "Admin"])
def test_invalid_scopes(scope: str) -> None:
    """Another scope is refused with the list of valid ones."""
    with pytest.raises(BadRequest, match="expected one of invoke, read, deploy, admin or invoke"):
        check_scope(scope)


@pytest.mark.parametrize(
    ("scopes", "note", "text"),
    [
        ([], "", "at least one"),
        (["write"], "", "got 'write'"),
        (["read"], "x" * 201, "at most 200"),
        (["read"], "a\nb", "visible"),
    ],
)
async def test_invalid_keys(database: Database, scopes: list[str], note: str, text: str) -> None:
    """A key without scopes, or with a note that is too long or not printable, is refused."""
    keys = Keys(database)

    with pytest.raises(BadRequest, match=text):
        await keys.add(scopes, note, now_s=0)

    assert await keys.list() == []


@pytest.mark.parametrize("secret", ["", "short", "A" * 42 + "!", "A" * 44])
async def test_a_poor_secret_is_refused(database: Database, secret: str) -> None:
    """A generator that does not return 43 URL-safe characters is a bug."""
    with pytest.raises(ValueError, match="43 URL-safe"):
        await Keys(database, lambda: secret).add(["read"], now_s=0)


def test_secrets_are_long_and_different() -> None:
    """A generated secret has 43 characters and is unique."""
    made = {random_secret() for _ in range(100)}

    assert len(made) == 100
    assert {len(secret) for secret in made} == {43}


def test_the_key_ring() -> None:
    """A key in the ring is found by its secret until it is removed."""
    key = Key("id", fingerprint("fn_one"), ("read",))
    ring = KeyRing([key])
    other = Key("id2", fingerprint("fn_two"), ("read",))
    ring.put(other)

    assert (ring.find("fn_one"), ring.find("fn_two"), ring.all()) == (key, other, (key, other))
    ring.remove(key)
    ring.remove(key)
    assert (ring.find("fn_one"), ring.all()) == (None, (other,))


@pytest.mark.parametrize("secret", ["", "fn_", "x" * 1_000_000, "\udc80", "日本"])
def test_strange_secrets_are_no_key(secret: str) -> None:
    """An arbitrary secret from a client matches no key and raises no error."""
    assert KeyRing([Key("id", fingerprint("fn_one"), ())]).find(secret) is None


def test_subscribers_get_each_key_change() -> None:
    """A subscriber gets added and removed keys until it unsubscribes."""
    one, two = (Key(id, fingerprint(id), ("read",)) for id in ("one", "two"))
    ring = KeyRing([one])
    changes: list[tuple[Key, bool]] = []
    end = ring.subscribe(lambda key, is_let_in: changes.append((key, is_let_in)))
    ring.put(two)
    ring.remove(one)
    end()
    ring.put(one)

    assert changes == [(two, True), (one, False)]
    assert ring.all() == (two, one)


def test_a_key_is_found_by_its_id() -> None:
    """As long as it is in the ring."""
    one, two = (Key(id, fingerprint(f"fn_{id}"), ("invoke",)) for id in ("one", "two"))
    ring = KeyRing([one])
    ring.put(two)

    assert (ring.with_id("one"), ring.with_id("two")) == (one, two)
    ring.remove(one)
    ring.remove(one)
    assert ring.with_id("one") is None
    assert ring.with_id("") is None


class FullDisk(Keys):
    """Keys whose removal fails while `is_full`; `removed` is set by the first other one."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.is_full = True
        self.removed = asyncio.Event()

    async def remove(self, id: str, namespace: str = NAMESPACE) -> Key:
        """Remove a key, if the disk has room."""
        if self.is_full:
            raise StoreUnavailable("disk full: no room")
        key = await super().remove(id, namespace)
        self.removed.set()
        return key


async def ring_of(keys: Keys) -> KeyRing:
    """Return the ring of a server that starts now."""
    return KeyRing(await keys.list())


async def test_a_key_is_revoked_in_memory_and_in_the_store(database: Database) -> None:
    """A revoked key is refused from now on, and after a restart; a second time it is unknown."""
    keys = Keys(database)
    key, _ = await keys.add(["read"], now_s=0)
    ring = await ring_of(keys)
    revocations = Revocations(keys, ring)

    await revocations.revoke(key.id)

    assert (ring.all(), await keys.list(), revocations.reasons()) == ((), [], [])
    with pytest.raises(Unknown):
        await revocations.revoke(key.id)


async def test_a_full_disk_does_not_keep_a_key_alive(database: Database) -> None:
    """A key whose removal cannot be stored is refused at once; the answer says that a restart would
    accept it, `/readyz` has a reason, and the next attempt stores it."""
    keys = FullDisk(database)
    key, _ = await keys.add(["read"], now_s=0)
    ring = await ring_of(keys)
    revocations = Revocations(keys, ring)

    for _ in range(2):
        with pytest.raises(RevokedNotStored, match="a restarted server would accept it"):
            await revocations.revoke(key.id)
        assert ring.all() == ()
        assert len(await keys.list()) == 1
        assert revocations.reasons() == [
            "keys: 1 revoked, but not in the store: a restarted server would accept them"
        ]
    keys.is_full = False
    await revocations.revoke(key.id)

    assert (await keys.list(), revocations.reasons()) == ([], [])


async def test_the_server_stores_a_revocation_later(database: Database) -> None:
    """A removal that could not be stored is repeated with growing pauses until it is stored."""
    keys = FullDisk(database)
    key, _ = await keys.add(["read"], now_s=0)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        keys.is_full = len(pauses) < 8

    revocations = Revocations(keys, await ring_of(keys), pause)
    task = asyncio.create_task(revocations.keep_storing())
    with pytest.raises(RevokedNotStored):
        await revocations.revoke(key.id)
    await keys.removed.wait()
    task.cancel()

    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert (await keys.list(), revocations.reasons()) == ([], [])


async def test_the_first_key_closes_the_store(database: Database) -> None:
    """In the transaction that stores the key, and for good: a removed key opens nothing, and a
    later key leaves a decision of the operator alone while there are others."""
    keys, store = Keys(database), OpennessStore(database)
    opened = Decision(Openness.OPEN)
    with pytest.raises(BadRequest):
        await keys.add(["nonsense"], now_s=0.0)
    assert await store.load() == Decision()
    key, _ = await keys.add(["read"], now_s=0.0)
    assert await store.load() == CLOSED
    await store.save(opened)
    await keys.add(["read"], now_s=0.0)
    assert await store.load() == opened
    await store.save(CLOSED)
    for one in await keys.list():
        await keys.remove(one.id)
    assert (await store.load(), key in await keys.list()) == (CLOSED, False)


async def test_keys_of_before_schema_15_keep_the_priority_high(tmp_path: Path) -> None:
    """Any caller could claim it; a key that is made since may not, unless it is made so."""
    database = await Database.open(tmp_path / "db", migrations=MIGRATIONS[:14])
    record = '{"id":"k","sha256":"s","scopes":["invoke"],"note":"it\'s \\"mine\\"","created_s":1.5}'
    async with database.write() as transaction:
        await transaction.query(
            "INSERT INTO keys VALUES (?, ?, ?, ?)", ("default", "k", "s", record)
        )
    await database.close()
    database = await Database.open(tmp_path / "db")
    try:
        keys = Keys(database)
        await keys.add(["invoke"], now_s=2.0)
        await keys.add(["invoke"], now_s=3.0, priority=KeyPriority.HIGH)
        old, *made = await keys.list()
    finally:
        await database.close()
    assert old == Key("k", "s", ("invoke",), 'it\'s "mine"', 1.5, KeyPriority.HIGH)
    assert [key.priority for key in made] == ["normal", "high"]
