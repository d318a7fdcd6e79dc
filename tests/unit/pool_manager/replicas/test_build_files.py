"""Compiled models, fetched from their build: checks of its description and files."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import socket
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pool_manager.builds import BUILT, PARITY, WHY_NOT, Fetched
from pool_manager.core import events
from pool_manager.core.state import Replica, State
from pool_manager.replicas.build_files import BuildFetcher, Refusal, described, fetch
from pool_manager.replicas.file_transfer import reader_at, reader_of
from registry.tasks import Tasks
from runtime_image.contract.compiled import (
    COMPILED_PART,
    BuildOrder,
    CompiledFile,
    CompiledModel,
    ShapeRange,
)
from runtime_image.contract.link import Kind
from runtime_image.contract.model import PART_MAX, ModelSpec, Part
from runtime_image.link.frames import Frame, LinkError
from tests.support.offers import frame, offering
from tests.support.operator import until
from tests.support.replicas import KEY, ModelFolder, binding

ID = "bbbb0001"
RANGES = (ShapeRange("x", (1, 4), (4, 4), (8, 4)),)
ORDER = BuildOrder("tensorrt", RANGES, 0.01)
BOUND = binding(ModelSpec("digits@1", model="m.onnx", build=ORDER))
CONTENTS = (b"engine" * 200_000, b"timings")
FILES = tuple(
    CompiledFile(name, len(data), hashlib.sha256(data).hexdigest())
    for name, data in zip(("m_ctx.onnx", "timing.cache"), CONTENTS, strict=True)
)
COMPILED = CompiledModel("tensorrt-10/sm80", "tensorrt", "context", FILES, RANGES)
AGREES = {
    "output": "y",
    "largest_difference": 0.1,
    "relative_difference": 0.01,
    "cosine": 1.0000001,
}
DESCRIPTION: dict[str, Any] = {
    "why_not": "",
    "compiled": asdict(COMPILED),
    "timing_key": "t",
    "parity": [AGREES],
    "samples": 3,
    "build_s": 12.5,
    "ordinary_ms": {"1": 2.0},
    "compiled_ms": {"1": 1.0, "8": 3.0},
    "load_ms": 5.0,
    "memory_mib": 100.0,
    "unknown": "dropped",
}


def text(**changes: Any) -> bytes:
    """Return a correct description with `changes`: `compiled__files__0__name`."""
    data = copy.deepcopy(DESCRIPTION)
    data["compiled"] = json.loads(json.dumps(data["compiled"]))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place: Any = data
        for parent in parents:
            place = place[int(parent)] if parent.isdecimal() else place[parent]
        place[last] = value
    return json.dumps(data).encode()


def answering(description: bytes, *files: bytes) -> Any:
    """Return the answers of a build with these files."""

    def answer(question: Frame) -> Iterable[bytes]:
        is_described = question.aux == Part.DESCRIPTION
        body = description if is_described else files[question.aux - COMPILED_PART]
        for start in range(0, len(body), PART_MAX):
            yield frame(Kind.PART, question.id, body[start : start + PART_MAX])
        yield frame(Kind.END, question.id)

    return answer


async def fetched(folder: Path, description: bytes, *files: bytes) -> Fetched | Refusal:
    """Fetch from a build that answers so; files are kept in `folder`."""
    path = folder / "data.sock"
    kept = folder / "kept"
    kept.mkdir(exist_ok=True)
    async with offering(path, answering(description, *files)), reader_at(path) as reader:
        return await fetch(reader, ModelFolder(kept), BOUND)


async def test_files_are_stored_in_the_described_order(tmp_path: Path) -> None:
    """What is returned has known keys only."""
    found = await fetched(tmp_path, text(), *CONTENTS)

    assert isinstance(found, Fetched)
    assert [(one.path, one.sha256) for one in found.files] == [
        (f".compiled/{one.name}", one.sha256) for one in FILES
    ]
    assert found.compiled == COMPILED
    assert found.described.keys() == DESCRIPTION.keys() - {"unknown"}
    assert found.described["parity"] == [{**AGREES, "cosine": 1.0}]
    assert (tmp_path / "kept" / FILES[0].sha256).read_bytes() == CONTENTS[0]


async def test_a_file_that_is_not_the_described_one_is_refused(tmp_path: Path) -> None:
    """It has the size and other bytes."""
    with pytest.raises(LinkError, match=r"timing\.cache: expected sha256"):
        await fetched(tmp_path, text(), CONTENTS[0], b"swapped")


async def test_only_the_ordered_build_is_fetched(tmp_path: Path) -> None:
    """A replica whose spec has no order is asked for nothing."""
    async with offering(tmp_path / "s") as asked, reader_at(tmp_path / "s") as reader:
        with pytest.raises(LinkError, match="that was ordered"):
            await fetch(reader, ModelFolder(tmp_path), binding())
    assert asked == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"compiled__key": ""}, "expected a key"),
        ({"compiled__key": "k" * 501}, "at most 500"),
        ({"compiled__key": "a\nb"}, "key"),
        ({"compiled__key": 5}, "key"),
        ({"compiled__compiler": "onnxruntime"}, "of the order"),
        ({"compiled__keeps_ordinary": True}, "of the order"),
        ({"compiled__ranges__0__largest": [9, 4]}, "of the order"),
        ({"compiled__ranges__0__largest": [float("inf")]}, "OverflowError"),
        ({"compiled__ranges": 7}, "TypeError"),
        ({"compiled__form": "binary"}, "a form"),
        ({"compiled__form": ["context"]}, "a form"),
        ({"compiled__files": []}, "expected 1 to 16"),
        ({"compiled__files": [asdict(FILES[0])] * 17}, "expected 1 to 16"),
        ({"compiled__files": [asdict(FILES[0])] * 2}, "different names"),
        ({"compiled__files__1__name": "M_CTX.onnx"}, "different names"),
        ({"compiled__files__0__name": "timing.cache", "compiled__files__1__name": "m"}, "first"),
        ({"compiled__files__0__name": "../m.onnx"}, "plain name"),
        ({"compiled__files__0__name": ".hidden"}, "plain name"),
        ({"compiled__files__0__name": "a/b"}, "plain name"),
        ({"compiled__files__0__name": "m\n"}, "plain name"),
        ({"compiled__files__0__name": None}, "plain name"),
        ({"compiled__files__0__size": 0}, "a size"),
        ({"compiled__files__0__size": True}, "a size"),
        ({"compiled__files__0__size": 1e3}, "a size"),
        ({"compiled__files__0__size": 2**40}, "bytes in all"),
        ({"compiled__files__0__sha256": "A" * 64}, "a sha256"),
        ({"compiled__files__0__sha256": 1}, "a sha256"),
        ({"compiled__files__0__mode": 0o777}, "TypeError"),
        ({"compiled": None}, "TypeError"),
        ({"parity": []}, "got none"),
        ({"parity": {}}, "got none"),
        ({"parity": [AGREES, {**AGREES, "relative_difference": 0.02}]}, "at most 0.01"),
        ({"parity": [AGREES] * 64 + [{**AGREES, "relative_difference": 1}]}, "at most 0.01"),
        ({"parity__0__relative_difference": float("nan")}, "a difference"),
        ({"parity__0__largest_difference": -1}, "a difference"),
        ({"parity__0__cosine": 2.0}, "a cosine"),
        ({"parity__0__cosine": float("nan")}, "a cosine"),
        ({"samples": -1}, "whole number"),
        ({"build_s": float("inf")}, "a number"),
        ({"ordinary_ms": {"x": 1.0}}, "ValueError"),
        ({"compiled_ms": {"1": "fast"}}, "a number"),
        ({"timing_key": 3}, "key"),
        ({"why_not": {"a": 1}}, None),
        ({"why_not": "x" * 5000}, None),
    ],
)
def test_a_description_is_checked(changes: dict[str, Any], reason: str | None) -> None:
    """Everything that is not as ordered, or could not be stored, is refused before a file is
    fetched. A reason is always a text of limited length."""
    if reason is None:
        found = described(text(**changes), ORDER, 0)
        assert isinstance(found, Refusal)
        assert 0 < len(found.reason) <= 1000
        return
    with pytest.raises(LinkError, match=reason):
        described(text(**changes), ORDER, 0)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"[" * 60_000, b" " * 70_000])
def test_a_description_must_be_an_object(data: bytes) -> None:
    """Of limited size and depth."""
    with pytest.raises(LinkError, match="description"):
        described(data, ORDER, 0)


def unfinished(_question: Frame) -> list[bytes]:
    """Return the first byte of an answer; the connection stays open."""
    return [b"\0"]


class Rig:
    """A `BuildFetcher` over one build, and what it passed on."""

    def __init__(self, folder: Path) -> None:
        (folder / "kept").mkdir()
        self.path = folder / "data.sock"
        self.passed: asyncio.Queue[Any] = asyncio.Queue()
        self.tasks = Tasks("test")
        self.fetcher = BuildFetcher(
            self.passed.put_nowait,
            ModelFolder(folder / "kept"),
            self.tasks,
            {ID: Replica(ID, KEY, ("cpu:0",), "build", 0.0, State.LOADING)}.get,
            {KEY: BOUND},
            lambda _id: reader_at(self.path),
        )
        self.fetcher.exit_s = 0.0

    def report(self, id: str = ID, **report: Any) -> events.Loaded:
        """Emit the LOADED of a replica."""
        event = events.Loaded(id, 0, True, 50.0, {}, report)
        self.fetcher.emit(event)
        return event


@pytest.fixture
async def rig(tmp_path: Path) -> Any:
    made = Rig(tmp_path)
    yield made
    await made.tasks.close()


async def test_the_report_comes_with_the_files(rig: Rig) -> None:
    """Nothing of the replica's own report is passed on."""
    async with offering(rig.path, answering(text(), *CONTENTS)):
        rig.report(prepares=True, build={"fake": 1})
        event = await rig.passed.get()

    assert isinstance(event.report[BUILT], Fetched)
    assert event.report.keys() == {BUILT}


async def test_a_refusal_comes_with_its_figures(rig: Rig) -> None:
    """Also the agreement of outputs, where that is the reason."""
    async with offering(rig.path, answering(text(why_not="output y differs"))):
        rig.report(prepares=True)
        event = await rig.passed.get()

    assert event.report == {
        BUILT: None,
        WHY_NOT: "output y differs",
        PARITY: [{**AGREES, "cosine": 1.0}],
    }


async def test_a_false_description_fails_the_build_and_a_lost_connection_does_not(rig: Rig) -> None:
    """A malformed answer is the model's stage `build`; what may succeed again is no fault."""
    async with offering(rig.path, answering(text(compiled__key=""))):
        rig.report(prepares=True)
        lie = await rig.passed.get()
    rig.report(prepares=True)
    gone = await rig.passed.get()
    rig.report()
    silent = await rig.passed.get()

    assert (lie.stage, lie.is_its_fault) == ("build", True)
    assert (gone.stage, gone.is_its_fault) == ("", False)
    assert "reported no build" in silent.reason


async def test_the_time_of_a_build_is_limited(rig: Rig) -> None:
    """One that never describes anything has failed."""
    rig.fetcher.limit_s = lambda _size: 0.01

    async with offering(rig.path, unfinished):
        rig.report(prepares=True)
        event = await rig.passed.get()

    assert event.is_its_fault
    assert event.reason == "it did not finish within 0 s"


async def test_the_end_of_a_build_ends_the_fetch(rig: Rig) -> None:
    """Its report is not passed on; what does not concern builds passes at once."""
    async with offering(rig.path, unfinished):
        rig.report(prepares=True)
        lost = events.Lost(ID, "exited with code 1")
        rig.fetcher.emit(lost)
        other = rig.report("cccc0001", prepares=True)
        await until(lambda: len(rig.tasks) == 0)

    assert [rig.passed.get_nowait() for _ in range(rig.passed.qsize())] == [lost, other]


@pytest.mark.parametrize(
    ("greeting", "problem"),
    [(b"secret", ""), (b"other", "not that of the replica"), (b"", "not that of the replica")],
)
async def test_a_replica_on_another_host_proves_its_identity(greeting: bytes, problem: str) -> None:
    """Before anything is asked of it, since other processes may listen there."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.sendall(frame(Kind.WELCOME, 0, greeting))

    async def read() -> bytes:
        async with reader_of(ours, "secret") as reader:
            theirs.sendall(b"".join(answering(b"described")(Frame(Kind.FETCH, 0, 1, 0, b"", b""))))
            return await reader.description()

    with theirs:
        if problem:
            with pytest.raises(LinkError, match=problem):
                await read()
        else:
            assert await read() == b"described"
    assert ours.fileno() == -1
