"""Tests of the key that secrets are sealed with, and of its file."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry.errors import StoreUnavailable
from registry.settings import StoreSettings
from registry.store.sealing import KeyFile, SealingKey

KEY = SealingKey(bytes(range(32)))


def test_a_sealed_value_is_bound_to_its_name() -> None:
    """Only the same key and the same name open a value; a changed byte opens nothing."""
    sealed = KEY.seal(b"s3cret", "default/hf")

    assert KEY.unseal(sealed, "default/hf") == b"s3cret"
    assert KEY.unseal(sealed, "default/other") is None
    assert SealingKey(bytes(32)).unseal(sealed, "default/hf") is None
    assert KEY.unseal(sealed[:-1] + bytes([sealed[-1] ^ 1]), "default/hf") is None
    assert KEY.unseal(b"", "default/hf") is None
    assert b"s3cret" not in sealed


def test_equal_values_are_sealed_differently() -> None:
    """Each sealing has a nonce of its own."""
    assert KEY.seal(b"same", "a") != KEY.seal(b"same", "a")


def test_a_key_shows_nothing_of_itself() -> None:
    """Neither its text nor its id has a part of the key."""
    assert KEY.secret.hex()[:8] not in repr(KEY)
    assert repr(KEY) == f"SealingKey({KEY.id})"


def test_the_key_is_created_once_and_privately(tmp_path: Path) -> None:
    """The file has mode 0600; a second use reads the same key, also at the same time."""
    file = KeyFile.of(StoreSettings(tmp_path))
    assert file.read() is None

    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: file.read_or_create(), range(32)))

    assert keys == {file.read()}
    assert stat.S_IMODE((tmp_path / "secret.key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]


def test_a_foreign_key_file_is_never_created(tmp_path: Path) -> None:
    """A file that a setting names must be there."""
    path = tmp_path / "given.key"
    file = KeyFile.of(StoreSettings(tmp_path, secret_key_file=path))

    with pytest.raises(StoreUnavailable, match="openssl rand -hex 32"):
        file.read_or_create()
    assert not path.exists()

    path.write_text("ab" * 32 + "\n")
    assert file.read_or_create() == SealingKey(bytes.fromhex("ab" * 32))


@pytest.mark.parametrize("content", ["", "ab" * 31, "xy" * 32, "ab" * 33])
def test_other_bytes_are_no_key(tmp_path: Path, content: str) -> None:
    """A damaged file is refused and stays as it is; its bytes are not quoted."""
    path = tmp_path / "secret.key"
    path.write_text(content)

    with pytest.raises(StoreUnavailable) as caught:
        KeyFile.of(StoreSettings(tmp_path)).read_or_create()

    assert caught.value.message == f"{path}: expected a key of 64 hex digits, got other bytes"
    assert path.read_text() == content


def test_a_pipe_is_no_key_file(tmp_path: Path) -> None:
    """It would be read once, and waited for: it is refused at once."""
    path = tmp_path / "given.key"
    os.mkfifo(path)

    with pytest.raises(StoreUnavailable, match="expected a key of 64 hex digits"):
        KeyFile.of(StoreSettings(tmp_path, secret_key_file=path)).read_or_create()


def test_an_unreadable_place_is_said(tmp_path: Path) -> None:
    """A folder in the file's place, or none above it, is a failure of the disk."""
    (tmp_path / "secret.key").mkdir()

    with pytest.raises(StoreUnavailable, match="disk error"):
        KeyFile.of(StoreSettings(tmp_path)).read()
    with pytest.raises(StoreUnavailable, match="disk error"):
        KeyFile.of(StoreSettings(tmp_path / "none")).read_or_create()
