"""A function's own Python code as an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from sys import modules, path
from typing import Any

import numpy as np
import pytest

from runtime_image.contract.errors import HandlerFailed, LoadError, NeverAnswers
from runtime_image.contract.model import BytesForm, InputRule, declared_signature
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.engines.base import Stopped
from runtime_image.engines.onnx import OnnxEngine, load_model
from runtime_image.engines.python import Context, HandlerEngine
from tests.support import models, prepared

JSON = {"x": InputRule("json")}
PREDICT = "def predict(inputs, ctx): return inputs\n"


@pytest.fixture(autouse=True)
def modules_of_one_replica() -> Iterator[None]:
    """Forget imported handlers: a replica imports only one, the tests many."""
    before = list(path)
    yield
    path[:] = before
    modules.pop("handler", None)
    modules.pop("beside", None)


def load(
    folder: Path,
    text: str,
    rules: dict[str, InputRule] | None = None,
    model: OnnxEngine | None = None,
) -> HandlerEngine:
    file = folder / "handler.py"
    file.write_text(text)
    return HandlerEngine(file, Context(folder, "cpu", 1, model), JSON if rules is None else rules)


def run(engine: HandlerEngine, **inputs: Any) -> dict[str, Any]:
    return engine.run(inputs, engine.ticket())


def test_predict_answers(tmp_path: Path) -> None:
    """The return value of `predict` is the outputs; a handler's run cannot be stopped."""
    engine = load(tmp_path, "def predict(inputs, ctx): return {'y': inputs['x'] + 1}\n")

    assert run(engine, x=2) == {"y": 3}
    assert engine.ticket() is None
    engine.stop(None)


def test_load_prepares_the_state(tmp_path: Path) -> None:
    """`load` is called once with the folder and the device; its result becomes `ctx.state`."""
    (tmp_path / "words.txt").write_text("hello")
    engine = load(
        tmp_path,
        "def load(ctx): return [(ctx.folder / 'words.txt').read_text(), ctx.device, ctx.threads]\n"
        "def predict(inputs, ctx): return {'state': ctx.state}\n",
    )

    assert run(engine) == {"state": ["hello", "cpu", 1]}


def test_a_handler_imports_its_own_folder(tmp_path: Path) -> None:
    """Python files next to the handler can be imported."""
    (tmp_path / "beside.py").write_text("ANSWER = 42\n")
    engine = load(
        tmp_path, "import beside\ndef predict(inputs, ctx): return {'y': beside.ANSWER}\n"
    )

    assert run(engine) == {"y": 42}


def test_a_handler_runs_its_model(tmp_path: Path) -> None:
    """`ctx.run` runs the bundle's model, and the function has the model's signature."""
    model = OnnxEngine(models.add_one(tmp_path), device_kind="cpu", threads=1)
    engine = load(tmp_path, "def predict(inputs, ctx): return ctx.run(inputs)\n", {}, model)

    got = run(engine, x=np.zeros((1, 4), np.float32))

    assert np.array_equal(got["y"], np.ones((1, 4)))
    assert engine.signature == model.signature


def test_a_handlers_model_may_become_faster(tmp_path: Path) -> None:
    """Session and upgrade are those of the model; without a model there is neither."""
    prepared.prepare(prepared.layers(tmp_path))
    spec = prepared.spec(prepared.preparation())
    model = load_model(spec, tmp_path, device_kind="cpu", threads=1)
    engine = load(tmp_path, "def predict(inputs, ctx): return ctx.run(inputs)\n", {}, model)
    alone = load(tmp_path, "def predict(inputs, ctx): return inputs\n")

    assert (engine.session, alone.session) == ("quick", "none")
    assert model.upgrade is not None
    assert (engine.upgrade, alone.upgrade) == (model.upgrade, None)


def test_a_handlers_model_can_be_stopped(tmp_path: Path) -> None:
    """Stopping a handler's run stops its current model run."""
    model = OnnxEngine(models.slow(tmp_path, 100_000_000), device_kind="cpu", threads=1)
    engine = load(tmp_path, "def predict(inputs, ctx): return ctx.run(inputs)\n", {}, model)
    ticket = engine.ticket()

    engine.stop(ticket)

    with pytest.raises(Stopped):
        engine.run({"x": np.zeros((1, 4), np.float32)}, ticket)


def test_there_may_be_no_model_to_run(tmp_path: Path) -> None:
    """`ctx.run` without a model raises an error that says so."""
    engine = load(tmp_path, "def predict(inputs, ctx): return ctx.run(inputs)\n")

    with pytest.raises(HandlerFailed, match="this function has no model"):
        run(engine)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("async def predict(inputs, ctx): return {}\n", "predict is a coroutine"),
        ("def predict(inputs, ctx):\n    yield {}\n", "predict is a generator"),
        ("async def predict(inputs, ctx):\n    yield {}\n", "predict is a generator"),
        (PREDICT + "async def load(ctx): pass\n", "load is a coroutine"),
        (PREDICT + "def load(ctx): yield\n", "load is a generator"),
        (
            "import functools\nasync def f(a, inputs, ctx): return {}\n"
            "predict = functools.partial(f, 1)\n",
            "predict is a coroutine",
        ),
    ],
)
def test_functions_that_only_promise_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    """Coroutines and generators can never answer: they are refused at the load, by name."""
    with pytest.raises(LoadError, match=f"handler.py {reason}"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("f()", "coroutine"),
        ("(x for x in [{}])", "generator"),
        ("g()", "generator"),
        ("type('Later', (), {'__await__': lambda self: iter(())})()", "coroutine"),
    ],
)
def test_results_that_are_not_there_yet_are_refused(tmp_path: Path, value: str, kind: str) -> None:
    """A plain `predict` that returns a coroutine, a generator or a future never answers."""
    text = (
        "async def f(): return {}\nasync def g(): yield {}\n"
        f"def predict(inputs, ctx): return {value}\n"
    )
    engine = load(tmp_path, text)

    with pytest.raises(NeverAnswers, match=f"predict is a {kind}"):
        run(engine)


@pytest.mark.parametrize("value", ["None", "[1]", "'text'"])
def test_a_wrong_return_is_an_error(tmp_path: Path, value: str) -> None:
    """A return value other than a dict is refused with its type."""
    engine = load(tmp_path, f"def predict(inputs, ctx): return {value}\n")

    with pytest.raises(TypeError, match="predict must return a dict of outputs, got "):
        run(engine)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def predict(", r"importing handler.py raised SyntaxError: .* \(handler\.py:1\)$"),
        ("import no_such_module\n", "importing handler.py raised ModuleNotFoundError"),
        ("import no_such_module\n", r"; \[python\] in function.toml gives a handler packages"),
        ("", r"must define predict\(inputs, ctx\), got a file .* which defines no function$"),
        (
            "def fit(): ...\ndef main(): ...\n",
            r"must define predict\(inputs, ctx\), got a file without it, which defines fit, main$",
        ),
        ("predict = 5\n", r"must define predict\(inputs, ctx\), got predict of type int$"),
        ("def predict(inputs): return {}\n", "handler.py predict must take 2 arguments"),
        (PREDICT + "def load(): pass\n", "handler.py load must take 1 arguments"),
        (
            PREDICT + "def load(ctx): raise KeyError('w')\n",
            r"load\(ctx\) raised KeyError: 'w' \(handler\.py:2 in load\)$",
        ),
    ],
)
def test_a_bad_handler_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    """A handler that cannot be imported, lacks a function or fails to load is refused with the
    reason."""
    with pytest.raises(LoadError, match=reason):
        load(tmp_path, text)


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    """Only a .py file can be a handler."""
    file = tmp_path / "handler.txt"
    file.write_text(PREDICT)

    with pytest.raises(LoadError, match=r"handler.txt is not a Python file"):
        HandlerEngine(file, Context(tmp_path, "cpu", 1, None), JSON)


def test_inputs_must_be_known(tmp_path: Path) -> None:
    """Without a model the manifest must declare the inputs."""
    with pytest.raises(LoadError, match=r"must declare its inputs in function\.toml"):
        load(tmp_path, PREDICT, {})


@pytest.mark.parametrize(
    ("rules", "signature"),
    [
        (JSON, Signature("json", (), ())),
        (
            {"b": InputRule("bytes")},
            Signature("bytes", (TensorSpec("b", "BYTES", (1,)),), ()),
        ),
        (
            {"x": InputRule("tensor", dtype="FP32", shape=(-1, 2))},
            Signature("tensors", (TensorSpec("x", "FP32", (-1, 2)),), ()),
        ),
        ({"x": InputRule("tensor")}, None),
        ({"x": InputRule("bytes", bytes=BytesForm(length=4))}, None),
        ({"x": InputRule("bytes"), "y": InputRule("bytes")}, None),
        ({}, None),
    ],
)
def test_the_manifest_declares_a_signature(
    rules: dict[str, InputRule], signature: Signature | None
) -> None:
    """The manifest declares JSON, a raw body or typed tensors; an incomplete one gives None."""
    assert declared_signature(rules) == signature


def test_a_handler_can_go_on_with_the_trace_of_its_request(tmp_path: Path) -> None:
    """`ctx` carries the trace of each run's request, "" if it is unknown."""
    engine = load(tmp_path, "def predict(inputs, ctx): return {'y': ctx.traceparent}\n")

    assert run(engine, x=2) == {"y": ""}
    engine.trace("00-a-b-01")
    assert run(engine, x=2) == {"y": "00-a-b-01"}
