"""ONNX Runtime without a server: a script that runs as a separate process.

`python -I engine.py TASK` does one task, a JSON object, and ends. Without TASK, it imports
everything, then does one task per line of standard input and answers each with a line of JSON. A
task creates a session and runs it once, or for `seconds`, in batches of `rows`.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import onnxruntime as ort


def options(task: dict[str, Any]) -> ort.SessionOptions:
    """Return a replica's session options (`runtime_image/engines/onnx.py`). This script imports no
    module of this project, so a test compares the two."""
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
    """Do a task. `ms` is the time from the start to the end of the first run, `ended_s` that end on
    CLOCK_MONOTONIC, which all processes of a host share. Tasks with `seconds` also return rows per
    second and CPU milliseconds per row, without the first run."""
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
    """Return rate and CPU time of runs once everything is warm."""
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
