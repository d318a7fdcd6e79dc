"""Reference without a server: a model in a plain loop. `bare.py handler|onnx|fp16 PATH SECONDS`.

Runs in a separate process and prints the runs per second as JSON, after a warm-up of 10 runs. The
ONNX session has the options of a replica's (`runtime_image/engines/onnx.py`).
"""

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WARM_UP = 10


def handler(path: Path) -> Callable[[], Any]:
    """Return a function that runs a handler's predict once on the GPU."""
    spec = importlib.util.spec_from_file_location("handler", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ctx = SimpleNamespace(folder=path.parent, device="cuda", threads=1, state=None)
    ctx.state = module.load(ctx)
    return lambda: module.predict({"x": {"seed": 1}}, ctx)


def onnx(path: Path) -> Callable[[], Any]:
    """Return a function that runs a session once on one image, with input and output copied between
    host and GPU."""
    import numpy as np

    from runtime_image.engines.onnx import open_session

    session = open_session(str(path), "cuda", 1)
    [given] = session.get_inputs()
    picture = np.random.default_rng(0).random((1, *given.shape[1:]), np.float32)
    return lambda: session.run(None, {given.name: picture})


def fp16(path: Path) -> Callable[[], Any]:
    """Like `onnx`, with the model converted to FP16 by ONNX Runtime's own tool, which a trial uses,
    too; inputs and outputs stay FP32."""
    import onnx as files
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "fp16.onnx"
        files.save(convert_float_to_float16(files.load(path), keep_io_types=True), target)
        return onnx(target)


def main() -> None:
    """Time the loop."""
    kind, path, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    run = {"handler": handler, "onnx": onnx, "fp16": fp16}[kind](path)
    for _ in range(WARM_UP):
        run()
    runs, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        run()
        runs += 1
    print(json.dumps({"runs_per_s": runs / (time.perf_counter() - began)}))


if __name__ == "__main__":
    main()
