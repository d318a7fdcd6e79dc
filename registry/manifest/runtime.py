"""Table [runtime] of a model function: its engine, and the shapes that a model is compiled for."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from registry.builds import Compilation
from registry.manifest.checks import NOTHING, Section, Text, refused
from registry.model.revisions import DeviceNeed
from runtime_image.contract.compiled import ShapeRange

RANK_MAX: Final = 16
DIMENSION_MAX: Final = 2**31 - 1
SHAPES_MAX: Final = 64
COMPILED_ENGINES: Final = ("tensorrt", "auto")

Shape = Annotated[
    list[Annotated[int, Field(ge=1, le=DIMENSION_MAX)]], Field(min_length=1, max_length=RANK_MAX)
]


class ShapeTable(Section):
    """Table [runtime.shapes.NAME], named after the input; lists as long as the input's shape."""

    smallest: Shape
    """Smallest size of each axis."""
    usual: Shape
    """Sizes that the compiled model is tuned for."""
    largest: Shape
    """Largest size of each axis."""


class RuntimeTable(Section):
    """Table [runtime]."""

    engine: Literal["onnx", "python", "tensorrt", "auto"] = "onnx"
    """Engine of the function. `onnx`: ONNX Runtime. `python`: `handler.py` alone without a model.
    `tensorrt`: ONNX Runtime, and the model compiled by TensorRT as soon as its build is done; needs
    `device.kind = "cuda"`, and the deploy fails without TensorRT. `auto`: compiled where a compiler
    is, else like `onnx`."""
    outside: Literal["ordinary", "refuse"] = "ordinary"
    """What happens to a request whose shapes the model was not compiled for. `ordinary`: the model
    that is not compiled runs it; replicas hold both. `refuse`: an error 400 names the shapes."""
    shapes: dict[Text, ShapeTable] = Field(default={}, max_length=SHAPES_MAX)
    """Shapes that the model is compiled for, by input. Only needed for inputs with dynamic axes
    other than the first one, which goes from 1 to the size of a batch."""


def compilation(table: RuntimeTable, handler: str, device: DeviceNeed) -> Compilation | None:
    """Return how the model is compiled, None if it is not. `handler` is the bundle's handler, ""
    for none.

    Raises BadManifest for keys that only compiled models have, or that contradict each other.
    """
    if table.engine not in COMPILED_ENGINES:
        for key in sorted({"outside", "shapes"} & table.model_fields_set):
            expected = f'engine = "auto" or "tensorrt" where there is {key!r}'
            raise refused("runtime.engine", expected, table.engine)
        return None
    if handler:
        raise refused(
            "runtime.engine", '"onnx" beside handler.py', table.engine, "compiles models alone"
        )
    ranges = tuple(shape_range(name, one) for name, one in sorted(table.shapes.items()))
    engine: Literal["tensorrt", "auto"] = "auto" if table.engine == "auto" else "tensorrt"
    found = Compilation(engine, ranges, table.outside)
    check_device(found, device)
    return found


def check_device(compiled: Compilation | None, device: DeviceNeed) -> None:
    """Raise BadManifest for engine "tensorrt" without `device.kind` "cuda"."""
    if compiled is not None and compiled.engine == "tensorrt" and device.kind != "cuda":
        raise refused("device.kind", '"cuda" with engine = "tensorrt"', device.kind or NOTHING)


def shape_range(name: str, table: ShapeTable) -> ShapeRange:
    """Return the table as a range. Raises BadManifest unless the three have one length and are in
    order on every axis."""
    at = f"runtime.shapes.{name}"
    for key, value in (("usual", table.usual), ("largest", table.largest)):
        if len(value) != len(table.smallest):
            raise refused(f"{at}.{key}", f"{len(table.smallest)} axes like smallest", value)
    _check_order(f"{at}.usual", "smallest", table.smallest, table.usual)
    _check_order(f"{at}.largest", "usual", table.usual, table.largest)
    return ShapeRange(name, tuple(table.smallest), tuple(table.usual), tuple(table.largest))


def _check_order(key: str, of: str, least: list[int], given: list[int]) -> None:
    if any(one < low for one, low in zip(given, least, strict=True)):
        raise refused(key, f"at least {of} on every axis, {least}", given)
