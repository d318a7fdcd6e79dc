"""Judge of candidates, apart from the product's rule and written before the first run.

It has `FRESH` inputs that neither calibrated nor judged a candidate. A candidate is **wrong** if

- a column of a float output has an RMS error above `SPREAD` of its own standard deviation, or
- a column that is constant has one of more than `MAGNITUDE` of its magnitude, or
- the largest entry of a row of scores has another place in more than `RELABELLED` of all rows, or
- it has NaN or infinity where the original has a number.

A column is an entry of the last axis, and for maps [n, channels, height, width] also a channel. It
is constant if its standard deviation is below `FLAT` of its magnitude. The original is computed in
FP64, by ONNX Runtime, or by onnx's reference evaluator where that has no such operator.

Expected of the product: no wrong candidate is accepted, and at most one right one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

FRESH: Final = 2000
SPREAD: Final = 0.02
MAGNITUDE: Final = 1e-3
RELABELLED: Final = 0.01
FLAT: Final = 1e-6
WRONG_ACCEPTED_MAX: Final = 0
RIGHT_REFUSED_MAX: Final = 1
MAP_RANK: Final = 4

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Judged:
    """Figures of a candidate: `error` and `magnitude_error` are the worst of columns with and
    without spread, `relabelled` is the share of inputs with another label, 0 without labels."""

    error: float
    magnitude_error: float
    relabelled: float

    @property
    def is_wrong(self) -> bool:
        """Whether the candidate must not serve."""
        is_off = self.error > SPREAD or self.magnitude_error > MAGNITUDE
        return is_off or self.relabelled > RELABELLED


def judged(wanted: Floats, got: Floats, *, has_labels: bool) -> Judged:
    """Return the figures of a candidate's outputs for the same inputs, one row for each."""
    if not np.isfinite(got[np.isfinite(wanted)]).all():
        return Judged(np.inf, np.inf, 1.0)
    wanted = wanted.reshape(len(wanted), -1) if wanted.ndim < 2 else wanted
    got = got.reshape(wanted.shape)
    axes = (-1, 1) if wanted.ndim == MAP_RANK else (-1,)
    error = magnitude_error = 0.0
    for axis in axes:
        one, other = (np.moveaxis(each, axis, -1) for each in (wanted, got))
        one, other = (each.reshape(-1, each.shape[-1]) for each in (one, other))
        rms, spread = np.sqrt(np.mean((other - one) ** 2, axis=0)), one.std(axis=0)
        magnitude = np.sqrt(np.mean(one**2, axis=0))
        flat = spread <= FLAT * magnitude
        with np.errstate(divide="ignore", invalid="ignore"):
            of_spread, of_magnitude = (
                np.where(rms > 0, rms / each, 0.0) for each in (spread, magnitude)
            )
        error = max(error, float(of_spread[~flat].max(initial=0.0)))
        magnitude_error = max(magnitude_error, float(of_magnitude[flat].max(initial=0.0)))
    relabelled = float(np.mean(wanted.argmax(-1) != got.argmax(-1))) if has_labels else 0.0
    return Judged(error, magnitude_error, relabelled)


def exact(model: onnx.ModelProto, inputs: Any) -> Floats:
    """Return the original's output `y` for the input `x`, in FP64."""
    wide = in_fp64(model)
    try:
        return outputs(wide, inputs.astype(np.float64))
    except Exception:  # noqa: BLE001 - an operator without FP64 on this processor
        found = ReferenceEvaluator(wide).run(["y"], {"x": inputs.astype(np.float64)})[0]
        return np.asarray(found, np.float64)


def outputs(model: onnx.ModelProto, inputs: Any) -> Floats:
    """Return the output `y` for the input `x`, each row in a run of its own as a call would be."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    rows = [session.run(["y"], {"x": inputs[n : n + 1]})[0] for n in range(len(inputs))]
    return np.concatenate(rows).astype(np.float64)


def in_fp64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with FP64 instead of FP32 in inputs, outputs, weights and casts."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.value_info[:]
    for value in (*found.graph.input, *found.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for weight in found.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            wide = numpy_helper.to_array(weight).astype(np.float64)
            weight.CopyFrom(numpy_helper.from_array(wide, weight.name))
    for node in found.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return found
