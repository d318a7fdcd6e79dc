"""The file that a trial chooses, from its candidates to the prepared files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.model import FOLDER as PREPARED
from runtime_image.contract.model import GRAPH_FILE, PREPARES, ModelSpec
from runtime_image.contract.precision import FOLDER, MODEL_FILE, Optimisation
from runtime_image.contract.signature import from_json
from runtime_image.engines.loading import load_engine
from runtime_image.verification import measure
from runtime_image.verification.prepare import Example, Workspace, prepare
from runtime_image.verification.subject import Subject, begin, report_of
from tests.support import models
from tests.support.layered import layered

MIB = 2**20


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplicaRecord:
    """A trial whose run folder is $HOME and whose model folder cannot be written."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "model").mkdir()
    return ReplicaRecord(
        id="aaaa0001",
        token="",
        role="trial",
        namespace="default",
        bound="default/f@1",
        model_dir=str(tmp_path / "model"),
        devices=("cpu:0",),
        device_kind="cpu",
        engine="onnx",
        threads=1,
        orphan_s=1.0,
        memory_mib=0,
        launched_s=0.0,
        link=8,
    )


def reported(spec: ModelSpec, record: ReplicaRecord) -> tuple[Subject, dict[str, Any]]:
    """Do what a trial does until its report."""
    subject = begin(spec, record)
    folder = Path(record.model_dir)
    engine = load_engine(subject.spec, folder, device_kind="cpu", threads=1)
    return subject, report_of(engine, subject, folder, 5.0, "cpu", 1)


@pytest.mark.parametrize("optimise", [None, Optimisation("fp32", 0.01)])
def test_without_candidates_the_model_is_examined_as_it_is(
    record: ReplicaRecord, optimise: Optimisation | None
) -> None:
    """No table, no file, and the preparation follows only if it was asked for."""
    models.add_one(Path(record.model_dir))
    spec = ModelSpec("f@1", model="add_one.onnx", optimise=optimise, prepare=True)

    subject, report = reported(spec, record)

    assert (subject.spec, subject.precision) == (spec, None)
    assert subject.verdict.proven
    assert (report["batchable"], report[PREPARES], "precision" in report) == (True, True, False)
    assert os.listdir(Path.home()) == []


def test_the_chosen_candidate_is_examined_and_prepared(
    record: ReplicaRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is below $HOME, where the trial may write. Its rows are judged anew, it is loaded
    and prepared instead of the original, and the preparation names it as a replica will have it."""
    folder = Path(record.model_dir)
    model = layered(folder, 2)
    spec = ModelSpec("f@1", model=model.name, optimise=Optimisation("fp16", 0.01))

    subject, report = reported(spec, record)

    chosen = Path(subject.spec.optimised)
    assert chosen.is_relative_to(Path.home())
    assert chosen.stat().st_size == report["precision"]["size"] < 1.1 * MIB
    assert report["precision"]["chosen"] == "fp16"
    assert (report["batchable"], report["compared"]) == (True, True)
    assert report[PREPARES], "the server fetches the candidate even if nothing is prepared"

    workspace = Workspace(folder, folder.parent / "scratch", "cpu", 1, 0)
    workspace.scratch.mkdir()
    tried = Example(from_json(report["signature"]), 1, report["memory_mib"])
    # Any gain counts here, also that of a session of the chosen file itself.
    for gain in ("START_GAIN_MS", "START_GAIN", "FAST_GAIN"):
        monkeypatch.setattr(measure, gain, -1e9)
    model.unlink()  # nothing needs the original any more
    described = prepare(subject.spec, tried, workspace)

    plans = [described["preparation"][name] for name in ("quick", "fast")]
    assert plans[0]["file"] == f"{PREPARED}/{GRAPH_FILE}"
    assert plans[1]["file"] in (plans[0]["file"], f"{FOLDER}/{MODEL_FILE}")
    assert all(described["sizes"])


def test_rows_of_dynamic_int8_are_never_joined(record: ReplicaRecord) -> None:
    """The verdict and the report are those of the file that is served, not of the original."""
    folder = Path(record.model_dir)
    model = layered(folder, 1)
    rows = np.random.default_rng(2).normal(size=(70, 512)).astype(np.float32)
    np.savez(folder / "samples.npz", x=rows)
    spec = ModelSpec("f@1", model=model.name, optimise=Optimisation("int8", 0.5, "samples.npz"))

    subject, report = reported(spec, record)

    assert [row["name"] for row in report["precision"]["candidates"]] == [
        "original",
        "int8",
        "int8-dynamic",
    ]
    assert report["precision"]["chosen"] == "int8-dynamic"
    assert (report["precision"]["calibrated"], report["precision"]["judged"]) == (0, 70)
    assert report["precision"]["candidates"][0]["batchable"]
    assert (report["batchable"], report["operator"]) == (False, "DynamicQuantizeLinear")
    assert report["batch_max"] == 1
    assert subject.verdict.reason == report["why_not"]


HANDLER = """
def predict(inputs, ctx):
    found = ctx.run({"x": inputs["x"]})
    return {"y": found["y"] * 0}
"""


def test_a_handlers_model_is_optimised(record: ReplicaRecord) -> None:
    """The handler's own inputs and outputs are not the model's; it runs the chosen file."""
    folder = Path(record.model_dir)
    model = layered(folder, 1)
    (folder / "handler.py").write_text(HANDLER)
    spec = ModelSpec(
        "f@1", model=model.name, handler="handler.py", optimise=Optimisation("fp16", 0.01)
    )

    subject = begin(spec, record)

    assert subject.precision is not None
    assert subject.precision["chosen"] == "fp16"
    assert {row.get("batchable") for row in subject.precision["candidates"]} == {False}
    assert Path(subject.spec.optimised).is_file()
