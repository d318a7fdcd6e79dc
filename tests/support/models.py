"""Small real ONNX models, each written into a folder as `<builder>.onnx`.

Unless a builder says otherwise, its model takes `x` FP32 [n, 4] and gives `y` FP32 [n, 4] with
independent rows, and the checker of the `onnx` package accepts it. The graphs are in ONNX's text
form; source: onnx/docs/Syntax.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from runtime_image.contract.compiled import NODE

Weights = npt.NDArray[np.float32]

OPSET: Final = 21
IR_VERSION: Final = 10
MIB: Final = 1024 * 1024
WIDTH: Final = 4
"""Columns of the usual input."""
SLOW_WIDTH: Final = 512
ONE_FILE_MIB_MAX: Final = 2000
"""A protobuf message is limited to 2 GiB; larger models need external data."""

ROW: Final = f"float[n,{WIDTH}]"
"""ONNX's text form of the usual input and output."""

ONNX_TYPES: Final[dict[str, str]] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float",
    "FP64": "double",
    "BYTES": "string",
}
"""Open Inference Protocol type names in ONNX's text form."""

ADD_ONE: Final = """
    one = Constant <value = float {1}> ()
    y = Add(x, one)
"""

# The index depends on x (0, or 1 for a row with NaN). A constant lookup would be folded at load
# time, and the table with it.
LOOK_UP: Final = """
    columns = Constant <value = int64[1] {1}> ()
    most = ReduceMax <keepdims = 0> (x, columns)
    unknown = IsNaN(most)
    place = Cast <to = 7> (unknown)
    found = Gather(table, place)
    y = Add(x, found)
"""

SPOIL: Final = """
    zero = Constant <value = float {0}> ()
    columns = Constant <value = int64[1] {1}> ()
    least = ReduceMin <keepdims = 0> (x, columns)
    negative = Less(least, zero)
    place = Cast <to = 7> (negative)
    found = Gather(table, place)
    y = Add(x, found)
"""


def add_one(folder: Path) -> Path:
    """y = x + 1."""
    return written(folder, "add_one", f"({ROW} x) => ({ROW} y)", ADD_ONE)


def softmax_over_batch(folder: Path) -> Path:
    """y = softmax of x over the rows: each column sums to 1, so rows are NOT independent."""
    return written(
        folder, "softmax_over_batch", f"({ROW} x) => ({ROW} y)", "y = Softmax <axis = 0> (x)"
    )


def fixed_batch(folder: Path) -> Path:
    """y = x + 1 on FP32 [1, 4] only."""
    shape = f"float[1,{WIDTH}]"
    return written(folder, "fixed_batch", f"({shape} x) => ({shape} y)", ADD_ONE)


def two_inputs(folder: Path) -> Path:
    """`a` and `b` FP32 [n, 4] give `sum` = a + b and `difference` = a - b, FP32 [n, 4]."""
    return written(
        folder,
        "two_inputs",
        f"({ROW} a, {ROW} b) => ({ROW} sum, {ROW} difference)",
        "sum = Add(a, b)\n difference = Sub(a, b)",
    )


def strings(folder: Path) -> Path:
    """`x` BYTES [n] is returned as `y` BYTES [n]."""
    return written(folder, "strings", "(string[n] x) => (string[n] y)", "y = Identity(x)")


def every_dtype(folder: Path, dtype: str) -> Path:
    """`x` of `dtype` (an Open Inference Protocol name) [n, 4] is returned as `y`.

    The file is `every_dtype_<dtype>.onnx`.
    """
    if dtype not in ONNX_TYPES:
        raise ValueError(f"dtype: expected one of {', '.join(ONNX_TYPES)}, got {dtype!r}")
    value = f"{ONNX_TYPES[dtype]}[n,{WIDTH}]"
    name = f"every_dtype_{dtype.lower()}"
    return written(folder, name, f"({value} x) => ({value} y)", "y = Identity(x)")


def slow(folder: Path, loops: int = 20_000) -> Path:
    """y = x, after `loops` iterations of a Loop that multiplies by a 512 x 512 identity matrix.

    A row takes about 10 us of CPU per iteration, with the default 0.2 s in total.
    `RunOptions.terminate` takes effect between two iterations.
    """
    turns = f"loops = Constant <value = int64 {{{loops}}}> ()"
    nodes = turns + _turning("loops") + "y = Identity(same)"
    return written(folder, "slow", f"({ROW} x) => ({ROW} y)", nodes, _identities(WIDTH))


def affine(
    folder: Path, scale: float = 1, offset: float = 0, *, width: int = WIDTH, loops: int = 0
) -> Path:
    """y = scale * x + offset on FP32 [n, width], after `loops` iterations like those of `slow`.

    Exact if x holds whole numbers and the results stay below 2**24.
    """
    row = f"float[n,{width}]"
    if not loops:
        return written(folder, "affine", f"({row} x) => ({row} y)", _affine("x", scale, offset))
    turns = f"loops = Constant <value = int64 {{{loops}}}> ()"
    return written(
        folder,
        "affine",
        f"({row} x) => ({row} y)",
        turns + _turning("loops") + _affine("same", scale, offset),
        _identities(width),
    )


def affine_by_input(folder: Path, scale: float = 1, offset: float = 0) -> Path:
    """As `affine`; the largest value in column 0 is the number of iterations for the whole
    batch."""
    return written(
        folder,
        "affine_by_input",
        f"({ROW} x) => ({ROW} y)",
        """
        zero = Constant <value = int64[1] {0}> ()
        first = Gather <axis = 1> (x, zero)
        most = ReduceMax <keepdims = 0> (first)
        loops = Cast <to = 7> (most)
        """
        + _turning("loops", "nothing")
        + "shifted = Add(x, same)"
        + _affine("shifted", scale, offset),
        {**_identities(WIDTH), "nothing": np.zeros((1, WIDTH), np.float32)},
    )


def big(folder: Path, mib: int) -> Path:
    """y = x + 1, where the 1 is stored in a table of `mib` MiB inside the model file."""
    if not 1 <= mib <= ONE_FILE_MIB_MAX:
        raise ValueError(f"mib: expected 1 to {ONE_FILE_MIB_MAX}, got {mib}")
    return written(folder, "big", f"({ROW} x) => ({ROW} y)", LOOK_UP, {"table": _table(mib)})


def external(folder: Path, mib: int) -> Path:
    """As `big`, with the table in `external.bin` next to the model."""
    model = _model("external", f"({ROW} x) => ({ROW} y)", LOOK_UP, {"table": _table(mib)})
    path = folder / "external.onnx"
    onnx.save(
        model,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location="external.bin",
    )
    return path


def fails_on_negative(folder: Path) -> Path:
    """y = x + 1; a run with a negative value in any row raises ONNX Runtime's InvalidArgument.

    A negative row looks up an index beyond its table, which is detected only at run time.
    """
    weights = {"table": np.ones((1, WIDTH), np.float32)}
    return written(folder, "fails_on_negative", f"({ROW} x) => ({ROW} y)", SPOIL, weights)


def unsupported_opset(folder: Path) -> Path:
    """As `add_one` with an opset version that no runtime knows; loading must fail."""
    model = _model("unsupported_opset", f"({ROW} x) => ({ROW} y)", ADD_ONE, {})
    model.opset_import[0].version = 9999
    return _save(folder, model)


def unsupported_type(folder: Path) -> Path:
    """`y` is a sequence of tensors: the model loads and runs, but no signature can express its
    type."""
    return written(
        folder,
        "unsupported_type",
        f"({ROW} x) => (seq({ROW}) y)",
        "y = SequenceConstruct(x, x)",
    )


def corrupt(folder: Path) -> Path:
    """A truncated model file."""
    whole = _model("corrupt", f"({ROW} x) => ({ROW} y)", ADD_ONE, {}).SerializeToString()
    path = folder / "corrupt.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    return path


def _turning(loops: str, value: str = "x") -> str:
    """Return text-form nodes that set `same` to `value` after `loops` iterations."""
    return f"""
        go_on = Constant <value = bool {{1}}> ()
        wide = MatMul({value}, widen)
        turned = Loop ({loops}, go_on, wide) <body = turn (
            int64 turn, bool go, float[n,{SLOW_WIDTH}] state
        ) => (bool still, float[n,{SLOW_WIDTH}] next) {{
            still = Identity(go)
            next = MatMul(state, identity)
        }}>
        same = MatMul(turned, narrow)
        """


def _identities(width: int) -> dict[str, Weights]:
    return {
        "widen": np.eye(width, SLOW_WIDTH, dtype=np.float32),
        "identity": np.eye(SLOW_WIDTH, dtype=np.float32),
        "narrow": np.eye(SLOW_WIDTH, width, dtype=np.float32),
    }


def _affine(value: str, scale: float, offset: float) -> str:
    """Return text-form nodes for scale * value + offset."""
    return f"""
        scale = Constant <value = float {{{float(scale)}}}> ()
        offset = Constant <value = float {{{float(offset)}}}> ()
        scaled = Mul({value}, scale)
        y = Add(scaled, offset)
        """


def _table(mib: int) -> Weights:
    """Return FP32 [rows, 4] of `mib` MiB: ones in row 0, then incompressible noise."""
    rows = mib * MIB // (WIDTH * np.dtype(np.float32).itemsize)
    table = np.random.default_rng(0).random((rows, WIDTH), dtype=np.float32)
    table[0] = 1
    return table


def written(
    folder: Path,
    name: str,
    values: str,
    nodes: str,
    weights: dict[str, Weights] | None = None,
) -> Path:
    """Build, check and save a model. `values`: the graph's inputs and outputs in ONNX's text
    form."""
    model = _model(name, values, nodes, weights or {})
    onnx.checker.check_model(model, full_check=True)
    return _save(folder, model)


def _model(name: str, values: str, nodes: str, weights: dict[str, Weights]) -> onnx.ModelProto:
    head = f'<ir_version: {IR_VERSION}, opset_import: ["" : {OPSET}]>'
    model = onnx.parser.parse_model(f"{head} {name} {values} {{ {nodes} }}")
    model.graph.initializer.extend(
        numpy_helper.from_array(array, weight) for weight, array in weights.items()
    )
    return model


def _save(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / f"{model.graph.name}.onnx"
    onnx.save(model, path)
    return path


def compiled_node(name: str = "engine", domain: str = "com.microsoft") -> onnx.NodeProto:
    """Return a node whose compiled part is not embedded but named."""
    return onnx.helper.make_node(
        NODE.decode(),
        ["x"],
        ["y"],
        name=name,
        domain=domain,
        embed_mode=0,
        ep_cache_context="../../engine.plan",
        source="TensorrtExecutionProvider",
    )


def with_compiled_part(folder: Path) -> Path:
    """A model that another one's compiler has written: the whole graph is one compiled node."""
    model = onnx.load(add_one(folder))
    del model.graph.node[:]
    model.graph.node.append(compiled_node())
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    path = folder / "with_compiled_part.onnx"
    path.write_bytes(model.SerializeToString())
    return path
