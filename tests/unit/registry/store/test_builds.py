"""Tests of stored builds and compiled models."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from registry.builds import TYPES_MAX, Build, DeviceType, Target
from registry.compilation import Compiled
from registry.errors import StoreUnavailable
from registry.model.bundles import BundleFile
from registry.store.builds import BuildStore, Decide
from registry.store.database import Database
from runtime_image.contract.compiled import (
    TIMING_CACHE,
    CompiledFile,
    CompiledModel,
    OutputParity,
    ShapeRange,
)

ROWS = ShapeRange("x", (1, 4), (8, 4), (8, 4))
TARGET = Target("b", "m.onnx", "", "cpu", "onnxruntime", (ROWS,), keeps_ordinary=True)
FILES = (
    BundleFile(".compiled/model.onnx", 7, "a" * 64),
    BundleFile(f".compiled/{TIMING_CACHE}", 3, "b" * 64),
)
COMPILED = Compiled(
    TARGET,
    CompiledModel(
        "k", "onnxruntime", "context", (CompiledFile("model.onnx", 7, "a" * 64),), (ROWS,)
    ),
    FILES,
    (OutputParity(output="y", largest_difference=0.1, relative_difference=0.0, cosine=1.0),),
    ordinary_ms={"1": 2.0},
    compiled_ms={"1": 1.0},
    timing_key="t",
    made_s=5.0,
)
DONE = Build("done", ended_s=5.0)


def becomes(*values: Any, **fields: Any) -> Decide:
    """Return a decision that does not depend on the present state."""
    return lambda _: Build(*values, **fields)


async def opened(database: Database, missing: str = "") -> BuildStore:
    return await BuildStore.open(database, lambda file: file.sha256 != missing)


async def test_a_result_survives_a_restart(database: Database) -> None:
    """Build and compiled model are there in a store that is opened later."""
    await (await opened(database)).put(COMPILED, becomes("done", ended_s=5.0))

    later = await opened(database)

    assert later.compiled(TARGET.digest) == COMPILED
    assert later.build(TARGET.digest) == DONE
    assert later.referenced_blobs() == {"a" * 64, "b" * 64}
    assert COMPILED.timing_cache == FILES[1]


async def test_a_model_without_its_files_is_missing(database: Database) -> None:
    """After a restore the files may be gone; the state of the build is kept."""
    await (await opened(database)).put(COMPILED, becomes("done", ended_s=5.0))

    later = await opened(database, missing="b" * 64)

    assert later.compiled(TARGET.digest) is None
    assert later.build(TARGET.digest) == DONE
    assert later.referenced_blobs() == set()


async def test_drop_keeps_the_state(database: Database) -> None:
    """A compiled model that replicas refuse is removed, and the state of its build stays."""
    store = await opened(database)
    await store.put(COMPILED, becomes("done", ended_s=5.0))

    await store.drop(TARGET.digest, becomes(reason="another key"))

    for one in (store, await opened(database)):
        assert one.compiled(TARGET.digest) is None
        assert one.build(TARGET.digest) == Build(reason="another key")


async def test_no_change_is_lost(database: Database) -> None:
    """Changes of one build at the same time follow each other, whatever they store besides."""
    store = await opened(database)

    def once_more(build: Build) -> Build:
        return replace(build, attempts=build.attempts + 1)

    await asyncio.gather(
        *(store.change(TARGET.digest, once_more) for _ in range(5)),
        store.put(COMPILED, once_more),
        store.drop(TARGET.digest, once_more),
    )

    for one in (store, await opened(database)):
        assert one.build(TARGET.digest) == Build(attempts=7)


async def test_targets_without_revisions_go(database: Database) -> None:
    """Only the named groups stay, in memory and in the database."""
    other = replace(TARGET, bundle="c")
    store = await opened(database)
    await store.put(COMPILED, becomes("done", ended_s=5.0))
    await store.put(replace(COMPILED, target=other), becomes("done", ended_s=5.0))
    await store.change("never done", lambda build: build)

    assert await store.keep_only({TARGET.group, "unknown"}) == 2
    assert await store.keep_only({TARGET.group}) == 0
    assert store.compiled_in(other.group) == []

    for one in (store, await opened(database)):
        assert one.all_compiled() == [COMPILED]
        assert dict(one.all_builds()) == {TARGET.digest: DONE}


async def test_types_of_devices_are_bounded(database: Database) -> None:
    """Each type has its own build and result; of too many, those go that were used first."""
    store = await opened(database)
    types = [replace(TARGET, device=DeviceType("local", f"GPU {n}")) for n in range(TYPES_MAX + 2)]
    for number, target in enumerate(types):
        await store.put(replace(COMPILED, target=target), becomes("done", ended_s=10.0 + number))

    assert await store.keep_only({TARGET.group}) == 2

    for one in (store, await opened(database)):
        assert {found.target for found in one.compiled_in(TARGET.group)} == set(types[2:])
    await store.drop(types[5].digest, becomes())
    assert len(store.compiled_in(TARGET.group)) == TYPES_MAX - 1


async def test_memory_follows_the_database(database: Database) -> None:
    """What cannot be stored is not in memory either."""
    store = await opened(database)
    await database.close()

    for write in (
        store.change(TARGET.digest, becomes("done", ended_s=5.0)),
        store.put(COMPILED, becomes("done", ended_s=5.0)),
    ):
        with pytest.raises(StoreUnavailable):
            await write

    assert store.build(TARGET.digest) is None
    assert store.compiled(TARGET.digest) is None
