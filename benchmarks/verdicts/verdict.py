"""The product's verdict on one candidate, and the judge's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16

from benchmarks.verdicts.judge import FRESH, Judged, exact, judged, outputs
from benchmarks.verdicts.models import Case
from runtime_image.contract import signature as signatures
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.precision import CandidateName, Optimisation
from runtime_image.verification.precision.choice import why_outside
from runtime_image.verification.precision.conversion import make
from runtime_image.verification.precision.judging import explore, judge
from runtime_image.verification.precision.optimising import measured
from runtime_image.verification.precision.order import NotConverted, Order

CANDIDATES: Final[tuple[CandidateName, ...]] = ("fp16", "int8", "int8-dynamic")
SAMPLES: Final = 600
"""Rows in the owner's file: a third calibrates."""
TOLERANCE: Final = 0.01
SEED: Final = 20261129


@dataclass(frozen=True, slots=True)
class Verdict:
    """`why_not` is the product's reason against a candidate, "" if it may serve. `judged` is None
    if the tools could not make it."""

    why_not: str
    judged: Judged | None

    @property
    def accepted(self) -> bool:
        """Whether the product would serve the candidate."""
        return not self.why_not

    @property
    def is_wrong(self) -> bool:
        """Whether the judge would not."""
        return self.judged is None or self.judged.is_wrong

    def row(self) -> str:
        """Return the cells of a table."""
        found = self.judged
        figures = (
            f"{found.error:.3%} | {found.magnitude_error:.3%} | {found.relabelled:.2%}"
            if found
            else "- | - | -"
        )
        return f"{figures} | {'wrong' if self.is_wrong else 'right'} | {self.why_not or 'accepted'}"


def verdict(case: Case, name: CandidateName, folder: Path, fresh: int = FRESH) -> Verdict:
    """Make and judge one candidate as a trial does, and by the judge's own inputs."""
    random = np.random.default_rng(SEED)
    onnx.save(case.model, folder / "model.onnx")
    np.savez(folder / "samples.npz", x=case.inputs(SAMPLES, random))
    why_not, target = _decided(name, folder, labels="y" if case.has_labels else "")
    if name == "fp16" and not target.is_file():  # refused for a constant: it is judged all the same
        onnx.save(convert_float_to_float16(case.model, keep_io_types=True), target)
    if not target.is_file():
        return Verdict(why_not, None)
    inputs = case.inputs(fresh, random)
    wanted, got = exact(case.model, inputs), outputs(onnx.load(target), inputs)
    return Verdict(why_not, judged(wanted, got, has_labels=case.has_labels))


def _decided(name: CandidateName, folder: Path, labels: str) -> tuple[str, Path]:
    """Return the product's reason against the candidate, and its file."""
    optimise = Optimisation("auto", TOLERANCE, "samples.npz", labels)
    spec = ModelSpec("f@1", model="model.onnx", optimise=optimise, batching=False)
    model, target = folder / "model.onnx", folder / "made" / "model.onnx"
    paths = (str(folder), str(folder), str(model), str(target))
    order = Order("make", name, spec, *paths, outputs=str(folder / "outputs"), limit_s=600.0)
    try:
        make(order)
    except NotConverted as error:
        return str(error), target
    found = explore(replace(order, name="original"))
    order = replace(
        order,
        model=str(target),
        signature=signatures.from_json(found["signature"]),
        rows=(1,),
        judged=tuple(found["judged"]),
        batchable=False,
    )
    return why_outside(measured(name, judge(order), target.stat().st_size), TOLERANCE), target
