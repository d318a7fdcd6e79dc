"""Makes candidates with the tools that ONNX Runtime ships; runs in a process of its own.

FP16: `onnxruntime.transformers.float16`, inputs and outputs stay FP32. Static INT8: QDQ, MinMax,
symmetric QInt8 weights and activations, which suit TensorRT as well as the CPU provider. Dynamic
INT8: weights in QInt8, scales of activations from each run. None of them imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
import onnxruntime as ort
from onnx import TensorProto
from onnxruntime.quantization import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.calibrate import MinMaxCalibrater, save_tensors_data
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel

from runtime_image.engines.onnx import OnnxEngine, session_options
from runtime_image.verification.precision.constants import beyond_fp16, graphs, tensors
from runtime_image.verification.precision.external import external, load_external
from runtime_image.verification.precision.order import NotConverted, Order
from runtime_image.verification.precision.samples import Samples, read

BYTES_MAX: Final = 2_000_000_000
"""Max bytes of a model with its weights: a protobuf message ends at 2 GiB."""
OPSET_MIN: Final = 13
"""Opset from which scales have an axis (QuantizeLinear-13); older models are converted to it."""
QUANTISED: Final = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "ConvInteger",
        "DynamicQuantizeLSTM",
        "QAttention",
        "QEmbedLayerNormalization",
    }
)
"""Operators of quantised models; a candidate without any is the original."""
WHOLE: Final = "whole.onnx"
PREPROCESSED: Final = "preprocessed.onnx"


def make(order: Order) -> str:
    """Write the candidate to `order.target` as one file, weights included; return "".

    Raises NotConverted, or an error of the tools.
    """
    model = _read(Path(order.model))
    target = Path(order.target)
    target.parent.mkdir(parents=True, exist_ok=True)
    _MAKERS[order.name](model, order)
    if not target.is_file() or target.stat().st_size > BYTES_MAX:
        raise NotConverted(f"it has more than {BYTES_MAX} bytes")
    return ""


def _read(path: Path) -> onnx.ModelProto:
    """Return the model with its weights, if the tools can convert it."""
    model = onnx.load(path, load_external_data=False)
    size = path.stat().st_size + sum(span.length for _, span in external(model, path.parent))
    if size > BYTES_MAX:
        raise NotConverted(f"the model has {size} bytes, over the limit {BYTES_MAX}")
    types = {tensor.data_type for _, tensor in tensors(model.graph)}
    if TensorProto.BFLOAT16 in types:
        raise NotConverted("the model has weights in BF16, which the tools cannot convert")
    if _is_quantised(model):
        raise NotConverted("the model is quantised already")
    if TensorProto.FLOAT not in types:
        raise NotConverted("the model has no FP32 weights")
    load_external(model, path.parent)
    # The tools do not look into functions.
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def _to_fp16(model: onnx.ModelProto, order: Order) -> None:
    beyond = beyond_fp16(model)
    made = OnnxModel(convert_float_to_float16(model, keep_io_types=True))
    for name, tensor in tensors(made.model.graph):  # some stay FP32, as for operators without FP16
        if name in beyond and tensor.data_type == TensorProto.FLOAT16:
            raise NotConverted(beyond[name])
    made.topological_sort()  # casts are added at the end
    onnx.save(made.model, order.target)


def _to_dynamic(model: onnx.ModelProto, order: Order) -> None:
    whole = _whole(model, order)
    quantize_dynamic(whole, order.target, weight_type=QuantType.QInt8)
    _check_quantised(order)


def _to_static(model: onnx.ModelProto, order: Order) -> None:
    whole = _whole(model, order)
    scratch = Path(order.scratch)
    # Folds constants and BatchNormalization; symbolic inference would need sympy.
    quant_pre_process(whole, scratch / PREPROCESSED, skip_symbolic_shape=True)
    ranges = scratch / "ranges.json"
    not_finite = _calibrate(scratch / PREPROCESSED, ranges, _samples(order), order)
    try:
        quantize_static(
            scratch / PREPROCESSED,
            order.target,
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
            calibration_cache_path=ranges,
        )
    except AssertionError as error:  # "scale issue"; other tensors may be infinite, as masks are
        raise NotConverted(not_finite or f"AssertionError: {error}") from error
    _check_quantised(order)


_MAKERS: Final[dict[str, Callable[[onnx.ModelProto, Order], None]]] = {
    "fp16": _to_fp16,
    "int8": _to_static,
    "int8-dynamic": _to_dynamic,
}


class _Calibrater(MinMaxCalibrater):  # type: ignore[misc]  # untyped
    """MinMax calibration with this replica's threads; the library would use all of the host's."""

    def __init__(self, model: Path, scratch: Path, threads: int) -> None:
        self._threads = threads
        super().__init__(model, augmented_model_path=str(scratch / "augmented.onnx"))

    def create_inference_session(self) -> None:
        options = session_options(self._threads, optimise=False)
        self.infer_session = ort.InferenceSession(
            self.augmented_model_path, options, providers=["CPUExecutionProvider"]
        )


class _Reader:
    """The calibration samples, one after the other, as the library reads them."""

    def __init__(self, samples: Samples) -> None:
        self._feeds = samples.feeds(samples.calibration)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._feeds

    def get_next(self) -> dict[str, Any] | None:
        """Return the inputs of the next run, None after the last one."""
        return next(self._feeds, None)


def _calibrate(model: Path, ranges: Path, samples: Samples, order: Order) -> str:
    """Write the ranges of all tensors; return which one has none, "" if all do."""
    calibrater = _Calibrater(model, Path(order.scratch), order.threads)
    calibrater.augment_graph()
    calibrater.create_inference_session()
    calibrater.collect_data(_Reader(samples))
    data = calibrater.compute_data()
    save_tensors_data(data, ranges)
    for name, one in data.items():
        low, high = (float(np.asarray(end).reshape(-1)[0]) for end in one.range_value)
        if not (math.isfinite(low) and math.isfinite(high)):
            return (
                f"tensor {name} has values from {low:g} to {high:g} with the calibrating samples,"
                " INT8 needs finite ones"
            )
    return ""


def _samples(order: Order) -> Samples:
    """Return the owner's samples: static quantisation is not offered without."""
    assert order.spec.optimise is not None
    signature = OnnxEngine(Path(order.model), device_kind="cpu", threads=1).signature
    return read(Path(order.folder) / order.spec.optimise.samples, signature)


def _whole(model: onnx.ModelProto, order: Order) -> Path:
    """Write the model with its weights as one file, in an opset that the tools know."""
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    if opset < OPSET_MIN:
        try:
            model = onnx.version_converter.convert_version(model, OPSET_MIN)
        except Exception as error:
            raise NotConverted(
                f"the model has opset {opset}, quantisation needs {OPSET_MIN}, and the model cannot"
                f" be converted: {error}"
            ) from error
    path = Path(order.scratch) / WHOLE
    onnx.save(model, path)
    return path


def _check_quantised(order: Order) -> None:
    if not _is_quantised(onnx.load(order.target)):
        raise NotConverted("the model has no operator that can be quantised")


def _is_quantised(model: onnx.ModelProto) -> bool:
    return any(node.op_type in QUANTISED for node in _nodes(model.graph))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for one in graphs(graph):
        yield from one.node
