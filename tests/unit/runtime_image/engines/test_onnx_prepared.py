"""Which session a spec's model gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec, Preparation, SessionPlan
from runtime_image.engines.onnx import OnnxEngine, load_model, size_mib
from tests.support import prepared

X = np.arange(8, dtype=np.float32).reshape(2, 4)
MADE = prepared.preparation()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    prepared.prepare(prepared.layers(made))
    (made / "broken.onnx").write_bytes(b"no model")
    return made


def load(folder: Path, preparation: Preparation | None) -> OnnxEngine:
    return load_model(prepared.spec(preparation), folder, device_kind="cpu", threads=1)


def run(engine: OnnxEngine) -> np.ndarray:
    return np.asarray(engine.run({"x": X}, engine.ticket())["y"])


def test_what_was_prepared_here_is_used(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The quick session serves first, gives what the original gives, and will be improved."""
    original, quick = load(folder, None), load(folder, MADE)

    assert (original.session, quick.session) == ("original", "quick")
    assert original.improvement is None
    assert quick.improvement is not None
    assert quick.signature == original.signature
    assert np.allclose(run(quick), run(original), atol=1e-5)
    assert capfd.readouterr().out == ""


def test_quick_may_be_the_best_there_is(folder: Path) -> None:
    """Without a fast plan there is nothing to improve."""
    engine = load(folder, replace(MADE, fast=None))

    assert (engine.session, engine.improvement) == ("quick", None)


@pytest.mark.parametrize(
    ("preparation", "reason"),
    [
        (replace(MADE, key="onnx-0.1/cpu"), "it was prepared for onnx-0.1/cpu, this is onnx-"),
        (replace(MADE, quick=SessionPlan("missing.onnx")), "missing.onnx"),
        (replace(MADE, quick=SessionPlan("broken.onnx")), "broken.onnx"),
        (replace(MADE, fast=SessionPlan("nowhere/fast.onnx")), "nowhere"),
    ],
)
def test_what_does_not_fit_is_not_used(
    folder: Path, preparation: Preparation, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """For another machine, missing or broken: the original serves, and the log has one line."""
    engine = load(folder, preparation)

    assert (engine.session, engine.improvement) == ("original", None)
    assert run(engine).shape == (2, 4)
    [line] = capfd.readouterr().out.splitlines()
    assert line.startswith("fngate: digits@1 is loaded from its original file: ")
    assert reason in line


def test_the_originals_reason_is_the_one_that_counts(folder: Path) -> None:
    """Where nothing can be loaded, the model file itself is what is complained of."""
    spec = ModelSpec("digits@1", model="broken.onnx", preparation=replace(MADE, key="other"))

    with pytest.raises(LoadError, match=r"broken\.onnx"):
        load_model(spec, folder, device_kind="cpu", threads=1)


def test_a_models_size_is_that_of_its_folder(tmp_path: Path) -> None:
    """Weights lie beside the graph; folders below do not count."""
    (tmp_path / "graph.onnx").write_bytes(bytes(2**20))
    (tmp_path / "weights").write_bytes(bytes(2**21))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "other").write_bytes(bytes(2**20))

    assert size_mib(tmp_path / "graph.onnx") == 3
