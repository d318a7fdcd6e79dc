"""Tests of changes to what is deployed, made in the store and in memory together."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from admin.deploy.changes import (
    ALIASES_MAX,
    Changes,
    Removal,
    changed_settings,
    check_match,
    etag,
)
from admin.deploy.plan import Plan
from admin.deploy.verify import Verified
from admin.documents.requests import RollbackRequest
from gateway.admission.callers import NOBODY
from registry.errors import (
    BadRequest,
    Conflict,
    FnError,
    PreconditionFailed,
    PreconditionRequired,
    Refused,
    StoreUnavailable,
    Unknown,
    UnknownFunction,
)
from registry.model.functions import Scaling
from registry.model.servers import ModelApi
from tests.support import nouns
from tests.support.nouns import function, optimised, prepared, sha256
from tests.support.operator import MODEL, Operator, locked, operating

DRAFT = Plan(nouns.function(revision=0), nouns.revision(number=0), nouns.bundle())
VERIFIED = Verified(DRAFT.revision, nouns.profile(), {})


async def numbers(operator: Operator) -> list[int]:
    """Return the numbers of the revisions in the store."""
    return sorted(one.revision.number for one in await operator.store.functions.load_all())


def test_changed_settings_are_named() -> None:
    """Changed labels, scaling and limits are named by their keys in function.toml."""
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
    """A staged revision has no traffic, can be called by its number, and is found by its
    operation."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        await changes.first(DRAFT, VERIFIED)

        staged = await changes.stage(DRAFT, VERIFIED, "o1")

        catalog = operator.store.catalog
        assert catalog.resolve("digits").revision.number == 1
        assert catalog.resolve("digits@2") == staged == await changes.staged("o1", "digits")
        assert await changes.staged("o2", "digits") is None


async def test_a_staged_revision_is_removed_with_its_operation(tmp_path: Path) -> None:
    """Unstaging removes the operation's revision from store and memory, and nothing that it did not
    stage."""
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


async def test_a_revision_unknown_to_the_catalog_is_unstaged(tmp_path: Path) -> None:
    """Unstaging removes a revision that is only in the store: a cancellation may come before the
    catalog is updated."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        await changes.first(DRAFT, VERIFIED)
        await operator.store.traffic.stage(VERIFIED.revision, DRAFT.bundle, VERIFIED.profile, "o1")

        await changes.unstage("o1")

        assert await numbers(operator) == [1]


async def test_a_move_keeps_settings_unless_it_brings_others(tmp_path: Path) -> None:
    """A move keeps the current settings, changed meanwhile or not, unless it brings others."""
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
    """Of two simultaneous changes with the same ETag only the first is made."""
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


async def test_a_change_that_cannot_be_stored_is_not_made(tmp_path: Path) -> None:
    """A change that cannot be stored is not made in memory either."""
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
    """Unknown names and values out of range are refused."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        await changes.first(DRAFT, VERIFIED)

        with pytest.raises(UnknownFunction):
            await changes.rescale("digit", "*", {"max": 2})
        with pytest.raises(BadRequest, match=r"scaling\.max: expected at least 1, got 0"):
            await changes.rescale("digits", "*", {"max": 0})


TAG = etag(function())


def test_a_tag_is_as_lasting_as_what_it_names() -> None:
    """Equal settings and traffic give the same ETag; different ones give another."""
    assert etag(function()) == TAG
    assert TAG[0] == TAG[-1] == '"'
    assert len({TAG, etag(function(scaling=Scaling(1))), etag(function(revision=2))}) == 3


@pytest.mark.parametrize("header", [TAG, "*", f'"a", {TAG}', f"W/{TAG} , {TAG}"])
def test_a_match_may_be_one_of_several_or_any(header: str) -> None:
    """If-Match may be a list or `*`, as RFC 9110 allows."""
    check_match(header, function())


@pytest.mark.parametrize(
    ("header", "error", "text"),
    [
        (None, PreconditionRequired, "needs the header If-Match"),
        ("", PreconditionFailed, "digits has changed since it was read"),
        (f"W/{TAG}", PreconditionFailed, f"expected If-Match {TAG}, got W/"),
        (TAG.strip('"'), PreconditionFailed, "expected If-Match"),
    ],
)
def test_another_tag_does_not_match(header: str | None, error: type[FnError], text: str) -> None:
    """A missing, weak or unquoted ETag is refused with what was expected."""
    with pytest.raises(error) as refused:
        check_match(header, function())

    assert text in refused.value.message


FAR_S = 4_000_000_000.0
"""A time in Unix seconds long after every test."""


async def deploy_many(operator: Operator, count: int) -> None:
    """Deploy `count` revisions of digits, each with its own files."""
    for number in range(count):
        result = await operator.deploy("digits", files={f"m{number}.onnx": MODEL * (number + 1)})
        assert result.state == "done"


async def test_old_revisions_go(tmp_path: Path) -> None:
    """Only the newest revisions are kept in store, memory and pools."""
    async with operating(tmp_path, revisions_keep=2) as operator:
        await deploy_many(operator, 4)

        kept = [one.revision.number for one in operator.store.catalog.revisions("digits")]
        assert kept == [3, 4]
        assert [operator.manager.pool(f"default/digits@{n}") is None for n in (2, 3)] == [
            True,
            False,
        ]
        stored = await operator.store.functions.load_all()
        assert sorted(one.revision.number for one in stored) == [3, 4]
        assert len(operator.store.bundles) == 2


async def test_the_target_of_a_rollback_is_kept(tmp_path: Path) -> None:
    """The target of a rollback is kept however old, beside the current revision; a third revision
    is removed with its pool."""
    async with operating(tmp_path, revisions_keep=2) as operator:
        await deploy_many(operator, 2)
        moved = await operator.deploys.roll_back("digits", RollbackRequest(1), NOBODY)
        assert (await operator.ended(moved.id)).state == "done"

        await operator.deploy("digits", files={"m9.onnx": MODEL * 9})

        kept = [one.revision.number for one in operator.store.catalog.revisions("digits")]
        assert kept == [1, 3]
        assert operator.manager.pool("default/digits@2") is None
        assert await operator.store.traffic.previous("digits") == 1


async def test_a_removed_function_is_gone_everywhere(tmp_path: Path) -> None:
    """A removed function is gone from catalog, store and pools; a second removal is refused."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        removal = Removal(operator.store, operator.models)

        await removal.remove("digits")

        assert operator.store.catalog.all() == ()
        assert operator.manager.pool("default/digits@1") is None
        with pytest.raises(UnknownFunction):
            await removal.remove("digits")


async def test_a_removal_that_fails_changes_nothing(tmp_path: Path) -> None:
    """With the store locked, a removal is refused and the function is still served."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")

        with locked(operator.store.settings.database), pytest.raises(StoreUnavailable):
            await operator.deploys.remove("digits")

        assert operator.store.catalog.find("digits") is not None
        assert operator.manager.pool("default/digits@1") is not None


async def test_unused_blobs_are_swept(tmp_path: Path) -> None:
    """A sweep keeps blobs that a revision or a deploy uses, and removes others once they are old
    enough."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        await operator.request({"a.onnx": b"in use", "b.onnx": b"unused"})
        blobs, removal = operator.store.blobs, Removal(operator.store, operator.models)

        await removal.sweep({sha256(b"in use")}, 0.0)
        assert blobs.has(sha256(b"unused"))
        await removal.sweep({sha256(b"in use")}, FAR_S)

        held = [blobs.has(sha256(content)) for content in (MODEL, b"in use", b"unused")]
        assert held == [True, True, False]


async def test_a_chosen_candidate_is_no_unused_blob(tmp_path: Path) -> None:
    """The file that a revision is served by is kept as long as the revision."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        await operator.request({"a.onnx": b"int8"})
        found = operator.store.catalog.resolve("digits")
        assert found.profile is not None
        measured = replace(found.profile, optimised=optimised(b"int8"))
        operator.store.catalog.put(replace(found, profile=measured))
        blobs, removal = operator.store.blobs, Removal(operator.store, operator.models)

        await removal.sweep((), FAR_S)
        assert blobs.has(sha256(b"int8"))
        operator.store.catalog.put(found)
        await removal.sweep((), FAR_S)
        assert not blobs.has(sha256(b"int8"))


async def test_a_bundle_in_memory_goes_with_its_last_revision(tmp_path: Path) -> None:
    """A bundle leaves memory with its last revision."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        await operator.deploys.remove("digits")

        assert operator.store.bundles == {}


async def test_tidying_is_no_reason_to_fail(tmp_path: Path) -> None:
    """With the store locked, trim and sweep log the failure and raise nothing; the next call makes
    up for it."""
    async with operating(tmp_path, revisions_keep=10) as operator:
        await deploy_many(operator, 2)
        removal = Removal(operator.store, operator.models)
        with capture_logs() as logs, locked(operator.store.settings.database):
            await removal.trim("digits")
            await removal.sweep((), FAR_S)

        said = {entry["event"] for entry in logs}
        assert {"old revisions are kept for now", "unused files are kept for now"} <= said
        assert len(operator.store.catalog.revisions("digits")) == 2


async def test_prepared_files_are_kept_with_their_revision(tmp_path: Path) -> None:
    """The prepared files of a revision are kept as long as the revision."""
    async with operating(tmp_path, blob_keep_s=-1.0) as operator:
        await operator.deploy("digits")
        found = operator.store.catalog.resolve("digits")
        assert found.profile is not None
        async with operator.store.blobs.take(5) as upload:
            await upload.write(b"graph")
        made = prepared(graph__onnx=b"graph")
        operator.store.catalog.put(replace(found, profile=replace(found.profile, prepared=made)))

        await operator.deploys.sweep()
        assert operator.store.blobs.has(upload.sha256)

        await operator.deploys.remove("digits")
        assert not operator.store.blobs.has(upload.sha256)


API = nouns.server_revision("digits", 0, api=ModelApi(), bundle=nouns.bundle().digest)
SERVED = Plan(nouns.function(revision=0), API, nouns.bundle())
SERVED_VERIFIED = Verified(API, nouns.server_profile(API), {})


async def test_aliases_outlive_deploys_and_rollbacks(tmp_path: Path) -> None:
    """A deploy that began before an alias was added does not remove it."""
    async with operating(tmp_path) as operator:
        changes, catalog = Changes(operator.store), operator.store.catalog
        first = await changes.first(SERVED, SERVED_VERIFIED)
        assert (await changes.add_alias("digits", "org/d"))[1]
        assert (await changes.add_alias("digits", "d"))[1]
        assert not (await changes.add_alias("digits", "d"))[1]
        await changes.keep(SERVED, first)
        staged = await changes.stage(SERVED, SERVED_VERIFIED, "o1")
        await changes.move(staged, SERVED.function)
        await changes.remove_alias("d")
        await changes.move(first)

        assert catalog.resolve("digits").function.aliases == ("org/d",)
        assert (catalog.owner_of("org/d"), catalog.owner_of("d")) == ("digits", None)
        (stored, *_) = await operator.store.functions.load_all()
        assert stored.function.aliases == ("org/d",)
        with pytest.raises(Unknown, match="no alias 'd'"):
            await changes.remove_alias("d")


@pytest.mark.parametrize("alias", ["", "a@1", "a b", "é", "a" * 201, "a\n"])
async def test_what_is_no_alias_is_refused(tmp_path: Path, alias: str) -> None:
    """Nothing changes then."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        await changes.first(SERVED, SERVED_VERIFIED)
        with pytest.raises(BadRequest, match="alias"):
            await changes.add_alias("digits", alias)
        assert operator.store.catalog.resolve("digits").function.aliases == ()


async def test_a_functions_aliases_are_bounded(tmp_path: Path) -> None:
    """One more than the limit is refused; one that it has already is not."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        await changes.first(SERVED, SERVED_VERIFIED)
        for number in range(ALIASES_MAX):
            await changes.add_alias("digits", f"a{number}")
        with pytest.raises(Conflict, match="has 100 aliases already"):
            await changes.add_alias("digits", "more")
        assert not (await changes.add_alias("digits", "a7"))[1]


async def test_only_a_model_at_v1_takes_aliases(tmp_path: Path) -> None:
    """For any other function an alias would mean nothing."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        await changes.first(DRAFT, VERIFIED)
        with pytest.raises(Refused, match=r"digits@1 has no \[openai\]"):
            await changes.add_alias("digits", "d")
        with pytest.raises(UnknownFunction):
            await changes.add_alias("none", "d")


async def test_of_two_functions_that_want_an_alias_one_gets_it(tmp_path: Path) -> None:
    """The other is told who has it, also if both ask at once; a function's name is none."""
    async with operating(tmp_path) as operator:
        changes = Changes(operator.store)
        names = ("digits", "other")
        for name in names:
            revision = replace(API, name=name)
            draft = replace(SERVED, function=nouns.function(name, 0), revision=revision)
            await changes.first(draft, Verified(revision, nouns.server_profile(revision), {}))

        found = await asyncio.gather(
            *(changes.add_alias(name, "gpt") for name in names), return_exceptions=True
        )
        (lost,) = [one for one in found if isinstance(one, Conflict)]
        assert lost.message.startswith("gpt is an alias of digits: ")
        assert lost.detail == {"function": "digits"}
        with pytest.raises(Conflict, match="digits is the name of a function"):
            await changes.add_alias("other", "digits")
