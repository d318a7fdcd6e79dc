"""ONNX Runtime and nothing else: a script that runs as a process of its own.

`python -I engine.py TASK` does one task, a JSON object, and ends; without TASK it has everything
imported, does one task per line of its input and answers each with a line of JSON. A task makes a
session and runs it: once, or with `seconds` for so long, in batches of `rows`.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import onnxruntime as ort


def options(task: dict[str, Any]) -> ort.SessionOptions:
    """Those of a replica, `runtime_image/engines/onnx.py`: this script imports nothing of ours,
    so a test holds the two against each other."""
    made = ort.SessionOptions()
    made.intra_op_num_threads = task["threads"]
    made.inter_op_num_threads = 1
    made.log_severity_level = 3
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not task["optimise"]:
        made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not task["prepack"]:
        made.add_session_config_entry("session.disable_prepacking", "1")
        made.enable_mem_pattern = False
    return made


def do(task: dict[str, Any]) -> dict[str, float]:
    """`ms`: from nothing to the end of the first run, `ended_s`: when that was, by the clock that
    all processes of a host share. Of a longer task also rows per second and processor milliseconds
    per row, without the first run."""
    shape = [task.get("rows", 1), *task["shape"][1:]]
    array = np.full(shape, 0.5 if task["dtype"] == "float32" else 7, task["dtype"])
    began = time.monotonic()
    providers = ["CPUExecutionProvider"]
    made = ort.InferenceSession(task["model"], options(task), providers=providers)
    inputs = {made.get_inputs()[0].name: array}
    made.run(None, inputs)
    ended = time.monotonic()
    figures = {"ms": (ended - began) * 1e3, "ended_s": ended}
    if task.get("seconds"):
        figures |= steady(made, inputs, shape[0], task["seconds"])
    return figures


def steady(made: Any, inputs: dict[str, Any], rows: int, seconds: float) -> dict[str, float]:
    """What a run costs once everything is warm."""
    runs, began, used = 0, time.monotonic(), time.process_time()
    while not runs or time.monotonic() - began < seconds:
        made.run(None, inputs)
        runs += 1
    taken = time.monotonic() - began
    cpu_ms = (time.process_time() - used) * 1e3
    return {"rows_per_s": runs * rows / taken, "cpu_ms": cpu_ms / (runs * rows)}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(do(json.loads(sys.argv[1]))))
    for line in sys.stdin if len(sys.argv) == 1 else ():
        print(json.dumps(do(json.loads(line))), flush=True)
