"""Small models with independent rows: for each rule the valid case closest to the invalid one."""

from __future__ import annotations

from typing import Final

from tests.support.row_models.case import Case
from tests.support.row_models.indexing import NUMBER, NUMBERS

FLAT: Final = "float[n] x"
IMAGE: Final = "float[n,3,4,4] x"

PLAIN: Final = tuple(
    Case(name, "", body, more, opset=opset)
    for name, body, more, opset in (
        ("softmax_11_columns", "y = Softmax (x)", {}, 11),
        ("softmax_13_columns", "y = Softmax (x)", {}, 13),
        ("log_softmax_11_columns", "y = LogSoftmax <axis = 1> (x)", {}, 11),
        ("hardmax_13_from_the_end", "y = Hardmax <axis = -1> (x)", {}, 13),
        ("mean_17", "s = ReduceMean <axes = [1]> (x) y = Sub (x, s)", {}, 17),
        ("sum_13", "s = ReduceSum (x, at) y = Sub (x, s)", {"at": [-1]}, 13),
        ("noop", "y = ReduceMax <noop_with_empty_axes = 1> (x)", {}, 20),
        ("largest", "a = ArgMax <axis = 1> (x) f = Cast <to = 1> (a) y = Add (x, f)", {}, 21),
        ("sums", "y = CumSum (x, at)", {"at": 1}, 14),
        ("best", "b, at = TopK (x, k) y = Sub (x, b)", {"k": [1]}, 21),
        ("best_10", "b, at = TopK (x, k) y = Sub (x, b)", {"k": [1]}, 10),
        ("normalised", "y = LayerNormalization (x, one)", {"one": [2.0]}, 21),
        ("lp_normalised", "y = LpNormalization (x)", {}, 21),
        (
            "padded",
            "p = Pad (x, by) y = Slice (p, a, b, c)",
            {"by": [0, 1, 0, 1], "a": [1], "b": [5], "c": [1]},
            21,
        ),
        ("padded_10", "y = Pad <pads = [0, 1, 0, -1]> (x)", {}, 10),
        (
            "turned_columns",
            "y = Slice (x, back, end, at, back)",
            {"back": [-1], "end": [-1000], "at": [1]},
            21,
        ),
        (
            "halves",
            "a, b = Split <axis = 1, num_outputs = 2> (x) y = Concat <axis = 1> (b, a)",
            {},
            21,
        ),
        (
            "tiled",
            "t = Tile (x, by) y = Slice (t, a, b, c)",
            {"by": [1, 2], "a": [1], "b": [5], "c": [1]},
            21,
        ),
        ("turned_twice", "t = Transpose (x) s = Softmax <axis = 0> (t) y = Transpose (s)", {}, 21),
        ("gathered_columns", "y = Gather <axis = 1> (x, at)", {"at": [3, 2, -1, 0]}, 21),
        ("product", "y = MatMul (x, w)", {"w": [[1.0] * 4] * 4}, 21),
        (
            "product_by_letters",
            'y = Einsum <equation = "nj,kj->nk"> (x, w)',
            {"w": [[1.0] * 4] * 4},
            21,
        ),
        (
            "own_product",
            's = Einsum <equation = "ni,nj->nij"> (x, x) y = ReduceSum <keepdims = 0> (s, at)',
            {"at": [2]},
            21,
        ),
        ("gemm", "y = Gemm <transB = 1> (x, w, x)", {"w": [[1.0] * 4] * 4}, 21),
        (
            "merged_and_split",
            "a = Reshape (x, flat) r = Relu (a) y = Reshape (r, back)",
            {"flat": [-1], "back": [-1, 4]},
            21,
        ),
        (
            "by_its_shape",
            """s = Shape (x) a = Reshape (x, cube) t = Transpose <perm = [0, 2, 1]> (a)
            y = Reshape (t, s)""",
            {"cube": [-1, 2, 2]},
            21,
        ),
        ("expanded", "s = Shape (x) e = Expand (w, s) y = Add (x, e)", {"w": [[3.0]]}, 21),
        ("own_number", f"{NUMBER} y = Gather (x, number)", NUMBERS, 21),
        ("clipped", "m = ReduceMin (x, at) n = Neg (m) y = Min (x, n)", {"at": [1]}, 21),
        ("dropout", "y = Dropout (x)", {}, 13),
        (
            "normalised_batch",
            "y = BatchNormalization (x, one, zero, zero, one)",
            {"one": [1.0] * 4, "zero": [0.5] * 4},
            15,
        ),
        (
            "decided",
            """y = If (yes) <then_branch = a () => (float[n,4] ya) { ya = Neg (x) },
            else_branch = b () => (float[n,4] yb) { yb = CumSum (x, zero) }>""",
            {"yes": True, "zero": 0},
            21,
        ),
        (
            "looped",
            """y = Loop (three, yes, x) <body =
            b (int64 i, bool c, float[n,4] v) => (bool go, float[n,4] w) {
            go = Identity (c) w = Softmax (v) }>""",
            {"three": 3, "yes": True},
            21,
        ),
    )
)

CASES: Final = (
    *PLAIN,
    Case(
        "mean_variance_by_axes",
        "",
        "y = MeanVarianceNormalization <axes = [2, 3]> (x)",
        given=IMAGE,
        gives="float[n,3,4,4] y",
    ),
    Case(
        "pooled",
        "",
        "y = MaxPool <kernel_shape = [2, 2]> (x)",
        given=IMAGE,
        gives="float[n,3,3,3] y",
    ),
    Case(
        "resized",
        "",
        'y = Resize <mode = "linear"> (x, , by)',
        {"by": [1.0, 1.0, 2.0, 2.0]},
        given=IMAGE,
        gives="float[n,3,8,8] y",
    ),
    Case("squeezed", "", "y = Squeeze (x, at)", {"at": [1]}, given="float[n,1,4] x"),
    Case("unsqueezed", "", "y = Unsqueeze (x, at)", {"at": [1]}, given=FLAT, gives="float[n,1] y"),
    Case(
        "gathered_by_own_place",
        "",
        "y = GatherElements <axis = 1> (x, at)",
        given="float[n,4] x, int64[n,1] at",
        gives="float[n,1] y",
        rows={"at": ([0], [-1], [3])},
    ),
    Case(
        "gathered_by_own_pair",
        "",
        f"""{NUMBER} row = Unsqueeze (number, last) where = Concat <axis = -1> (row, at)
        y = GatherND (x, where)""",
        NUMBERS | {"last": [1]},
        given="float[n,4] x, int64[n,1] at",
        gives="float[n] y",
        rows={"at": ([0], [-1], [3])},
    ),
    Case(
        "looked_up",
        "",
        "y = Gather (table, at)",
        {"table": [[1.0, 2.0], [3.0, 4.0]]},
        given="int64[n] at",
        gives="float[n,2] y",
        rows={"at": (0, 1, -1)},
    ),
    Case(
        "batched_product",
        "",
        "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (x, t)",
        given="float[n,3,2] x",
        gives="float[n,3,3] y",
    ),
    Case(
        "classes",
        "",
        "y = OneHot (x, three, is)",
        {"three": 3, "is": [0.0, 1.0]},
        given="int64[n] x",
        gives="float[n,3] y",
        rows={"x": (0, 1, 2)},
    ),
    Case(
        "strings_kept",
        "",
        "y = Identity (x)",
        given="string[n] x",
        gives="string[n] y",
    ),
    Case(
        "scaled_by_function",
        "",
        "y = house.Share (x)",
        functions="""<domain: "house", opset_import: ["" : 21]>
        Share (v) => (w) { w = Softmax <axis = 1> (v) }""",
    ),
)
