"""Reading models ahead of their replicas."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from pool_manager import read_ahead
from pool_manager.read_ahead import (
    MIB,
    WAKING_MAX,
    Portion,
    ReadAhead,
    cached_pages,
    is_resident,
    plan,
    read_model,
)
from runtime_image.contract.compiled import CompiledModel, Form
from runtime_image.contract.model import ModelSpec, Preparation, SessionPlan

SPEC = ModelSpec("digits@1", model="model.onnx")
SIZE = 20 * MIB + 5
WAIT_S = 60.0
FILES = [Portion("handler.py", 10), Portion("model.onnx", 50), Portion("weights.data", 300)]
PLAIN = ModelSpec("digits@1", model="model.onnx")


def evict(path: Path) -> None:
    """Have the kernel drop a file's pages; where it keeps them nothing can be tested."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_pages(fd, 0, SIZE) != 0:
            pytest.skip("this file system keeps files in memory, or does not tell")
    finally:
        os.close(fd)


def resident(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return is_resident(fd, 0, SIZE)
    finally:
        os.close(fd)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A model's weights that only the disk has."""
    path = tmp_path / "weights.data"
    path.write_bytes(os.urandom(MIB) * 20 + b"12345")
    evict(path)
    return path


@pytest.fixture
async def ahead() -> AsyncIterator[ReadAhead]:
    made = ReadAhead(100)
    yield made
    await made.close()


def never() -> bool:
    return False


def test_a_model_is_in_memory_afterwards(weights: Path) -> None:
    """After the read all bytes are resident, and nothing is read twice."""
    assert 8 * MIB <= read_model(weights.parent, SPEC, SIZE, never) <= SIZE
    assert resident(weights)
    assert read_model(weights.parent, SPEC, SIZE, never) == 0


def test_only_what_is_missing_is_read(weights: Path) -> None:
    """Only missing pages are read, in steps of a few megabytes."""
    read_model(weights.parent, SPEC, 8 * MIB, never)

    assert 0 < read_model(weights.parent, SPEC, SIZE, never) <= SIZE - 8 * MIB
    # A kernel that is short of memory may take back again what nobody uses.
    assert any(
        resident(weights) or not read_model(weights.parent, SPEC, SIZE, never) for _ in range(3)
    )


def test_what_is_not_wanted_any_more_is_not_read(weights: Path) -> None:
    """A cancelled read stops at the next step."""
    answers = [False, True]

    assert read_model(weights.parent, SPEC, SIZE, lambda: answers.pop(0)) == 8 * MIB


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """A missing folder or unreadable file is no error; links are not followed."""
    (tmp_path / "model.onnx").symlink_to("/etc/hostname")

    assert read_model(tmp_path, SPEC, SIZE, never) == 0
    assert read_model(tmp_path / "gone", SPEC, SIZE, never) == 0


def test_what_goes_while_it_is_read_is_left(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that disappears during the read ends it without an error."""

    def fail(*_: object) -> bool:
        raise OSError("I/O error")

    monkeypatch.setattr(read_ahead, "is_resident", fail)

    assert read_model(weights.parent, SPEC, SIZE, never) == 0


def test_it_goes_on_in_the_background(weights: Path, ahead: ReadAhead) -> None:
    """`begin` returns at once and reads in the background."""
    ahead.begin("r1", weights.parent, SPEC)

    _, job = ahead._waking["r1"]
    assert job.result(WAIT_S) > 0
    assert resident(weights)


def test_no_more_wait_than_allowed(
    tmp_path: Path, ahead: ReadAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most WAKING_MAX reads are pending; a cancelled or finished one makes room."""
    gate = Event()
    monkeypatch.setattr(read_ahead, "read_model", lambda *_: gate.wait(WAIT_S))
    for number in range(WAKING_MAX + 1):
        ahead.begin(f"r{number}", tmp_path, SPEC)
    refused = f"r{WAKING_MAX}" not in ahead._waking

    ahead.cancel("r5")
    ahead.begin("new", tmp_path, SPEC)
    gate.set()

    assert refused
    assert "new" in ahead._waking
    assert len(ahead._waking) == WAKING_MAX


def test_cancelling_reaches_the_reader(
    tmp_path: Path, ahead: ReadAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling stops a read that has begun."""
    begun, told = Event(), Event()

    def read(folder: Path, spec: ModelSpec, bytes_max: int, is_unwanted: object) -> int:
        begun.set()
        assert callable(is_unwanted)
        while not is_unwanted():
            if told.wait(0.001):
                break
        told.set()
        return 0

    monkeypatch.setattr(read_ahead, "read_model", read)
    ahead.begin("r1", tmp_path, SPEC)
    assert begun.wait(WAIT_S)

    ahead.cancel("r1")
    ahead.cancel("stranger")

    assert told.wait(WAIT_S)


async def test_it_can_be_turned_off(weights: Path) -> None:
    """With a limit of 0 nothing is read."""
    off = ReadAhead(0)
    off.begin("r1", weights.parent, SPEC)
    await off.close()

    assert off._waking == {}


def prepared(file: str) -> ModelSpec:
    return ModelSpec("digits@1", preparation=Preparation("cpu/x", SessionPlan(file)))


def test_the_largest_file_is_read_first() -> None:
    """The largest file is read first, since the replica waits for it longest."""
    assert plan(FILES, PLAIN, 1000) == FILES[::-1]


@pytest.mark.parametrize(
    ("bytes_max", "expected"),
    [
        (0, []),
        (200, [Portion("weights.data", 200)]),
        (320, [Portion("weights.data", 300), Portion("model.onnx", 20)]),
    ],
)
def test_no_more_is_read_than_allowed(bytes_max: int, expected: list[Portion]) -> None:
    """At most the limit is read; the last file may be read in part."""
    assert plan(FILES, PLAIN, bytes_max) == expected


def test_of_a_prepared_model_only_that_is_read() -> None:
    """Of a prepared model only its own files are read, not those of the original."""
    files = [*FILES, Portion(".prepared/ab/quick.onnx", 5), Portion(".prepared/cd/fast.onnx", 9)]

    assert plan(files, prepared(".prepared/ab/quick.onnx"), 1000) == [files[3]]
    assert plan(FILES, prepared("model.onnx"), 1000) == FILES[::-1]


def test_of_a_model_of_other_precision_only_that_is_read() -> None:
    """The bundle's own model is not read where another file is served."""
    files = [*FILES, Portion(".optimised/model.onnx", 5)]

    assert plan(files, replace(PLAIN, optimised=".optimised/model.onnx"), 1000) == [files[-1]]


@pytest.mark.parametrize(("form", "is_whole"), [("context", True), ("cache", False)])
def test_of_a_compiled_model_the_loaded_files_are_read(form: Form, is_whole: bool) -> None:
    """One that is whole is all that is loaded; a cache is used beside the model."""
    files = [*FILES, Portion(".compiled/m_ctx.onnx", 5)]
    spec = replace(PLAIN, compiled=CompiledModel("k", "tensorrt", form, (), ()))

    assert set(plan(files, spec, 1000)) == set(files[-1:] if is_whole else files)


def test_empty_files_are_not_read() -> None:
    """Empty files are skipped."""
    assert plan([Portion("a", 0)], PLAIN, 1000) == []
