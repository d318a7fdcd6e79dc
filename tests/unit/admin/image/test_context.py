"""The build context has what the build needs and nothing else."""

from __future__ import annotations

import ast
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from admin.image import context
from admin.image.context import ImageError, own_checkout

ROOT = own_checkout()


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    """Two things that are named like wheels."""
    for name in ("b-1-py3-none-any.whl", "a-1-py3-none-any.whl", "notes.txt"):
        (tmp_path / name).write_text(name)
    return context.wheels_in(tmp_path)


def test_wheels_are_found_by_their_names(wheels: list[Path]) -> None:
    """Sorted, and nothing else that lies there."""
    assert [path.name for path in wheels] == ["a-1-py3-none-any.whl", "b-1-py3-none-any.whl"]


def test_the_tar_has_what_is_needed(wheels: list[Path]) -> None:
    """Dockerfile, constraints, requirements, the Python files of runtime_image, and the wheels."""
    with context.pack(ROOT, wheels) as file, tarfile.open(fileobj=file) as tar:
        members = tar.getmembers()
        wheel = tar.extractfile("wheelhouse/a-1-py3-none-any.whl")
        content = wheel.read() if wheel else b""

    names = [member.name for member in members]
    rest = [name for name in names if not name.startswith("runtime_image/")]
    assert rest[:2] == ["Dockerfile.runtime", "constraints.txt"]
    assert rest[2:] == ["wheelhouse/a-1-py3-none-any.whl", "wheelhouse/b-1-py3-none-any.whl"]
    assert content == b"a-1-py3-none-any.whl"
    assert {"runtime_image/__main__.py", "runtime_image/requirements/cpu.txt"} <= {*names}
    assert {Path(name).suffix for name in names} == {".runtime", ".txt", ".py", ".whl"}


def test_nothing_of_this_machine_is_in_the_tar(wheels: list[Path]) -> None:
    """No owner, no time, no mode."""
    with context.pack(ROOT, wheels) as file, tarfile.open(fileobj=file) as tar:
        seen = {(m.uid, m.gid, m.uname, m.gname, m.mtime, m.mode) for m in tar.getmembers()}

    assert seen == {(0, 0, "", "", 0, 0o644)}


def test_a_folder_without_wheels_is_refused(tmp_path: Path) -> None:
    """Both an empty folder and none at all."""
    with pytest.raises(ImageError, match="there are no wheels"):
        context.wheels_in(tmp_path)
    with pytest.raises(ImageError, match="No such file"):
        context.wheels_in(tmp_path / "nowhere")


def test_too_much_is_refused(tmp_path: Path) -> None:
    """By count and by size; the message names both."""
    for number in range(context.WHEELS_MAX + 1):
        (tmp_path / f"{number}.whl").touch()
    with pytest.raises(ImageError, match="at most 500 wheels of 24 GiB together, got 501"):
        context.wheels_in(tmp_path)

    other = tmp_path / "other"
    other.mkdir()
    with (other / "huge.whl").open("wb") as file:
        file.truncate(context.WHEEL_BYTES_MAX + 1)
    with pytest.raises(ImageError, match="got 1 of 24 GiB"):
        context.wheels_in(other)


def test_no_room_for_the_context_is_told(
    wheels: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the folder and how to choose another: /dev/full stands for a full disk."""
    full = Path("/dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: full.open("r+b", buffering=0))

    with pytest.raises(ImageError, match="the disk is full: the build context cannot") as caught:
        context.pack(ROOT, wheels)

    assert "TMPDIR=" in caught.value.__notes__[0]


SERVERS = {"stream.py"}
"""Files of runtime_image that only gateway and manager import: the asyncio end of the link."""


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_requirements_are_what_the_code_imports(kind: str) -> None:
    """Every package that runtime_image imports is installed in the image."""
    own = {"runtime_image", "__future__"} | set(sys.stdlib_module_names)
    imported = set()
    for path in (ROOT / "runtime_image").rglob("*.py"):
        if path.name in SERVERS:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
    engine = {"cpu": "onnxruntime", "gpu": "onnxruntime-gpu[cuda,cudnn]"}[kind]
    names = {"PIL": "pillow", "onnxruntime": engine}

    required = (ROOT / "runtime_image" / "requirements" / f"{kind}.txt").read_text().split()

    assert sorted(required) == sorted(names.get(name, name) for name in imported - own)
