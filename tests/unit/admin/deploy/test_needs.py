"""Tests of what servers need from their host: mounts, at a deploy and at each start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_driver.driver import FakeDriver
from tests.support.images import FakeImages, image
from tests.support.server import ServingServer, serving

APP = "registry.example/app:1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "srv"
    (folder / "v1").mkdir(parents=True)
    (folder / "current").symlink_to(folder / "v1")
    return folder


@pytest.fixture
async def server(tmp_path: Path, root: Path) -> AsyncIterator[ServingServer]:
    driver, images = FakeDriver(), FakeImages()
    driver.images = images
    images.there[APP] = image(1)
    roots = (str(root),)
    async with serving(tmp_path, driver, standbys=0, mount_roots=roots) as server:
        yield server


async def deploy(server: ServingServer, source: Path) -> Any:
    """Deploy APP with a mount; return the ended operation, or the refusal."""
    lines = f'image = "{APP}"\n[server.mounts]\nmodels = "{source}:/models"\n'
    body = {"files": [], "manifest": f"schema = 1\n[server]\n{lines}"}
    answer = await server.admin("POST", "/functions/web/revisions", body)
    return (await server.ended(answer.json())).json() if answer.status == 202 else answer.problem


async def test_a_revision_keeps_the_folder_that_a_link_named(
    server: ServingServer, root: Path
) -> None:
    """A link is resolved by the deploy. When it is changed, the revision's folder stays, and the
    next deploy is a new revision."""
    done = await deploy(server, root / "current")
    assert done["result"]["revision"] == "web@1"
    assert mounted(server, 1) == str(root / "v1")
    assert (await deploy(server, root / "current"))["result"]["created"] is False

    link_again(root)

    assert (await deploy(server, root / "current"))["result"]["revision"] == "web@2"
    assert (mounted(server, 1), mounted(server, 2)) == (str(root / "v1"), str(root / "v2"))


def mounted(server: ServingServer, number: int) -> str:
    found = server.server.store.catalog.resolve(f"web@{number}").revision.server
    assert found is not None
    return found.mounts[0].source


def link_again(root: Path) -> None:
    (root / "v2").mkdir()
    (root / "current").unlink()
    (root / "current").symlink_to(root / "v2")


async def test_a_deploy_outside_the_roots_is_refused_at_once(
    server: ServingServer, tmp_path: Path
) -> None:
    """The refusal names key, setting and folder; no operation begins."""
    refused = await deploy(server, tmp_path / "data")

    assert refused["code"] == "refused"
    assert refused["detail"].startswith("server.mounts.models: expected a folder below")
    assert (await server.admin("GET", "/operations")).json()["items"] == []


async def test_a_start_refuses_a_folder_that_became_a_link(
    server: ServingServer, root: Path
) -> None:
    """Each start checks the folder anew; the function says why it does not start."""
    await deploy(server, root / "v1")
    await server.until_pools(lambda: not server.bound())
    become_link(root)

    warm = await server.admin("POST", "/functions/web/warm?wait=30")

    assert warm.status == 503
    assert f"expected {root / 'v1'} as deployed, got a link to" in warm.problem["detail"]


def become_link(root: Path) -> None:
    (root / "v1").rename(root / "moved")
    (root / "v1").symlink_to(root / "moved")


async def test_roots_that_hold_the_data_folder_end_the_start(tmp_path: Path) -> None:
    """The server does not start with a root that would give its own files away."""
    with pytest.raises(Exception, match="setting mount_roots: expected folders apart from"):
        async with serving(tmp_path, FakeDriver(), mount_roots=(str(tmp_path),)):
            pass
