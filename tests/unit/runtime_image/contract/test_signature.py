"""Signatures: inputs and outputs of a function."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime_image.contract.signature import (
    UNKNOWN_RANK_MAX,
    Signature,
    TensorSpec,
    from_json,
    to_json,
)

ROWS = TensorSpec("x", "FP32", (-1, 4))
ANY = TensorSpec("any", "FP16", None)
TENSORS = Signature("tensors", (ROWS, TensorSpec("mask", "BOOL", ()), ANY), (ROWS, ANY))


@pytest.mark.parametrize("signature", [TENSORS, Signature("json", (), ())])
def test_a_signature_survives_json(signature: Signature) -> None:
    """Kind, names, types and shapes survive JSON, scalars and unknown ranks included."""
    assert from_json(json.loads(json.dumps(to_json(signature)))) == signature


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ((1, 4), True),
        ((9, 4), True),
        ((0, 4), True),
        ((-1, 4), False),
        ((1, 3), False),
        ((4,), False),
    ],
)
def test_a_shape_fits_or_not(shape: tuple[int, ...], fits: bool) -> None:
    """Rank and fixed dimensions must be equal; a dynamic one may be empty."""
    assert ROWS.accepts(shape) is fits


def test_a_scalar_fits_a_scalar() -> None:
    """A shape without dimensions fits a scalar."""
    assert TensorSpec("s", "INT64", ()).accepts(())


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (1,) * UNKNOWN_RANK_MAX])
def test_an_unknown_rank_takes_any_shape(shape: tuple[int, ...]) -> None:
    """Any number of axes fits, up to a limit, and axes may be empty."""
    assert ANY.accepts(shape)
    assert not ANY.accepts((-1, *shape))
    assert not ANY.accepts((1,) * (UNKNOWN_RANK_MAX + 1))


@pytest.mark.parametrize(
    ("shape", "rows", "smallest", "text"),
    [
        (None, False, (1,), "of any shape"),
        ((), False, (), "of shape []"),
        ((-1, 0, -1), True, (1, 0, 1), "of shape [-1, 0, -1]"),
        ((2, -1), False, (2, 1), "of shape [2, -1]"),
    ],
)
def test_a_shape_tells_rows_and_its_smallest_tensor(
    shape: tuple[int, ...] | None, rows: bool, smallest: tuple[int, ...], text: str
) -> None:
    """An unknown rank has no rows, which a scalar has not either."""
    spec = TensorSpec("x", "FP32", shape)

    assert (spec.has_dynamic_rows, spec.smallest_shape, spec.shape_text) == (rows, smallest, text)


def test_inputs_are_found_by_name() -> None:
    """An input is found by name; an unknown name gives None."""
    assert TENSORS.input("x") is ROWS
    assert TENSORS.input("y") is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            {"kind": "openai", "inputs": [], "outputs": []},
            "expected tensors, json, bytes, http, got",
        ),
        (
            {"kind": "tensors", "inputs": [{"name": "x", "dtype": "F", "shape": []}]},
            "tensor x: unknown dtype 'F'",
        ),
        (
            {"kind": "tensors", "inputs": [{"name": "x", "dtype": "FP32", "shape": [-2]}]},
            "tensor x: bad shape",
        ),
    ],
)
def test_a_foreign_signature_is_refused(data: dict[str, Any], reason: str) -> None:
    """A malformed signature is refused with the path of the error."""
    with pytest.raises(ValueError, match=reason):
        from_json(data)
