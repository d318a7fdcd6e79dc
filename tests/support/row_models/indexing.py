"""Rows read or written by index."""

from __future__ import annotations

from typing import Final

from tests.support.row_models.case import Case

COUNT: Final = "shape = Shape (x) n = Gather (shape, zero)"
NUMBER: Final = f"{COUNT} number = Range (zero, n, one)"
NUMBERS: Final = {"zero": 0, "one": 1}
BY_NUMBER: Final = ("Range", "Cast", "Add", "Sub", "Mod", "Gather", "GatherND", "Max", "Mul")
"""Operators that may be named if the row number is used in a way that proves nothing."""
PLACES: Final = "float[n,4] x, int64[n,1] at"
ROWS: Final = {"x": ([1, 2, 3, 4], [9, 8, 7, 6])}
TRIED: Final = ROWS | {"at": ([0], [1])}
BACKWARDS: Final = ROWS | {"at": ([-1], [0])}
VALUES: Final = f"{PLACES}, float[n,4] v"

NUMBERED: Final = tuple(
    Case(name, BY_NUMBER, f"{NUMBER} {body}", NUMBERS | more, gives=gives, rows=ROWS)
    for name, body, more, gives in (
        ("row_before", "to = Sub (number, one) y = Gather (x, to)", {}, "float[n,4] y"),
        (
            "row_after",
            "next = Add (number, one) to = Mod (next, n) y = Gather (x, to)",
            {},
            "float[n,4] y",
        ),
        (
            "row_of_the_larger_number",
            "to = Max (number, zero1) y = Gather (x, to)",
            {"zero1": 1},
            "float[n,4] y",
        ),
        (
            "every_second_of_the_flat",
            "flat = Reshape (x, all) to = Mul (number, two) y = Gather (flat, to)",
            {"all": [-1], "two": 2},
            "float[n] y",
        ),
        (
            "beyond_the_row_of_the_flat",
            """flat = Reshape (x, all) start = Mul (number, four) over = Add (start, five)
            size = Size (x) to = Mod (over, size) y = Gather (flat, to)""",
            {"all": [-1], "four": 4, "five": 5},
            "float[n] y",
        ),
        (
            "backwards",
            "last = Sub (n, one) to = Sub (last, number) y = Gather (x, to)",
            {},
            "float[n,4] y",
        ),
    )
)

CASES: Final = (
    *NUMBERED,
    Case("gather_last_row", "Gather", "g = Gather (x, last) y = Sub (x, g)", {"last": [-1]}),
    Case(
        "gather_by_data",
        "Gather",
        "to = Squeeze (at, last) y = Gather (x, to)",
        {"last": [1]},
        given=PLACES,
        rows=TRIED,
    ),
    Case(
        "last_word_at_minus_one",
        ("Add", "Gather"),
        f"""{NUMBER} to = Squeeze (at, last) all = Reshape (x, flat)
        start = Mul (number, four) where = Add (start, to) y = Gather (all, where)""",
        NUMBERS | {"last": [1], "flat": [-1], "four": 4},
        given=PLACES,
        gives="float[n] y",
        rows=BACKWARDS,
    ),
    Case(
        "pairs_of_sums_of_places",
        ("Add", "Gather", "GatherND", "Concat"),
        f"""{NUMBER} row = Unsqueeze (number, last) before = Add (row, at)
        where = Concat <axis = -1> (before, at) y = GatherND (x, where)""",
        NUMBERS | {"last": [1]},
        given=PLACES,
        gives="float[n] y",
        rows=BACKWARDS,
    ),
    Case(
        "gather_elements_of_rows",
        "GatherElements",
        "y = GatherElements <axis = 0> (x, at)",
        given=PLACES,
        gives="float[n,1] y",
        rows=TRIED,
    ),
    Case("gather_nd_of_rows", "GatherND", "y = GatherND (x, at)", given=PLACES, rows=TRIED),
    Case(
        "gather_nd_of_one_row",
        "GatherND",
        "g = GatherND (x, at) y = Sub (x, g)",
        {"at": [[0]]},
    ),
    Case(
        "scatter_elements_of_rows",
        "ScatterElements",
        'y = ScatterElements <axis = 0, reduction = "add"> (x, at, v)',
        given=f"{PLACES}, float[n,1] v",
        rows=TRIED | {"v": ([5], [6])},
        opset=18,
    ),
    Case(
        "scatter_elements_default_axis",
        "ScatterElements",
        "y = ScatterElements (x, at, v)",
        given=f"{PLACES}, float[n,1] v",
        rows=TRIED | {"v": ([5], [6])},
        opset=11,
    ),
    Case(
        "scatter_10_default_axis",
        "Scatter",
        "y = Scatter (x, at, v)",
        given=f"{PLACES}, float[n,1] v",
        rows=TRIED | {"v": ([5], [6])},
        opset=10,
    ),
    Case(
        "scatter_nd_by_data",
        "ScatterND",
        "y = ScatterND (x, at, v)",
        given=VALUES,
        rows=TRIED | {"v": ([5] * 4, [6] * 4)},
    ),
    Case(
        "scatter_nd_into_one_row",
        "ScatterND",
        "y = ScatterND (x, at, v)",
        {"at": [[0]], "v": [[7.0] * 4]},
        shown="alone",
    ),
    Case(
        "gather_one_word_of_flat_text",
        "Gather",
        "all = Reshape (x, flat) y = Gather (all, places)",
        {"flat": [-1], "places": [0]},
        gives="float[m] y",
    ),
    Case(
        "unpooled",
        "MaxUnpool",
        "y = MaxUnpool <kernel_shape = [2], strides = [2]> (x, at)",
        given="float[n,1,2] x, int64[n,1,2] at",
        gives="float[n,1,4] y",
        rows={"x": ([[1, 2]], [[3, 4]]), "at": ([[0, 2]], [[1, 3]])},
    ),
    Case(
        "region_of_the_first_image",
        "RoiAlign",
        """r = RoiAlign <output_height = 3, output_width = 3> (x, box, zero) y = Sub (x, r)""",
        {"box": [[0.0, 0.0, 2.0, 2.0]], "zero": [0]},
        given="float[n,1,3,3] x",
        gives="float[n,1,3,3] y",
        rows={"x": ([[[1, 2, 3]] * 3], [[[5, 0, 1]] * 3])},
    ),
    Case(
        "pooled_region_of_the_first_image",
        "MaxRoiPool",
        "r = MaxRoiPool <pooled_shape = [3, 3]> (x, box) y = Sub (x, r)",
        {"box": [[0.0, 0.0, 0.0, 2.0, 2.0]]},
        given="float[n,1,3,3] x",
        gives="float[n,1,3,3] y",
        rows={"x": ([[[1, 2, 3]] * 3], [[[5, 0, 1]] * 3])},
    ),
    Case(
        "cropped_first_image",
        "com.microsoft.CropAndResize",
        """of = Cast <to = 6> (zero) to = Cast <to = 6> (size)
        r = com.microsoft.CropAndResize (x, box, of, to) y = Sub (x, r)""",
        {"box": [[0.0, 0.0, 1.0, 1.0]], "zero": [0], "size": [3, 3]},
        given="float[n,1,3,3] x",
        gives="float[n,1,3,3] y",
        rows={"x": ([[[1, 2, 3]] * 3], [[[5, 0, 1]] * 3])},
    ),
)
