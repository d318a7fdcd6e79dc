"""What is taken away, and that tidying is no reason to fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from admin.deploy.changes import Removal
from admin.deploy.plan import WireRollback
from registry.errors import StoreUnavailable, UnknownFunction
from tests.support.nouns import prepared, sha256
from tests.support.operator import MODEL, Operator, locked, operating

FAR_S = 4_000_000_000.0
"""Unix seconds long after any test."""


async def deploy_many(operator: Operator, count: int) -> None:
    """So many revisions of digits, each with files of its own."""
    for number in range(count):
        result = await operator.deploy("digits", files={f"m{number}.onnx": MODEL * (number + 1)})
        assert result.state == "done"


async def test_old_revisions_go(tmp_path: Path) -> None:
    """Only the newest stay, in the store, in memory and as pools."""
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


async def test_where_a_rollback_goes_stays(tmp_path: Path) -> None:
    """However old it is, beside the revision that has the traffic; a third one goes, pool and
    all."""
    async with operating(tmp_path, revisions_keep=2) as operator:
        await deploy_many(operator, 2)
        moved = await operator.deploys.roll_back("digits", WireRollback(1))
        assert (await operator.ended(moved.id)).state == "done"

        await operator.deploy("digits", files={"m9.onnx": MODEL * 9})

        kept = [one.revision.number for one in operator.store.catalog.revisions("digits")]
        assert kept == [1, 3]
        assert operator.manager.pool("default/digits@2") is None
        assert await operator.store.traffic.previous("digits") == 1


async def test_a_removed_function_is_gone_everywhere(tmp_path: Path) -> None:
    """Catalog, store and pools forget it together; a second removal finds nothing."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        removal = Removal(operator.store)

        await removal.remove("digits")

        assert operator.store.catalog.all() == ()
        assert operator.manager.pool("default/digits@1") is None
        with pytest.raises(UnknownFunction):
            await removal.remove("digits")


async def test_what_cannot_be_removed_stays_everywhere(tmp_path: Path) -> None:
    """With the store locked the removal is refused, and the function is still served."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")

        with locked(operator.store.settings.database), pytest.raises(StoreUnavailable):
            await operator.deploys.remove("digits")

        assert operator.store.catalog.find("digits") is not None
        assert operator.manager.pool("default/digits@1") is not None


async def test_files_nobody_uses_are_swept(tmp_path: Path) -> None:
    """What a revision or a deploy uses stays; the rest goes once it is old enough."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        await operator.request({"a.onnx": b"in use", "b.onnx": b"unused"})
        blobs, removal = operator.store.blobs, Removal(operator.store)

        await removal.sweep({sha256(b"in use")}, 0.0)
        assert blobs.has(sha256(b"unused"))
        await removal.sweep({sha256(b"in use")}, FAR_S)

        held = [blobs.has(sha256(content)) for content in (MODEL, b"in use", b"unused")]
        assert held == [True, True, False]


async def test_a_bundle_in_memory_goes_with_its_last_revision(tmp_path: Path) -> None:
    """Memory does not grow with every function that ever was."""
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        await operator.deploys.remove("digits")

        assert operator.store.bundles == {}


async def test_tidying_is_no_reason_to_fail(tmp_path: Path) -> None:
    """With the store locked nothing is raised: it is said in the log and done the next time."""
    async with operating(tmp_path, revisions_keep=10) as operator:
        await deploy_many(operator, 2)
        removal = Removal(operator.store)
        with capture_logs() as logs, locked(operator.store.settings.database):
            await removal.trim("digits")
            await removal.sweep((), FAR_S)

        said = {entry["event"] for entry in logs}
        assert {"old revisions are kept for now", "unused files are kept for now"} <= said
        assert len(operator.store.catalog.revisions("digits")) == 2


async def test_what_a_revision_starts_from_stays(tmp_path: Path) -> None:
    """What was prepared for it is kept as long as it is there, and goes with it."""
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
