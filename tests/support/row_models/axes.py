"""Operators that work along an axis, applied to the row axis."""

from __future__ import annotations

from typing import Final

from tests.support.row_models.case import Case

FLAT: Final = "float[n] x"
FLAT_OUT: Final = "float[n] y"
PAIRS_OUT: Final = "float[n,8] y"
SHORT: Final = {"x": ([1, 2, 3, 4], [5, 0, 5, 0], [-1, 7, 2, 2], [0, 0, 0, 0])}
"""Rows whose largest and smallest values are at different positions."""
BACK: Final = {"back": [-1, 4]}
WIDE: Final = {"wide": [-1, 8]}

SOFTMAX: Final = tuple(
    Case(f"{kind.lower()}_{opset}_{name}", kind, f"y = {kind} {axis} (x)", opset=opset, rows=SHORT)
    for kind in ("Softmax", "LogSoftmax", "Hardmax")
    for opset, name, axis in (
        (11, "flattened", "<axis = 0>"),
        (13, "rows", "<axis = 0>"),
        (13, "rows_from_the_end", "<axis = -2>"),
    )
)

ATTRIBUTE_SUMS: Final = tuple(
    Case(f"{kind.lower()}_13", kind, f"s = {kind} {axes} (x) y = Add (x, s)", opset=13)
    for kind, axes in (
        ("ReduceMean", "<axes = [0]>"),
        ("ReduceMax", ""),
        ("ReduceL1", "<axes = [-2]>"),
        ("ReduceProd", "<axes = [0, 1]>"),
    )
)

INPUT_SUMS: Final = tuple(
    Case(
        f"{kind.lower()}_18_{name}",
        kind,
        f"s = {kind} {given} y = Add (x, s)",
        {"rows": [0]},
        opset=18,
    )
    for kind, name, given in (
        ("ReduceSum", "rows", "(x, rows)"),
        ("ReduceMean", "all", "(x)"),
        ("ReduceMin", "none_means_all", "<noop_with_empty_axes = 0> (x)"),
        ("ReduceL2", "rows", "(x, rows)"),
        ("ReduceLogSumExp", "rows", "(x, rows)"),
        ("ReduceSumSquare", "rows", "(x, rows)"),
        ("ReduceLogSum", "all", "(x)"),
    )
)

LARGEST_PLACES: Final = tuple(
    Case(
        f"{kind.lower()}_{name}",
        kind,
        f"at = {kind} {axis} (x) f = Cast <to = 1> (at) y = Add (x, f)",
        rows=SHORT,
    )
    for kind, name, axis in (
        ("ArgMax", "default_axis", ""),
        ("ArgMin", "default_axis", ""),
        ("ArgMax", "from_the_end", "<axis = -2>"),
    )
)

ONLY_AXIS: Final = tuple(
    Case(
        f"{kind.lower()}_of_only_axis",
        kind,
        body,
        {"k": [1]},
        given=FLAT,
        gives=FLAT_OUT,
        rows={"x": (1, 0, 3, 2)},
    )
    for kind, body in (
        ("Softmax", "y = Softmax (x)"),
        ("LogSoftmax", "y = LogSoftmax (x)"),
        ("LpNormalization", "y = LpNormalization (x)"),
        ("TopK", "b, at = TopK (x, k) y = Sub (x, b)"),
    )
)

NORMALISED: Final = (
    Case(
        "mean_variance_default_axes",
        "MeanVarianceNormalization",
        "y = MeanVarianceNormalization (x)",
        given="float[n,3,2,2] x",
        gives="float[n,3,2,2] y",
    ),
    Case(
        "batch_normalization_in_training",
        "BatchNormalization",
        "y, mean, spread = BatchNormalization <training_mode = 1> (x, one, zero, zero, one)",
        {"one": [1.0] * 4, "zero": [0.0] * 4},
        opset=15,
    ),
    Case(
        "layer_normalization_of_all",
        "LayerNormalization",
        "y = LayerNormalization <axis = 0> (x, one)",
        {"one": [2.0]},
        rows={"x": ([1, 2, 3, 4], [5, 0, 5, 0])},
    ),
    Case("lp_normalization_of_rows", "LpNormalization", "y = LpNormalization <axis = 0> (x)"),
    Case(
        "instance_normalization_of_rows",
        ("InstanceNormalization", "Reshape"),
        """t = Transpose (x) c = Unsqueeze (t, first) i = InstanceNormalization (c, one, one)
        s = Squeeze (i, first) y = Transpose (s)""",
        {"first": [0], "one": [1.0] * 4},
    ),
    Case(
        "lrn_across_rows",
        "LRN",
        "c = Unsqueeze (x, around) l = LRN <size = 3, alpha = 1.0> (c) y = Squeeze (l, around)",
        {"around": [0, 3]},
        rows=SHORT,
    ),
)

MOVED: Final = (
    Case("pad_shifts_rows", "Pad", "y = Pad (x, by)", {"by": [1, 0, -1, 0]}),
    Case("pad_shifts_rows_2", "Pad", "y = Pad <pads = [1, 0, -1, 0]> (x)", opset=10),
    Case(
        "pad_by_axes",
        "Pad",
        "y = Pad (x, by, zero, at)",
        {"by": [-1, 1], "zero": 0.0, "at": [-2]},
    ),
    Case(
        "slice_reverses_rows",
        "Slice",
        "y = Slice (x, back, end, first, back)",
        {"back": [-1], "end": [-1000], "first": [0]},
    ),
    Case("slice_drops_a_row_9", "Slice", "y = Slice <starts = [1], ends = [99]> (x)", opset=9),
    Case("slice_default_axes", "Slice", "y = Slice (x, from, to)", {"from": [0], "to": [2]}),
    Case("split_rows", "Split", "y, z = Split <axis = 0, num_outputs = 2> (x)"),
    Case(
        "tile_rows",
        ("Tile", "Reshape"),
        "t = Tile (x, times) y = Reshape (t, wide)",
        WIDE | {"times": [2, 1]},
        gives=PAIRS_OUT,
    ),
    Case(
        "concat_rows",
        "Concat",
        "t = Concat <axis = 0> (x, x) y = Reshape (t, wide)",
        WIDE,
        gives=PAIRS_OUT,
    ),
    Case(
        "concat_shifts_rows",
        "Concat",
        "t = Concat <axis = -2> (none, x) y = Slice (t, from, to, from)",
        {"none": [[0.0] * 4], "from": [0], "to": [-1]},
    ),
    # ONNX Runtime skips the part without indices and leaves its columns uninitialised: memory of
    # other requests.
    Case(
        "cast_that_writes_nothing",
        "Cast",
        """t = Transpose (x) turned = Neg (t) most = ReduceMax (turned, outside)
        nothing = Mul (most, none) u = Transpose (nothing) v = Add (x, u)
        large = Greater (v, none) y = Cast <to = 1, saturate = 2> (large)""",
        {"outside": [0], "none": 0.0},
        rows=SHORT,
    ),
    Case(
        "part_without_places",
        "Concat",
        """t = Transpose <perm = [1, 0, 2]> (x) pairs = Concat <axis = 2> (t, t)
        most = ReduceMax (pairs, outside) nothing = Mul (most, none)
        u = Transpose <perm = [1, 0, 2]> (nothing) v = Add (x, u)
        empty = Slice (v, from, to, one) y = Concat <axis = 2> (v, empty)""",
        {"from": [1000], "to": [2000], "one": [1], "outside": [0, 2], "none": 0.0},
        given="float[n,h,4] x",
        gives="float[n,h,8] y",
        rows={"x": ([[1, 2, 3, 4]] * 3, [[5, 6, 7, 8]] * 3)},
    ),
    Case(
        "reverse_sequence_of_rows",
        "ReverseSequence",
        """shape = Shape <end = 1> (x) lengths = Expand (shape, four)
        y = ReverseSequence <time_axis = 0, batch_axis = 1> (x, lengths)""",
        {"four": [4]},
    ),
    Case(
        "resize_grows_rows",
        "Resize",
        'r = Resize <mode = "linear"> (x, , by) y = Reshape (r, wide)',
        WIDE | {"by": [2.0, 1.0]},
        gives=PAIRS_OUT,
        rows=SHORT,
    ),
    Case(
        "resize_by_axes",
        "Resize",
        'r = Resize <mode = "linear", axes = [0]> (x, , by) y = Reshape (r, wide)',
        WIDE | {"by": [2.0]},
        gives=PAIRS_OUT,
        rows=SHORT,
    ),
    Case(
        "upsample_9",
        "Upsample",
        'r = Upsample <mode = "linear"> (x, by) y = Reshape (r, wide)',
        WIDE | {"by": [2.0, 1.0]},
        gives=PAIRS_OUT,
        opset=9,
        rows=SHORT,
    ),
    # The row axis keeps its size but is interpolated all the same: 0 * NaN of the adjacent row.
    *(
        Case(
            f"resize_{mode}_beside_{len(by)}_axes_{opset}",
            kind,
            f'r = {kind} <mode = "{mode}"> (x, {"," if opset > 10 else ""} by) y = Identity (r)',
            {"by": by},
            given=given,
            gives="float[] y",
            opset=opset,
        )
        for kind, mode, given, by, opset in (
            ("Resize", "linear", "float[n,4] x", [1.0, 2.0], 19),
            ("Resize", "cubic", "float[n,4] x", [1.0, 2.0], 19),
            ("Resize", "linear", "float[n,3,4] x", [1.0, 1.0, 2.0], 19),
            ("Resize", "linear", "float[n,3,4] x", [1.0, 1.0, 2.0], 10),
            ("Upsample", "linear", "float[n,4] x", [1.0, 2.0], 9),
        )
    ),
    Case(
        "one_hot_before_rows",
        ("OneHot", ""),
        "y = OneHot <axis = 0> (x, three, is)",
        {"three": 3, "is": [0.0, 1.0]},
        given="int64[n] x",
        gives="float[3,n] y",
        rows={"x": (0, 1, 2)},
    ),
)

FILTERED: Final = (
    Case(
        "dft_of_rows",
        "DFT",
        "y = DFT <axis = 0> (x)",
        given="float[n,4,1] x",
        gives="float[n,4,2] y",
        opset=17,
    ),
    Case(
        "dft_20_default_axis",
        "DFT",
        "y = DFT (x)",
        given="float[n,1] x",
        gives="float[n,2] y",
    ),
    Case(
        "pooled_rows",
        "AveragePool",
        """i = Unsqueeze (x, before)
        p = AveragePool <kernel_shape = [3, 1], pads = [1, 0, 1, 0]> (i)
        y = Squeeze (p, before)""",
        {"before": [0, 1]},
        rows=SHORT,
    ),
    Case(
        "convolved_rows",
        "Conv",
        """t = Transpose (x) i = Unsqueeze (t, first)
        c = Conv <group = 4, pads = [1, 1]> (i, w) s = Squeeze (c, first) y = Transpose (s)""",
        {"first": [0], "w": [[[1.0, 2.0, 3.0]]] * 4},
        rows=SHORT,
    ),
    Case(
        "globally_pooled_rows",
        "GlobalMaxPool",
        """t = Transpose (x) i = Unsqueeze (t, first) g = GlobalMaxPool (i)
        s = Squeeze (g, first) u = Transpose (s) y = Sub (x, u)""",
        {"first": [0]},
    ),
    Case(
        "sampled_rows",
        "GridSample",
        """i = Unsqueeze (x, before) s = GridSample (i, grid) c = ReduceSum (s)
        y = Add (x, c)""",
        {"before": [0, 1], "grid": [[[[0.0, 0.0], [0.5, 0.5]]]]},
        rows=SHORT,
    ),
    Case(
        "power_pooled_rows",
        "LpPool",
        """i = Unsqueeze (x, before) p = LpPool <kernel_shape = [3, 1], pads = [1, 0, 1, 0]> (i)
        y = Squeeze (p, before)""",
        {"before": [0, 1]},
        rows=SHORT,
    ),
)

CASES: Final = (
    *SOFTMAX,
    *ATTRIBUTE_SUMS,
    *INPUT_SUMS,
    *LARGEST_PLACES,
    *ONLY_AXIS,
    *NORMALISED,
    *MOVED,
    *FILTERED,
    Case(
        "softmax_of_the_turned",
        "Softmax",
        "t = Transpose (x) s = Softmax (t) y = Transpose (s)",
        rows=SHORT,
    ),
    Case("cum_sum", "CumSum", "y = CumSum (x, at)", {"at": 0}, opset=14),
    Case("cum_sum_backwards", "CumSum", "y = CumSum <reverse = 1> (x, at)", {"at": -2}),
    Case(
        "noop_two",
        "ReduceMax",
        "m = ReduceMax <noop_with_empty_axes = 2> (x) y = Sub (x, m)",
        opset=20,
    ),
    Case(
        "keepdims_two",
        ("ReduceMax", "Softmax"),
        "m = ReduceMax <axes = [1], keepdims = 2> (x) y = Softmax <axis = -2> (m)",
        given="float[n,1,4] x",
        gives="float[] y",
        opset=13,
    ),
    Case(
        "keepdims_two_of_places",
        ("ArgMax", "CumSum"),
        "m = ArgMax <axis = 1, keepdims = 2> (x) y = CumSum (m, at)",
        {"at": -2},
        given="float[n,3,4] x",
        gives="int64[] y",
        rows={"x": ([[1, 2, 3, 4], [9, 0, 9, 0], [0] * 4], [[0] * 4, [0] * 4, [9, 8, 7, 6]])},
    ),
    Case("top_k", "TopK", "b, at = TopK <axis = 0> (x, k) y = Sub (x, b)", {"k": [1]}),
    Case("top_k_9", "TopK", "b, at = TopK <axis = 0, k = 1> (x) y = Sub (x, b)", opset=9),
)
