"""Runs with bound inputs and outputs; bound to the CPU, which has the same interface as a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from runtime_image.engines.onnx import open_session, run_bound
from tests.support import models

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_bound_run_gives_what_a_plain_one_gives(tmp_path: Path) -> None:
    """Every output comes under its name, whatever the memory layout of an input."""
    session = open_session(str(models.two_inputs(tmp_path)), "cpu", 1)
    turned = np.asfortranarray(X)

    got = run_bound(session, "cpu", ["sum", "difference"], {"a": X, "b": turned}, ort.RunOptions())

    assert list(got) == ["sum", "difference"]
    assert np.array_equal(got["sum"], X + X)
    assert np.array_equal(got["difference"], np.zeros_like(X))


@pytest.mark.parametrize("dtype", ["BOOL", "INT64", "FP16", "FP32", "UINT8"])
def test_numbers_of_every_kind_are_bound(dtype: str, tmp_path: Path) -> None:
    """What NumPy knows as a number goes through unchanged."""
    session = open_session(str(models.every_dtype(tmp_path, dtype)), "cpu", 1)
    [value] = session.get_inputs()
    names = {"bool": np.bool_, "int64": np.int64, "float16": np.float16, "uint8": np.uint8}
    kind = names.get(value.type.removeprefix("tensor(").rstrip(")"), np.float32)
    given = np.ones((2, 4), kind)

    [got] = run_bound(session, "cpu", ["y"], {"x": given}, ort.RunOptions()).values()

    assert got.shape == given.shape


def test_text_runs_without_being_bound(tmp_path: Path) -> None:
    """Strings have no memory of their own that could be bound."""
    session = open_session(str(models.strings(tmp_path)), "cpu", 1)
    [value] = session.get_inputs()
    [output] = session.get_outputs()
    words = np.array(["a", "b"], dtype=object)

    got = run_bound(session, "cpu", [output.name], {value.name: words}, ort.RunOptions())

    assert list(got) == [output.name]


def test_a_bound_run_can_be_stopped(tmp_path: Path) -> None:
    """Options that say stop are heeded."""
    session = open_session(str(models.slow(tmp_path, loops=100_000_000)), "cpu", 1)
    options = ort.RunOptions()
    options.terminate = True

    with pytest.raises(Exception, match="terminate"):
        run_bound(session, "cpu", ["y"], {"x": X}, options)
