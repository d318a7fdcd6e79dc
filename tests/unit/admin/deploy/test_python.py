"""Tests of the packages of Python functions: locks and folders, as long as something names them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from admin.deploy import python
from admin.deploy.plan import Plan, plan, read_request
from admin.deploy.python import PythonPackages
from environments.folders import EnvironmentSettings
from registry.errors import Conflict, EnvironmentRefused, Unknown
from registry.model.operations import Operation
from registry.model.servers import PythonSettings
from tests.support.operator import Operator, operating
from tests.support.package_index import PackageIndex, package_index

pytestmark = pytest.mark.slow
LATER_S = 2 * 24 * 3600.0
OPERATION = Operation("o1", "deploy", "f", {})


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    """An index on loopback."""
    with package_index() as index:
        yield index


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    """A store with everything over it."""
    async with operating(tmp_path) as operator:
        yield operator


@pytest.fixture
def packages(tmp_path: Path, operator: Operator, index: PackageIndex) -> PythonPackages:
    """Packages below `root`."""
    settings = EnvironmentSettings(index.config(tmp_path))
    return PythonPackages(operator.store, tmp_path / "data" / "environments", settings, ())


async def drafted(
    operator: Operator, name: str = "f", handler: bytes = b"def predict(a): 1"
) -> Plan:
    """Return the draft of a function whose files are stored."""
    contents = {"handler.py": handler}
    manifest = "schema = 1\n[python]\n"
    request = await operator.request(contents, manifest=manifest, trust=True)
    asked = read_request(name, request)
    return plan(name, request, asked, operator.store.catalog, 0.0, 1.0)


async def phase(_: str) -> None:
    """Publish nothing."""


def settings_of(draft: Plan) -> PythonSettings:
    """Return the settings of a draft."""
    assert draft.revision.server is not None
    assert draft.revision.server.python is not None
    return draft.revision.server.python


async def test_what_nothing_names_any_more_is_removed(
    tmp_path: Path, operator: Operator, packages: PythonPackages, index: PackageIndex
) -> None:
    """A running deploy holds lock and folder; after it the lock goes, and after a day the folder.
    Equal needs have one lock and one folder, and ask no index again."""
    root, now_s = tmp_path / "data" / "environments", time.time()
    draft = await packages.prepared(await drafted(operator), OPERATION, phase)
    found, asked = settings_of(draft), len(index.asked)
    other = await drafted(operator, "other", b"async def predict(a): 2")
    again = await packages.prepared(other, OPERATION, phase)
    assert (settings_of(again), len(index.asked)) == (found, asked)
    assert draft.function.exchange is not None
    assert again.function.exchange is not None
    assert (draft.function.exchange.concurrency, again.function.exchange.concurrency) == (1, 32)
    await packages.sweep(now_s + LATER_S)
    assert '"msgspec"' in await operator.store.locks.text(found.lock)
    assert (root / found.environment).is_dir()
    packages.release(OPERATION.id)
    await packages.sweep(now_s + LATER_S)
    with pytest.raises(Unknown):
        await operator.store.locks.text(found.lock)
    assert (root / found.environment).is_dir()
    await packages.sweep(now_s + 2 * LATER_S)
    assert not (root / found.environment).exists()
    await packages.close()


async def test_what_killed_builds_have_left_goes_with_the_next_sweep(
    tmp_path: Path, packages: PythonPackages
) -> None:
    """Of builds, resolutions and removals; not while something is built here."""
    root = tmp_path / "data" / "environments"
    left = [root / name for name in (".build-1", ".resolve-2", ".gone-3")]
    for folder in left:
        folder.mkdir()
        (folder / "file").write_text("x")
    async with packages._alone:
        await packages.sweep(time.time())
        assert all(one.is_dir() for one in left)
    await packages.sweep(time.time())
    assert not any(one.exists() for one in left)
    await packages.close()


async def test_environments_are_listed_and_removed(
    tmp_path: Path, operator: Operator, packages: PythonPackages, index: PackageIndex
) -> None:
    """One that a running deploy holds stays; one that nothing names goes at once. Nothing is
    removed while something is built."""
    draft = await packages.prepared(await drafted(operator), OPERATION, phase)
    name = settings_of(draft).environment
    (view,) = await packages.views(())
    assert (view.name, view.state, view.naming.live) == (name, "ready", ["f"])
    assert view.found is not None
    assert view.found.own > 0
    assert view.found.own + view.found.shared > view.found.size
    with pytest.raises(Conflict, match=f"{name[:12]} is needed by f; fnctl rm f frees it"):
        await packages.remove(name[:6], ())
    assert await packages.prune() == []
    packages.release(OPERATION.id)
    async with packages._alone:
        for refused in (packages.prune(), packages.remove(name, ())):
            with pytest.raises(Conflict, match="packages are being installed"):
                await refused
    assert [one.name for one in await packages.prune()] == [name]
    assert await packages.views(()) == []
    with pytest.raises(Unknown):
        await packages.remove(name, ())
    assert not list((tmp_path / "data" / "environments").glob("[0-9a-f]*"))
    await packages.close()


async def test_an_environment_that_is_being_built_is_listed(
    operator: Operator, packages: PythonPackages, index: PackageIndex
) -> None:
    """With the function whose deploy builds it, and its packages, which are known by then."""
    seen = []

    async def look(text: str) -> None:
        seen.extend(await packages.views(()) if text.startswith("environment ") else [])

    await packages.prepared(await drafted(operator), OPERATION, look)
    assert {(one.state, tuple(one.naming.live)) for one in seen} >= {("building", ("f",))}
    assert [one.name for one in seen[0].lock.packages] == ["msgspec"]
    await packages.close()


async def test_functions_that_could_write_get_copies(
    tmp_path: Path,
    operator: Operator,
    packages: PythonPackages,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where servers get no mounts, one that changes its packages reaches no other function."""
    monkeypatch.setattr(python, "_PROBE", "raise SystemExit(1)")
    own = [
        settings_of(await packages.prepared(await drafted(operator, name), OPERATION, phase))
        for name in ("one", "two")
    ]
    assert own[0].lock == own[1].lock
    assert [one.environment.partition(".")[2] for one in own] == ["one", "two"]
    files = [
        next((tmp_path / "data" / "environments" / one.environment).rglob("msgspec/__init__.py"))
        for one in own
    ]
    assert not files[0].samefile(files[1])
    await packages.close()


async def test_without_uv_a_deploy_says_what_installs_it(
    operator: Operator, packages: PythonPackages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is tried."""

    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    draft = await drafted(operator)
    packages.check(draft)
    monkeypatch.setattr(metadata, "files", absent)
    with pytest.raises(EnvironmentRefused, match="make install EXTRAS=python"):
        packages.check(draft)
    await packages.close()
