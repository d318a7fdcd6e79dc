"""Empty axes: graphs with operators that end their process take none, all others do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import pytest

from runtime_image.contract.errors import BAD_INPUT, UnfitInput
from runtime_image.contract.model import ModelSpec
from runtime_image.engines import empty_axes
from runtime_image.engines.empty_axes import UNREAD, EmptyAxes
from runtime_image.engines.loading import load_engine
from runtime_image.engines.onnx import OnnxEngine

OPSET: Final = 24
KILLED: Final = "killed"
REFUSED: Final = "refused"
PROGRAM: Final = """
import sys, json, resource
import numpy as np
from pathlib import Path
from runtime_image.contract.errors import UnfitInput
from runtime_image.engines.onnx import OnnxEngine
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
engine = OnnxEngine(Path(sys.argv[1]), device_kind="cpu", threads=1)
kinds = {one.name: np.uint8 if one.dtype == "UINT8" else np.float32
         for one in engine.signature.inputs}
inputs = {name: np.ones(shape, kinds[name]) for name, shape in json.loads(sys.argv[2]).items()}
if sys.argv[3] == "unchecked":
    engine._empty_axes.check = lambda inputs: None
try:
    engine.run(inputs, engine.ticket())
except UnfitInput as error:
    print(error)
"""
GRU: Final = "y, last = GRU <hidden_size = 2> (x, w, r)"
LSTM: Final = "y, last = LSTM <hidden_size = 2> (x, w, r)"
RNN: Final = "y, last = RNN <hidden_size = 2> (x, w, r)"
SEQUENCE: Final = "float[steps, rows, 3] x"
ATTENTION: Final = "float[b, h, s, 4] q, float[b, h, s, 4] k, float[b, h, s, 4] v"


def _weights(gates: int) -> str:
    w, r = np.ones(gates * 6, int).tolist(), np.ones(gates * 4, int).tolist()
    sizes = f"float[1, {gates * 2}, 3] w = {{{str(w)[1:-1]}}}"
    return f"{sizes}, float[1, {gates * 2}, 2] r = {{{str(r)[1:-1]}}}"


def _cubes(name: str) -> str:
    return f"float[1, 1, 2, 2, 2] {name} = {{1, 1, 1, 1, 1, 1, 1, 1}}"


def graph(nodes: str, inputs: str, weights: str = "", functions: str = "") -> bytes:
    """Return a model in ONNX's text form as bytes; its outputs are of unknown rank."""
    domains = f'"" : {OPSET}, "com.microsoft" : 1, "ai.onnx.ml" : 3, "own" : 1'
    text = f"""
        <ir_version: 10, opset_import: [{domains}]>
        main ({inputs}) => (float[] y) <{weights}> {{ {nodes} }} {functions}
    """
    return onnx.parser.parse_model(text).SerializeToString()


def written(folder: Path, content: bytes) -> Path:
    """Write a model into a folder of its own."""
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path


def run_apart(path: Path, shapes: str, how: str) -> subprocess.CompletedProcess[str]:
    """Run a model in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, str(path), shapes, how]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


CRASHES: Final = {
    "GRU": (GRU, SEQUENCE, _weights(3), '{"x": [0, 2, 3]}', KILLED),
    "LSTM": (LSTM, SEQUENCE, _weights(4), '{"x": [0, 0, 3]}', KILLED),
    "RNN": (RNN, SEQUENCE, _weights(1), '{"x": [0, 2, 3]}', REFUSED),
    "ConvTranspose": (
        "y = ConvTranspose(x, w)",
        "float[n, 1, d, h, w1] x",
        _cubes("w"),
        '{"x": [1, 1, 3, 0, 5]}',
        KILLED,
    ),
    "Attention": (
        "y = Attention(q, k, v)",
        ATTENTION,
        "",
        '{"q": [2, 0, 4, 4], "k": [2, 0, 4, 4], "v": [2, 0, 4, 4]}',
        KILLED,
    ),
    "STFT": (
        "y = STFT(x, step, w)",
        "float[1, s, 1] x, float[l] w",
        "int64 step = {2}",
        '{"x": [1, 16, 1], "w": [0]}',
        KILLED,
    ),
    "DynamicQuantizeLSTM": (
        "y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 1> (x, w, r, , , , , , s, z, s, z)",
        "float[steps, rows, 2] x",
        "uint8[1, 2, 4] w = {1, 1, 1, 1, 1, 1, 1, 1}, uint8[1, 1, 4] r = {1, 1, 1, 1},"
        "float[1] s = {1}, uint8[1] z = {0}",
        '{"x": [0, 2, 2]}',
        REFUSED,
    ),
    "FeatureVectorizer": (
        "y = ai.onnx.ml.FeatureVectorizer <inputdimensions = [3, 2]> (x, w)",
        "float[n, 3] x, float[n, 2] w",
        "",
        '{"x": [0, 3], "w": [0, 2]}',
        KILLED,
    ),
    "Inverse": (
        "y = com.microsoft.Inverse (x)",
        "float[n, m, m] x",
        "",
        '{"x": [2, 0, 3]}',
        REFUSED,
    ),
    "MultiHeadAttention": (
        "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, k, v)",
        "float[b, s, h] x, float[b, l, h] k, float[b, l, h] v",
        "",
        '{"x": [2, 3, 8], "k": [2, 4, 8], "v": [2, 4, 0]}',
        KILLED,
    ),
    "MoE": (
        "y = com.microsoft.MoE <k = 1> (x, p, w, , w)",
        "float[n, h] x, float[n, 1] p",
        "float[1, 2, 2] w = {1, 1, 1, 1}",
        '{"x": [4, 0], "p": [4, 1]}',
        REFUSED,
    ),
    "QAttention": (
        "y = com.microsoft.QAttention <num_heads = 1> (x, w, b, s, s, , z, z)",
        "uint8[n, t, 2] x",
        "uint8[2, 6] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, float[6] b = {1, 1, 1, 1, 1, 1},"
        "float s = {1}, uint8 z = {0}",
        '{"x": [0, 3, 2]}',
        KILLED,
    ),
    "RotaryEmbedding": (
        "y = com.microsoft.RotaryEmbedding <num_heads = 1> (x, p, c, c)",
        "float[b, s, h] x",
        "int64[1] p = {0}, float[2, 1] c = {1, 1}",
        '{"x": [2, 2, 0]}',
        REFUSED,
    ),
    "SkipSimplifiedLayerNormalization": (
        "y = com.microsoft.SkipSimplifiedLayerNormalization (x, s, g)",
        "float[n, t, 4] x, float[m, t, 4] s",
        "float[4] g = {1, 1, 1, 1}",
        '{"x": [2, 3, 4], "s": [0, 3, 4]}',
        KILLED,
    ),
    "SkipLayerNormalization": (
        "y = com.microsoft.SkipLayerNormalization (x, s, g)",
        "float[n, t, 4] x, float[m, t, 4] s",
        "float[4] g = {1, 1, 1, 1}",
        '{"x": [2, 3, 4], "s": [0, 3, 4]}',
        KILLED,
    ),
    "LayerNormalization": (
        "a = Add(x, s)  y = LayerNormalization(a, g)",
        "float[n, t, 4] x, float[n, t, 4] s",
        "float[4] g = {1, 1, 1, 1}",
        '{"x": [2, 3, 4], "s": [0, 3, 4]}',
        KILLED,
    ),
    "Conv": (
        "y = Conv(x, w)",
        "float[n, c, h] x, float[m, c, k] w",
        "",
        '{"x": [1, 0, 5], "w": [1, 0, 3]}',
        REFUSED,
    ),
}
"""Operator: nodes, inputs, weights, shapes of a request, and whether it ends the process surely."""


@pytest.mark.parametrize("operator", CRASHES)
def test_an_operator_that_ends_the_process_is_refused(operator: str, tmp_path: Path) -> None:
    """The process lives, and the error names input, axis and operator."""
    nodes, inputs, weights, shapes, _ = CRASHES[operator]
    path = written(tmp_path, graph(nodes, inputs, weights))

    done = run_apart(path, shapes, "checked")

    assert done.returncode == 0, done.stderr
    assert f"as the operator {operator} takes no empty one, got shape [" in done.stdout
    assert "expected at least 1 place on axis " in done.stdout


@pytest.mark.parametrize("operator", [name for name, case in CRASHES.items() if case[4] == KILLED])
def test_the_operator_ends_the_process_unchecked(operator: str, tmp_path: Path) -> None:
    """The list has no operator without a reason: without the check, a signal ends the process."""
    nodes, inputs, weights, shapes, _ = CRASHES[operator]
    path = written(tmp_path, graph(nodes, inputs, weights))

    assert run_apart(path, shapes, "unchecked").returncode < 0


NESTED: Final = {
    "the branch of an If": (
        """flag = Constant <value = bool {1}> ()
        y = If (flag) <
            then_branch = a () => (float[] a) { z, a = GRU <hidden_size = 2> (x, w, r) },
            else_branch = b () => (float[] b) { b = Identity (x) }
        >""",
        "",
    ),
    "the body of a Loop": (
        """times = Constant <value = int64 {1}> ()
        on = Constant <value = bool {1}> ()
        y = Loop (times, on) <
            body = b (int64 at, bool go) => (bool go, float[1, rows, 2] last)
            { all, last = GRU <hidden_size = 2> (x, w, r) }
        >""",
        "",
    ),
    "a local function": (
        "y = own.Layer(x, w, r)",
        f"""<domain: "own", opset_import: ["" : {OPSET}]>
        Layer (x, w, r) => (y) {{ y, last = GRU <hidden_size = 2> (x, w, r) }}""",
    ),
}


@pytest.mark.parametrize("place", NESTED)
def test_nested_operators_count(place: str, tmp_path: Path) -> None:
    """Operators of branches, bodies and functions are found."""
    nodes, functions = NESTED[place]
    path = written(tmp_path, graph(nodes, SEQUENCE, _weights(3), functions))

    assert EmptyAxes(path, {}).operators.empty == "GRU"


TAKEN: Final = {
    "an operator without the fault": ("y = Relu(x)", "float[n, 4] x", "", {"x": (0, 4)}),
    "a convolution with weights of its own": (
        "y = Conv(x, w)",
        "float[n, 1, h] x",
        "float[1, 1, 2] w = {1, 1}",
        {"x": (0, 1, 5)},
    ),
    "a convolution with computed weights of its own": (
        "y = Conv(x, v)  v = Neg(w)",
        "float[n, 1, h] x",
        "float[1, 1, 2] w = {1, 1}",
        {"x": (0, 1, 5)},
    ),
    "rows that are empty together": (
        "a = Add(x, s)  y = LayerNormalization(a, g)",
        "float[n, t, 4] x, float[n, t, 4] s",
        "float[4] g = {1, 1, 1, 1}",
        {"x": (0, 3, 4), "s": (0, 3, 4)},
    ),
    "past keys of length 0 beside projections": (
        "q = MatMul(x, w)  y, a, b = com.microsoft.MultiHeadAttention <num_heads = 2>"
        " (q, q, q, , , , pk, pv)",
        "float[b, s, 4] x, float[b, 2, p, 2] pk, float[b, 2, p, 2] pv",
        "float[4, 4] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}",
        {"x": (1, 3, 4), "pk": (1, 2, 0, 2), "pv": (1, 2, 0, 2)},
    ),
    "past keys of length 0 beside stated heads": (
        "y, a, b = Attention(q, k, v, , pk, pv)",
        "float[b, 2, s, 4] q, float[b, 2, s, 4] k, float[b, 2, s, 4] v,"
        "float[b, 2, p, 4] pk, float[b, 2, p, 4] pv",
        "",
        {"q": (1, 2, 1, 4), "k": (1, 2, 1, 4), "v": (1, 2, 1, 4), "pk": (1, 2, 0, 4)}
        | {"pv": (1, 2, 0, 4)},
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_other_graphs_take_empty_axes(case: str, tmp_path: Path) -> None:
    """A graph without such an operator runs with an empty axis."""
    nodes, inputs, weights, shapes = TAKEN[case]
    path = written(tmp_path, graph(nodes, inputs, weights))
    engine = OnnxEngine(path, device_kind="cpu", threads=1)
    feed = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}

    assert "y" in engine.run(feed, engine.ticket())


def test_weights_that_callers_influence_count(tmp_path: Path) -> None:
    """Weights computed from an input, in any order of the nodes, may be empty."""
    nodes = "v = Neg(u)  y = Conv(x, v)"
    model = onnx.load_from_string(graph(nodes, "float[n, c, h] x, float[m, c, k] u"))
    ordered = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(ordered))

    path = written(tmp_path, model.SerializeToString())

    assert EmptyAxes(path, {}).operators.empty == "Conv"


def test_the_graph_is_read_once_and_only_when_asked(tmp_path: Path) -> None:
    """Requests without an empty axis never read the graph, and others read it once."""
    path = written(tmp_path, graph(GRU, SEQUENCE, _weights(3)))
    engine = OnnxEngine(path, device_kind="cpu", threads=1)
    engine.run({"x": np.ones((1, 2, 3), np.float32)}, engine.ticket())
    assert engine._empty_axes._operators is None

    for _ in range(2):
        with pytest.raises(UnfitInput) as caught:
            engine.run({"x": np.ones((1, 0, 3), np.float32)}, engine.ticket())
        path.unlink(missing_ok=True)

    assert (caught.value.code, caught.value.input) == (BAD_INPUT, "x")
    assert caught.value.got == "shape [1, 0, 3]"


def test_a_handler_that_runs_the_model_is_held_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal passes through the handler as it is; what else a handler runs is its own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    written(tmp_path, graph(GRU, SEQUENCE, _weights(3)))
    (tmp_path / "handler.py").write_text("def predict(inputs, ctx): return ctx.run(inputs)\n")
    spec = ModelSpec("f@1", model="model.onnx", handler="handler.py")
    engine = load_engine(spec, tmp_path, device_kind="cpu", threads=1)

    with pytest.raises(UnfitInput, match="the operator GRU takes no empty one"):
        engine.run({"x": np.ones((0, 1, 3), np.float32)}, engine.ticket())
    sys.modules.pop("handler", None)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, None])
def test_an_unreadable_graph_takes_no_empty_axis(content: bytes | None, tmp_path: Path) -> None:
    """What cannot be checked is refused."""
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UnfitInput, match="the graph of the model cannot be checked"):
        EmptyAxes(path, {}).check({"x": np.ones((0, 1), np.float32)})


def test_a_graph_beyond_the_bound_takes_no_empty_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that is too large to be read is refused."""
    monkeypatch.setattr(empty_axes, "FIELDS_MAX", 5)

    path = written(tmp_path, graph("y = Relu(x)", "float[n] x"))

    assert EmptyAxes(path, {}).operators.empty == UNREAD
