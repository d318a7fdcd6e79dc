"""Tests of the folders that containers of servers may mount."""

from __future__ import annotations

from pathlib import Path

import pytest

from pool_manager.mounts import MountRules
from registry.errors import BadRequest, DriverError
from registry.model.servers import Mount


def mount(source: Path) -> Mount:
    return Mount("models", str(source), "/models")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "srv"
    (folder / "models").mkdir(parents=True)
    return folder


def refused(rules: MountRules, source: Path) -> str:
    with pytest.raises(DriverError) as caught:
        rules.resolve(mount(source))
    return caught.value.message


def test_a_folder_below_a_root_is_resolved(root: Path) -> None:
    """A link below a root to a folder below a root is followed; the root itself may be mounted."""
    (root / "current").symlink_to(root / "models")
    rules = MountRules((root,))

    assert rules.resolve(mount(root / "current")) == str(root / "models")
    assert rules.resolve(mount(root)) == str(root)


def test_without_roots_nothing_is_mounted(root: Path) -> None:
    """By default no folder may be mounted; the setting and what to set it to are named."""
    said = refused(MountRules(), root / "models")
    assert said.startswith("server.mounts.models: expected a folder below FN_MOUNT_ROOTS, got")
    assert said.endswith(f"start the server with FN_MOUNT_ROOTS={root / 'models'}")


def test_sources_outside_the_roots_are_refused(root: Path, tmp_path: Path) -> None:
    """A folder beside a root, a name that only begins like a root, and a link that leads out."""
    beside = tmp_path / "srv-other"
    beside.mkdir()
    (root / "link").symlink_to(beside)
    rules = MountRules((root,))

    for source in (tmp_path, beside, root / "link", root / "models" / ".." / ".."):
        assert "expected a folder below" in refused(rules, source)


def test_what_is_no_folder_is_refused(root: Path) -> None:
    """A file, a missing path and a circle of links are no folders."""
    (root / "file").write_text("")
    (root / "circle").symlink_to(root / "circle")
    rules = MountRules((root,))

    assert "expected a folder, got" in refused(rules, root / "file")
    assert "No such file" in refused(rules, root / "none")
    assert "expected a folder, got" in refused(rules, root / "circle")


def test_a_link_put_in_place_later_is_refused(root: Path) -> None:
    """A start refuses a source that has become a link since the deploy, even one within a root."""
    rules, deployed = MountRules((root,)), mount(root / "models")
    rules.check_unchanged([deployed])

    (root / "models").rename(root / "moved")
    (root / "models").symlink_to(root / "moved")

    with pytest.raises(DriverError, match=r"models as deployed, got a link to .*moved"):
        rules.check_unchanged([deployed])


@pytest.mark.parametrize("name", ["data", "data/blobs", "."])
def test_roots_stay_apart_from_the_servers_own_files(tmp_path: Path, name: str) -> None:
    """A root may not be, lie in, or hold a guarded folder, also through a link."""
    (tmp_path / "data" / "blobs").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / name)

    for root in (tmp_path / name, link, Path(f"/{tmp_path / name}")):
        with pytest.raises(BadRequest, match="setting mount_roots: expected folders apart from"):
            MountRules((root,), (tmp_path / "data",)).check()


def test_a_root_that_became_a_link_to_guarded_files_is_refused(root: Path, tmp_path: Path) -> None:
    """Roots are checked at each use: a root may have been replaced since the server's start."""
    data = tmp_path / "data"
    data.mkdir()
    rules = MountRules((root,), (data,))
    rules.check()

    root.rename(tmp_path / "aside")
    root.symlink_to(data)

    assert "expected folders apart from" in refused(rules, root)


@pytest.mark.parametrize("root", ["/proc", "//proc", "/sys/fs", "/dev/shm", "srv"])
def test_roots_are_absolute_and_outside_the_kernels_folders(root: str) -> None:
    """The kernel's folders and relative paths are no roots."""
    with pytest.raises(BadRequest, match="setting mount_roots: expected"):
        MountRules((Path(root),)).check()
