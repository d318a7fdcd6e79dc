"""Each rule on a valid and an invalid case, per opset version where versions differ.

A line has an opset, a body that computes `y` from `x` FP32 [n, 3, 4], and the operator to blame, ""
if rows are independent. Proven bodies also run: no row may change with the others.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from runtime_image.verification.rows.analysis import analyse

CONSTANTS: Final = """
zero = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> ()
two = Constant <value_ints = [2]> () four = Constant <value_ints = [4]> ()
minus = Constant <value_ints = [-1]> () far = Constant <value_ints = [1000]> ()
f = Constant <value = float[1] {2.0}> () w = Constant <value = float[4,4] {1,2,3,4,5,6,7,8,
9,8,7,6,5,4,3,2}> () w3 = Constant <value = float[3] {1,2,3}> ()
k = Constant <value = float[2,3,1] {1,2,3,4,5,6}> ()
scale = Constant <value = float {0.5}> () point = Constant <value = uint8 {3}> ()
pick = Constant <value = int64[2] {0, -1}> () s = Shape (x) n = Gather (s, zero)
no = Constant <value_int = 0> () yes = Constant <value_int = 1> ()
number = Range (no, n0, yes) n0 = Squeeze (n, zero)
"""
T, U = "t = Transpose <perm = [1, 0, 2]> (x)", "y = Transpose <perm = [1, 0, 2]> (u)"


def turned(body: str) -> str:
    """Return a body from `t` [3, n, 4] to `u` of the same shape."""
    return f"{T} {body} {U}"


LINES: Final = (
    # Elementwise operators and broadcasting.
    (21, "y = Relu (x)", ""),
    (6, "y = Relu (x)", ""),
    (21, "c = Unsqueeze (w3, one) y = Add (x, c)", ""),
    (21, turned("u = Add (t, f)"), ""),
    (21, "r = ReduceMax <keepdims = 0> (x, one) y = Add (x, r)", "Add"),
    (21, "y = Clip (x, no32, scale) no32 = Cast <to = 1> (no)", ""),
    (21, "b = ReduceMax <keepdims = 0> (x) y = Clip (x, b)", "ReduceMax"),
    (21, "y, m = Dropout (x)", ""),
    (21, "t = Cast <to = 9> (yes) y, m = Dropout (x, scale, t)", "Dropout"),
    (21, "t = Cast <to = 9> (no) y, m = Dropout (x, scale, t)", ""),
    # The number of rows used as data.
    (21, "c = Cast <to = 1> (n) y = Div (x, c)", "Cast"),
    (21, "c = Gather (s, two) d = Cast <to = 1> (c) y = Div (x, d)", ""),
    (21, "c = Equal (n, one) y = Where (c, x, f)", "Where"),
    (21, "c = Greater (n, zero) y = Where (c, x, f)", ""),
    (21, "c = Cast <to = 1> (number) d = Reshape (c, e) e = Concat <axis = 0> (minus, one, one)"
     " y = Add (x, d)", "Cast"),
    # Along an axis.
    (13, "y = Softmax <axis = 1> (x)", ""),
    (13, "y = Softmax <axis = 0> (x)", "Softmax"),
    (13, turned("u = Softmax <axis = 0> (t)"), ""),
    (11, "y = Softmax <axis = 1> (x)", ""),
    (11, turned("u = Softmax <axis = 2> (t)"), ""),
    (11, turned("u = Softmax (t)"), "Softmax"),
    (13, turned("u = LogSoftmax <axis = 1> (t)"), "LogSoftmax"),
    (21, "y = ReduceSum <keepdims = 0> (x, one)", ""),
    (21, "y = ReduceSum (x, zero)", "ReduceSum"),
    (21, "y = ReduceSum (x)", "ReduceSum"),
    (21, "y = ReduceSum <noop_with_empty_axes = 1> (x)", ""),
    (17, "y = ReduceMean <axes = [2], keepdims = 0> (x)", ""),
    (17, "y = ReduceMean <axes = [-3]> (x)", "ReduceMean"),
    (21, "a = ArgMax <axis = 1> (x) y = Cast <to = 1> (a)", ""),
    (21, "y = ArgMax (x)", "ArgMax"),
    (21, "y = CumSum (x, one)", ""),
    (21, "y = CumSum (x, zero)", "CumSum"),
    (21, "y, i = TopK (x, one)", ""),
    (21, turned("u, i = TopK <axis = 1, largest = 0> (t, one)"), "TopK"),
    (21, "y = LayerNormalization <axis = 1> (x, v) v = Slice (w, zero, three, zero)"
     " three = Add (one, two)", ""),
    (21, "y = LayerNormalization <axis = 0> (x, f)", "LayerNormalization"),
    (21, "y = MeanVarianceNormalization <axes = [1, 2]> (x)", ""),
    (21, "y = MeanVarianceNormalization <axes = [0, 2]> (x)", "MeanVarianceNormalization"),
    (21, "y = LpNormalization <axis = 0> (x)", "LpNormalization"),
    # Layout.
    (21, "m = Reshape (x, a) a = Concat <axis = 0> (minus, four) r = Softmax (m)"
     " y = Reshape (r, s)", ""),
    (21, "m = Reshape (x, minus) r = Softmax (m) y = Reshape (r, s)", "Softmax"),
    (21, "m = Reshape (x, a) a = Concat <axis = 0> (two, minus) r = Softmax (m) y = Reshape (r, s)",
     "Reshape"),
    (21, turned("m = Reshape (t, a) a = Concat <axis = 0> (minus, four) r = Relu (m)"
                " b = Shape (t) u = Reshape (r, b)"), ""),
    (21, turned("m = Reshape (t, a) a = Concat <axis = 0> (minus, one, four)"
                " r = Softmax <axis = 0> (m) b = Shape (t) u = Reshape (r, b)"), "Softmax"),
    (21, "y = Flatten <axis = 1> (x)", ""),
    (21, "y = Flatten <axis = 2> (x)", "Flatten-output"),
    (21, "m = Flatten <axis = 0> (x) r = Softmax (m) y = Reshape (r, s)", "Softmax"),
    (21, "m = Unsqueeze (x, one) y = Squeeze (m, one)", ""),
    (21, "m = Unsqueeze (x, one) y = Squeeze (m)", "Squeeze"),
    (21, "e = Expand (f, s) y = Add (x, e)", ""),
    (21, "a = Concat <axis = 0> (n, n) e = Expand (f, a) y = Add (x, e)", "Expand"),
    (21, "e = ConstantOfShape <value = float[1] {2.0}> (s) y = Add (x, e)", ""),
    (21, "a = Concat <axis = 0> (n, one, one) e = Tile (g, a) g = Unsqueeze (w, zero)"
     " r = ReduceSum (e, one) y = Add (x, r)", ""),
    (21, "a = Concat <axis = 0> (two, one, one) y = Tile (x, a)", "Tile-output"),
    # Concatenation and splitting.
    (21, "y = Slice (x, one, far, two)", ""),
    (21, "y = Slice (x, one, far, zero)", "Slice"),
    (21, "y = Slice (x, minus, e, zero, minus) e = Mul (far, minus)", "Slice"),
    (21, "y = Slice (x, zero, far, zero)", "Slice"),
    (21, "e = Constant <value_ints = [2147483647]> () y = Slice (x, zero, e, zero)", ""),
    (9, "y = Slice <axes = [2], starts = [1], ends = [3]> (x)", ""),
    (21, "y = Concat <axis = 1> (x, x)", ""),
    (21, "y = Concat <axis = 0> (x, x)", "Concat"),
    (21, "y, z = Split <axis = 2, num_outputs = 2> (x)", ""),
    (21, "y, z = Split <axis = 0, num_outputs = 2> (x)", "Split"),
    (21, "p = Constant <value_ints = [0, 1, -1, 0, 0, 2]> () y = Pad (x, p)", ""),
    (21, "p = Constant <value_ints = [1, 0, 0, -1, 0, 0]> () y = Pad (x, p)", "Pad"),
    (21, "p = Constant <value_ints = [1, 1]> () y = Pad (x, p, , two)", ""),
    (21, "p = Constant <value_ints = [1, 1]> () y = Pad <mode = \"wrap\"> (x, p, , zero)", "Pad"),
    (21, "y = Trilu (x)", ""),
    (21, turned("u = Trilu (t)"), "Trilu"),
    # Indices.
    (21, "y = Gather <axis = 1> (x, pick)", ""),
    (21, "y = Gather <axis = 0> (x, pick)", "Gather"),
    (21, "y = Gather <axis = 0> (x, number)", ""),
    (21, "m = Sub (number, yes) y = Gather <axis = 0> (x, m)", "Sub"),
    (21, "a = ArgMax <axis = 2, keepdims = 0> (x) y = Gather (w, a)", ""),
    (21, "a = ArgMax <axis = 2, keepdims = 0> (x) y = Gather <axis = 1> (x, a)", "Gather"),
    (21, "m = Mul (number, r) r = Constant <value_int = 3> () j = Add (m, q)"
     " q = Constant <value_int = 2> () v = Reshape (x, a) a = Concat <axis = 0> (minus, four)"
     " y = Gather (v, j)", ""),
    (21, "m = Mul (number, r) r = Constant <value_int = 3> () j = Add (m, r)"
     " v = Reshape (x, a) a = Concat <axis = 0> (minus, four) y = Gather (v, j)", "Gather"),
    (21, "a = ArgMax <axis = 2> (x) y = GatherElements <axis = 2> (x, a)", ""),
    (21, "a = ArgMax <axis = 2> (x) b = Greater (a, c) c = Sub (a, a) d = Cast <to = 7> (b)"
     " y = GatherElements <axis = 0> (x, d)", "GatherElements"),
    (21, "a = ArgMax <axis = 2> (x) b = Mod (a, two) y = GatherND <batch_dims = 1> (x, b)", ""),
    (21, "c = Unsqueeze (number, one) b = ArgMax <axis = 1> (x) d = ReduceMax"
     " <keepdims = 0> (b, two) i = Concat <axis = 1> (c, d) y = GatherND (x, i)", ""),
    (21, "c = Unsqueeze (number, one) b = ArgMax <axis = 1> (x) d = ReduceMax"
     " <keepdims = 0> (b, two) i = Concat <axis = 1> (d, c) y = GatherND (x, i)", "GatherND"),
    # Products.
    (21, "y = MatMul (x, w)", ""),
    (21, "m = Transpose <perm = [0, 2, 1]> (x) y = MatMul (m, x)", ""),
    (21, "m = Transpose <perm = [1, 2, 0]> (x) r = Transpose <perm = [1, 0, 2]> (x)"
     " y = MatMul (m, r)", "MatMul"),
    (21, 'y = Einsum <equation = "nij,nkj->nik"> (x, x)', ""),
    (21, 'y = Einsum <equation = "nij,mij->nm"> (x, x)', "Einsum"),
    (21, 'y = Einsum <equation = "nij,nkj"> (x, x)', "Einsum"),
    (21, 'y = Einsum <equation = "...ij,...kj->...ik"> (x, x)', "Einsum"),
    (21, "m = Flatten (x) v = ReduceSum <keepdims = 0> (x, one) y = Gemm (v, w)", ""),
    (21, "v = ReduceSum <keepdims = 0> (x, one) y = Gemm <transA = 1> (v, v)", "Gemm"),
    # Windows.
    (21, "y = Conv (x, k)", ""),
    (21, turned("c = Conv (t, k) u = Concat <axis = 0> (c, q) q = Slice (c, zero, one, zero)"),
     "Conv"),
    (21, "y = MaxPool <kernel_shape = [2]> (x)", ""),
    (21, "y, i = MaxPool <kernel_shape = [2]> (x) z = Cast <to = 1> (i) v = Add (y, z)", ""),
    (21, "v, y = MaxPool <kernel_shape = [2]> (x)", "MaxPool"),
    (21, "y = InstanceNormalization (x, w3, w3)", ""),
    (21, turned("u = InstanceNormalization (t, w3, w3)"), "InstanceNormalization"),
    (21, "y = BatchNormalization (x, w3, w3, w3, w3)", ""),
    (21, "y, a, b = BatchNormalization <training_mode = 1> (x, w3, w3, w3, w3)",
     "BatchNormalization"),
    (21, "y = Resize (x, , g) g = Constant <value = float[3] {1.0, 1.0, 2.0}> ()", ""),
    (21, "y = Resize (x, , g) g = Constant <value = float[3] {2.0, 1.0, 1.0}> ()", "Resize"),
    (21, "y = Resize <mode = \"linear\"> (x, , g)"
     " g = Constant <value = float[3] {1.0, 1.0, 2.0}> ()",
     "Resize"),
    (21, "y = Cast <to = 1, saturate = 2> (x)", "Cast"),
    (21, "y = Resize (x, , , g) g = Concat <axis = 0> (n, one, two)", ""),
    (21, "y = Resize (x, , , g) g = Constant <value_ints = [4, 3, 4]> ()", "Resize"),
    # Quantised.
    (21, "q = QuantizeLinear (x, scale, point) y = DequantizeLinear (q, scale, point)", ""),
    (21, "q, b, c = DynamicQuantizeLinear (x) y = DequantizeLinear (q, b, c)",
     "DynamicQuantizeLinear"),
    # Control flow.
    (21, "c = Cast <to = 9> (yes) y = If (c) <then_branch = a () => (float[n,3,4] p)"
     " { p = Relu (x) }, else_branch = b () => (float[n,3,4] q)"
     " { q = Softmax <axis = 0> (x) }>", ""),
    (21, "c = Equal (n0, yes) y = If (c) <then_branch = a () => (float[n,3,4] p)"
     " { p = Relu (x) }, else_branch = b () => (float[n,3,4] q) { q = Neg (x) }>", "If"),
    (21, "c = Cast <to = 9> (yes) m = Constant <value_int = 3> () y = Loop (m, c, x) <body = a"
     " (int64 i, bool g, float[n,3,4] v) => (bool h, float[n,3,4] u)"
     " { h = Identity (g) u = Softmax (v) }>", ""),
    (21, "c = Cast <to = 9> (yes) y = Loop (n0, c, x) <body = a"
     " (int64 i, bool g, float[n,3,4] v) => (bool h, float[n,3,4] u)"
     " { h = Identity (g) u = Add (v, v) }>", "Loop"),
    (21, "z = ReduceSum <keepdims = 0> (x, one) l, y = Scan <num_scan_inputs = 1, scan_input_axes ="
     " [1], scan_output_axes = [1], body = a (float[n,4] c, float[n,4] v) => (float[n,4] d,"
     " float[n,4] u) { d = Add (c, v) u = Identity (d) }> (z, x)", ""),
    (21, "z = ReduceSum <keepdims = 0> (w, zero) l, y = Scan <num_scan_inputs = 1, body = a"
     " (float[4] c, float[3,4] v) => (float[4] d, float[3,4] u)"
     " { m = ReduceSum <keepdims = 0> (v, zero) d = Add (c, m) u = Add (v, c) }> (z, x)", "Scan"),
    # Operators without a rule.
    (21, "y = RandomNormalLike (x)", "RandomNormalLike"),
    (21, "i = NonZero (x) y = Cast <to = 1> (i)", "NonZero"),
    (21, "y = Unique (x)", "Unique"),
    (21, "y = Mish (x)", ""),
)  # fmt: skip


def model(opset: int, body: str) -> onnx.ModelProto:
    """Build the model: constants that the body uses, then the nodes in topological order."""
    text = f"""<ir_version: 8, opset_import: ["" : {max(opset, 13)}]>
    g (float[n,3,4] x) => (float y) {{ {CONSTANTS} {body} }}"""
    found = onnx.parser.parse_model(text)
    found.opset_import[0].version = opset
    _sort(found.graph)
    found.graph.output[0].type.tensor_type.ClearField("shape")
    return found


def _sort(graph: onnx.GraphProto) -> None:
    """Return the nodes that `y` needs, in topological order."""
    makers = {name: node for node in graph.node for name in node.output if name}
    done: dict[str, onnx.NodeProto] = {}

    def visit(name: str) -> None:
        node = makers.get(name)
        if node is None or node.output[0] in done:
            return
        inner = [
            read for attribute in node.attribute for part in attribute.g.node for read in part.input
        ]
        for read in (*node.input, *inner):
            visit(read)
        done[node.output[0]] = node

    visit("y")
    nodes = [*done.values()]
    del graph.node[:]
    graph.node.extend(nodes)


def answers(session: ort.InferenceSession, rows: Any) -> Any:
    (found,) = session.run(["y"], {"x": rows})
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize(("opset", "body", "blamed"), LINES, ids=lambda value: str(value)[:60])
def test_rows_are_proven_independent_where_they_are(opset: int, body: str, blamed: str) -> None:
    """The verdict names the operator; proven bodies hold in ONNX Runtime, bit for bit."""
    graph = model(opset, body)
    verdict = analyse(graph)
    assert verdict.analysed, verdict
    assert verdict.proven == (not blamed), verdict
    if blamed:
        assert verdict.operator == ("" if blamed.endswith("-output") else blamed), verdict
        return
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(graph.SerializeToString(), options, ["CPUExecutionProvider"])
    random = np.random.default_rng(5)
    rows = random.normal(size=(3, 3, 4)).astype(np.float32)
    kept = answers(session, rows)[1].tobytes()
    for extreme in (1e5, -3.0, 0.0):
        others = np.full_like(rows, extreme)
        others[1] = rows[1]
        assert answers(session, others)[1].tobytes() == kept
    assert np.allclose(answers(session, rows[1:2])[0], answers(session, rows)[1], atol=1e-4)
