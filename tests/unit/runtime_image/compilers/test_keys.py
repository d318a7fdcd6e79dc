"""Keys of compiled files."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from runtime_image.compilers.keys import PIECE, Platform, model_digest, model_key, timing_key
from runtime_image.compilers.onnxruntime import OnnxRuntimeCompiler
from runtime_image.contract.compiled import ShapeRange
from runtime_image.engines.onnx import environment_key
from tests.support import models

PLATFORM = Platform(
    "onnx-1.31.1/cuda-sm90-570.86.15/cpu-x86_64-8d3c2f10",
    "git-commit-id=6af1a93",
    "10.16.1",
    "NVIDIA H100 PCIe MIG 1g.10gb, 16 SM, 9856 MiB",
    (("trt_builder_optimization_level", "3"),),
)
OTHERS: dict[str, list[Any]] = {
    "environment": [
        "onnx-1.31.2/cuda-sm90-570.86.15/cpu-x86_64-8d3c2f10",
        "onnx-1.31.1/cuda-sm90-575.57.08/cpu-x86_64-8d3c2f10",
        "onnx-1.31.1/cuda-sm89-570.86.15/cpu-x86_64-8d3c2f10",
        "onnx-1.31.1/cuda-sm90-570.86.15/cpu-x86_64-00000000",
    ],
    "build": ["git-commit-id=6af1a94"],
    "compiler": ["10.16.2"],
    "device": [
        "NVIDIA H200 MIG 1g.10gb, 16 SM, 9856 MiB",
        "NVIDIA H100 PCIe MIG 2g.20gb, 32 SM, 20096 MiB",
        "NVIDIA H100 PCIe, 114 SM, 81559 MiB",
    ],
    "options": [(), (("trt_builder_optimization_level", "5"),)],
}
RANGE = ShapeRange("x", (1, 3, 224, 224), (8, 3, 224, 224), (16, 3, 224, 224))
KEY = model_key("tensorrt", PLATFORM, (RANGE,), "digest")


def test_every_ingredient_of_the_platform_changes_both_keys() -> None:
    """No field of the platform is left out; equal ingredients give equal keys."""
    assert OTHERS.keys() == {field.name for field in fields(Platform)}
    others = [
        replace(PLATFORM, **{name: value}) for name, values in OTHERS.items() for value in values
    ]

    keys = {model_key("tensorrt", one, (RANGE,), "digest") for one in others}
    timings = {timing_key("tensorrt", one) for one in others}

    assert len(keys | {KEY}) == len(timings | {timing_key("tensorrt", PLATFORM)}) == 12
    assert model_key("tensorrt", replace(PLATFORM), (replace(RANGE),), "digest") == KEY


@pytest.mark.parametrize("field", ["input", "smallest", "usual", "largest"])
def test_every_end_of_a_range_changes_the_key(field: str) -> None:
    """So do a second range, and its absence; their order does not."""
    other = replace(RANGE, **{field: "y" if field == "input" else (2, 3, 224, 224)})
    second = replace(RANGE, input="z")

    keys = {
        model_key("tensorrt", PLATFORM, ranges, "digest")
        for ranges in [(RANGE,), (other,), (), (RANGE, second), (second, RANGE)]
    }

    assert len(keys) == 4


def test_compiler_and_model_change_the_key() -> None:
    """A timing cache is for all models; a model's key never equals it."""
    keys = {
        KEY,
        model_key("onnxruntime", PLATFORM, (RANGE,), "digest"),
        model_key("tensorrt", PLATFORM, (RANGE,), "other"),
        timing_key("tensorrt", PLATFORM),
        timing_key("onnxruntime", PLATFORM),
    }

    assert len(keys) == 5


def test_a_key_begins_with_compiler_and_environment() -> None:
    """Compiler and environment are readable, and the whole key is short."""
    assert KEY.startswith(f"tensorrt-10.16.1/{PLATFORM.environment}/")
    assert len(KEY) < 200


def test_the_digest_covers_weights_in_other_files(tmp_path: Path) -> None:
    """The digest changes with the graph, and with a file that the graph names; not with other files
    of the bundle or with this product's own folders."""
    model = models.external(tmp_path, 1)
    first = model_digest(model)
    (tmp_path / "sample.json").write_text("{}")
    (tmp_path / ".prepared").mkdir()
    (tmp_path / ".prepared" / "external.bin").write_text("others")
    unchanged = model_digest(model)
    weights = bytearray((tmp_path / "external.bin").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "external.bin").write_bytes(weights)
    changed = model_digest(model)
    model.write_bytes(model.read_bytes() + b"\x40\x01")

    assert first == unchanged
    assert len({first, changed, model_digest(model)}) == 3


def test_a_name_across_two_pieces_is_found(tmp_path: Path) -> None:
    """Wherever in the model the entry is; a name far from any entry is not looked for."""
    (tmp_path / "weights.bin").write_text("1")
    model = tmp_path / "m.onnx"
    digests = []
    for offset in range(PIECE - 32, PIECE + 32, 7):
        model.write_bytes(b"\0" * offset + b"\n\x08location\x12\x0bweights.bin" + b"\0" * PIECE)
        (tmp_path / "weights.bin").write_text("1")
        first = model_digest(model)
        (tmp_path / "weights.bin").write_text("2")
        digests.append((first, model_digest(model)))
    model.write_bytes(b"weights.bin" + b"\0" * PIECE)
    unnamed = model_digest(model)
    (tmp_path / "weights.bin").write_text("3")

    assert all(first != second for first, second in digests)
    assert model_digest(model) == unnamed


def test_this_platform_has_a_key(tmp_path: Path) -> None:
    """The key of this machine holds ONNX Runtime's version, and is the same every time."""
    platform = OnnxRuntimeCompiler().platform(environment_key("cpu"))
    digest = model_digest(models.add_one(tmp_path))

    key = model_key("onnxruntime", platform, (), digest)

    assert key == model_key("onnxruntime", platform, (), digest)
    assert environment_key("cpu") in key
    assert "git-commit-id" in platform.build
