"""The generated models compute what their descriptions say."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from benchmarks.models import graphs


def run(model: onnx.ModelProto, array: np.ndarray) -> np.ndarray:
    """Return the model's only output."""
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": array})[0]


def test_the_tiny_model_has_independent_rows() -> None:
    """Batches give the same results as single rows."""
    rows = np.random.default_rng(1).random((5, 4), dtype=np.float32)
    together = run(graphs.tiny(), rows)

    assert together.shape == (5, 3)
    assert np.allclose(together[2:3], run(graphs.tiny(), rows[2:3]), atol=1e-5)


def test_the_first_byte_of_each_row_comes_back() -> None:
    """The first byte of each row is returned, for rows of any length."""
    rows = np.array([[1, 2, 200], [3, 250, 0]], np.uint8)

    assert run(graphs.first(), rows).tolist() == [1, 3]
    assert run(graphs.same(), rows).tolist() == rows.tolist()


def test_the_same_seed_makes_the_same_model() -> None:
    """The same seed gives the same model, so cached models stay valid."""
    assert graphs.tiny().SerializeToString() == graphs.tiny().SerializeToString()


@pytest.mark.slow
def test_values_in_large_models_keep_their_magnitude() -> None:
    """Values contain no infinities or denormals, which compute at another speed."""
    picture = np.random.default_rng(1).random((1, 3, 224, 224), dtype=np.float32)
    words = np.random.default_rng(1).random((2, 16, 1024), dtype=np.float32)
    for model, array, shape in (
        (graphs.convnet(), picture, (1, 1000)),
        (graphs.encoder(1), words, (2, 16, 1024)),
    ):
        y = run(model, array)
        assert y.shape == shape
        assert 0.01 < float(np.abs(y).mean()) < 100
