"""Trains `digits.onnx` on scikit-learn's bundled scans of handwritten digits.

    python functions/digits/train.py              writes digits.onnx, prints its accuracy
    python functions/digits/train.py --samples    also writes seven.png, two.png and five.png

Source of the data: `sklearn.datasets.load_digits`, the test part of UCI "Optical Recognition of
Handwritten Digits": 1,797 scans of 8x8 pixels with values 0 to 16.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

FOLDER = Path(__file__).parent
MODEL = FOLDER / "digits.onnx"
SAMPLES = {"seven.png": 7, "two.png": 2, "five.png": 5}
"""Sample file -> its digit."""
PIXEL_MAX = 16
"""Highest value of a pixel."""
HIDDEN = 128
SEED = 0

Scans = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def held_out() -> tuple[Scans, Labels]:
    """Return the 450 held-out scans, float32 [450, 8, 8] in 0..1, and digits, int64 [450]."""
    _, scans, _, labels = _split()
    return scans, labels


def train() -> onnx.ModelProto:
    """Return the trained model. The same machine and library versions give the same weights.

    Input `image` FP32 [batch, 8, 8] in 0..1; outputs `label` INT64 [batch] and `probabilities`
    FP32 [batch, 10]. No operator mixes rows, so a row's answer does not depend on its batch.
    """
    scans, _, labels, _ = _split()
    classifier = MLPClassifier((HIDDEN,), max_iter=400, random_state=SEED)
    # One thread, because the order of parallel sums would change the weights.
    with threadpool_limits(limits=1):
        classifier.fit(scans.reshape(len(scans), -1), labels)
    return _graph(classifier.coefs_, classifier.intercepts_)


def accuracy(model: bytes, scans: Scans, labels: Labels) -> float:
    """Return the share of `scans` [N, 8, 8] that the serialised `model` reads as `labels` [N]."""
    return float((predict(model, scans) == labels).mean())


def predict(model: bytes, scans: Scans) -> Labels:
    """Return the digits [N] of `scans` [N, 8, 8], found by ONNX Runtime with the model."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["label"], {"image": scans})[0], dtype=np.int64)


def picture(scan: Scans) -> Image.Image:
    """Return one scan [8, 8] in 0..1 as an 8-bit grey picture: pixel = round(v * 255 / 16)."""
    return Image.fromarray(np.rint(scan * 255).astype(np.uint8))


def write_samples(model: bytes, folder: Path) -> list[Path]:
    """Write, for each sample, the first held-out scan of its digit that `model` reads correctly."""
    scans, labels = held_out()
    right = predict(model, scans) == labels
    paths = []
    for name, digit in SAMPLES.items():
        first = int(np.flatnonzero(right & (labels == digit))[0])
        picture(scans[first]).save(folder / name, optimize=True)
        paths.append(folder / name)
    return paths


def _split() -> tuple[Scans, Scans, Labels, Labels]:
    """Return training scans, held-out scans, and the digits of both."""
    data = load_digits()
    scans = (data.images / PIXEL_MAX).astype(np.float32)
    labels = data.target.astype(np.int64)
    trained, held, trained_labels, held_labels = train_test_split(
        scans, labels, test_size=0.25, random_state=SEED, stratify=labels
    )
    return trained, held, trained_labels, held_labels


def _graph(weights: list[Scans], biases: list[Scans]) -> onnx.ModelProto:
    """Return the two-layer perceptron; weights [64, HIDDEN], [HIDDEN, 10], biases [HIDDEN],
    [10]."""
    nodes = [
        helper.make_node("Flatten", ["image"], ["pixels"], axis=1),
        helper.make_node("Gemm", ["pixels", "weights_0", "bias_0"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "weights_1", "bias_1"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
    ]
    parameters = [
        numpy_helper.from_array(array.astype(np.float32), f"{kind}_{layer}")
        for kind, arrays in (("weights", weights), ("bias", biases))
        for layer, array in enumerate(arrays)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "digits",
        [value("image", TensorProto.FLOAT, ["batch", 8, 8])],
        [
            value("label", TensorProto.INT64, ["batch"]),
            value("probabilities", TensorProto.FLOAT, ["batch", 10]),
        ],
        parameters,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="digits"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train, write the model and print its accuracy."""
    parser = argparse.ArgumentParser(description="Train digits.onnx.")
    parser.add_argument("--samples", action="store_true", help="also write the sample pictures")
    arguments = parser.parse_args()
    model = train().SerializeToString(deterministic=True)
    MODEL.write_bytes(model)
    scans, labels = held_out()
    share = accuracy(model, scans, labels)
    print(f"{MODEL.name}: {len(model)} bytes, {share:.1%} of {len(scans)} held-out scans right")
    if arguments.samples:
        print("wrote", *(path.name for path in write_samples(model, FOLDER)))


if __name__ == "__main__":
    main()
