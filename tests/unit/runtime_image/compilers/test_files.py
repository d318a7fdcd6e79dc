"""Files of a compiled model: nothing but the described bytes is opened."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnxruntime as ort
import pytest

from runtime_image.compilers.files import CHUNK, Refused, read_small, verified
from runtime_image.contract.compiled import (
    FILES_MAX,
    FOLDER,
    OTHER_KEY,
    TIMING_CACHE,
    CompiledFile,
    CompiledModel,
)
from runtime_image.contract.errors import LoadError
from runtime_image.engines.compiled import Place
from tests.support import compiled as compiling
from tests.support import models
from tests.support.hostile_caches import Attack

HOSTILE = 10_000
MODEL = "model.onnx"


def described(folder: Path, *names: str) -> CompiledModel:
    files = []
    for name in names:
        data = (folder / FOLDER / name).read_bytes()
        files.append(CompiledFile(name, len(data), hashlib.sha256(data).hexdigest()))
    return CompiledModel("key", "onnxruntime", "context", tuple(files), ())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "a").write_bytes(os.urandom(CHUNK + 7))
    (tmp_path / FOLDER / "b").write_bytes(b"")
    return tmp_path


def test_verified_files_are_private_copies(folder: Path) -> None:
    """What is opened later is the verified content, whatever happens to the files meanwhile, and
    nobody can write to it. All memory is freed."""
    wanted = (folder / FOLDER / "a").read_bytes()
    descriptors = len(os.listdir("/proc/self/fd"))

    with verified(folder, described(folder, "a", "b")) as contents:
        (folder / FOLDER / "a").write_bytes(b"other")
        assert Path(contents.first).read_bytes() == wanted
        assert Path(contents.path("b")).read_bytes() == b""
        assert contents.names() == ["a", "b"]
        with pytest.raises(PermissionError):
            Path(contents.first).write_bytes(b"x")

    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "/etc/passwd", "a/b", ".hidden", "a\0", "a\n", "é", "a" * 129]
)
def test_only_plain_names_are_files(folder: Path, name: str) -> None:
    """A name with any other character is refused, unopened."""
    file = CompiledFile(name, 0, hashlib.sha256().hexdigest())

    with (
        pytest.raises(Refused, match="is not the name of a compiled file"),
        verified(folder, replace(described(folder, "a"), files=(file,))),
    ):
        pytest.fail("it was opened")


@pytest.mark.parametrize("count", [0, 2, FILES_MAX + 1])
def test_the_number_of_files_is_limited(folder: Path, count: int) -> None:
    """None, a file twice, or too many are refused."""
    file = described(folder, "b").files[0]
    files = (
        (file, file)
        if count == 2
        else tuple(replace(file, name=f"n{index}") for index in range(count))
    )

    with (
        pytest.raises(Refused, match="different files, got"),
        verified(folder, replace(described(folder, "a"), files=files)),
    ):
        pytest.fail("they were opened")


def test_a_file_that_grows_while_it_is_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is one that shrinks: size and content are those of the bytes that were read."""
    compiled = described(folder, "a")
    path = folder / FOLDER / "a"
    send = os.sendfile

    for change in (b"more", None):
        with monkeypatch.context() as patch:

            def sending(
                to: int, source: int, offset: int, count: int, change: bytes | None = change
            ) -> int:
                sent = send(to, source, offset, count)
                if not offset and change:
                    path.write_bytes(path.read_bytes() + change)
                elif not offset:
                    os.truncate(path, CHUNK)
                return sent

            patch.setattr(os, "sendfile", sending)
            reason = "grew while it was read" if change else "is not the one that was compiled"
            with pytest.raises(Refused, match=reason), verified(folder, compiled):
                pytest.fail("it was opened")
        path.write_bytes(path.read_bytes()[: compiled.files[0].size])


def test_a_small_file_is_read_or_not(folder: Path) -> None:
    """A timing cache is optional: anything but the described regular file is as none."""
    [a] = described(folder, "a").files
    (folder / FOLDER / "link").symlink_to("a")

    assert len(read_small(folder, a, 2 * CHUNK)) == CHUNK + 7
    assert read_small(folder, a, CHUNK) == b""
    for other in (
        replace(a, name="link"),
        replace(a, name="none"),
        replace(a, size=a.size - 1),
        replace(a, size=a.size + 1),
        replace(a, sha256=hashlib.sha256(b"other").hexdigest()),
    ):
        assert read_small(folder, other, 2 * CHUNK) == b""
    assert read_small(folder.parent, a, 2 * CHUNK) == b""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Models of which ONNX Runtime has made a session, by the real class."""
    made: list[Any] = []

    class Session(ort.InferenceSession):  # type: ignore[misc]  # ONNX Runtime has no stubs
        def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
            made.append(model)
            super().__init__(model, *args, **kwargs)

    monkeypatch.setattr(ort, "InferenceSession", Session)
    return made


@pytest.fixture
def attack_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory, if there is one: a disk takes longer than all checks together."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        monkeypatch.chdir(name)  # restored at the end
        yield Path(name)
        monkeypatch.undo()


def test_hostile_and_stale_files_are_never_opened(attack_place: Path, opened: list[Any]) -> None:
    """10,000 times one thing is wrong, in one of 16 ways, and ONNX Runtime opens nothing. Between
    them, the untouched files are opened, so the checks do not refuse everything. Nothing leaks."""
    spec = compiling.spec(models.add_one(attack_place))
    compiled = compiling.compile_in(attack_place, spec)
    place = Place(spec, attack_place, "cpu", 1)
    attack = Attack(attack_place, compiled)
    ways = len(attack.ways)
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    reasons: list[str] = []

    for index in range(HOSTILE):
        hostile = attack.prepare(index)
        opened.clear()
        with pytest.raises((LoadError, OSError)) as why:
            place.open(hostile)
        reasons.append(str(why.value))
        assert opened == [], f"way {index % ways} was opened"
        attack.restore()
        if index % 1000 == 0:
            place.open(compiled)
            assert [str(one)[:14] for one in opened] == ["/proc/self/fd/"]

    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert sum(reason.startswith(OTHER_KEY) for reason in reasons) == 2 * HOSTILE // ways
    assert sum("regular file" in reason for reason in reasons) >= 4 * HOSTILE // ways
    assert {file.name for file in compiled.files} == {MODEL, TIMING_CACHE}
    assert threading.active_count() <= threads
