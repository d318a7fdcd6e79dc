"""Row count or row number used as data, counted rows, and random values."""

from __future__ import annotations

from typing import Final

from tests.support.row_models.case import Case

COUNT: Final = "shape = Shape (x) n = Gather (shape, zero)"
ZERO: Final = {"zero": 0}
SPARSE: Final = {"x": ([1, 2, 3, 4], [0, 0, 7, 6])}
SAME: Final = {"x": ([1, 2, 3, 4], [4, 3, 2, 1], [5, 5, 5, 5])}

AS_DATA: Final = tuple(
    Case(name, operators, f"{COUNT} {body}", ZERO | more, shown="alone")
    for name, operators, body, more in (
        ("divided_by_count", ("Cast", "Div"), "f = Cast <to = 1> (n) y = Div (x, f)", {}),
        (
            "number_as_data",
            ("Range", "Cast", "Unsqueeze", "Add"),
            """number = Range (zero, n, one) f = Cast <to = 1> (number)
            u = Unsqueeze (f, last) y = Add (x, u)""",
            {"one": 1, "last": [1]},
        ),
        ("size_as_data", ("Cast", "Div"), "s = Size (x) f = Cast <to = 1> (s) y = Div (x, f)", {}),
        (
            "ones_counted",
            ("ConstantOfShape", "ReduceSum", "Mul"),
            """ones = ConstantOfShape <value = float[1] {1}> (shape)
            s = ReduceSum (ones, first) y = Mul (x, s)""",
            {"first": [0]},
        ),
        (
            "window_of_count",
            ("HannWindow", "Range", "Unsqueeze", "Add"),
            "w = HannWindow (n) u = Unsqueeze (w, last) y = Add (x, u)",
            {"last": [1]},
        ),
        (
            "count_compared",
            ("Greater", "Where", "If"),
            """many = Greater (n, two) other = Neg (x) y = Where (many, other, x)""",
            {"two": 2},
        ),
        (
            "count_cast_to_int32",
            ("Cast", "Greater", "Where"),
            """large = Mul (n, many) s = Cast <to = 6> (large) z = Cast <to = 6> (zero)
            c = Greater (s, z) other = Neg (x) y = Where (c, other, x)""",
            {"many": 2**30},
        ),
        (
            "count_overflows",
            ("Greater", "Where", "Mul"),
            """large = Mul (n, many) c = Greater (large, zero) other = Neg (x)
            y = Where (c, other, x)""",
            {"many": 2**62},
        ),
        (
            "columns_by_count",
            ("Slice", "ReduceSum", "Sub"),
            """to = Unsqueeze (n, first) s = Slice (x, first, to, last)
            sum = ReduceSum <keepdims = 1> (s, last) y = Sub (x, sum)""",
            {"first": [0], "last": [1]},
        ),
        (
            "column_by_count",
            ("Gather", "Sub", "Mod"),
            """at = Mod (n, four) c = Gather <axis = 1> (x, at) u = Unsqueeze (c, last)
            y = Sub (x, u)""",
            {"four": 4, "last": [1]},
        ),
        (
            "top_by_count",
            ("TopK", "ReduceSum", "Sub", "Min"),
            """four = Min (n, most) k = Unsqueeze (four, first) b, at = TopK (x, k)
            sum = ReduceSum <keepdims = 1> (b, last) y = Sub (x, sum)""",
            {"first": [0], "last": [1], "most": 4},
        ),
        (
            "padded_by_count",
            ("Pad", "ReduceMean", "Sub", "Concat"),
            """one = Unsqueeze (n, first) by = Concat <axis = 0> (no, one)
            p = Pad (x, by) m = ReduceMean (p, last) y = Sub (x, m)""",
            {"first": [0], "last": [1], "no": [0, 0, 0]},
        ),
    )
)

CASES: Final = (
    *AS_DATA,
    Case(
        "count_added",
        "Add",
        f"{COUNT} y = Add (x, n)",
        ZERO,
        given="int64[n,4] x",
        gives="int64[n,4] y",
        shown="alone",
    ),
    Case("eye", "EyeLike", "e = EyeLike (x) y = Add (x, e)", shown="alone"),
    Case("triangle", "Trilu", "y = Trilu <upper = 0> (x)", shown="alone", rows=SAME),
    Case("unique", "Unique", "y = Unique <axis = 0> (x)", gives="float[m,4] y", rows=SAME),
    Case(
        "unique_places",
        "Unique",
        "u, f, back, c = Unique (x) y = Identity (back)",
        given="float[n] x",
        gives="int64[n] y",
    ),
    Case("non_zero", "NonZero", "y = NonZero (x)", gives="int64[2,m] y", rows=SPARSE),
    Case(
        "non_zero_values",
        "NonZero",
        "z = NonZero (x) t = Transpose (z) y = GatherND (x, t)",
        gives="float[m] y",
        rows=SPARSE,
    ),
    Case(
        "compress_of_all",
        "Compress",
        "c = Constant <value = bool[3] {1, 0, 1}> () y = Compress (x, c)",
        gives="float[m] y",
        rows=SPARSE,
    ),
    Case(
        "pooled_places",
        "MaxPool",
        "p, y = MaxPool <kernel_shape = [2]> (x)",
        given="float[n,1,4] x",
        gives="int64[n,1,3] y",
        shown="alone",
    ),
    Case(
        "pooled_places_of_images",
        "MaxPool",
        "p, y = MaxPool <kernel_shape = [2, 2]> (x)",
        given="float[n,1,3,3] x",
        gives="int64[n,1,2,2] y",
        shown="alone",
    ),
    Case(
        "suppressed",
        "NonMaxSuppression",
        "y = NonMaxSuppression (boxes, scores, k)",
        {"k": [1]},
        given="float[n,2,4] boxes, float[n,1,2] scores",
        gives="int64[m,3] y",
        rows={
            "boxes": ([[0, 0, 1, 1], [2, 2, 3, 3]], [[0, 0, 1, 1], [5, 5, 6, 6]]),
            "scores": ([[0.5, 0.9]], [[0.9, 0.1]]),
        },
        shown="alone",
    ),
    Case(
        "rows_lost",
        "",
        "y = ReduceSum <keepdims = 0> (t, first)",
        {"first": [0], "t": [[1.0, 2.0], [3.0, 4.0]]},
        gives="float[2] y",
        rows=SAME,
    ),
    Case(
        "rows_behind",
        ("", "Transpose"),
        "y = Transpose (x)",
        gives="float[4,n] y",
        rows=SAME,
    ),
    Case(
        "rows_per_column",
        ("", "Reshape"),
        "y = Reshape (x, flat)",
        {"flat": [-1]},
        gives="float[m] y",
        rows=SAME,
    ),
    Case("random_normal", "RandomNormalLike", "y = RandomNormalLike (x)", shown="again"),
    Case("random_uniform", "RandomUniformLike", "y = RandomUniformLike (x)", shown="again"),
    Case(
        "random_of_shape",
        ("RandomNormal", "Add", "Mul"),
        "r = RandomNormal <shape = [1, 4]> () y = Add (x, r)",
        shown="again",
    ),
    Case(
        "bernoulli",
        "Bernoulli",
        "m = Mul (x, none) p = Add (m, half) y = Bernoulli (p)",
        {"none": 0.0, "half": 0.5},
        rows=SAME,
        shown="again",
    ),
    Case(
        "multinomial",
        "Multinomial",
        "y = Multinomial <sample_size = 99> (x)",
        gives="int32[n,99] y",
        rows={"x": ([1, 1, 1, 1], [1, 1, 1, 1])},
        shown="again",
    ),
    Case(
        "dropout_in_training",
        "Dropout",
        "y = Dropout (x, half, yes)",
        {"yes": True, "half": 0.5},
        rows=SAME,
        shown="again",
    ),
)
