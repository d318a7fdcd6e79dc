"""Tests of stored secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.errors import BadRequest, Conflict, Unknown
from registry.settings import StoreSettings
from registry.store import secrets
from registry.store.database import Database
from registry.store.sealing import KeyFile
from registry.store.secrets import VALUE_MAX, SecretStore, StoredSecret


@pytest.fixture
def store(database: Database, tmp_path: Path) -> SecretStore:
    return SecretStore(database, KeyFile.of(StoreSettings(tmp_path)))


async def test_values_come_back_and_are_sealed_in_the_database(
    store: SecretStore, database: Database
) -> None:
    """A value is returned as it was set; the database has neither it nor the key."""
    await store.set("hf", "naïve ${PORT}\n", now_s=5.0)
    await store.set("other", "x", now_s=6.0)

    assert await store.values(["hf", "other"]) == {"hf": "naïve ${PORT}\n", "other": "x"}
    assert await store.values([]) == {}
    assert await store.list() == [StoredSecret("hf", 5.0), StoredSecret("other", 6.0)]
    assert "PORT" not in str(await database.read("SELECT * FROM secrets"))


async def test_a_change_says_whether_the_value_differs(store: SecretStore) -> None:
    """Setting an equal value changes nothing; a new value replaces the old one."""
    first = await store.set("hf", "one", now_s=1.0)
    again = await store.set("hf", "one", now_s=2.0)
    other = await store.set("hf", "two", now_s=3.0)

    assert [(one.is_new, one.is_changed) for one in (first, again, other)] == [
        (True, True),
        (False, False),
        (False, True),
    ]
    assert await store.values({"hf"}) == {"hf": "two"}


@pytest.mark.parametrize("value", ["", "a\0b", "x" * (VALUE_MAX + 1), "\udcff"])
async def test_bad_values_are_refused_without_being_quoted(store: SecretStore, value: str) -> None:
    """A value that no variable can have is refused; the text has no part of it."""
    with pytest.raises(BadRequest) as caught:
        await store.set("hf", value, now_s=0.0)
    assert caught.value.message.startswith("value: expected ")
    assert not value or value[:3] not in caught.value.message
    assert await store.list() == []


async def test_bad_names_are_refused(store: SecretStore) -> None:
    """Names follow the rule of functions."""
    with pytest.raises(BadRequest, match="expected a name"):
        await store.set("HF_TOKEN", "x", now_s=0.0)


async def test_the_number_is_limited(store: SecretStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further secret is refused; a stored one may still change."""
    monkeypatch.setattr(secrets, "SECRETS_MAX", 1)
    await store.set("a", "1", now_s=0.0)

    with pytest.raises(Conflict, match="there are 1 secrets already"):
        await store.set("b", "1", now_s=0.0)
    await store.set("a", "2", now_s=0.0)


async def test_missing_secrets_are_named(store: SecretStore) -> None:
    """The error names the secrets and the command."""
    await store.set("a", "1", now_s=0.0)

    with pytest.raises(Unknown, match="no secret b and c; set it: fnctl secret set b"):
        await store.values(["a", "c", "b"])
    with pytest.raises(Unknown, match="no secret 'b'"):
        await store.remove("b")

    await store.remove("a")
    with pytest.raises(Unknown, match="no secret a"):
        await store.values({"a"})


async def test_without_the_key_secrets_are_unreadable_until_they_are_set_again(
    store: SecretStore, tmp_path: Path
) -> None:
    """A database without its key lists its secrets as unreadable. A new key opens what is set from
    then on; the old key file, put back, opens the rest."""
    await store.set("a", "1", now_s=0.0)
    await store.set("b", "2", now_s=0.0)
    path, aside = tmp_path / "secret.key", tmp_path / "aside"
    path.rename(aside)

    listed = await store.list()
    assert all(
        f"{path} does not exist; put that file back, or set it again" in one.problem
        for one in listed
    )
    with pytest.raises(Conflict, match="secret a: its key is missing"):
        await store.values(["a"])

    change = await store.set("a", "3", now_s=0.0)
    assert (change.is_changed, change.unreadable) == (True, ("b",))
    assert await store.values(["a"]) == {"a": "3"}
    with pytest.raises(Conflict, match="secret b: it was sealed with another key"):
        await store.values(["b"])

    aside.rename(path)
    assert await store.values(["b"]) == {"b": "2"}


async def test_a_row_moved_to_another_name_is_damaged(
    store: SecretStore, database: Database
) -> None:
    """Who can write the database cannot give one secret the value of another."""
    await store.set("a", "1", now_s=0.0)
    async with database.write() as transaction:
        await transaction.query("UPDATE secrets SET name = 'b'")

    with pytest.raises(Conflict, match="secret b: its row is damaged"):
        await store.values(["b"])
