"""Tests of the table [runtime]."""

from __future__ import annotations

import pytest

from registry.builds import Compilation
from registry.errors import BadManifest
from registry.manifest import Manifest, overrides, parse_manifest
from runtime_image.contract.compiled import ShapeRange


def manifest(text: str, *files: str) -> Manifest:
    return parse_manifest(f"schema = 1\n{text}", ["model.onnx", *files])


def test_models_are_not_compiled_by_default() -> None:
    """Only the engines that compile have a compilation; the engine that runs stays the same."""
    assert manifest("").compilation is None
    assert manifest('[runtime]\nengine = "onnx"').compilation is None
    found = manifest('[runtime]\nengine = "auto"')
    assert (found.engine, found.compilation) == ("onnx", Compilation("auto"))


def test_a_whole_table() -> None:
    """Shapes are kept by input, in the order of their names."""
    found = manifest(
        '[runtime]\nengine = "tensorrt"\noutside = "refuse"\n'
        "[runtime.shapes.x]\nsmallest = [1, 16]\nusual = [4, 64]\nlargest = [8, 512]\n"
        "[runtime.shapes.a]\nsmallest = [1]\nusual = [1]\nlargest = [1]\n"
        '[device]\nkind = "cuda"'
    )

    assert found.compilation == Compilation(
        "tensorrt",
        (ShapeRange("a", (1,), (1,), (1,)), ShapeRange("x", (1, 16), (4, 64), (8, 512))),
        "refuse",
    )


SHAPES = "[runtime.shapes.x]\nsmallest = [{}]\nusual = [{}]\nlargest = [{}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[runtime]\nengine = "tensorrt"', 'device.kind: expected "cuda" with engine'),
        ('[runtime]\noutside = "refuse"', "where there is 'outside', got 'onnx'"),
        (SHAPES.format(1, 1, 1), "where there is 'shapes', got 'onnx'"),
        (
            '[runtime]\nengine = "auto"\n' + SHAPES.format(2, 1, 3),
            "shapes.x.usual: expected at least",
        ),
        (
            '[runtime]\nengine = "auto"\n' + SHAPES.format(1, 2, 1),
            "shapes.x.largest: expected at least",
        ),
        (
            '[runtime]\nengine = "auto"\n' + SHAPES.format(1, "1, 1", 1),
            "expected 1 axes like smallest",
        ),
        ('[runtime]\nengine = "auto"\n' + SHAPES.format(0, 1, 1), "expected at least 1, got 0"),
        ('[runtime]\nengine = "auto"\noutside = "guess"', "expected 'ordinary' or 'refuse'"),
    ],
)
def test_contradictions(text: str, said: str) -> None:
    """The error names the key, the expected value and the received one."""
    with pytest.raises(BadManifest) as caught:
        manifest(text)

    assert said in caught.value.message


def test_handlers_are_not_compiled() -> None:
    """A handler decides what runs, so a compiled model beside it is refused."""
    with pytest.raises(BadManifest, match=r"beside handler\.py"):
        manifest('[runtime]\nengine = "auto"', "handler.py")


def test_the_command_line_cannot_move_it_off_the_gpu() -> None:
    """`--device cpu` contradicts engine = "tensorrt" like the file would."""
    found = manifest('[runtime]\nengine = "tensorrt"\n[device]\nkind = "cuda"')

    with pytest.raises(BadManifest, match=r"device\.kind"):
        overrides(found, device="cpu")
