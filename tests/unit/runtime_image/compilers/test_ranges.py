"""Shapes for which a model is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runtime_image.compilers.ranges import outside, problem, refusal, rows_max
from runtime_image.contract.compiled import ShapeRange
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec

X = ShapeRange("x", (1, 16), (4, 64), (8, 128))
MASK = ShapeRange("mask", (1, 16), (4, 64), (4, 128))
SIGNATURE = Signature(
    "tensors",
    (
        TensorSpec("x", "FP32", (DYNAMIC, DYNAMIC)),
        TensorSpec("mask", "INT64", (DYNAMIC, DYNAMIC)),
        TensorSpec("scale", "FP32", (1,)),
    ),
    (),
)


@pytest.mark.parametrize(
    ("shape", "is_inside"),
    [
        ((1, 16), True),
        ((4, 64), True),
        ((8, 128), True),
        ((9, 128), False),
        ((8, 129), False),
        ((0, 16), False),
        ((1, 15), False),
        ((1,), False),
        ((1, 16, 1), False),
        ((), False),
    ],
)
def test_both_ends_are_inside(shape: tuple[int, ...], is_inside: bool) -> None:
    """A shape is inside if every axis is, both ends included, and the rank is equal."""
    assert (outside({"x": shape}, (X,)) is None) == is_inside


def test_every_input_counts() -> None:
    """The first violated range is returned; inputs without a range are not looked at."""
    shapes = {"x": (8, 128), "mask": (8, 128), "scale": (7,)}

    assert outside(shapes, (X, MASK)) is MASK
    assert outside({**shapes, "mask": (4, 128)}, (X, MASK)) is None
    assert outside({"x": (1, 16)}, (X, MASK)) is MASK
    assert outside(shapes, ()) is None


def test_a_refusal_names_the_ranges() -> None:
    """The error says which input, what was expected, and what came."""
    error = refusal({"x": (9, 128)}, X)

    assert error.to_json() == {
        "code": "bad_input",
        "message": "input x: this model is compiled for a shape from [1, 16] to [8, 128],"
        " got [9, 128]",
        "input": "x",
        "expected": "a shape from [1, 16] to [8, 128]",
        "got": "[9, 128]",
    }
    assert "got nothing" in refusal({}, X).message


def test_joined_rows_end_with_the_smallest_range() -> None:
    """The most rows are those of the smallest largest first axis; scalars have none."""
    assert rows_max((X, MASK)) == 4
    assert rows_max((X, ShapeRange("scalar", (), (), ()))) == 8
    assert rows_max(()) > 10**6


def test_an_unknown_rank_has_the_axes_of_its_range() -> None:
    """A range is needed, and says how many axes there are."""
    unknown = Signature("tensors", (TensorSpec("x", "FP32", None),), ())
    uneven = ShapeRange("x", (1, 2), (1, 2), (1,))

    assert problem(unknown, (ShapeRange("x", (1, 2), (1, 2), (1, 4)),)) == ""
    assert "the model declares no shape" in problem(unknown, ())
    assert "expected 2 axes" in problem(unknown, (uneven,))


def test_ranges_that_cover_a_model_have_no_problem() -> None:
    """Fixed axes need no range, and may have one of exactly their size."""
    scale = ShapeRange("scale", (1,), (1,), (1,))

    assert problem(SIGNATURE, (X, MASK)) == ""
    assert problem(SIGNATURE, (X, MASK, scale)) == ""


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ((X,), "shapes of 'mask': an axis is dynamic and has no range"),
        ((X, X, MASK), "an input has two ranges"),
        ((X, MASK, replace(X, input="y")), "shapes of 'y': the model's inputs are"),
        ((replace(X, smallest=(1,)), MASK), "expected 2 axes, got [1] [4, 64] [8, 128]"),
        ((replace(X, smallest=(5, 16)), MASK), "axis 0: expected 1 <= smallest <= usual"),
        ((replace(X, smallest=(0, 16)), MASK), "axis 0: expected 1 <= smallest <= usual"),
        ((replace(X, usual=(4, 129)), MASK), "axis 1: expected 1 <= smallest <= usual"),
        ((X, MASK, ShapeRange("scale", (1,), (1,), (2,))), "axis 0 is fixed at 1, got 1 to 2"),
    ],
)
def test_a_model_cannot_be_compiled_for_other_ranges(ranges: Any, reason: str) -> None:
    """The reason names input and axis, with the expected and the actual value."""
    assert reason in problem(SIGNATURE, ranges)
