"""Candidates of real models, made, judged and chosen in real child processes.

The models are those of `functions/`, with few samples. Figures of time are checked for presence
only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from runtime_image.contract.model import ModelSpec
from runtime_image.contract.precision import FOLDER, MODEL_FILE, RULES, Optimisation
from runtime_image.contract.rows import RowVerdict
from runtime_image.verification.child import ChildFailed, output_of, verdict_of
from runtime_image.verification.precision import optimising
from runtime_image.verification.precision.optimising import (
    COMMAND,
    Machine,
    Optimised,
    Optimiser,
    PrecisionRefused,
    SamplesRefused,
)
from runtime_image.verification.precision.order import Order, Timed, from_json, to_json
from runtime_image.verification.precision.samples import split
from tests.support import models

FUNCTIONS = Path(__file__).parents[5] / "functions"
PROVEN = RowVerdict(analysed=True, proven=True)
SAMPLES = 96


def bundle(folder: Path, name: str, **arrays: Any) -> ModelSpec:
    """Return the spec of a ready-made function's model, with samples beside it."""
    (folder / "model.onnx").write_bytes((FUNCTIONS / name / f"{name}.onnx").read_bytes())
    return with_samples(folder, "model.onnx", **arrays)


def with_samples(folder: Path, model: str, **arrays: Any) -> ModelSpec:
    np.savez(folder / "samples.npz", **arrays)
    optimise = Optimisation("auto", 0.01, "samples.npz", "probabilities")
    return ModelSpec("f@1", model=model, optimise=optimise, batching=False)


def asked(spec: ModelSpec, **changes: Any) -> ModelSpec:
    assert spec.optimise is not None
    return replace(spec, optimise=replace(spec.optimise, **changes))


def optimised(spec: ModelSpec, folder: Path, cap_mib: int = 0, **options: Any) -> Optimised:
    scratch = folder / "scratch"
    scratch.mkdir()
    verdict = verdict_of(folder / spec.model)
    return Optimiser(spec, folder, scratch, Machine("cpu", 1, cap_mib), **options).run(verdict)


def clips(count: int) -> Any:
    """Return held-out clips of the function commands, each with some noise of its own."""
    with np.load(FUNCTIONS / "commands" / "held_out.npz") as held_out:
        parts = np.split(held_out["mu_law"], held_out["ends"][:-1])
    found = np.random.default_rng(3).normal(scale=1e-4, size=(count, 16_000)).astype(np.float32)
    for row, part in zip(found, parts * 2, strict=False):
        folded = part[:16_000].astype(np.float32) / 127.5 - 1
        row[: len(folded)] += np.sign(folded) * (256 ** np.abs(folded) - 1) / 255
    return found


def test_every_candidate_is_measured_beside_the_original(tmp_path: Path) -> None:
    """The table of filetype, a small convolutional network: all candidates agree, dynamic INT8
    cannot be joined, and the chosen file and the table say the same."""
    with np.load(FUNCTIONS / "filetype" / "held_out.npz") as held_out:
        # All of them: a class that hardly occurs has a small spread.
        spec = bundle(tmp_path, "filetype", data=held_out["data"])
    spec = replace(spec, batching=True)

    found = optimised(spec, tmp_path)

    report = found.report
    rows = {row["name"]: row for row in report["candidates"]}
    assert list(rows) == ["original", "fp16", "int8", "int8-dynamic"]
    assert (report["calibrated"], report["judged"], report["source"]) == (54, 109, "samples")
    assert [row["name"] for row in rows.values() if not row["why_not"]] == [report["chosen"]]
    assert {name for name, row in rows.items() if not row["batchable"]} == {"int8-dynamic"}
    for name, row in rows.items():
        assert row["memory_mib"] > 10
        assert all(ms > 0 for ms in row["latency_ms"].values())
        assert ("1" in row["latency_ms"], "8" in row["latency_ms"]) == (
            True,
            name != "int8-dynamic",
        )
    assert report["rules"] == RULES
    for name in ("fp16", "int8", "int8-dynamic"):
        assert rows[name]["cosine"] > 0.999
        column = rows[name]["column"]
        assert column["output"] == "probabilities"
        assert 0 < column["error"] < column["error_max"] == 0.02
        assert rows[name]["same_label"] == 1.0
        assert rows[name]["largest_difference"] > 0
        assert rows[name]["file_bytes"] < 0.6 * rows["original"]["file_bytes"]
    json.dumps(report, allow_nan=False)
    if report["chosen"] == "original":
        assert found.file is None
    else:
        assert found.file is not None
        assert found.file.stat().st_size == report["size"] == rows[report["chosen"]]["file_bytes"]
    left = [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]
    assert left == ([found.file] if found.file else [])


def test_a_model_that_int8_breaks_is_refused_with_figures(tmp_path: Path) -> None:
    """The network of commands computes a spectrum from the clip: rounded to 8 bits, nothing is
    left of it. INT8 is refused; "auto" would serve the original."""
    spec = bundle(tmp_path, "commands", audio=clips(SAMPLES))

    with pytest.raises(PrecisionRefused) as refused:
        optimised(asked(spec, precision="int8", tolerance=0.001), tmp_path)

    text = str(refused.value)
    assert text.startswith('precision = "int8": int8: output probabilities column ')
    assert "expected an error of at most 0.2 % of the column's spread, got " in text
    assert "; int8-dynamic: " in text
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]


def test_a_demanded_precision_is_served(tmp_path: Path) -> None:
    """FP16 of digits, judged with synthetic inputs: the file is where a replica will have it, its
    rows were analysed anew, and the original's line says why it was replaced."""
    spec = asked(bundle(tmp_path, "digits", image=np.zeros((1, 8, 8), np.float32)), samples="")

    found = optimised(replace(asked(spec, precision="fp16"), batching=True), tmp_path)

    assert found.file == tmp_path / "scratch" / FOLDER / MODEL_FILE
    assert (found.report["chosen"], found.report["source"]) == ("fp16", "synthetic")
    assert found.report["size"] == found.file.stat().st_size < 22_000
    assert found.verdict.proven
    original, fp16 = found.report["candidates"]
    assert "fp16 takes" in original["why_not"]
    assert (fp16["why_not"], fp16["same_label"]) == ("", 1.0)


@pytest.mark.parametrize(("room_mib", "tried"), [(4096.0, [True, False]), (1.0, [False])])
def test_models_that_do_not_fit_together_are_timed_one_at_a_time(
    tmp_path: Path, monkeypatch: Any, room_mib: float, tried: list[bool]
) -> None:
    """By their memory, or because they failed together."""
    spec = asked(bundle(tmp_path, "digits", image=np.zeros((1, 8, 8), np.float32)), samples="")
    ways: list[bool] = []

    def watched(command: list[str], timeout_s: float, subject: str) -> Any:
        order = json.loads(Path(command[-1]).read_text())
        if order["task"] == "time":
            ways.append(order["together"])
            if order["together"]:
                raise ChildFailed("timing it was ended by signal 9")
        return output_of(command, timeout_s, subject)

    monkeypatch.setattr(optimising, "output_of", watched)
    monkeypatch.setattr(optimising, "free_mib", lambda cap_mib: room_mib)

    found = optimised(asked(spec, precision="fp16"), tmp_path)

    assert ways == tried
    assert found.report["chosen"] == "fp16"
    assert all(row["latency_ms"]["1"] > 0 for row in found.report["candidates"])


def test_models_that_cannot_be_timed_are_not_chosen(tmp_path: Path, monkeypatch: Any) -> None:
    """The table has the reason, and what was measured before."""
    spec = asked(bundle(tmp_path, "digits", image=np.zeros((1, 8, 8), np.float32)), samples="")

    def failing(command: list[str], timeout_s: float, subject: str) -> Any:
        if json.loads(Path(command[-1]).read_text())["task"] == "time":
            raise ChildFailed("timing it was ended by signal 9")
        return output_of(command, timeout_s, subject)

    monkeypatch.setattr(optimising, "output_of", failing)

    report = optimised(spec, tmp_path).report

    fp16 = report["candidates"][1]
    assert (report["chosen"], fp16["why_not"]) == ("original", "timing it was ended by signal 9")
    assert "latency_ms" not in fp16
    assert fp16["same_label"] == 1.0


def outlier(folder: Path) -> ModelSpec:
    """Write a model whose output is a small difference beside a huge value: y = (x * 1000) @ w, in
    which the first column is a thousand times the others and counts for nothing."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[n,4] x) => (float[n,4] y) { s = Mul(x, scale) h = MatMul(s, w) y = MatMul(h, v) }"""
    model = onnx.parser.parse_model(text)
    scale = np.array([1e6, 1, 1, 1], np.float32)
    identity = np.eye(4, dtype=np.float32)
    drop = np.diag(np.array([0, 1, 1, 1], np.float32))
    for name, array in (("scale", scale), ("w", identity), ("v", drop)):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, folder / "model.onnx")
    rows = np.random.default_rng(1).normal(size=(SAMPLES, 4)).astype(np.float32)
    return with_samples(folder, "model.onnx", x=rows)


def test_rows_of_an_unprofiled_model_are_not_joined(tmp_path: Path) -> None:
    """Zeros of length 1 are too short for the filter, so the trial will not profile the model, and
    calls of it will run alone: the candidates are compared so, too."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>'
        " g (float[n,1,l] x) => (float[n,2,m] y) { y = Conv(x, w) }"
    )
    weights = np.random.default_rng(1).normal(size=(2, 1, 5)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "model.onnx")
    clips = np.random.default_rng(2).normal(size=(SAMPLES, 1, 64)).astype(np.float32)
    spec = replace(with_samples(tmp_path, "model.onnx", x=clips), batching=True)

    found = optimised(asked(spec, precision="fp16"), tmp_path)

    for row in found.report["candidates"]:
        assert (row["batchable"], list(row["latency_ms"])) == (False, ["1"])


def test_a_model_with_a_scalar_input_has_candidates(tmp_path: Path) -> None:
    """Without samples, too: "auto" must not refuse a deploy."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>'
        " g (float[n,4] x, float k) => (float[n,4] y) { h = MatMul(x, w) y = Mul(h, k) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    onnx.save(model, tmp_path / "model.onnx")
    x = np.random.default_rng(2).normal(size=(SAMPLES, 4)).astype(np.float32)
    spec = with_samples(tmp_path, "model.onnx", x=x, k=np.ones(SAMPLES, np.float32))
    for judging in (spec, asked(spec, samples="", precision="fp16")):
        if judging is not spec:  # zeros of k would give nothing to compare
            judging = replace(judging, sample={"x": [[1.0, 2.0, 3.0, 4.0]], "k": 2.0})
        report = optimised(judging, tmp_path).report
        assert all(row["cosine"] > 0.9 for row in report["candidates"] if row["name"] != "original")
        shutil.rmtree(tmp_path / "scratch")


def test_auto_falls_back_to_the_original(tmp_path: Path) -> None:
    """Both ways to INT8 lose what is small beside an outlier; the table has the figures."""
    found = optimised(outlier(tmp_path), tmp_path)

    rows = {row["name"]: row for row in found.report["candidates"]}
    assert found.report["chosen"] in ("original", "fp16")
    for name in ("int8", "int8-dynamic"):
        assert rows[name]["cosine"] < 0.5
        assert "output y column " in rows[name]["why_not"]
        assert rows[name]["column"]["error"] > 0.5


def test_a_model_without_floats_has_no_precision(tmp_path: Path) -> None:
    """Strings cannot be FP16, and the owner who demands it learns why."""
    models.strings(tmp_path)
    spec = with_samples(tmp_path, "strings.onnx", x=np.array(["a", "bc"] * 48))

    with pytest.raises(PrecisionRefused) as refused:
        optimised(asked(spec, precision="fp16"), tmp_path)

    assert str(refused.value) == 'precision = "fp16": fp16: the model has no FP32 weights'


def test_samples_that_do_not_fit_refuse_the_deploy(tmp_path: Path) -> None:
    """They are the owner's error, whatever precision was asked for. So is a sample that the model
    does not accept."""
    models.fails_on_negative(tmp_path)
    rows = np.ones((SAMPLES, 4), np.float32)
    spec = with_samples(tmp_path, "fails_on_negative.onnx", x=rows.astype(np.float64))
    with pytest.raises(
        SamplesRefused, match=r"^optimise: samples\.npz cannot be read: input x: ex"
    ):
        optimised(spec, tmp_path)
    (tmp_path / "scratch").rmdir()

    wrong = split(SAMPLES)[1][-1]
    rows[wrong] = -1
    spec = with_samples(tmp_path, "fails_on_negative.onnx", x=rows)
    with pytest.raises(
        SamplesRefused, match=rf"fails for sample {wrong} of optimise\.samples: Inv"
    ):
        optimised(spec, tmp_path)


def test_nothing_is_made_without_time_or_memory(tmp_path: Path) -> None:
    """A trial has a deadline and a cap. A child beyond them is a reason against its candidate. An
    original that could not be measured is served all the same, unless a precision is demanded."""
    spec = asked(
        bundle(tmp_path, "digits", image=np.zeros((SAMPLES, 8, 8), np.float32)), samples=""
    )
    readings = iter([0.0, *[0.0] * 2, *[10_000.0] * 100])

    late = optimised(spec, tmp_path, clock=lambda: next(readings))

    assert late.report["candidates"][1]["why_not"] == "no time was left of 300 s for making it"
    (tmp_path / "scratch").rmdir()
    poor = optimised(spec, tmp_path, cap_mib=40).report
    assert (poor["chosen"], poor["judged"]) == ("original", 0)
    reason = poor["candidates"][1]["why_not"]
    assert reason.startswith("the original could not be measured: ")
    assert reason.endswith("; its memory is limited to 1 MiB")
    (tmp_path / "scratch").rmdir()
    with pytest.raises(PrecisionRefused, match="fp16: the original could not be measured"):
        optimised(asked(spec, precision="fp16"), tmp_path, cap_mib=40)


def test_orders_pass_unchanged(tmp_path: Path) -> None:
    """The child gets all that the trial knows."""
    verdict = RowVerdict(True, True, equal_axes=((("x", 1), ("", 5)),))
    order = Order(
        "judge",
        "int8",
        outlier(tmp_path),
        *("/f", "/s", "/m"),
        verdict=verdict,
        rows=(1, 8),
        judged=(5, 3),
        timed=(Timed("original", "/m", True), Timed("int8", "/n", False)),
        together=True,
    )

    assert from_json(json.loads(json.dumps(to_json(order)))) == order


def limited(order: Order, folder: Path) -> dict[str, Any]:
    """Run a child as the trial does."""
    file = folder / "order.json"
    file.write_text(json.dumps(to_json(order)))
    done = subprocess.run([*COMMAND, str(file)], capture_output=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_child_limits_itself(tmp_path: Path) -> None:
    """Memory and file size end at their limits, and the reason names no folder of this machine."""
    spec = bundle(tmp_path, "digits", image=np.zeros((1, 8, 8), np.float32))
    target = tmp_path / "made" / "model.onnx"
    order = Order(
        "make",
        "fp16",
        spec,
        str(tmp_path),
        str(tmp_path),
        str(tmp_path / "model.onnx"),
        str(target),
        bytes_max=100,
    )

    assert limited(order, tmp_path) == {"why_not": "OSError: [Errno 27] File too large"}
    assert limited(replace(order, bytes_max=0), tmp_path) == {"why_not": ""}
    missing = limited(replace(order, model=str(tmp_path / "no.onnx")), tmp_path)
    assert missing["why_not"].startswith("FileNotFoundError")
    assert str(tmp_path) not in missing["why_not"]


def test_a_child_that_gives_nonsense_is_a_reason(tmp_path: Path, monkeypatch: Any) -> None:
    """Whatever ends it, the trial goes on."""
    command = (sys.executable, "-c", "print('no figures')")
    monkeypatch.setattr(optimising, "COMMAND", command)

    found = optimised(outlier(tmp_path), tmp_path).report

    assert found["chosen"] == "original"
    assert {row["why_not"] for row in found["candidates"]} == {
        "",
        "the original could not be measured: Expecting value: line 1 column 1 (char 0)",
    }
