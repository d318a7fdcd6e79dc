"""Tests of the models that other tests use."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from runtime_image.contract import dtypes
from tests.support import models

X = np.arange(8, dtype=np.float32).reshape(2, models.WIDTH)


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("build", "want"),
    [
        (models.add_one, X + 1),
        (lambda folder: models.big(folder, 1), X + 1),
        (lambda folder: models.external(folder, 1), X + 1),
        (models.fails_on_negative, X + 1),
        (lambda folder: models.slow(folder, 3), X),
        (lambda folder: models.affine(folder, 3, -2), 3 * X - 2),
        (lambda folder: models.affine(folder, 3, -2, loops=2), 3 * X - 2),
        (lambda folder: models.affine_by_input(folder, 3, -2), 3 * X - 2),
    ],
)
def test_rows_are_independent(
    build: Callable[[Path], Path], want: models.Weights, tmp_path: Path
) -> None:
    """Rows run together and one by one give the promised answer."""
    model = session(build(tmp_path))

    together = model.run(None, {"x": X})[0]
    singly = [model.run(None, {"x": row[None]})[0][0] for row in X]

    assert np.array_equal(together, want)
    assert np.array_equal(singly, want)


def test_softmax_over_batch_mixes_rows(tmp_path: Path) -> None:
    """A single row gets another answer than within a batch."""
    model = session(models.softmax_over_batch(tmp_path))

    assert model.run(None, {"x": X})[0].sum(axis=0) == pytest.approx(np.ones(models.WIDTH))
    assert np.array_equal(model.run(None, {"x": X[:1]})[0], np.ones((1, models.WIDTH)))


def test_fixed_batch_takes_one_row(tmp_path: Path) -> None:
    """One row is accepted, two are refused."""
    model = session(models.fixed_batch(tmp_path))

    assert np.array_equal(model.run(None, {"x": X[:1]})[0], X[:1] + 1)
    with pytest.raises(Exception, match="invalid dimensions"):
        model.run(None, {"x": X})


def test_two_inputs(tmp_path: Path) -> None:
    """Sum and difference are returned under their names."""
    model = session(models.two_inputs(tmp_path))

    got = model.run(["sum", "difference"], {"a": X, "b": X + 1})

    assert np.array_equal(got[0], X + X + 1)
    assert np.array_equal(got[1], -np.ones_like(X))


def test_strings_come_back(tmp_path: Path) -> None:
    """Non-ASCII and empty strings are returned unchanged."""
    words = np.array(["seven", "", "sÿv"], dtype=object)

    assert session(models.strings(tmp_path)).run(None, {"x": words})[0].tolist() == words.tolist()


@pytest.mark.parametrize("dtype", sorted(dtypes.SERVED))
def test_every_dtype_of_the_contract_has_a_model(dtype: str, tmp_path: Path) -> None:
    """Input and output have the requested dtype."""
    model = session(models.every_dtype(tmp_path, dtype))

    assert dtypes.FROM_ONNX[model.get_inputs()[0].type] == dtype
    assert dtypes.FROM_ONNX[model.get_outputs()[0].type] == dtype


def test_slow_can_be_terminated(tmp_path: Path) -> None:
    """A run that is told to terminate raises instead of answering."""
    options = onnxruntime.RunOptions()
    options.terminate = True

    with pytest.raises(Exception, match="terminate flag"):
        session(models.slow(tmp_path)).run(None, {"x": X}, options)


def test_fails_on_negative_fails_while_running(tmp_path: Path) -> None:
    """One negative value in any row fails the run; the next run is answered."""
    model = session(models.fails_on_negative(tmp_path))

    with pytest.raises(Exception, match="out of data bounds"):
        model.run(None, {"x": np.array([[1, 1, 1, 1], [0, 0, 0, -1]], np.float32)})
    assert np.array_equal(model.run(None, {"x": X})[0], X + 1)


def test_big_holds_its_weights_in_one_file(tmp_path: Path) -> None:
    """The file has the requested size."""
    path = models.big(tmp_path, 2)

    assert 2 * models.MIB < path.stat().st_size < 2.1 * models.MIB


def test_external_holds_its_weights_beside_the_model(tmp_path: Path) -> None:
    """The external file has the requested size and the model is small."""
    path = models.external(tmp_path, 2)

    assert path.stat().st_size < 1000
    assert (tmp_path / "external.bin").stat().st_size == 2 * models.MIB


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (models.unsupported_opset, "opset"),
        (models.corrupt, "Protobuf parsing failed"),
    ],
)
def test_models_that_cannot_be_loaded(
    build: Callable[[Path], Path], complaint: str, tmp_path: Path
) -> None:
    """The engine refuses the file and gives a reason."""
    with pytest.raises(Exception, match=complaint):
        session(build(tmp_path))


def test_unsupported_type_loads(tmp_path: Path) -> None:
    """The model loads; only its output's type is outside the contract."""
    outputs = session(models.unsupported_type(tmp_path)).get_outputs()

    assert outputs[0].type not in dtypes.FROM_ONNX


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda folder: models.every_dtype(folder, "FP8"), "dtype: expected one of BOOL"),
        (lambda folder: models.big(folder, 0), "mib: expected 1 to 2000, got 0"),
        (lambda folder: models.big(folder, 2001), "mib: expected 1 to 2000, got 2001"),
    ],
)
def test_wrong_arguments_are_named(
    build: Callable[[Path], Path], message: str, tmp_path: Path
) -> None:
    """The error has the expected and the received argument."""
    with pytest.raises(ValueError, match=re.escape(message)):
        build(tmp_path)


def test_opset_and_format_are_pinned(tmp_path: Path) -> None:
    """Models have opset 21 and IR version 10, which every supported engine reads."""
    model = onnx.load(models.add_one(tmp_path))

    assert [entry.version for entry in model.opset_import] == [models.OPSET]
    assert model.ir_version == models.IR_VERSION
