"""Trial at deploy, with real models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from sys import modules, path
from typing import Any

import onnx
import pytest

from runtime_image.contract.control import Report
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import BytesForm, ImageForm, InputRule, ModelSpec, OutputRule
from runtime_image.contract.rows import PROOF, RowVerdict
from runtime_image.contract.signature import Signature
from runtime_image.engines.loading import load_engine
from runtime_image.verification.trial import (
    BatchingRefuted,
    SampleError,
    analyse,
    examine,
)
from tests.support import models

JSON_RULES = {"x": InputRule("json")}
SAMPLE = {"x": [[1.0, 2.0, 3.0, 4.0]]}


@pytest.fixture(autouse=True)
def modules_of_one_replica() -> Iterator[None]:
    before = list(path)
    yield
    path[:] = before
    modules.pop("handler", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.add_one(tmp_path)
    return tmp_path


PICTURE = "(float[n,3,h,w] x) => (float[n,3,1,1] y)"


def unshaped(path: Path, *, inputs: bool = True) -> None:
    """Remove the shapes that a model declares."""
    model = onnx.load(path)
    for one in (*(model.graph.input if inputs else ()), *model.graph.output):
        one.type.tensor_type.ClearField("shape")
    onnx.save(model, path)


PROVEN = RowVerdict(analysed=True, proven=True)


def report(folder: Path, verdict: RowVerdict = PROVEN, **spec: Any) -> Report:
    made = ModelSpec("digits@1", **spec)
    engine = load_engine(made, folder, device_kind="cpu", threads=1)
    return examine(engine, made, folder, 12.5, verdict)


def test_a_model_is_measured(folder: Path) -> None:
    """The report holds signature, times, memory and the batching proof."""
    found = report(folder, model="add_one.onnx")

    assert found.signature["outputs"] == [{"name": "y", "dtype": "FP32", "shape": [-1, 4]}]
    assert found.load_ms == 12.5
    assert found.memory_mib > 1
    assert (found.batchable, found.why_not, found.profiled) == (True, "", True)
    assert found.latency_ms["1"] > 0
    assert str(found.batch_max) in found.latency_ms
    assert found.sample_outputs == {}


def test_batching_may_be_off(folder: Path) -> None:
    """`mode = "off"` in the manifest prevails over any proof."""
    found = report(folder, model="add_one.onnx", batching=False)

    assert (found.batchable, found.batch_max) == (False, 1)
    assert found.why_not == "batching is off in function.toml"


@pytest.mark.parametrize(
    ("verdict", "reason", "operator"),
    [
        (
            RowVerdict(True, False, "Softmax 'mix' is over the batch axis", "Softmax"),
            "Softmax 'mix' is over the batch axis",
            "Softmax",
        ),
        (RowVerdict(False, False, "it took over 30 s"), "could not be analysed: it took", ""),
    ],
)
def test_nothing_is_batched_without_a_proof(
    folder: Path, verdict: RowVerdict, reason: str, operator: str
) -> None:
    """The reason names the operator; a failed analysis does not refuse the model."""
    found = report(folder, verdict, model="add_one.onnx")

    assert (found.batchable, found.compared, found.operator) == (False, False, operator)
    assert reason in found.why_not
    assert set(found.latency_ms) == {"1"}


def test_conditions_and_the_rules_version_are_reported(folder: Path) -> None:
    """A replica that joins rows needs the conditions and the rules' version."""
    verdict = RowVerdict(True, True, equal_axes=((("a", 1), ("b", 1)),))

    found = report(folder, verdict, model="add_one.onnx")

    assert (found.batchable, found.compared, found.proof) == (True, True, PROOF)
    assert found.equal_axes == [[["a", 1], ["b", 1]]]


def test_a_comparison_refutes_a_proof(tmp_path: Path) -> None:
    """A comparison that finds mixed rows overrules the analysis."""
    models.softmax_over_batch(tmp_path)

    found = report(tmp_path, model="softmax_over_batch.onnx")

    assert (found.batchable, found.compared, set(found.latency_ms)) == (False, False, {"1"})
    assert found.why_not.startswith("output y of a row changes")


def test_trusted_models_are_batched_without_a_proof(tmp_path: Path) -> None:
    """A trusted model is batched and measured but not called proven; a handler likewise."""
    models.add_one(tmp_path)
    (tmp_path / "handler.py").write_text("def predict(inputs, ctx): return ctx.run(inputs)\n")
    mixed = RowVerdict(True, False, "Compress 'c' drops rows", "Compress")

    for handler in ("", "handler.py"):
        found = report(tmp_path, mixed, model="add_one.onnx", handler=handler, batch_unproven=True)
        assert (found.batchable, found.compared) == (False, True)
        assert len(found.latency_ms) > 1


def test_a_handler_is_batched_only_if_trusted(tmp_path: Path) -> None:
    """A handler is batched only if the manifest says so. The reason names the line to add, and the
    handler's model is not analysed."""
    models.add_one(tmp_path)
    (tmp_path / "handler.py").write_text("def predict(inputs, ctx): return ctx.run(inputs)\n")
    spec = ModelSpec("digits@1", model="add_one.onnx", handler="handler.py")

    found = report(tmp_path, model="add_one.onnx", handler="handler.py")

    assert found.why_not == (
        'a handler may mix rows: [batching] mode = "always" in function.toml joins them'
    )
    assert not analyse(spec, tmp_path).analysed
    assert analyse(replace(spec, handler=""), tmp_path).proven


def test_refuted_trust_refuses_the_model(tmp_path: Path) -> None:
    """The deploy fails with the comparison's reason."""
    models.softmax_over_batch(tmp_path)

    with pytest.raises(BatchingRefuted, match="output y of a row changes"):
        report(tmp_path, model="softmax_over_batch.onnx", batch_unproven=True)
    models.fixed_batch(tmp_path)
    with pytest.raises(BatchingRefuted, match="the first axis of x, y is not dynamic"):
        report(tmp_path, model="fixed_batch.onnx", batch_unproven=True)


def test_a_slow_model_is_not_batched(folder: Path) -> None:
    """A slow model is not batched, because its proof would exceed the trial's time."""
    ticks = count()
    made = ModelSpec("digits@1", model="add_one.onnx")
    engine = load_engine(made, folder, device_kind="cpu", threads=1)

    found = examine(engine, made, folder, 12.5, clock=lambda: next(ticks) * 2.5)

    assert not found.batchable
    assert found.why_not == "a single run takes 2.5 s, batching would only add latency"


def test_a_sample_is_run_and_shown(folder: Path) -> None:
    """The sample's answer is reported as a client would receive it."""
    found = report(folder, model="add_one.onnx", sample=SAMPLE)

    assert found.sample_outputs["outputs"] == {"y": [[2, 3, 4, 5]]}


def test_a_long_answer_is_not_shown(folder: Path) -> None:
    """A long answer is not part of the report, which stays small."""
    found = report(folder, model="add_one.onnx", sample={"x": [[0.123456] * 4] * 200})

    assert found.sample_outputs == {}
    assert found.profiled


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ({"x": "text"}, "the sample does not fit: input 'x'"),
        ({"z": [1]}, "the sample does not fit"),
        ({"x": "@a.npy", "z": [1]}, "must have that file as its only input"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused(
    folder: Path, sample: dict[str, Any], reason: str
) -> None:
    """An invalid sample fails the deploy with its reason."""
    with pytest.raises(SampleError, match=reason):
        report(folder, model="add_one.onnx", sample=sample)


def test_a_sample_that_fails_is_refused(tmp_path: Path) -> None:
    """A sample whose run fails fails the deploy."""
    models.fails_on_negative(tmp_path)

    with pytest.raises(SampleError, match="the sample failed: "):
        report(tmp_path, model="fails_on_negative.onnx", sample={"x": [[-1.0, 0, 0, 0]]})


def test_a_sample_may_be_a_file(tmp_path: Path) -> None:
    """A file's content type follows its ending; unknown endings are raw bytes."""
    models.every_dtype(tmp_path, "UINT8")
    (tmp_path / "four.bin").write_bytes(b"\x01\x02\x03\x04")
    rules = {"x": InputRule("bytes", bytes=BytesForm(4))}

    found = report(
        tmp_path, model="every_dtype_uint8.onnx", inputs=rules, sample={"x": "@four.bin"}
    )

    assert found.sample_outputs["outputs"] == {"y": [[1, 2, 3, 4]]}


def test_a_made_up_input_that_fails_is_no_refusal(tmp_path: Path) -> None:
    """If zeros fail, the function is deployed without profile and batching, and the report says
    so."""
    (tmp_path / "picky.py").write_text(
        "def predict(inputs, ctx):\n    return {'y': inputs['words'][0]}\n"
    )

    found = report(tmp_path, handler="picky.py", inputs={"words": InputRule("json")})

    assert (found.profiled, found.batchable, found.batch_max) == (False, False, 1)
    assert found.latency_ms == {}
    assert (
        found.note
        == "a synthetic input failed, give a [sample]: KeyError: 'words' (picky.py:2 in predict)"
    )


def test_raw_bytes_are_tried_empty(tmp_path: Path) -> None:
    """A function of one raw body is tried with an empty one."""
    (tmp_path / "length.py").write_text(
        "def predict(inputs, ctx): return {'length': len(inputs['b'])}\n"
    )

    found = report(tmp_path, handler="length.py", inputs={"b": InputRule("bytes")})

    assert found.profiled
    assert found.why_not == "a bytes function has no batch axis"


def test_text_is_tried_empty(tmp_path: Path) -> None:
    """Text inputs are tried with empty strings."""
    models.strings(tmp_path)

    assert report(tmp_path, model="strings.onnx").batchable


@pytest.mark.parametrize(
    ("rules", "output", "reason"),
    [
        ({"z": InputRule()}, OutputRule(), r"input\.z: the model's inputs are \['x'\]"),
        ({}, OutputRule("z"), r"output\.tensor = 'z': the model's outputs are \['y'\]"),
    ],
)
def test_rules_must_name_what_exists(
    folder: Path, rules: dict[str, InputRule], output: OutputRule, reason: str
) -> None:
    """A rule for an unknown tensor is refused with the names of those that exist."""
    with pytest.raises(LoadError, match=reason):
        report(folder, model="add_one.onnx", inputs=rules, output=output)


def test_a_picture_needs_numbers(tmp_path: Path) -> None:
    """An image rule cannot fill a boolean input."""
    models.every_dtype(tmp_path, "BOOL")
    rules = {"x": InputRule("image", image=ImageForm((1, 4)))}

    with pytest.raises(LoadError, match="a picture cannot become BOOL"):
        report(tmp_path, model="every_dtype_bool.onnx", inputs=rules)


def test_an_input_of_unknown_rank_is_tried_as_its_picture(tmp_path: Path) -> None:
    """A model that needs four axes is measured, as the picture's form has them."""
    unshaped(models.written(tmp_path, "pool", PICTURE, "y = GlobalMaxPool(x)"))
    rules = {"x": InputRule("image", image=ImageForm((2, 4)))}

    found = report(tmp_path, model="pool.onnx", inputs=rules)

    assert found.profiled
    assert found.why_not == "the model declares no shape for x"
    assert not report(tmp_path, model="pool.onnx").profiled


def test_an_output_of_unknown_rank_is_left_to_the_proof(tmp_path: Path) -> None:
    """Rows that are proven are joined, although the file does not declare the output's axes."""
    unshaped(models.add_one(tmp_path), inputs=False)

    found = report(tmp_path, model="add_one.onnx")

    assert (found.batchable, found.why_not) == (True, "")


def test_a_sample_whose_outputs_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A handler whose sample output has no JSON form is detected at deploy."""
    (tmp_path / "odd.py").write_text("def predict(inputs, ctx): return {'y': object()}\n")

    with pytest.raises(SampleError, match="the sample's outputs cannot be encoded"):
        report(tmp_path, handler="odd.py", inputs=JSON_RULES, sample={"x": 1})


def test_a_result_that_never_comes_is_refused_without_a_sample(tmp_path: Path) -> None:
    """A `predict` that returns a coroutine is no function that merely dislikes zeros."""
    (tmp_path / "handler.py").write_text(
        "async def later(): return {}\ndef predict(inputs, ctx): return later()\n"
    )
    with pytest.raises(LoadError, match="predict is a coroutine"):
        report(tmp_path, handler="handler.py", inputs=JSON_RULES)


class Slow:
    """An engine whose runs take the given seconds of a clock, one after the other."""

    def __init__(self, *runs_s: float) -> None:
        self.signature = Signature("json", (), ())
        self.runs_s = list(runs_s)
        self.now_s = 0.0

    def ticket(self) -> None:
        """Return no ticket."""

    def run(self, inputs: dict[str, Any], _ticket: None) -> dict[str, Any]:
        """Take the time of the next run; the last one repeats."""
        self.now_s += self.runs_s[0]
        del self.runs_s[: len(self.runs_s) > 1]
        return inputs


@pytest.mark.parametrize(
    ("runs_s", "sample", "refused"),
    [
        ((2.0,), {"x": 1}, "the run of the sample took 2 s, expected at most timeout_s = 0.5"),
        ((2.0,), {}, "the run of an input of zeros took 2 s"),
        ((150.0, 0.1), {"x": 1}, "the run of the sample took 150 s"),
        ((2.0, 0.1), {"x": 1}, ""),
        ((0.4,), {"x": 1}, ""),
    ],
)
def test_a_run_over_the_time_limit_is_refused(
    tmp_path: Path, runs_s: tuple[float, ...], sample: dict[str, Any], refused: str
) -> None:
    """If a run of the trial is longer than a call may be, the deploy is refused; a first run may be
    long because it is the first."""
    spec = ModelSpec("f@1", inputs=JSON_RULES, sample=sample, timeout_s=0.5)
    engine: Any = Slow(*runs_s)
    if not refused:
        assert examine(engine, spec, tmp_path, 1.0, clock=lambda: engine.now_s).profiled
        return
    with pytest.raises(SampleError, match=refused):
        examine(engine, spec, tmp_path, 1.0, clock=lambda: engine.now_s)


def test_a_handler_beside_a_model_takes_json(folder: Path) -> None:
    """Its signature is JSON, not the model's, and its sample is run."""
    (folder / "handler.py").write_text(
        "import numpy as np\n"
        "def predict(inputs, ctx):\n"
        "    return ctx.run({'x': np.full((1, 4), len(inputs['text']), np.float32)})\n"
    )
    rules = {"text": InputRule("json")}
    sample = {"text": "four"}

    found = report(folder, model="add_one.onnx", handler="handler.py", inputs=rules, sample=sample)

    assert found.signature["kind"] == "json"
    assert found.sample_outputs == {
        "outputs": {"y": [[5.0, 5.0, 5.0, 5.0]]},
        "revision": "digits@1",
    }
