"""What is believed of a trial that offers a prepared model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.replicas.prepared_models import described, fetch
from registry.errors import BodyTooLarge, StoreUnavailable
from registry.model import Bundle, BundleFile, Prepared
from runtime_image.contract.link import Kind
from runtime_image.contract.model import PART_MAX, ModelSpec, Part, Preparation, SessionPlan
from runtime_image.link.frames import Frame, LinkError
from tests.support.nouns import sha256
from tests.support.offers import (
    GRAPH,
    WEIGHTS,
    Answer,
    description,
    frame,
    honest,
    offering,
)
from tests.support.replicas import ModelFolder, binding

BOUND = replace(binding(ModelSpec("digits@1", model="model.onnx")), bundle=Bundle("", ()))
MIB = 2**20


async def fetched(folder: Path, answer: Answer = honest) -> Prepared | str:
    kept = folder / "kept"
    kept.mkdir(exist_ok=True)
    async with offering(folder / "data.sock", answer):
        return await fetch(folder / "data.sock", ModelFolder(kept), BOUND)


async def test_files_are_kept_under_the_servers_names(tmp_path: Path) -> None:
    """With hashes of its own, and plans that say which file each session is made of."""
    prepared = await fetched(tmp_path)

    assert isinstance(prepared, Prepared)
    assert prepared.model == "model.onnx"
    assert prepared.preparation == Preparation(
        "onnx-1/cpu-x",
        SessionPlan(".prepared/graph.onnx", optimise=False, prepack=False),
        SessionPlan("model.onnx"),
    )
    assert prepared.files == (
        BundleFile(".prepared/graph.onnx", len(GRAPH), sha256(GRAPH)),
        BundleFile(".prepared/weights.bin", len(WEIGHTS), sha256(WEIGHTS)),
    )
    assert (tmp_path / "kept" / sha256(WEIGHTS)).read_bytes() == WEIGHTS
    assert prepared.quick.cpu_ms == {1: 0.5, 8: 2.0}


async def test_a_reason_is_all_there_is(tmp_path: Path) -> None:
    """Where nothing was prepared no file is asked for, and no text is endless."""
    why = description(why_not="x" * 5000)
    questions: list[Frame] = []

    def answer(question: Frame) -> Iterable[bytes]:
        questions.append(question)
        return honest(question, why)

    assert await fetched(tmp_path, answer) == "x" * 1000
    assert [question.aux for question in questions] == [Part.DESCRIPTION]


async def test_weights_may_be_missing(tmp_path: Path) -> None:
    """A graph that needs no second file has none."""
    prepared = await fetched(
        tmp_path, lambda question: honest(question, description(sizes=[len(GRAPH), 0]))
    )

    assert isinstance(prepared, Prepared)
    assert [file.path for file in prepared.files] == [".prepared/graph.onnx"]


def wrong_kind(question: Frame) -> Iterable[bytes]:
    return [frame(Kind.RESPONSE, question.id, b"{}")]


def wrong_id(question: Frame) -> Iterable[bytes]:
    return [frame(Kind.PART, question.id + 1, description())]


def too_much(question: Frame) -> Iterable[bytes]:
    if question.aux != Part.GRAPH:
        return honest(question)
    return [frame(Kind.PART, question.id, GRAPH + b"!"), frame(Kind.END, question.id)]


def no_end(question: Frame) -> Iterable[bytes]:
    if question.aux != Part.GRAPH:
        return honest(question)
    return [frame(Kind.PART, question.id, GRAPH)] * 2


def too_little(question: Frame) -> Iterable[bytes]:
    if question.aux != Part.WEIGHTS:
        return honest(question)
    return [frame(Kind.PART, question.id, WEIGHTS[:PART_MAX]), frame(Kind.END, question.id)]


def in_crumbs(question: Frame) -> Iterable[bytes]:
    if question.aux != Part.WEIGHTS:
        return honest(question)
    return [frame(Kind.PART, question.id, WEIGHTS[:1])]


def too_large_a_part(question: Frame) -> Iterable[bytes]:
    return [frame(Kind.PART, question.id, b" " * (PART_MAX + 1))]


def end_with_a_body(question: Frame) -> Iterable[bytes]:
    return [
        frame(Kind.PART, question.id, description()),
        frame(Kind.END, question.id, b"more"),
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (wrong_kind, "expected PART 1, got RESPONSE 1"),
        (wrong_id, "expected PART 1, got PART 2"),
        (too_much, "expected a part of 7 bytes, got 8"),
        (no_end, "expected END 2, got PART 2"),
        (too_little, "expected PART 3, got END 3"),
        (in_crumbs, "expected a part of 1048576 bytes, got 1"),
        (too_large_a_part, "over the limit"),
        (end_with_a_body, "END has a body"),
    ],
)
async def test_frames_are_exact(answer: Answer, reason: str, tmp_path: Path) -> None:
    """Anything but the bytes announced, in as few parts as can be, ends it with the reason, and
    no frame is free."""
    with pytest.raises(LinkError, match=reason):
        await fetched(tmp_path, answer)

    assert sha256(WEIGHTS) not in {path.name for path in (tmp_path / "kept").iterdir()}


async def test_one_that_hangs_up(tmp_path: Path) -> None:
    """A trial that ends between two answers is a ConnectionError, for it has most likely died."""

    def hanging_up(question: Frame) -> Iterable[bytes]:
        return honest(question) if question.aux == Part.DESCRIPTION else []

    with pytest.raises(ConnectionError):
        await fetched(tmp_path, hanging_up)


async def test_nobody_there(tmp_path: Path) -> None:
    """A trial that does not listen any more is an OSError."""
    with pytest.raises(OSError, match="No such file"):
        await fetch(tmp_path / "data.sock", ModelFolder(tmp_path), BOUND)


class Full(ModelFolder):
    """A disk that takes nothing."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def keep(self, size: int, parts: object) -> str:
        raise self.error


@pytest.mark.parametrize("error", [StoreUnavailable("disk full"), BodyTooLarge("too large")])
async def test_what_cannot_be_kept_is_told(error: Exception, tmp_path: Path) -> None:
    """The reason of the store comes through."""
    async with offering(tmp_path / "data.sock"):
        with pytest.raises(type(error)):
            await fetch(tmp_path / "data.sock", Full(error), BOUND)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"preparation__quick__file": "../../etc/passwd"}, "file: expected one of"),
        ({"preparation__quick__file": "model.onnx"}, "file: expected one of"),
        ({"preparation__fast__file": "other.onnx"}, "file: expected one of"),
        ({"preparation__quick": None}, "TypeError"),
        ({"preparation": []}, "TypeError"),
        ({"sizes": [0, 5]}, "expected two numbers"),
        ({"sizes": [1, -1]}, "expected two numbers"),
        ({"sizes": [True, 1]}, "expected two numbers"),
        ({"sizes": [1, 2, 3]}, "ValueError"),
        ({"sizes": [1, 66 * MIB]}, "expected at most"),
        ({"original__load_ms": float("nan")}, "expected a number"),
        ({"quick__first_ms": -1}, "expected a number"),
        ({"fast__cpu_ms": {"x": 1}}, "ValueError"),
        ({"fast": None}, "TypeError"),
        ({"quick__cpu_ms": []}, "AttributeError"),
    ],
)
def test_a_description_must_make_sense(changes: dict[str, Any], reason: str) -> None:
    """Files of other names, sizes beyond the limit and numbers that are none are refused."""
    with pytest.raises(LinkError, match=reason):
        described(description(**changes), "model.onnx", MIB)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 60000, b'{"why_not": ""}', b"\xff"])
def test_a_description_must_be_an_object(data: bytes) -> None:
    """Whatever else comes is no description."""
    with pytest.raises(LinkError, match="malformed"):
        described(data, "model.onnx", MIB)


def test_a_description_is_short() -> None:
    """Text and tables without end are not even read."""
    with pytest.raises(LinkError, match="at most 65536 bytes"):
        described(description() + b" " * 65536, "model.onnx", MIB)
    many = {str(rows): 1.0 for rows in range(1, 1000)}
    prepared = described(description(quick__cpu_ms=many), "model.onnx", MIB)
    assert isinstance(prepared, Prepared)
    assert len(prepared.quick.cpu_ms) == 16
