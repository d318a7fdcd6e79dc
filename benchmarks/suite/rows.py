"""Cost of a model's row analysis: in its process, and alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from benchmarks.measuring.record import Figures, interleaved
from benchmarks.measuring.report import Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.models.graphs import Graph, floats
from benchmarks.references.engines import ENVIRONMENT

IMPORT: Final = "python -I: import onnx"
BLOCKS: Final = 35
"""Of 14 nodes each: 490, and 10 other nodes."""
WIDTH: Final = 32
ANALYSIS: Final = """
import json, sys, time
from pathlib import Path
from runtime_image.verification.rows.analysis import analyse_file
began = time.perf_counter()
verdict = analyse_file(Path(sys.argv[1]))
print(json.dumps([(time.perf_counter() - began) * 1e3, verdict.proven]))
"""


def measure(setting: Setting) -> list[Part]:
    """Analyse a transformer of 500 nodes, whose shapes are computed in the graph, as exported."""
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(transformer(), path)
        child = [python, "-I", "-B", "-m", "runtime_image.verification.rows", str(path)]
        cases = {
            IMPORT: partial(wall_ms, [python, "-I", "-c", "import onnx"]),
            "the child, 500 nodes": partial(wall_ms, child),
            "the analysis alone, 500 nodes": partial(analysis_ms, path),
        }
        return [*compare(interleaved(cases, setting.rounds), IMPORT)]


def wall_ms(command: list[str]) -> Figures:
    """Return the duration of a command that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    return {"ms": (time.perf_counter() - began) * 1e3}


def analysis_ms(path: Path) -> Figures:
    """Return the duration without the start of a process. The model must be proven: otherwise the
    analysis would end early."""
    command = [sys.executable, "-I", "-c", ANALYSIS, str(path)]
    done = subprocess.run(command, check=True, env=ENVIRONMENT, capture_output=True)
    spent_ms, is_proven = json.loads(done.stdout)
    assert is_proven
    return {"ms": spent_ms}


def transformer() -> onnx.ModelProto:
    """Return a model of blocks with attention over merged rows and shapes taken from the input."""
    graph = Graph()
    heads, last = graph.constant(np.array([4])), graph.constant(np.array([-1]))
    width = graph.constant(np.array([WIDTH]))
    value = "x"
    for _ in range(BLOCKS):
        rows = graph.add("Shape", value, start=0, end=1)
        words = graph.add("Shape", value, start=1, end=2)
        split = graph.add("Concat", rows, words, heads, last, axis=0)
        parts = graph.add("Reshape", value, split)
        turned = graph.add("Transpose", parts, perm=[0, 2, 1, 3])
        keys = graph.add("Transpose", parts, perm=[0, 2, 3, 1])
        scores = graph.add("Softmax", graph.add("MatMul", turned, keys), axis=-1)
        mixed = graph.add("Transpose", graph.add("MatMul", scores, turned), perm=[0, 2, 1, 3])
        merged = graph.add("Reshape", mixed, graph.add("Concat", rows, last, width, axis=0))
        value = graph.add("Relu", graph.add("Add", merged, value))
    for _ in range(9):
        value = graph.add("Sigmoid", value)
    graph.add("Identity", value, output="y")
    shape = ("n", "words", WIDTH)
    return graph.model("rows", floats("x", *shape), floats("y", *shape))
