"""Rows combined by shape: reshaped, broadcast or contracted."""

from __future__ import annotations

from typing import Final

from tests.support.row_models.case import Case

ROWS: Final = {"x": ([1, 2, 3, 4], [5, 0, 5, 1], [-1, 7, 2, 3])}
FLAT: Final = "float[n] x"
FLAT_OUT: Final = "float[n] y"

RESHAPED: Final = (
    Case(
        "reshape_halves",
        ("Reshape", "Softmax"),
        "shape = Shape (x) h = Reshape (x, halves) s = Softmax (h) y = Reshape (s, shape)",
        {"halves": [2, -1]},
        rows=ROWS,
    ),
    Case(
        "reshape_flat",
        ("Reshape", "Softmax"),
        "shape = Shape (x) f = Reshape (x, flat) s = Softmax (f) y = Reshape (s, shape)",
        {"flat": [-1]},
        rows=ROWS,
    ),
    Case(
        "reshape_turned",
        "Reshape",
        "shape = Shape (x) t = Transpose (x) y = Reshape (t, shape)",
        rows=ROWS,
    ),
    Case(
        "reshape_pairs_of_rows",
        ("Reshape", "Softmax"),
        """shape = Shape (x) e = Concat <axis = 1> (x, x) p = Reshape (e, pairs)
        s = Softmax <axis = 0> (p) t = Reshape (s, back) y = Slice (t, from, to, last)""",
        {"pairs": [2, -1], "back": [-1, 8], "from": [0], "to": [4], "last": [1]},
        rows=ROWS,
    ),
    Case(
        "reshape_keeps_zeros",
        "Reshape",
        "t = Transpose (x) y = Reshape (t, to)",
        {"to": [-1, 4]},
        rows=ROWS,
    ),
    Case(
        "reshape_5_turned",
        "Reshape",
        "shape = Shape (x) t = Transpose (x) y = Reshape (t, shape)",
        rows=ROWS,
        opset=5 + 4,
    ),
    Case(
        "flatten_all",
        ("Flatten", "Softmax"),
        "shape = Shape (x) f = Flatten <axis = 0> (x) s = Softmax (f) y = Reshape (s, shape)",
        rows=ROWS,
    ),
    Case(
        "flatten_past_the_rows",
        ("Flatten", "Softmax"),
        """shape = Shape (x) t = Transpose <perm = [1, 0, 2]> (x) f = Flatten <axis = 1> (t)
        s = Softmax (f) y = Reshape (s, shape)""",
        given="float[n,3,2] x",
        gives="float[n,3,2] y",
    ),
    Case(
        "squeeze_without_axes",
        "Squeeze",
        "y = Squeeze (x)",
        given="float[n,1,4] x",
        gives="float[n,4] y",
        shown="alone",
    ),
    Case(
        "squeeze_11_without_axes",
        "Squeeze",
        "y = Squeeze (x)",
        given="float[n,1,4] x",
        gives="float[n,4] y",
        opset=11,
        shown="alone",
    ),
    Case(
        "heads_of_other_rows",
        ("Reshape", "Softmax"),
        """t = Transpose <perm = [1, 0, 2]> (x) m = Reshape (t, merged)
        s = Softmax <axis = 1> (m) y = Reshape (s, split)""",
        {"merged": [1, -1, 2], "split": [-1, 3, 2]},
        given="float[n,3,2] x",
        gives="float[n,3,2] y",
    ),
    Case(
        "windows_across_rows",
        ("Reshape", "Softmax"),
        "w = Reshape (x, windows) s = Softmax <axis = 1> (w) y = Reshape (s, back)",
        {"windows": [4, -1], "back": [-1, 4]},
        rows=ROWS,
    ),
    Case(
        "depth_to_space_of_rows",
        ("DepthToSpace", "Reshape"),
        """t = Transpose (x) i = Reshape (t, image) d = DepthToSpace <blocksize = 2> (i)
        y = Reshape (d, back)""",
        {"image": [1, 4, 1, -1], "back": [-1, 4]},
        rows=ROWS,
    ),
)

BROADCAST: Final = tuple(
    Case(
        f"{kind.lower()}_pairs_of_rows",
        kind,
        f"""u = Unsqueeze (x, last) p = {kind} {operands} {rest}
        y = ReduceSum <keepdims = 0> (q, last)""",
        {"last": [1]},
        given=FLAT,
        gives=FLAT_OUT,
    )
    for kind, operands, rest in (
        ("Sub", "(x, u)", "q = Identity (p)"),
        ("Max", "(u, x)", "q = Identity (p)"),
        ("Pow", "(x, u)", "q = Identity (p)"),
        ("Equal", "(x, u)", "q = Cast <to = 1> (p)"),
    )
)

CONTRACTED: Final = (
    Case(
        "matmul_gram",
        "MatMul",
        "t = Transpose (x) g = MatMul (t, x) y = MatMul (x, g)",
        rows=ROWS,
    ),
    Case(
        "matmul_of_vectors",
        "MatMul",
        "d = MatMul (x, x) y = Mul (x, d)",
        given=FLAT,
        gives=FLAT_OUT,
    ),
    Case(
        "matmul_similarity",
        "MatMul",
        "t = Transpose (x) g = MatMul (x, t) y = ReduceMin <keepdims = 0> (g, last)",
        {"last": [1]},
        gives=FLAT_OUT,
        rows=ROWS,
    ),
    Case(
        "matmul_vector_by_rows",
        "MatMul",
        "c = ReduceSum <keepdims = 0> (x, last) s = MatMul (c, x) y = Add (x, s)",
        {"last": [1]},
        rows=ROWS,
    ),
    Case(
        "gemm_turned",
        "Gemm",
        "g = Gemm <transA = 1> (x, x) y = MatMul (x, g)",
        rows=ROWS,
    ),
    Case(
        "gemm_similarity",
        "Gemm",
        "g = Gemm <transB = 1> (x, x) y = ReduceMin <keepdims = 0> (g, last)",
        {"last": [1]},
        gives=FLAT_OUT,
        rows=ROWS,
    ),
    Case("einsum_sum", "Einsum", 's = Einsum <equation = "nj->j"> (x) y = Add (x, s)', rows=ROWS),
    Case(
        "einsum_two_letters",
        "Einsum",
        's = Einsum <equation = "ij,kj->ik"> (x, x) y = ReduceMin <keepdims = 0> (s, last)',
        {"last": [1]},
        gives=FLAT_OUT,
        rows=ROWS,
    ),
    Case(
        "einsum_rows_contracted",
        "Einsum",
        's = Einsum <equation = "ni,nj->ij"> (x, x) y = MatMul (x, s)',
        rows=ROWS,
    ),
    Case(
        "einsum_implicit",
        "Einsum",
        's = Einsum <equation = "nj,nk"> (x, x) y = MatMul (x, s)',
        rows=ROWS,
    ),
    Case(
        "einsum_ellipsis",
        "Einsum",
        's = Einsum <equation = "...j,kj->...k"> (x, x) y = ReduceMin <keepdims = 0> (s, last)',
        {"last": [1]},
        gives=FLAT_OUT,
        rows=ROWS,
    ),
    Case(
        "matmul_integer_gram",
        "MatMulInteger",
        """t = Transpose (x) g = MatMulInteger (t, x) f = Cast <to = 1> (g)
        h = Cast <to = 1> (x) y = MatMul (h, f)""",
        given="uint8[n,4] x",
    ),
    Case(
        "convolved_by_rows",
        "Conv",
        """t = Transpose (x) i = Unsqueeze (t, first) w = Unsqueeze (x, last) c = Conv (i, w)
        s = Squeeze (c, first) y = ReduceMin <keepdims = 0> (s, first)""",
        {"first": [0], "last": [2]},
        gives=FLAT_OUT,
        rows=ROWS,
    ),
    Case(
        "other_axis_of_the_same_size",
        ("Reshape", "Softmax"),
        """sa = Shape (a) sb = Shape <start = 1> (b) to = Concat <axis = 0> (all, sb)
        w = Reshape (a, to) s = Softmax (w) y = Reshape (s, sa)""",
        {"all": [-1]},
        given="float[n,s] a, float[n,t] b",
        gives="float[n,s] y",
        rows={"a": ([1, 2], [5, 0]), "b": ([1, 2, 3, 4], [5, 0, 5, 0])},
    ),
)

CASES: Final = (*RESHAPED, *BROADCAST, *CONTRACTED)
