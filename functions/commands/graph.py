"""The graph of `commands.onnx`: one second of sound to log-mel bands to one label.

The bands are computed inside the graph, so that a client only sends a WAV file and calls share a
run like those of any other model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Weights = npt.NDArray[np.float32]

FRAME: Final = 512
"""Samples of a frame: 32 ms at 16 kHz."""
HOP: Final = 160
"""Samples from one frame to the next: 10 ms."""
MEL_BANDS: Final = 40
MEL_HZ: Final = (60.0, 7600.0)
FLOOR: Final = 1e-6
"""Added to the power of a band, so that the logarithm of silence is finite."""
RANGE: Final = 10.0
"""Dynamic range below the clip's loudest band, in nepers of power: 43 dB."""
CHANNELS: Final = (80, 80, 128)
KERNELS: Final = (5, 5, 3)
STRIDE: Final = 2


def window() -> Weights:
    """The frame's periodic Hann window [FRAME]."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)).astype(np.float32)


def mel_weights(rate_hz: int) -> Weights:
    """Return the weight of each of the FRAME // 2 + 1 frequencies in each band: triangles, peak 1.

    The bands' edges are evenly spaced in mel = 2595 log10(1 + Hz / 700).
    """
    frequencies = np.arange(FRAME // 2 + 1) * rate_hz / FRAME
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in MEL_HZ)
    edges = 700 * (10 ** (np.linspace(low, high, MEL_BANDS + 2) / 2595) - 1)
    left, peak, right = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies[:, None] - left) / (peak - left)
    falling = (right - frequencies[:, None]) / (right - peak)
    return np.clip(np.minimum(rising, falling), 0, None).astype(np.float32)


def build(weights: Mapping[str, Weights], samples: int, rate_hz: int) -> onnx.ModelProto:
    """Build the model from `weights`: `kernel_I`, `bias_I` per convolution, `kernel`, `bias` last.

    Input `audio` FP32 [batch, samples] in -1..1; outputs `label` INT64 [batch] and `probabilities`
    FP32 [batch, labels]. No operator mixes rows, so a row's answer does not depend on its batch.
    """
    mel = mel_weights(rate_hz)
    heard = np.flatnonzero(mel.any(axis=1))
    first, last = int(heard[0]), int(heard[-1]) + 1
    constants = {
        "first": np.array(first, np.int64),
        "last": np.array(last, np.int64),
        "zero": np.array(0, np.int64),
        "step": np.array(1, np.int64),
        "frame": np.array(FRAME, np.int64),
        "place_angle": np.array(2 * np.pi / FRAME, np.float32),
        "window": window(),
        "mel_weights": np.ascontiguousarray(mel[first:last].T),
        "channel_axis": np.array([1], np.int64),
        "last_axis": np.array([2], np.int64),
        "clip_axes": np.array([1, 2], np.int64),
        "floor": np.array(FLOOR, np.float32),
        "lowest": np.array(-RANGE, np.float32),
        "half_range": np.array(RANGE / 2, np.float32),
        "one": np.array(1, np.float32),
        **weights,
    }
    nodes = [*_fourier(), *_bands(), *_network(), *_head()]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "commands",
        [value("audio", TensorProto.FLOAT, ["batch", samples])],
        [
            value("label", TensorProto.INT64, ["batch"]),
            value("probabilities", TensorProto.FLOAT, ["batch", len(weights["bias"])]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="commands"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _fourier() -> list[Any]:
    """Nodes for `transform` [2 * frequencies, 1, FRAME]: windowed cosines, then windowed sines.

    ONNX Runtime folds these constants once, at load; stored as numbers they would be three times
    the size of the rest of the file. A convolution takes half of STFT's time on a CPU, and is an
    ordinary operator for any other device.
    """
    node = helper.make_node
    return [
        node("Range", ["first", "last", "step"], ["frequencies"]),
        node("Unsqueeze", ["frequencies", "channel_axis"], ["frequency_column"]),
        node("Range", ["zero", "frame", "step"], ["places"]),
        # Remove whole turns as integers, because a large angle is not exact in 32 bits.
        node("Mul", ["frequency_column", "places"], ["turned"]),
        node("Mod", ["turned", "frame"], ["turned_less"]),
        node("Cast", ["turned_less"], ["turned_number"], to=TensorProto.FLOAT),
        node("Mul", ["turned_number", "place_angle"], ["angle"]),
        node("Cos", ["angle"], ["cosine"]),
        node("Sin", ["angle"], ["sine"]),
        node("Concat", ["cosine", "sine"], ["waves"], axis=0),
        node("Mul", ["waves", "window"], ["windowed"]),
        node("Unsqueeze", ["windowed", "channel_axis"], ["transform"]),
        # Both parts of a frequency's power belong to the same bands.
        node("Concat", ["mel_weights", "mel_weights"], ["mel_of_parts"], axis=1),
    ]


def _bands() -> list[Any]:
    """Nodes for `heard` [batch, bands, frames]: -1 is silence, 1 is the clip's loudest band.

    Relative to the loudest band, so that the recording level does not matter.
    """
    node = helper.make_node
    framed = {"kernel_shape": [FRAME], "strides": [HOP]}
    return [
        node("Unsqueeze", ["audio", "channel_axis"], ["signal"]),
        node("Conv", ["signal", "transform"], ["parts"], **framed),
        node("Mul", ["parts", "parts"], ["powers"]),
        node("MatMul", ["mel_of_parts", "powers"], ["mel"]),
        node("Add", ["mel", "floor"], ["mel_floored"]),
        node("Log", ["mel_floored"], ["log_mel"]),
        node("ReduceMax", ["log_mel", "clip_axes"], ["loudest"], keepdims=1),
        node("Sub", ["log_mel", "loudest"], ["below"]),
        node("Max", ["below", "lowest"], ["audible"]),
        node("Div", ["audible", "half_range"], ["scaled"]),
        node("Add", ["scaled", "one"], ["heard"]),
    ]


def _network() -> list[Any]:
    """Nodes from `heard` to `features` [batch, CHANNELS[-1]]: maxima over the second."""
    nodes, below = [], "heard"
    for layer, kernel in enumerate(KERNELS):
        names = [below, f"kernel_{layer}", f"bias_{layer}"]
        shape = {"kernel_shape": [kernel], "strides": [STRIDE]}
        nodes.append(helper.make_node("Conv", names, [f"sum_{layer}"], **shape))
        nodes.append(helper.make_node("Relu", [f"sum_{layer}"], [f"active_{layer}"]))
        below = f"active_{layer}"
    return [
        *nodes,
        helper.make_node("ReduceMax", [below, "last_axis"], ["features"], keepdims=0),
    ]


def _head() -> list[Any]:
    """Nodes from `features` to the outputs."""
    node = helper.make_node
    return [
        node("Gemm", ["features", "kernel", "bias"], ["logits"], transB=1),
        node("Softmax", ["logits"], ["probabilities"], axis=1),
        node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
    ]
