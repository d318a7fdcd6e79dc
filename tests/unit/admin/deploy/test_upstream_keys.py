"""Tests of the reading of upstream keys: they follow secrets and functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from admin.deploy import upstream_keys
from admin.deploy.upstream_keys import UpstreamKeyReader, upstream_secret
from registry.catalog import Deployed
from registry.model.functions import NAMESPACE
from registry.model.revisions import Revision
from registry.model.servers import ModelApi
from registry.upstream_keys import UpstreamKey
from tests.support import nouns
from tests.support.operator import Operator, operating


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[tuple[Operator, UpstreamKeyReader]]:
    """Open a store with the secret `k`, and the reader of its deploys."""
    async with operating(folder) as operator:
        await operator.store.secrets.set("k", "one", now_s=0.0)
        yield operator, operator.deploys.upstream_keys


def revision(name: str = "web", number: int = 1, key: str = "k") -> Revision:
    return nouns.server_revision(name, number, api=ModelApi(upstream_key=key))


def deployed(one: Revision) -> Deployed:
    return Deployed(nouns.function(one.name, one.number), one)


def test_only_an_openai_table_names_a_key() -> None:
    """Models, other servers and tables without the key need none."""
    assert upstream_secret(None) == ""
    assert upstream_secret(nouns.server_revision().server) == ""
    assert upstream_secret(nouns.server_revision(api=ModelApi()).server) == ""
    assert upstream_secret(revision().server) == "k"


async def test_a_key_is_there_before_its_revision_and_goes_with_it(tmp_path: Path) -> None:
    """Subscribers of the catalog find it; it stays while any revision needs it."""
    async with reading(tmp_path) as (operator, reader):
        store, seen = operator.store, []
        store.catalog.subscribe(lambda _change: seen.append(store.upstream_keys.find("k")))
        for one in (revision(), revision("other")):
            async with reader.held(one):
                store.catalog.put(deployed(one))
        assert seen == [UpstreamKey("k", "one")] * 2

        store.catalog.remove("web")
        assert store.upstream_keys.find("k") == UpstreamKey("k", "one")
        store.catalog.put(deployed(revision("other", 2, "")))
        assert store.upstream_keys.find("k") is not None
        store.catalog.remove_revisions("other", [1])
        assert store.upstream_keys.all() == ()


async def test_a_failed_deploy_leaves_no_key(tmp_path: Path) -> None:
    """A key that no revision needs in the end is forgotten."""
    async with reading(tmp_path) as (operator, reader):

        async def fail() -> None:
            async with reader.held(revision()):
                assert operator.store.upstream_keys.find("k") is not None
                raise RuntimeError

        with pytest.raises(RuntimeError):
            await fail()
        assert operator.store.upstream_keys.all() == ()


async def test_two_deploys_at_once_share_a_key(tmp_path: Path) -> None:
    """The end of one does not take it from the other."""
    async with reading(tmp_path) as (operator, reader), reader.held(revision()):
        async with reader.held(revision("other")):
            pass
        assert operator.store.upstream_keys.find("k") == UpstreamKey("k", "one")


async def test_a_key_follows_its_secret(tmp_path: Path) -> None:
    """A new value, a value that is no key, a removal, a secret that nobody needs."""
    async with reading(tmp_path) as (operator, reader):
        store = operator.store
        async with reader.held(revision()):
            store.catalog.put(deployed(revision()))

        await store.secrets.set("k", "two", now_s=1.0)
        await reader.refresh("k", NAMESPACE)
        assert store.upstream_keys.find("k") == UpstreamKey("k", "two")

        await store.secrets.set("k", "two lines\n", now_s=2.0)
        await reader.refresh("k", NAMESPACE)
        found = store.upstream_keys.find("k")
        assert found is not None
        assert (found.value, found.problem[:15]) == ("", "secret k is no ")

        await store.secrets.remove("k")
        await reader.refresh("k", NAMESPACE)
        text = "no secret k; set it: fnctl secret set k"
        assert store.upstream_keys.all() == (UpstreamKey("k", problem=text),)

        await store.secrets.set("other", "x", now_s=3.0)
        await reader.refresh("other", NAMESPACE)
        assert store.upstream_keys.find("other") is None


async def test_keys_are_there_after_a_restart(tmp_path: Path) -> None:
    """A key that cannot be read then does not hinder the start, nor the other keys."""
    async with reading(tmp_path) as (operator, _):
        store = operator.store
        await store.secrets.set("x", "other", now_s=0.0)
        await store.secrets.remove("k")
        for one in (revision(), revision("b", 1, "x")):
            numbered = replace(one, number=0, bundle=nouns.bundle().digest)
            await store.functions.deploy(
                nouns.function(one.name, 0), numbered, nouns.bundle(), None
            )

    async with operating(tmp_path) as operator:
        keys = operator.store.upstream_keys
        assert keys.find("x") == UpstreamKey("x", "other")
        found = keys.find("k")
        assert found is not None
        assert found.problem.startswith("no secret k")


async def test_a_key_file_that_is_back_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that cannot be read are tried again by themselves."""
    monkeypatch.setattr(upstream_keys, "AGAIN_S", 0.01)
    async with reading(tmp_path) as (operator, reader):
        store, news = operator.store, asyncio.Event()
        file = tmp_path / "data" / "secret.key"
        file.rename(tmp_path / "away")
        async with reader.held(revision()):
            store.catalog.put(deployed(revision()))
        found = store.upstream_keys.find("k")
        assert found is not None
        assert "its key is missing" in found.problem

        store.upstream_keys.subscribe(lambda key, _: key.value and news.set())
        (tmp_path / "away").rename(file)
        async with asyncio.timeout(30):
            await news.wait()
        assert store.upstream_keys.find("k") == UpstreamKey("k", "one")
