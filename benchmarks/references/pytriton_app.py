"""Triton's own front with a callable of Python behind it: an application of PyTriton.

`python pytriton_app.py MODEL REST GRPC METRICS` in the environment of `pytriton.py`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime as ort
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

ROWS_MAX = 64


def serve(model: str, rest: int, grpc: int, metrics: int) -> None:
    """Serve functions/digits until the process gets SIGINT."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_outputs()]

    @batch
    def run(image: Any) -> dict[str, Any]:
        outputs = dict(zip(names, session.run(names, {"image": image}), strict=True))
        # PyTriton's outputs have a second axis at least.
        return {**outputs, "label": outputs["label"].reshape(-1, 1)}

    ports = {"http_port": rest, "grpc_port": grpc, "metrics_port": metrics}
    config = TritonConfig(**ports, http_address="127.0.0.1", grpc_address="127.0.0.1")
    with Triton(config=config) as triton:
        triton.bind(
            "digits",
            run,
            inputs=[Tensor(name="image", dtype=np.float32, shape=(8, 8))],
            outputs=[
                Tensor(name="label", dtype=np.int64, shape=(1,)),
                Tensor(name="probabilities", dtype=np.float32, shape=(10,)),
            ],
            config=ModelConfig(max_batch_size=ROWS_MAX, batcher=DynamicBatcher()),
        )
        triton.serve()


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:5]))
