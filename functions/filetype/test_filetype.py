"""Tests of the committed model with files not in its training data, and of its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from functions.filetype import files, train
from tests.support.ready_made import ReadyMade

OCTETS = "application/octet-stream"
ACCURACY_MIN = 0.9
RECALL_MIN = 0.5
SAMPLES = {"ring.c": "c", "table.js": "javascript", "recipes.yaml": "yaml"}
"""Sample file in `written/` -> its kind."""


@pytest.fixture(scope="module")
def filetype() -> ReadyMade:
    return ReadyMade(train.FOLDER)


@pytest.fixture(scope="module")
def contents() -> list[tuple[str, bytes]]:
    """Kind and first bytes of each held-out file, without padding."""
    with np.load(train.HELD_OUT) as file:
        rows, sizes, labels = file["data"], file["sizes"], file["labels"]
    return [
        (files.KINDS[label], row[:size].tobytes())
        for row, size, label in zip(rows, sizes, labels, strict=True)
    ]


def test_it_knows_files_it_never_saw(
    filetype: ReadyMade, contents: list[tuple[str, bytes]]
) -> None:
    """At least 90 % of the held-out files of our own, sent as raw bytes; half of every kind."""
    right = np.array([filetype.best(body, OCTETS) == kind for kind, body in contents])
    kinds = np.array([kind for kind, _ in contents])

    assert len(contents) >= 150
    assert right.mean() >= ACCURACY_MIN
    assert all(right[kinds == kind].mean() >= RECALL_MIN for kind in files.KINDS)


def test_only_the_first_bytes_count(filetype: ReadyMade, contents: list[tuple[str, bytes]]) -> None:
    """A long file is cut: what follows its first 512 bytes changes nothing."""
    _, body = next(item for item in contents if len(item[1]) == files.SIZE)

    assert filetype.call(body, OCTETS) == filetype.call(body + b"\0\xff" * 999, OCTETS)


def test_training_pads_as_the_gateway_does(filetype: ReadyMade) -> None:
    """A piece is the row that a body becomes, short or long."""
    for body in (b"#!/bin/sh\n", bytes(range(256)) * 3):
        [row] = filetype.tensors(body, OCTETS)["data"]
        assert row.tolist() == files.piece(body).tolist()


@pytest.mark.parametrize(("name", "kind"), SAMPLES.items())
def test_a_sample_is_what_its_name_says(filetype: ReadyMade, name: str, kind: str) -> None:
    """The model knows the sample files."""
    assert filetype.best((train.FOLDER / "written" / name).read_bytes(), OCTETS) == kind


def test_the_manifest_names_what_is_there(filetype: ReadyMade) -> None:
    """Labels, lengths and sample of the manifest are those of training and model."""
    manifest = filetype.manifest
    rule = manifest.inputs["data"].bytes

    assert manifest.output.labels == files.KINDS
    assert rule is not None
    assert (rule.length, rule.pad) == (files.SIZE, 0)
    assert manifest.sample["data"].removeprefix("@written/") in SAMPLES
    assert [spec.shape for spec in filetype.engine.signature.inputs] == [(-1, files.SIZE)]
    assert train.MODEL.stat().st_size < 200_000


@pytest.mark.slow
def test_calls_share_a_run(filetype: ReadyMade) -> None:
    """A deploy finds that files of any length may be answered together."""
    report = filetype.report()

    assert report.why_not == ""
    assert report.batchable
    assert report.sample_outputs["top"][0][0]["label"] == "c"


def test_files_are_found_by_name_and_by_content(tmp_path: Path) -> None:
    """Suffix, else the first bytes, tell the kind; links, doubles and the unknown are left out."""
    for name, content in {
        "a.py": b"import os\nprint(os.name)\n",
        "again.py": b"import os\nprint(os.name)\n",
        "run": b"#!/bin/bash\nset -e\nls -l\n",
        "tool": b"#!/usr/bin/python3\nprint(1)\n",
        "prog": b"\x7fELF\x02\x01\x01" + bytes(40),
        "notes.txt": b"nothing that is known here",
        "tiny.js": b"1;",
        "page.html": b"<html><body>hello</body></html>",
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")

    found = files.find((str(tmp_path),))

    assert sorted(sample.kind for sample in found) == ["elf", "html", "python", "python", "shell"]


def test_copies_of_a_package_stay_on_one_side() -> None:
    """Whether a file is held out depends on its folder's name alone."""
    names = [f"package{chr(97 + index)}" for index in range(26)]
    sides = {name: files.Sample("c", name, b"x").is_held_out for name in names}

    assert all(files.Sample("py", name, b"y").is_held_out == sides[name] for name in names)
    assert set(sides.values()) == {True, False}


def test_pieces_of_binary_files_are_beginnings() -> None:
    """Two pieces a file; a text's second may come from anywhere, a binary file's may not."""
    chance = np.random.default_rng(0)
    content = b"".join(b"%08d" % index for index in range(1000))
    samples = [files.Sample("png", "x", content), files.Sample("c", "y", content)] * 20

    rows, labels = train.pieces(samples, chance)
    heads = np.array([row[:8].tobytes() == content[:8] for row in rows]).reshape(-1, 2, 2)

    assert heads[:, 0].all()
    assert heads[:, 1, 0].all()
    assert not heads[:, 1, 1].all()
    assert labels[:4].tolist() == [files.KINDS.index(kind) for kind in ("png",) * 2 + ("c",) * 2]


def test_held_out_files_are_our_own(contents: list[tuple[str, bytes]]) -> None:
    """The files typed for the tests are in held_out.npz, and are still in `written/`."""
    kept = {body for _, body in contents}
    typed = sorted((train.FOLDER / "written").iterdir())

    assert len(typed) >= 20
    for path in typed:
        # Only some pieces of Markdown are kept.
        assert path.suffix == ".md" or path.read_bytes()[: files.SIZE] in kept, path.name


def test_the_committed_model_is_what_the_script_writes() -> None:
    """The graph that the script builds around the committed weights is the committed file."""
    committed = onnx.load(train.MODEL)
    weights = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in committed.graph.initializer
        if "." in tensor.name
    }

    again = train.build(weights).SerializeToString(deterministic=True)

    assert again == train.MODEL.read_bytes()
