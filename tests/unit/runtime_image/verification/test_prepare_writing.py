"""The files of an optimised model."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import onnx
import pytest

from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import GRAPH_FILE, WEIGHTS_FILE, SessionPlan
from runtime_image.verification.measure import Bench
from runtime_image.verification.prepare import write_prepared
from tests.support import models
from tests.support.layered import WIDTH, layered

GIB = 2**30
X = np.random.default_rng(1).standard_normal((2, WIDTH)).astype(np.float32)


def run(folder: Path, plan: SessionPlan) -> np.ndarray:
    engine = Bench({}, "cpu", 1).open(folder, plan)
    return engine.run({"x": X}, engine.ticket())["y"]


@pytest.mark.parametrize("apart", [False, True])
def test_a_model_is_written_with_its_weights_apart(tmp_path: Path, apart: bool) -> None:
    """Whether it came in one file or in two: the graph is small, names one file beside it, and
    computes the same however its session is made."""
    model = layered(tmp_path, 2, apart=apart)

    write_prepared(model, tmp_path, "cpu", 1, GIB)

    assert (tmp_path / GRAPH_FILE).stat().st_size < 10_000
    assert (tmp_path / WEIGHTS_FILE).stat().st_size >= 2 * 2**20
    graph = onnx.load(tmp_path / GRAPH_FILE, load_external_data=False).graph
    places = {e.value for t in graph.initializer for e in t.external_data if e.key == "location"}
    assert places == {WEIGHTS_FILE}
    wanted = run(tmp_path, SessionPlan(model.name))
    for prepack in (False, True):
        got = run(tmp_path, SessionPlan(GRAPH_FILE, optimise=False, prepack=prepack))
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_small_weights_stay_in_the_graph(tmp_path: Path) -> None:
    """A model without any large ones has no second file."""
    write_prepared(models.add_one(tmp_path), tmp_path, "cpu", 1, GIB)

    assert (tmp_path / GRAPH_FILE).is_file()
    assert not (tmp_path / WEIGHTS_FILE).exists()


def test_a_file_has_a_limit(tmp_path: Path) -> None:
    """What would be written beyond it is an error, and later files of the process are free."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    with pytest.raises(LoadError):
        write_prepared(layered(tmp_path, 2), tmp_path, "cpu", 1, 2**20)

    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before


def test_what_cannot_be_loaded_is_told_without_its_folder(tmp_path: Path) -> None:
    """The reason is the engine's own."""
    models.corrupt(tmp_path)

    with pytest.raises(LoadError, match="Protobuf parsing failed") as caught:
        write_prepared(tmp_path / "corrupt.onnx", tmp_path, "cpu", 1, GIB)
    assert str(tmp_path) not in str(caught.value)
