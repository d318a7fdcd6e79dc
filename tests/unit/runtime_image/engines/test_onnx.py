"""ONNX Runtime as an engine, with real models."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from runtime_image.contract.errors import LoadError
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.engines.base import Stopped
from runtime_image.engines.onnx import OnnxEngine
from tests.support import models

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def load(path: Path) -> OnnxEngine:
    return OnnxEngine(path, device_kind="cpu", threads=1)


def test_a_model_tells_its_signature(tmp_path: Path) -> None:
    """Names, types and shapes are read off the graph; a named dimension is dynamic."""
    rows = (-1, 4)

    assert load(models.two_inputs(tmp_path)).signature == Signature(
        "tensors",
        (TensorSpec("a", "FP32", rows), TensorSpec("b", "FP32", rows)),
        (TensorSpec("sum", "FP32", rows), TensorSpec("difference", "FP32", rows)),
    )


def test_a_run_gives_outputs_by_name(tmp_path: Path) -> None:
    """Every output comes under its name."""
    engine = load(models.two_inputs(tmp_path))

    got = engine.run({"a": X, "b": X}, engine.ticket())

    assert list(got) == ["sum", "difference"]
    assert np.array_equal(got["sum"], X + X)


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    """What the graph rejects while it runs is ONNX Runtime's own error."""
    engine = load(models.fails_on_negative(tmp_path))

    with pytest.raises(Exception, match="indices element out of data bounds"):
        engine.run({"x": -X}, engine.ticket())


def test_a_run_can_be_stopped(tmp_path: Path) -> None:
    """A run that would go on for minutes ends when its ticket is stopped from another thread,
    and the engine goes on with the next."""
    engine = load(models.slow(tmp_path, loops=100_000_000))
    ticket = engine.ticket()
    stopper = threading.Thread(target=engine.stop, args=(ticket,))

    stopper.start()
    with pytest.raises(Stopped):
        engine.run({"x": X}, ticket)
    stopper.join()

    again = engine.ticket()
    engine.stop(again)
    with pytest.raises(Stopped):
        engine.run({"x": X}, again)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (models.corrupt, "Protobuf parsing failed"),
        (models.unsupported_opset, "the model has opset 9999"),
        (models.unsupported_type, "output 'y' has type seq"),
    ],
)
def test_a_bad_model_is_refused(build: Callable[[Path], Path], reason: str, tmp_path: Path) -> None:
    """What cannot be served is refused with the reason, without the replica's own folder."""
    with pytest.raises(LoadError, match=reason) as caught:
        load(build(tmp_path))

    assert str(tmp_path) not in str(caught.value)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    """Neither text nor an absent file gets past the load."""
    text = tmp_path / "model.onnx"
    text.write_text("hello")

    with pytest.raises(LoadError, match=r"model\.onnx"):
        load(text)
    with pytest.raises(LoadError, match=r"missing.onnx.*doesn't exist"):
        load(tmp_path / "missing.onnx")


def test_weights_beside_the_model_are_read(tmp_path: Path) -> None:
    """External data in the bundle's own folder is part of the model."""
    engine = load(models.external(tmp_path, 1))

    assert np.array_equal(engine.run({"x": X}, engine.ticket())["y"], X + 1)


def test_weights_outside_the_folder_are_refused(tmp_path: Path) -> None:
    """A model that points to a file above its own folder cannot read it."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    path = models.external(folder, 1)
    (folder / "external.bin").rename(tmp_path / "external.bin")
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../external.bin"
    onnx.save(model, path)

    with pytest.raises(LoadError, match="external"):
        load(path)


def test_another_session_takes_over(tmp_path: Path) -> None:
    """After the exchange runs give what the other session gives."""
    engine = load(models.affine(tmp_path, offset=1))
    (tmp_path / "better").mkdir()
    better = load(models.affine(tmp_path / "better", offset=2))
    before = engine.run({"x": X}, engine.ticket())["y"]

    engine.exchange(better, lambda: pytest.fail("nothing runs"))

    assert np.array_equal(before, X + 1)
    assert np.array_equal(engine.run({"x": X}, engine.ticket())["y"], X + 2)
    assert engine.session == "fast"


def test_a_run_ends_with_the_session_it_began_with(tmp_path: Path) -> None:
    """An exchange waits for a run that goes on, which can still be stopped by its ticket, before
    the old session is let go."""
    engine = load(models.slow(tmp_path, loops=100_000_000))
    other = load(models.slow(tmp_path, loops=1))
    ticket = engine.ticket()
    ended: list[Exception] = []

    def run() -> None:
        try:
            engine.run({"x": X}, ticket)
        except Stopped as stopped:
            ended.append(stopped)

    def pause() -> None:
        engine.stop(ticket)
        runner.join(timeout=10)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    while not engine.is_running:
        pass
    engine.exchange(other, pause)

    assert len(ended) == 1
    assert not engine.is_running
    assert np.allclose(engine.run({"x": X}, engine.ticket())["y"], X)


def test_another_model_never_takes_over(tmp_path: Path) -> None:
    """A session with other inputs is refused, and the engine goes on with its own."""
    engine = load(models.add_one(tmp_path))

    with pytest.raises(LoadError, match="not those of the model that serves"):
        engine.exchange(load(models.two_inputs(tmp_path)), lambda: None)

    assert engine.session == "original"
    assert np.array_equal(engine.run({"x": X}, engine.ticket())["y"], X + 1)
