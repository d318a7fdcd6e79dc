"""What an image says of the sources it was built from."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from admin.image import context
from admin.image.context import ImageError
from runtime_image.contract.link import VERSION

ROOT = context.own_checkout()
DOCKERFILE = (ROOT / "Dockerfile.runtime").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with what a build needs."""
    for name in ("Dockerfile.runtime", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "runtime_image", tmp_path / "runtime_image")
    return tmp_path


def test_a_release_is_read_off_the_checkout(checkout: Path) -> None:
    """Link version, version and digest are those of the folder, wherever it lies."""
    release = context.read_release(checkout)

    assert (release.link, release.version) == (VERSION, PROJECT["version"])
    assert release.source == context.own_digest()
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", release.source)


def test_the_digest_follows_the_sources(checkout: Path) -> None:
    """A changed, added or renamed Python file changes it; compiled files do not."""
    seen = {context.digest(checkout)}
    (checkout / "runtime_image" / "new.py").write_text("x = 1\n")
    seen.add(context.digest(checkout))
    (checkout / "runtime_image" / "new.py").write_text("x = 2\n")
    seen.add(context.digest(checkout))
    (checkout / "runtime_image" / "new.py").rename(checkout / "runtime_image" / "old.py")
    seen.add(context.digest(checkout))
    (checkout / "runtime_image" / "old.py").unlink()
    (checkout / "runtime_image" / "new.pyc").touch()

    assert len(seen) == 4
    assert context.digest(checkout) in seen


def test_where_a_file_ends_counts(checkout: Path) -> None:
    """A file that contains the next one's name and content is not those two files."""
    first, second = (checkout / "runtime_image" / name for name in ("y.py", "z.py"))
    first.write_text("a")
    second.write_text("c")
    before = context.digest(checkout)
    first.write_text("aruntime_image/z.pyc")
    second.unlink()

    assert context.digest(checkout) != before


@pytest.mark.parametrize("name", ["Dockerfile.runtime", "pyproject.toml"])
def test_another_folder_is_no_checkout(checkout: Path, name: str) -> None:
    """What is missing is named, and how to give the right folder."""
    (checkout / name).unlink()

    with pytest.raises(ImageError, match=f"no checkout of fngate: it has no {name}") as caught:
        context.read_release(checkout)

    assert "--context DIR" in caught.value.__notes__[0]


def test_a_link_module_must_name_its_version(checkout: Path) -> None:
    """A checkout that does not say what it speaks is refused."""
    (checkout / "runtime_image" / "contract" / "link.py").write_text("V = 1\n")

    with pytest.raises(ImageError, match="names no VERSION"):
        context.read_release(checkout)


def test_too_many_files_are_refused(checkout: Path) -> None:
    """A folder that grows without end is not read to its end."""
    for number in range(context.FILES_MAX):
        (checkout / "runtime_image" / f"x{number}.py").touch()

    with pytest.raises(ImageError, match="more than 1000 files"):
        context.digest(checkout)


def test_a_build_by_hand_has_the_right_labels() -> None:
    """What the Dockerfile takes for link and version is what this checkout is."""
    defaults = dict(re.findall(r"^ARG (LINK|VERSION)=(.*)$", DOCKERFILE, re.MULTILINE))

    assert defaults == {"LINK": str(VERSION), "VERSION": PROJECT["version"]}
