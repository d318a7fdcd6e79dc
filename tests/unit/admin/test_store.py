"""Tests of opening the data folder: token, contents in memory, one server per folder."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from admin.store import COOKIE_FILE, TOKEN_FILE, admin_token, cookie_secret, open_store
from registry.errors import Conflict
from registry.settings import StoreSettings
from tests.support.nouns import bundle, function, profile, revision


def test_the_token_is_private_and_stays(tmp_path: Path) -> None:
    """The token is created once, readable for this user only, and kept."""
    token = admin_token(tmp_path)

    assert token.startswith("fn_")
    assert len(token) > 40
    assert (tmp_path / TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    assert admin_token(tmp_path) == token


def test_a_token_file_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    """A token file that others may read loses these modes, and the token is kept: a restored backup
    may have other modes."""
    path = tmp_path / TOKEN_FILE
    path.write_text("fn_restored\n")
    path.chmod(0o644)

    assert admin_token(tmp_path) == "fn_restored"
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_empty_token_file_opens_nothing(tmp_path: Path) -> None:
    """An empty token file is replaced by a new token."""
    (tmp_path / TOKEN_FILE).write_text("\n")

    token = admin_token(tmp_path)

    assert len(token) > 40
    assert admin_token(tmp_path) == token


async def test_what_is_stored_is_in_memory_after_opening(tmp_path: Path) -> None:
    """After opening, functions, bundles and keys of the store are in memory."""
    settings = StoreSettings(tmp_path)
    async with AsyncExitStack() as stack:
        store = await open_store(settings, stack)
        await store.functions.deploy(function(revision=0), revision(number=0), bundle(), profile())
        key, secret = await store.keys.add(["read"], now_s=1.0)
        token = admin_token(store.settings.data)

    async with AsyncExitStack() as stack:
        store = await open_store(settings, stack)

        assert store.catalog.resolve("digits").revision.ref == "digits@1"
        assert store.bundles == {bundle().digest: bundle()}
        assert store.ring.find(secret) == key
        assert store.ring.find(token) is not None


async def test_a_second_server_is_refused(tmp_path: Path) -> None:
    """A second server on the same data folder is refused until the first has ended."""
    async with AsyncExitStack() as stack:
        await open_store(StoreSettings(tmp_path), stack)
        async with AsyncExitStack() as other:
            with pytest.raises(Conflict, match="in use by another server"):
                await open_store(StoreSettings(tmp_path), other)

    async with AsyncExitStack() as stack:
        await open_store(StoreSettings(tmp_path), stack)


def test_the_secret_of_cookies_is_private_and_stays(tmp_path: Path) -> None:
    """It is created once and readable for this user only; removing it makes a new one."""
    secret = cookie_secret(tmp_path)

    assert len(secret) == 32
    assert (tmp_path / COOKIE_FILE).stat().st_mode & 0o777 == 0o600
    assert cookie_secret(tmp_path) == secret
    (tmp_path / COOKIE_FILE).unlink()
    assert cookie_secret(tmp_path) != secret


@pytest.mark.parametrize("content", [b"", b"short"])
def test_a_broken_secret_signs_nothing(tmp_path: Path, content: bytes) -> None:
    """A file that a full disk has cut is replaced."""
    (tmp_path / COOKIE_FILE).write_bytes(content)

    assert len(cookie_secret(tmp_path)) == 32
