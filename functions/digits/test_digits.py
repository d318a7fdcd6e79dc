"""Tests of the committed model with scans not in its training data, and of its folder."""

from __future__ import annotations

import io
import tomllib
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from functions.digits import train

ACCURACY_MIN = 0.975
ROUNDED = 0.5 / 255
"""Max change of a value in 0..1 by 8-bit grey."""


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return tomllib.loads((train.FOLDER / "function.toml").read_text())


def as_image_form(png: bytes, rule: dict[str, Any]) -> train.Scans:
    """Return the picture by the manifest's rule for `image`: float32 [1, 8, 8]."""
    with Image.open(io.BytesIO(png)) as opened:
        height, width = rule["size"]
        grey = opened.convert(rule["mode"]).resize((width, height))
    return (np.asarray(grey)[None] * float(rule["scale"])).astype(np.float32)


def through_png(scans: train.Scans, rule: dict[str, Any]) -> train.Scans:
    """Save each scan as a PNG file and read it back."""
    read = []
    for scan in scans:
        file = io.BytesIO()
        train.picture(scan).save(file, "PNG")
        read.append(as_image_form(file.getvalue(), rule))
    return np.concatenate(read)


def shape_of(model: onnx.ModelProto) -> list[Any]:
    """Return everything of a graph except the values of its weights."""
    graph = model.graph
    return [
        list(graph.node),
        list(graph.input),
        list(graph.output),
        [(weights.name, list(weights.dims), weights.data_type) for weights in graph.initializer],
        list(model.opset_import),
        model.ir_version,
    ]


def test_it_reads_scans_it_never_saw(manifest: dict[str, Any]) -> None:
    """At least 97.5 % of the 450 held-out scans are read rightly, as tensors and as PNG alike."""
    model = train.MODEL.read_bytes()
    scans, labels = train.held_out()

    pictures = through_png(scans, manifest["input"]["image"])

    assert scans.shape == (450, 8, 8)
    assert scans.dtype == np.float32
    assert np.abs(pictures - scans).max() <= ROUNDED + 1e-6
    assert train.accuracy(model, scans, labels) >= ACCURACY_MIN
    assert train.accuracy(model, pictures, labels) == train.accuracy(model, scans, labels)


def test_a_row_does_not_depend_on_its_batch() -> None:
    """Scans give the same answers singly and together."""
    model = train.MODEL.read_bytes()
    scans, _ = train.held_out()

    together = train.predict(model, scans[:8])

    assert [train.predict(model, scan[None])[0] for scan in scans[:8]] == together.tolist()


@pytest.mark.parametrize(("name", "digit"), train.SAMPLES.items())
def test_a_sample_is_what_its_name_says(name: str, digit: int, manifest: dict[str, Any]) -> None:
    """A sample file is an 8-bit grey picture of a held-out scan, and the model reads it rightly."""
    png = (train.FOLDER / name).read_bytes()
    scan = as_image_form(png, manifest["input"]["image"])
    scans, labels = train.held_out()

    with Image.open(io.BytesIO(png)) as opened:
        assert (opened.format, opened.mode, opened.size) == ("PNG", "L", (8, 8))
    same = np.abs(scans - scan).max(axis=(1, 2)) <= ROUNDED + 1e-6
    assert labels[same].tolist() == [digit]
    assert train.predict(train.MODEL.read_bytes(), scan).tolist() == [digit]


def test_the_manifest_names_what_is_there(manifest: dict[str, Any]) -> None:
    """Model, sample, input and output of the manifest exist, with one label per probability."""
    graph = onnx.load(train.MODEL).graph
    outputs = {output.name: output.type.tensor_type.shape.dim for output in graph.output}
    output = manifest["output"]

    assert train.MODEL.name == manifest["model"]
    assert train.MODEL.stat().st_size < 100_000
    assert [value.name for value in graph.input] == list(manifest["input"])
    assert len(output["labels"]) == outputs[output["tensor"]][1].dim_value
    assert manifest["sample"]["image"].removeprefix("@") in train.SAMPLES
    assert manifest["input"]["image"]["scale"] == 1 / 255


@pytest.mark.slow
def test_the_script_makes_the_committed_model() -> None:
    """Training again gives the same graph and reads the held-out scans as well."""
    again = train.train()
    scans, labels = train.held_out()

    committed = onnx.load(train.MODEL)

    assert shape_of(again) == shape_of(committed)
    # Matrix kernels of another processor round differently, which may change one or two scans.
    assert train.accuracy(again.SerializeToString(), scans, labels) == pytest.approx(
        train.accuracy(committed.SerializeToString(), scans, labels), abs=2 / len(scans)
    )
