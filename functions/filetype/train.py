"""Trains `filetype.onnx` on files of this machine. Run it in the project's root folder:

    python -m functions.filetype.train

Needs torch, pyyaml, numpy, onnx and onnxruntime, and a Debian machine with Python and Node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from functions.filetype.files import (
    BINARY,
    KINDS,
    SIZE,
    Bytes,
    Labels,
    Sample,
    derived,
    find,
    piece,
)

FOLDER = Path(__file__).parent
MODEL = FOLDER / "filetype.onnx"
HELD_OUT = FOLDER / "held_out.npz"
EMBEDDED = 16
"""Size of a byte's embedding."""
CHANNELS = 64
KERNEL = 5
STRIDE = 2
EPOCHS = 10
BATCH = 64
RATE_MAX = 4e-3
"""Peak learning rate."""
SHORT_SHARE = 0.2
"""Share of pieces cut to a random length, because small files exist too."""
SHORT_MIN = 24
SEED = 0

Weights = npt.NDArray[np.float32]


def train(samples: Sequence[Sample], epochs: int = EPOCHS) -> bytes:
    """Train and return the serialised model; each epoch uses other pieces of the files.

    The same files, machine and library versions give the same weights.
    """
    import torch

    # One thread, because the order of parallel sums would change the weights.
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    chance = np.random.default_rng(SEED)
    network = _network()
    steps = epochs * -(-2 * len(samples) // BATCH)
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE_MAX, total_steps=steps)
    weights = torch.tensor(_rarity(samples))
    for epoch in range(epochs):
        rows, labels = pieces(samples, chance)
        losses = []
        for part in np.array_split(chance.permutation(len(rows)), -(-len(rows) // BATCH)):
            answers = network(torch.from_numpy(rows[part].astype(np.int64)))
            wanted = torch.from_numpy(labels[part])
            loss = torch.nn.functional.cross_entropy(answers, wanted, weight=weights)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
        print(f"epoch {epoch + 1} of {epochs}: loss {np.mean(losses):.3f}", flush=True)
    model: bytes = build(network.exported()).SerializeToString(deterministic=True)
    return model


def pieces(samples: Sequence[Sample], chance: np.random.Generator) -> tuple[Bytes, Labels]:
    """Return two pieces of each file, some of them short, and their labels.

    The first piece is the start. The second is from a random place of a text, but the start of a
    binary file.
    """
    rows, labels = [], []
    for sample in samples:
        for place in range(2):
            begin = 0
            if place and sample.kind not in BINARY:
                begin = int(chance.integers(0, max(1, len(sample.content) - SIZE)))
            length = SIZE
            if chance.random() < SHORT_SHARE:
                length = int(chance.integers(SHORT_MIN, SIZE))
            rows.append(piece(sample.content[begin : begin + length]))
            labels.append(KINDS.index(sample.kind))
    return np.stack(rows), np.array(labels)


def predict(model: bytes, rows: Bytes) -> Labels:
    """Return the kinds [N] of `rows` [N, SIZE], found by ONNX Runtime with the model."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    parts = [
        session.run(["label"], {"data": rows[begin : begin + BATCH]})[0]
        for begin in range(0, len(rows), BATCH)
    ]
    return np.concatenate(parts).astype(np.int64)


def build(weights: Mapping[str, Weights]) -> onnx.ModelProto:
    """Build the model from `weights`, named after the network's parts.

    Input `data` UINT8 [batch, SIZE]; outputs `label` INT64 [batch] and `probabilities` FP32
    [batch, kinds]. No operator mixes rows, so a row's answer does not depend on its batch.
    """
    node = helper.make_node
    convolution = {"kernel_shape": [KERNEL], "strides": [STRIDE]}
    nodes = [
        node("Cast", ["data"], ["indices"], to=TensorProto.INT32),
        node("Gather", ["bytes.weight", "indices"], ["embedded"], axis=0),
        node("Transpose", ["embedded"], ["channels"], perm=[0, 2, 1]),
        node("Conv", ["channels", "first.weight", "first.bias"], ["sum_0"], **convolution),
        node("Relu", ["sum_0"], ["active_0"]),
        node("Conv", ["active_0", "second.weight", "second.bias"], ["sum_1"], **convolution),
        node("Relu", ["sum_1"], ["active_1"]),
        node("ReduceMax", ["active_1", "last_axis"], ["highest"], keepdims=0),
        node("ReduceMean", ["active_1", "last_axis"], ["average"], keepdims=0),
        node("Gather", ["active_1", "first_place"], ["beginning"], axis=2),
        node("Concat", ["highest", "average", "beginning"], ["features"], axis=1),
        node("Gemm", ["features", "last.weight", "last.bias"], ["logits"], transB=1),
        node("Softmax", ["logits"], ["probabilities"], axis=1),
        node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
    ]
    numbers = {"last_axis": np.array([2], np.int64), "first_place": np.array(0, np.int64)}
    constants = {**weights, **numbers}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "filetype",
        [value("data", TensorProto.UINT8, ["batch", SIZE])],
        [
            value("label", TensorProto.INT64, ["batch"]),
            value("probabilities", TensorProto.FLOAT, ["batch", len(KINDS)]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="filetype"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _rarity(samples: Sequence[Sample]) -> Weights:
    """Return the loss weight per kind, which gives all kinds the same total weight."""
    counts = np.array([sum(sample.kind == kind for sample in samples) for kind in KINDS])
    return (counts.mean() / counts).astype(np.float32)


def _network() -> Any:
    """Return the trainable part: bytes [N, SIZE] as int64 to logits [N, kinds]."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bytes = nn.Embedding(256, EMBEDDED)
            self.first = nn.Conv1d(EMBEDDED, CHANNELS, KERNEL, STRIDE)
            self.second = nn.Conv1d(CHANNELS, CHANNELS, KERNEL, STRIDE)
            self.drop = nn.Dropout(0.2)
            self.last = nn.Linear(3 * CHANNELS, len(KINDS))

        def forward(self, rows: Any) -> Any:
            seen = torch.relu(self.first(self.bytes(rows).transpose(1, 2)))
            seen = torch.relu(self.second(seen))
            # Many formats start with unique bytes, so the first place is a separate feature.
            features = torch.cat([seen.amax(2), seen.mean(2), seen[:, :, 0]], 1)
            return self.last(self.drop(features))

        def exported(self) -> dict[str, Weights]:
            return {name: value.numpy() for name, value in self.state_dict().items()}

    return Network()


def main() -> None:
    """Find files, train, write the model and print its accuracy on held-out folders."""
    found = find()
    samples = found + derived(found)
    held = [sample for sample in samples if sample.is_held_out]
    print(f"{len(samples)} files, {len(held)} of them in held-out folders", flush=True)
    model = train([sample for sample in samples if not sample.is_held_out])
    MODEL.write_bytes(model)
    labels = np.array([KINDS.index(sample.kind) for sample in held])
    right = predict(model, np.stack([piece(sample.content) for sample in held])) == labels
    print(f"{MODEL.name}: {len(model)} bytes, {right.mean():.1%} of {len(held)} held-out files")
    for index, kind in enumerate(KINDS):
        of_kind = right[labels == index]
        print(f"  {kind:10} {of_kind.mean():.1%} of {len(of_kind)}")


if __name__ == "__main__":
    main()
