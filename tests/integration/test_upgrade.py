"""Tests of opening data folders of earlier releases without a loss."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from registry.store.database import MIGRATIONS
from registry.store.recovery.inspection import inspect_database
from tests.support.earlier_release import FOLDER, unpack
from tests.support.server import serving

ROW: dict[str, Any] = {"inputs": {"x": [[1, 2, 3, 4]]}}
TWO: dict[str, Any] = {"inputs": {"a": [[1, 2, 3, 4]], "b": [[1, 1, 1, 1]]}}
RELEASES = sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize("release", RELEASES)
async def test_a_folder_of_an_earlier_release(tmp_path: Path, release: str) -> None:
    """Functions answer as before, with their settings and rollback target; keys keep their access;
    a killed deploy is completed."""
    data = tmp_path / "data"
    kept = await asyncio.to_thread(unpack, release, data)
    before = inspect_database(data / "fngate.db")
    bearer = f"Bearer {kept['secret']}"

    async with serving(tmp_path) as server:
        assert (await server.call("add-one", ROW)).status == 401
        answer = await server.call("add-one", ROW, Authorization=bearer)
        assert answer.json() == {"outputs": {"y": [[2, 3, 4, 5]]}, "revision": "add-one@2"}
        assert (await server.call("fixed", ROW, Authorization=bearer)).status == 200
        operation = await server.ended({"id": kept["operation"]})
        assert operation.json()["state"] == "done", operation
        late = await server.call("late", TWO, Authorization=bearer)
        assert late.json()["outputs"]["sum"] == [[2, 3, 4, 5]]
        answer = await server.admin("POST", "/functions/add-one/rollback", {})
        assert (await server.ended(answer.json())).json()["result"]["revision"] == "add-one@1"
        assert (await server.function("add-one"))["name"] == "add-one"
        stored = (await server.admin("GET", "/operations")).json()["items"]
        assert [one["result"]["created"] for one in stored if one["kind"] == "deploy"] == [True] * 4
        blobs = [path for path in data.glob("blobs/??/*") if path.is_file()]
    after = inspect_database(data / "fngate.db", is_checked=True)

    assert (before.state, before.functions, before.keys) == ("sound", 2, 1)
    assert (after.state, after.functions, after.keys) == ("sound", 3, 1)
    # An earlier release refuses a newer database with both numbers.
    assert before.schema < after.schema == len(MIGRATIONS)
    assert len(blobs) >= 3
    # The backup with which one can return to that release.
    assert inspect_database(data / "backups" / f"schema-{before.schema}.db") == before


def test_there_is_an_earlier_release() -> None:
    """The list of releases above is not empty."""
    assert "0.1.0" in RELEASES
