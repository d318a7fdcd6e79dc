"""Preparation of a model: its files, the comparison with the original, the description."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import (
    FOLDER,
    GRAPH_FILE,
    WEIGHTS_FILE,
    InputRule,
    ModelSpec,
    SessionPlan,
    preparation_from_json,
)
from runtime_image.engines.onnx import OnnxEngine, environment_key
from runtime_image.verification import prepare as making
from runtime_image.verification.measure import Bench
from runtime_image.verification.prepare import (
    PACKED,
    QUICK,
    Example,
    Unprepared,
    Workspace,
    prepare,
    prepared_or_why_not,
    same,
    write_prepared,
)
from tests.support import models
from tests.support.layered import WIDTH, layered

HANDLER = "def predict(inputs, ctx):\n    return ctx.run(inputs)\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty model folder and an empty scratch folder."""
    folder, scratch = tmp_path / "model", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    return Workspace(folder, scratch, "cpu", threads=1, cap_mib=0)


def tried(model: Path, batch_max: int = 1) -> Example:
    signature = OnnxEngine(model, device_kind="cpu", threads=1).signature
    return Example(signature, batch_max, memory_mib=100.0)


def files(workspace: Workspace) -> set[str]:
    return {
        str(p.relative_to(workspace.scratch)) for p in workspace.scratch.rglob("*") if p.is_file()
    }


def test_a_large_model_is_prepared(workspace: Workspace) -> None:
    """Graph and weights are written, the key is this machine's, the quick session uses these files,
    and all measurements are reported."""
    model = layered(workspace.folder, 16)

    found = prepare(ModelSpec("a@1", model=model.name), tried(model, batch_max=8), workspace)

    preparation = preparation_from_json(found["preparation"])
    assert (found["why_not"], preparation.key) == ("", environment_key("cpu"))
    assert preparation.quick in (QUICK, PACKED)
    assert files(workspace) == {f"{FOLDER}/{GRAPH_FILE}", f"{FOLDER}/{WEIGHTS_FILE}"}
    sizes = [
        (workspace.scratch / FOLDER / name).stat().st_size for name in (GRAPH_FILE, WEIGHTS_FILE)
    ]
    assert found["sizes"] == sizes
    assert set(found["original"]["cpu_ms"]) == {"1", "8"}
    assert (found["fast"] is None) == (preparation.fast is None)


def test_a_handlers_model_is_prepared(workspace: Workspace) -> None:
    """The manifest's sample belongs to the handler, so the model is tried with made-up input."""
    model = layered(workspace.folder, 16)
    (workspace.folder / "handler.py").write_text(HANDLER)
    spec = ModelSpec(
        "a@1",
        model=model.name,
        handler="handler.py",
        inputs={"text": InputRule("bytes")},
        sample={"text": "@none"},
    )

    found = prepare(spec, Example(tried(model).signature, 8, 100.0), workspace)

    assert set(found["original"]["cpu_ms"]) == {"1"}


def test_a_small_model_is_left_as_it_is(workspace: Workspace) -> None:
    """A small model gains nothing, so nothing is measured."""
    model = models.add_one(workspace.folder)

    found = prepared_or_why_not(ModelSpec("a@1", model=model.name), tried(model), workspace)

    assert found == {"why_not": "a model of 0 KiB loads quickly as it is"}
    assert files(workspace) == set()


def test_a_cap_keeps_a_second_session_away(workspace: Workspace) -> None:
    """If both sessions would exceed the function's memory, only the quick one is described."""
    model = layered(workspace.folder, 16)
    tight = replace(workspace, cap_mib=110)

    found = prepare(ModelSpec("a@1", model=model.name), tried(model), tight)

    assert found["fast"] is None


def test_a_model_that_answers_differently_each_time_is_not_prepared(workspace: Workspace) -> None:
    """A model with varying answers cannot be compared with the original, so it is not prepared."""
    model = models.written(
        workspace.folder,
        "random",
        "(float[n,4] x) => (float[n,4] y)",
        "noise = RandomNormalLike(x)\n y = Add(x, noise)",
    )

    with pytest.raises(Unprepared, match="prepared, output y differs for the same input"):
        prepare(ModelSpec("a@1", model=model.name), tried(model), workspace)


def test_a_model_that_needs_certain_values_gets_the_samples(workspace: Workspace) -> None:
    """If the model rejects made-up values, it is tried with the sample only."""
    model = models.fails_on_negative(workspace.folder)
    spec = ModelSpec("a@1", model=model.name, sample={"x": [[1, 2, 3, 4]]})

    with pytest.raises(Unprepared, match="ms unprepared and"):
        prepare(spec, tried(model), workspace)


def test_any_failure_becomes_a_reason(workspace: Workspace) -> None:
    """An unwritable disk or an unreadable model gives a reason and does not fail the deploy."""
    model = layered(workspace.folder, 1)
    example = tried(model)
    (workspace.scratch / FOLDER).write_text("in the way")

    assert (
        "FileExistsError"
        in prepared_or_why_not(ModelSpec("a@1", model=model.name), example, workspace)["why_not"]
    )
    model.write_bytes(bytes(2**20))
    (workspace.scratch / FOLDER).unlink()
    assert (
        "LoadError"
        in prepared_or_why_not(ModelSpec("a@1", model=model.name), example, workspace)["why_not"]
    )


def test_a_missing_device_is_a_reason(workspace: Workspace) -> None:
    """Without a GPU no session can be prepared for one."""
    model = layered(workspace.folder, 1)
    on_gpu = replace(workspace, device_kind="cuda")

    found = prepared_or_why_not(ModelSpec("a@1", model=model.name), tried(model), on_gpu)

    assert "device cuda" in found["why_not"]


def test_on_a_gpu_one_session_is_enough() -> None:
    """On a GPU a second session would double the memory, and weights are copied there anyway."""
    assert making.PREPARED["cuda"] == (PACKED,)


def test_outputs_agree_in_shape_type_and_value() -> None:
    """Floats may differ by rounding; shape, type and all other values must be equal."""
    one = np.ones((1, 4), np.float32)

    assert same(one, one * np.float32(1.00001))
    assert not same(one, one * 1.1)
    assert not same(one, one.astype(np.float64))
    assert not same(one, np.ones((2, 4), np.float32))
    assert not same(one, one * np.nan)
    assert same([1, 2], [1, 2])


def test_a_session_that_mixes_rows_is_not_prepared(workspace: Workspace) -> None:
    """A session that agrees row by row is also compared in batches."""
    nodes = "soft = Softmax <axis = 0> (x)\n zero = Constant <value = float {0}> ()\n"
    nodes += "nothing = Mul(soft, zero)\n y = Add(x, nothing)"
    model = models.written(workspace.folder, "mixes", "(float[n,4] x) => (float[n,4] y)", nodes)

    with pytest.raises(Unprepared, match="prepared, output y of a row changes beside"):
        prepare(ModelSpec("a@1", model=model.name), tried(model, batch_max=8), workspace)


GIB = 2**30
X = np.random.default_rng(1).standard_normal((2, WIDTH)).astype(np.float32)


def run(folder: Path, plan: SessionPlan) -> np.ndarray:
    engine = Bench({}, "cpu", 1).open(folder, plan)
    return engine.run({"x": X}, engine.ticket())["y"]


@pytest.mark.parametrize("apart", [False, True])
def test_a_model_is_written_with_its_weights_apart(tmp_path: Path, apart: bool) -> None:
    """From one file or two the result is a small graph and one weight file, with the same answers
    for every kind of session."""
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
    """A model without large weights has no second file."""
    write_prepared(models.add_one(tmp_path), tmp_path, "cpu", 1, GIB)

    assert (tmp_path / GRAPH_FILE).is_file()
    assert not (tmp_path / WEIGHTS_FILE).exists()


def test_a_file_has_a_limit(tmp_path: Path) -> None:
    """Exceeding the size limit is an error, and the limit does not affect later files of the
    process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    with pytest.raises(LoadError):
        write_prepared(layered(tmp_path, 2), tmp_path, "cpu", 1, 2**20)

    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before


def test_a_load_error_does_not_name_the_folder(tmp_path: Path) -> None:
    """The reason is the engine's own, without the folder's path."""
    models.corrupt(tmp_path)

    with pytest.raises(LoadError, match="Protobuf parsing failed") as caught:
        write_prepared(tmp_path / "corrupt.onnx", tmp_path, "cpu", 1, GIB)
    assert str(tmp_path) not in str(caught.value)
