"""Mixing hidden in branches, loops, recurrences, sequences and functions."""

from __future__ import annotations

from typing import Final

from tests.support.row_models.case import Case

ROWS: Final = {"x": ([1, 2, 3, 4], [5, 0, 5, 1], [-1, 7, 2, 3])}
COUNT: Final = "shape = Shape (x) n = Gather (shape, zero)"
ZERO: Final = {"zero": 0}
FIRST: Final = {"first": [0]}

BRANCHES: Final = (
    Case(
        "if_one_row",
        ("If", "Equal"),
        f"""{COUNT} single = Equal (n, one)
        y = If (single) <then_branch = a () => (float[n,4] ya) {{ ya = Neg (x) }},
                         else_branch = b () => (float[n,4] yb) {{ yb = Identity (x) }}>""",
        ZERO | {"one": 1},
        shown="alone",
    ),
    Case(
        "if_large_sum",
        ("ReduceSum", "If"),
        """s = ReduceSum <keepdims = 0> (x) large = Greater (s, many)
        y = If (large) <then_branch = a () => (float[n,4] ya) { ya = Neg (x) },
                        else_branch = b () => (float[n,4] yb) { yb = Identity (x) }>""",
        {"many": 100.0},
    ),
    Case(
        "if_hides_a_sum",
        "ReduceSum",
        """y = If (yes) <then_branch = a () => (float[n,4] ya) {
                          s = ReduceSum (x, first) ya = Add (x, s) },
                      else_branch = b () => (float[n,4] yb) { yb = Identity (x) }>""",
        FIRST | {"yes": True},
    ),
    Case(
        "if_of_a_row",
        ("Gather", "If"),
        """c = Gather (b, first) d = Squeeze (c, first)
        y = If (d) <then_branch = a () => (float[n,4] ya) { ya = Neg (x) },
                    else_branch = e () => (float[n,4] yb) { yb = Identity (x) }>""",
        FIRST,
        given="float[n,4] x, bool[n] b",
        rows=ROWS | {"b": (True, False)},
    ),
    Case(
        "loop_over_rows",
        ("Loop", "Gather"),
        f"""{COUNT}
        last = Loop (n, yes, none) <body =
            b (int64 i, bool c, float[1,4] sum) => (bool go, float[1,4] more) {{
            go = Identity (c) row = Gather (x, i) more = Add (sum, row) }}>
        y = Add (x, last)""",
        ZERO | {"yes": True, "none": [[0.0] * 4]},
    ),
    Case(
        "loop_carries_a_softmax",
        ("Softmax", "Loop"),
        """y = Loop (three, yes, x) <body =
            b (int64 i, bool c, float[n,4] v) => (bool go, float[n,4] w) {
            go = Identity (c) w = Softmax <axis = 0> (v) }>""",
        {"three": 3, "yes": True},
        rows=ROWS,
    ),
    Case(
        "loop_mixes_in_its_second_turn",
        ("Loop", "ReduceSum", "Add"),
        """y, z = Loop (two, yes, x, one) <body = b (int64 i, bool c, float[n,4] v, float[1,4] u)
            => (bool go, float[n,4] w, float[1,4] t) {
            go = Identity (c) w = Add (v, u) t = ReduceSum (v, first) }>""",
        FIRST | {"two": 2, "yes": True, "one": [[1.0] * 4]},
        gives="float[n,4] y",
    ),
    Case(
        "loop_until_all_are_small",
        ("ReduceMax", "Loop"),
        """y = Loop (many, yes, x) <body =
            b (int64 i, bool c, float[n,4] v) => (bool go, float[n,4] w) {
            w = Mul (v, half) m = ReduceMax <keepdims = 0> (w) go = Greater (m, one) }>""",
        {"many": 50, "yes": True, "half": 0.5, "one": 1.0},
    ),
    Case(
        "loop_by_data",
        ("Gather", "Squeeze", "Loop"),
        """g = Gather (k, first) times = Squeeze (g, first)
        y = Loop (times, yes, x) <body =
            b (int64 i, bool c, float[n,4] v) => (bool go, float[n,4] w) {
            go = Identity (c) w = Neg (v) }>""",
        FIRST | {"yes": True},
        given="float[n,4] x, int64[n] k",
        rows=ROWS | {"k": (1, 2)},
    ),
    Case(
        "scan_over_rows",
        "Scan",
        """last, y = Scan (none, x) <num_scan_inputs = 1,
            body = b (float[4] sum, float[4] row) => (float[4] more, float[4] out) {
            more = Add (sum, row) out = Identity (more) }>""",
        {"none": [0.0] * 4},
    ),
    Case(
        "scan_backwards",
        "Scan",
        """y = Scan (x) <num_scan_inputs = 1, scan_output_directions = [1],
            body = b (float[4] row) => (float[4] out) { out = Neg (row) }>""",
    ),
    Case(
        "scan_captures_rows",
        ("ReduceMax", "Scan"),
        """sums = Scan (t) <num_scan_inputs = 1, body = b (float[4] row) => (float[1,4] out) {
            m = ReduceMax (x, first) out = Add (m, row) }>
        s = ReduceSum <keepdims = 0> (sums, first) y = Add (x, s)""",
        FIRST | {"t": [[1.0, 2.0, 3.0, 4.0]]},
    ),
)

RECURRENT: Final = tuple(
    Case(
        f"{kind.lower()}_rows_as_time",
        kind,
        f"""r = Unsqueeze (x, middle) w = ConstantOfShape <value = float[1] {{0.1}}> (ws)
        u = ConstantOfShape <value = float[1] {{0.2}}> (us)
        {kind.lower()} = {kind} <hidden_size = 2> (r, w, u) y = Squeeze ({kind.lower()}, around)""",
        {"middle": [1], "around": [1, 2], "ws": [1, gates * 2, 4], "us": [1, gates * 2, 2]},
        gives="float[n,2] y",
        rows=ROWS,
    )
    for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
)

SEQUENCES: Final = (
    Case(
        "first_of_a_sequence",
        ("SplitToSequence", "SequenceAt"),
        """s = SplitToSequence <axis = 0> (x, one) f = SequenceAt (s, zero) y = Sub (x, f)""",
        ZERO | {"one": 1},
    ),
    Case(
        "sequence_of_rows_joined",
        ("SequenceConstruct", "ConcatFromSequence"),
        """s = SequenceConstruct (x, x) c = ConcatFromSequence <axis = 0> (s)
        y = Reshape (c, wide)""",
        {"wide": [-1, 8]},
        gives="float[n,8] y",
    ),
    Case(
        "sequence_inserted",
        ("SequenceEmpty", "SequenceInsert", "SequenceAt", "SequenceConstruct", "ReduceMax"),
        """e = SequenceEmpty () m = ReduceMax (x, first) s = SequenceInsert (e, m)
        f = SequenceAt (s, zero) y = Sub (x, f)""",
        ZERO | FIRST,
    ),
    Case(
        "optional_sum",
        ("Optional", "OptionalGetElement", "ReduceMax"),
        "o = Optional (x) g = OptionalGetElement (o) m = ReduceMax (g, first) y = Sub (x, m)",
        FIRST,
    ),
)

FUNCTIONS: Final = (
    Case(
        "function_hides_a_softmax",
        "Softmax",
        "y = house.Share (x)",
        functions="""<domain: "house", opset_import: ["" : 21]>
        Share (v) => (w) { w = Softmax <axis = 0> (v) }""",
        rows=ROWS,
    ),
    Case(
        "function_is_told_the_axis",
        "Softmax",
        "y = house.Share <along = 0> (x)",
        functions="""<domain: "house", opset_import: ["" : 21]>
        Share <along: int> (v) => (w) { w = Softmax <axis : int = @along> (v) }""",
        rows=ROWS,
    ),
    Case(
        "function_with_a_default",
        "Softmax",
        "y = house.Share (x)",
        functions="""<domain: "house", opset_import: ["" : 21]>
        Share <along: int = 0> (v) => (w) { w = Softmax <axis : int = @along> (v) }""",
        rows=ROWS,
    ),
    Case(
        "function_of_a_function_with_a_default",
        "CumSum",
        "y = house.Outer (x)",
        functions="""<domain: "house", opset_import: ["" : 21, "house" : 1]>
        Outer (v) => (w) { w = house.Inner (v) }
        <domain: "house", opset_import: ["" : 21]>
        Inner <along: int = 0> (v) => (w) {
            a = Constant <value_int : int = @along> () w = CumSum (v, a) }""",
    ),
    Case(
        "function_of_a_function",
        "ReduceMax",
        "y = house.Outer (x)",
        functions="""<domain: "house", opset_import: ["" : 21, "house" : 1]>
        Outer (v) => (w) { w = house.Inner (v) }
        <domain: "house", opset_import: ["" : 21]>
        Inner (v) => (w) { f = Constant <value = int64[1] {0}> ()
            m = ReduceMax (v, f) w = Sub (v, m) }""",
    ),
    Case(
        "function_with_a_branch",
        "CumSum",
        "y = house.Sum (x)",
        functions="""<domain: "house", opset_import: ["" : 21]>
        Sum (v) => (w) { yes = Constant <value = bool {1}> () zero = Constant <value = int64 {0}> ()
            w = If (yes) <then_branch = a () => (float[n,4] ya) { ya = CumSum (v, zero) },
                          else_branch = b () => (float[n,4] yb) { yb = Identity (v) }> }""",
    ),
    Case(
        "function_of_the_older_softmax",
        "Softmax",
        "y = house.Share (x)",
        functions="""<domain: "house", opset_import: ["" : 11]>
        Share (v) => (w) { w = Softmax <axis = 0> (v) }""",
        opset=11,
        rows=ROWS,
    ),
)

CASES: Final = (*BRANCHES, *RECURRENT, *SEQUENCES, *FUNCTIONS)
