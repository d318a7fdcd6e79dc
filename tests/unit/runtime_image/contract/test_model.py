"""Model spec, prepared files and samples as data."""

from __future__ import annotations

import json

import pytest

from runtime_image.contract.compiled import BuildOrder, CompiledFile, CompiledModel, ShapeRange
from runtime_image.contract.model import (
    AudioForm,
    BytesForm,
    ImageForm,
    InputRule,
    ModelSpec,
    OutputRule,
    Part,
    Preparation,
    SessionPlan,
    content_type,
    file_of,
    files_max,
    from_json,
    patience_s,
    to_json,
)

FULL = ModelSpec(
    "digits@3",
    engine="python",
    model="model.onnx",
    handler="handler.py",
    inputs={
        "picture": InputRule(
            "image", image=ImageForm((28, 28), "L", "HW", 1.0, (0.1,), (0.3,), invert=True)
        ),
        "sound": InputRule("audio", audio=AudioForm(8000, 100)),
        "text": InputRule("bytes", bytes=BytesForm(64, 32)),
        "row": InputRule("tensor", finite=True, dtype="FP32", shape=(-1, 4)),
    },
    output=OutputRule("y", ("zero", "one"), 2),
    batching=False,
    batch_max=8,
    batch_wait_ms=1.5,
    inline=True,
    timeout_s=5.0,
    sample={"picture": "@seven.png"},
    preparation=Preparation(
        "ort-1.31/cpu",
        SessionPlan("prepared/model.onnx", optimise=False),
        SessionPlan("model.onnx"),
    ),
)
RANGES = (ShapeRange("x", (1, 4), (4, 4), (8, 4)),)
FILE = CompiledFile("model.onnx", 3, "a" * 64)
COMPILED = ModelSpec(
    "digits@3",
    model="model.onnx",
    compiled=CompiledModel("k", "onnxruntime", "context", (FILE,), RANGES),
)
BUILD = ModelSpec(
    "digits@3",
    model="model.onnx",
    build=BuildOrder("onnxruntime", RANGES, 0.01, timing_key="t", timing_cache=FILE),
)


@pytest.mark.parametrize("spec", [ModelSpec("digits@1"), FULL, COMPILED, BUILD])
def test_a_spec_survives_the_link(spec: ModelSpec) -> None:
    """Every field survives JSON with its type, tuples included."""
    assert from_json(json.loads(json.dumps(to_json(spec)))) == spec


def test_an_unknown_field_is_an_error() -> None:
    """A spec with a field of another version is refused."""
    with pytest.raises(TypeError, match="surprise"):
        from_json({**to_json(FULL), "surprise": 1})


GIB = 2**30


@pytest.mark.parametrize(
    ("bundle_bytes", "bytes_max", "limit_s"), [(0, 2**26, 30.0), (GIB, 2 * GIB + 2**26, 60.0)]
)
def test_limits_grow_with_the_bundle(bundle_bytes: int, bytes_max: int, limit_s: float) -> None:
    """Files may total twice the bundle's bytes plus a constant; the time limit grows, too."""
    assert files_max(bundle_bytes) == bytes_max
    assert patience_s(bundle_bytes) == limit_s


def test_parts_have_the_numbers_of_the_link() -> None:
    """Part numbers are fixed, because they are part of the wire format."""
    assert [(part.name, int(part)) for part in Part] == [
        ("DESCRIPTION", 0),
        ("GRAPH", 1),
        ("WEIGHTS", 2),
        ("OPTIMISED", 3),
    ]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("seven.png", "image/png"),
        ("a/Photo.JPEG", "image/jpeg"),
        ("yes.wav", "audio/wav"),
        ("x.npy", "application/x-npy"),
        ("written/ring.c", "application/octet-stream"),
        ("png", "application/octet-stream"),
    ],
)
def test_a_files_ending_tells_its_type(path: str, kind: str) -> None:
    """The file ending decides the type, whatever its case and folder; unknown endings are raw
    bytes."""
    assert content_type(path) == kind


def test_values_are_no_file() -> None:
    """Only a text that starts with @ names a file."""
    assert file_of({"x": [1.0], "mail": "someone@host"}) == ""
    assert file_of({"image": "@seven.png"}) == "seven.png"


def test_a_file_comes_alone() -> None:
    """A file is the whole body, so no other input is allowed."""
    with pytest.raises(ValueError, match="only input"):
        file_of({"image": "@seven.png", "threshold": 0.5})
