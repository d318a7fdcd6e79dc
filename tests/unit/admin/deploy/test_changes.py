"""Changes of what is deployed, in the store and in memory together."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from admin.deploy.changes import Changes, changed_settings, etag
from admin.deploy.plan import Plan
from admin.deploy.verify import Verified
from registry.errors import (
    BadRequest,
    PreconditionFailed,
    StoreUnavailable,
    UnknownFunction,
)
from tests.support import nouns
from tests.support.operator import Operator, locked, operating

DRAFT = Plan(nouns.function(revision=0), nouns.revision(number=0), nouns.bundle())
VERIFIED = Verified(DRAFT.revision, nouns.profile(), {})


async def numbers(operator: Operator) -> list[int]:
    """The revisions in the store."""
    return sorted(one.revision.number for one in await operator.store.functions.load_all())


def test_changed_settings_are_named() -> None:
    """Labels, scaling and limits, by their keys in function.toml."""
    before = nouns.function()
    after = replace(
        before,
        labels={"team": "red"},
        scaling=replace(before.scaling, idle_s=1.0),
        limits=replace(before.limits, queue=1),
        created_s=99.0,
    )

    assert changed_settings(before, after) == ["labels", "scaling.idle_s", "limits.queue"]
    assert changed_settings(before, before) == []


async def test_a_staged_revision_is_there_without_traffic(tmp_path: Path) -> None:
    """It can be called by its number, and its operation finds it again."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        await changes.first(DRAFT, VERIFIED)

        staged = await changes.stage(DRAFT, VERIFIED, "o1")

        catalog = operator.store.catalog
        assert catalog.resolve("digits").revision.number == 1
        assert catalog.resolve("digits@2") == staged == await changes.staged("o1", "digits")
        assert await changes.staged("o2", "digits") is None


async def test_a_staged_revision_goes_with_its_operation(tmp_path: Path) -> None:
    """From store and memory; what was not staged changes nothing."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        await changes.first(DRAFT, VERIFIED)
        await changes.stage(DRAFT, VERIFIED, "o1")

        await changes.unstage("o2")
        await changes.unstage_abandoned({"o1"})
        assert await numbers(operator) == [1, 2]
        await changes.unstage_abandoned(())

        assert await numbers(operator) == [1]
        assert operator.store.catalog.find("digits@2") is None


async def test_what_memory_does_not_know_is_removed_all_the_same(tmp_path: Path) -> None:
    """A cancellation may come between the two."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        await changes.first(DRAFT, VERIFIED)
        await operator.store.traffic.stage(VERIFIED.revision, DRAFT.bundle, VERIFIED.profile, "o1")

        await changes.unstage("o1")

        assert await numbers(operator) == [1]


async def test_a_move_keeps_settings_unless_it_brings_others(tmp_path: Path) -> None:
    """Those that were changed meanwhile are kept too."""
    async with operating(tmp_path) as operator:
        changes, catalog = Changes(operator.store), operator.store.catalog
        await changes.first(DRAFT, VERIFIED)
        staged = await changes.stage(DRAFT, VERIFIED, "o1")
        await changes.rescale("digits", "*", {"idle_s": 5.0})

        await changes.move(staged)
        assert catalog.resolve("digits").revision.number == 2
        assert catalog.resolve("digits").function.scaling.idle_s == 5.0

        await changes.move(catalog.resolve("digits@1"), DRAFT.function)
        assert catalog.resolve("digits").function == replace(DRAFT.function, revision=1)


async def test_of_two_changes_of_the_same_only_one_happens(tmp_path: Path) -> None:
    """The second has not seen the first, however close they come."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        tag = etag((await changes.first(DRAFT, VERIFIED)).function)

        async def change(most: int) -> bool:
            try:
                await changes.rescale("digits", tag, {"max": most})
            except PreconditionFailed:
                return False
            return True

        async with asyncio.TaskGroup() as group:
            done = [group.create_task(change(most)) for most in (2, 3)]

        assert [each.result() for each in done] == [True, False]
        assert operator.store.catalog.resolve("digits").function.scaling.max == 2


async def test_what_cannot_be_stored_does_not_change(tmp_path: Path) -> None:
    """Memory says what the store says."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        first = await changes.first(DRAFT, VERIFIED)
        staged = await changes.stage(DRAFT, VERIFIED, "o1")
        with locked(operator.store.settings.database):
            for change in (
                changes.rescale("digits", "*", {"max": 2}),
                changes.move(staged),
                changes.unstage("o1"),
                changes.keep(DRAFT, first),
            ):
                with pytest.raises(StoreUnavailable):
                    await change

        assert operator.store.catalog.resolve("digits") == first
        assert operator.store.catalog.find("digits@2") is not None


async def test_a_change_must_be_possible(tmp_path: Path) -> None:
    """Unknown names and values out of range are told."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        await changes.first(DRAFT, VERIFIED)

        with pytest.raises(UnknownFunction):
            await changes.rescale("digit", "*", {"max": 2})
        with pytest.raises(BadRequest, match=r"scaling\.max: expected at least 1, got 0"):
            await changes.rescale("digits", "*", {"max": 0})
