"""Tests of what is compiled for a revision."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from registry.builds import Compilation, DeviceType, Target, group_of
from registry.catalog import Deployed
from registry.compilation import Compiled, estimate_s, memory_mib, ranges_of, target_of
from registry.model.revisions import Batching
from runtime_image.contract.compiled import CompiledModel, ShapeRange
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support.nouns import bundle, function, profile, revision

AUTO = Compilation("auto")
ROWS = ShapeRange("x", (1, 4), (8, 4), (8, 4))
TARGET = Target("b", "model.onnx", "", "cpu", "onnxruntime", (ROWS,), keeps_ordinary=True)


def signature(*shapes: tuple[int, ...]) -> Signature:
    return Signature(
        "tensors", tuple(TensorSpec(f"x{n}", "FP32", s) for n, s in enumerate(shapes)), ()
    )


def deployed(compilation: Compilation | None = AUTO, **changes: Any) -> Deployed:
    """A revision whose trial allows batches of 8 rows on the CPU."""
    one = revision(compilation=compilation, **changes)
    return Deployed(function(), one, profile(batch_max=8))


def compiled(build_s: float, target: Target = TARGET, memory: float = 0.0) -> Compiled:
    model = CompiledModel("k", target.compiler, "context", (), target.ranges)
    return Compiled(target, model, (), build_s=build_s, memory_mib=memory)


def test_a_compiled_function_has_a_target() -> None:
    """The target names the model, the device that the trial used, and a whole batch."""
    found = target_of(deployed(), "onnxruntime")

    assert found == replace(TARGET, bundle=bundle().digest)


@pytest.mark.parametrize(
    ("one", "compiler", "why"),
    [
        (deployed(None), "onnxruntime", ""),
        (replace(deployed(), profile=None), "onnxruntime", "no deploy has measured"),
        (deployed(), "tensorrt", 'no compiler for the device "cpu"'),
        (deployed(signature=signature((-1, -1))), "onnxruntime", "runtime.shapes.x0: expected"),
        (deployed(signature=Signature("bytes", (), ())), "onnxruntime", "got bytes"),
    ],
)
def test_others_have_a_reason(one: Deployed, compiler: Any, why: str) -> None:
    """Where nothing is compiled there is a reason, which is empty without a request."""
    found = target_of(one, compiler)

    assert isinstance(found, str)
    assert why in found
    assert bool(why) == bool(found)


def test_gpus_have_tensorrt() -> None:
    """The setting for the CPU does not change what compiles for GPUs."""
    one = deployed()
    assert one.profile is not None
    on_gpu = replace(one, profile=replace(one.profile, device_kind="cuda"))

    found = [target_of(on_gpu, compiler) for compiler in ("onnxruntime", "tensorrt")]

    assert [one.compiler for one in found if isinstance(one, Target)] == ["tensorrt", "tensorrt"]


def test_every_field_makes_another_target() -> None:
    """Whatever a compiled model depends on is part of its digest."""
    changed: dict[str, Any] = {
        "bundle": "c",
        "model": "n.onnx",
        "base": "d",
        "device_kind": "cuda",
        "compiler": "tensorrt",
        "ranges": (replace(ROWS, largest=(9, 4)),),
        "keeps_ordinary": False,
        "device": DeviceType("far", ""),
    }
    assert changed.keys() == {field.name for field in fields(Target)}

    digests = {replace(TARGET, **{name: value}).digest for name, value in changed.items()}

    assert len(digests | {TARGET.digest}) == len(changed) + 1
    groups = {group_of(one) for one in digests}
    assert len(groups | {TARGET.group}) == len(changed)


def test_the_first_axis_is_the_batch() -> None:
    """A dynamic first axis goes from one row to a whole batch, also without batching."""
    assert ranges_of(AUTO, signature((-1, 4), (3,)), 8) == (
        ShapeRange("x0", (1, 4), (8, 4), (8, 4)),
        ShapeRange("x1", (3,), (3,), (3,)),
    )
    off = deployed(batching=Batching("off"))
    found = target_of(off, "onnxruntime")
    assert isinstance(found, Target)
    assert found.ranges[0].largest == (1, 4)


def test_the_manifest_names_other_axes() -> None:
    """Given shapes are taken as they are, if they fit the model."""
    given = ShapeRange("x0", (1, 16), (4, 64), (8, 512))

    assert ranges_of(Compilation("auto", (given,)), signature((-1, -1)), 8) == (given,)


def test_an_unknown_rank_needs_given_shapes() -> None:
    """The model declares no shape, so the manifest must say it."""
    unknown = Signature("tensors", (TensorSpec("x0", "FP32", None),), ())
    given = ShapeRange("x0", (1, 16), (4, 64), (8, 512))

    assert ranges_of(Compilation("auto", (given,)), unknown, 8) == (given,)
    with pytest.raises(ValueError, match="as the model declares no shape; got nothing"):
        ranges_of(AUTO, unknown, 8)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (ShapeRange("y", (1,), (1,), (1,)), "inputs of the model, which are x0; got 'y'"),
        (ShapeRange("x0", (1,), (1,), (1,)), "got [1]"),
        (ShapeRange("x0", (1, 4), (1, 4), (1, 5)), "got [1, 5]"),
    ],
)
def test_shapes_that_contradict_the_model(given: ShapeRange, why: str) -> None:
    """An unknown input, another rank or another fixed size is an error that names them."""
    with pytest.raises(ValueError, match="shapes") as caught:
        ranges_of(Compilation("auto", (given,)), signature((-1, 4)), 8)

    assert why in str(caught.value)


def test_the_estimate_comes_from_earlier_builds() -> None:
    """Builds of the same model count alone; else the time per byte of the same compiler."""
    other = replace(TARGET, bundle="other")
    gpu = replace(other, compiler="tensorrt")
    size = bundle().size

    assert estimate_s(TARGET, bundle(), []) is None
    assert estimate_s(TARGET, bundle(), [(compiled(9, gpu), 1)]) is None
    assert estimate_s(TARGET, bundle(), [(compiled(10, other), 5)]) == 2.0 * size
    both = [(compiled(10, other), 5), (compiled(3), size), (compiled(5), size)]
    assert estimate_s(TARGET, bundle(), both) == 4.0


def test_both_sessions_need_memory() -> None:
    """A replica that keeps the ordinary session holds both, any other the larger one."""
    refuses = replace(TARGET, keeps_ordinary=False)

    assert memory_mib(100, []) == 100
    assert memory_mib(100, [compiled(1, memory=50)]) == 150
    assert memory_mib(100, [compiled(1, memory=50), compiled(1, memory=70)]) == 170
    assert memory_mib(100, [compiled(1, refuses, memory=50)]) == 100
