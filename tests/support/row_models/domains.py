"""Strings, classical ML models, ONNX Runtime's own operators and quantisation."""

from __future__ import annotations

from typing import Final

from tests.support.row_models.case import Case

TEXT: Final = "string[n] x"
FLAT: Final = "float[n] x"
ROWS: Final = {"x": ([1, 2, 3, 4], [5, 0, 5, 1], [-1, 7, 2, 3])}
TOKENS: Final = (
    'com.microsoft.Tokenizer <mark = 0, mincharnum = 1, pad_value = "#", separators = [" "]> (x)'
)
ONE_MORE: Final = "u = Unsqueeze (x, last)"

STRINGS: Final = (
    Case("split_text", "StringSplit", "y, m = StringSplit (x)", given=TEXT, gives="string[n,m] y"),
    Case(
        "stop_words",
        "StringNormalizer",
        'y = StringNormalizer <case_change_action = "LOWER", stopwords = ["a"], locale = "C"> (x)',
        given=TEXT,
        gives="string[m] y",
    ),
    Case(
        "tokens_padded",
        ("com.microsoft.Tokenizer", ""),
        f"y = {TOKENS}",
        given=TEXT,
        gives="string[n,m] y",
    ),
    Case(
        "tokens_padded_with_a_word",
        ("com.microsoft.Tokenizer", "TfIdfVectorizer"),
        f"""t = {TOKENS}
        y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1,
            max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0, 1],
            pool_strings = ["a", "#"]> (t)""",
        given=TEXT,
        gives="float[n,2] y",
    ),
    Case(
        "tokens_read_twice",
        ("com.microsoft.Tokenizer", "Shape", "Cast", "TfIdfVectorizer"),
        f"""t = {TOKENS}
        y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1,
            max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0, 1],
            pool_strings = ["a", "b"]> (t)
        s = Shape <start = 1> (t) w = Cast <to = 1> (s) z = Add (y, w)""",
        given=TEXT,
        gives="float[n,2] z",
    ),
    Case(
        "counts_of_all_words",
        "TfIdfVectorizer",
        """c = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1,
            max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0, 1],
            pool_int64s = [1, 2]> (x)
        i = Unsqueeze (x, last) f = Cast <to = 1> (i) y = Add (f, c)""",
        {"last": [1]},
        given="int64[n] x",
        gives="float[n,2] y",
    ),
    Case(
        "first_string_or_own",
        ("Gather", "Where", "Equal"),
        "f = Gather (x, first) e = Equal (x, empty) y = Where (e, f, x)",
        {"first": [0], "empty": ""},
        given=TEXT,
        gives="string[n] y",
    ),
)

CLASSICAL: Final = tuple(
    Case(name, f"ai.onnx.ml.{kind}", f"{before} {body}", more, given=FLAT, gives=gives)
    for name, kind, before, body, more, gives in (
        (
            "normalizer_of_a_vector",
            "Normalizer",
            "",
            'y = ai.onnx.ml.Normalizer <norm = "L1"> (x)',
            {},
            "float[n] y",
        ),
        (
            "feature_of_a_vector",
            "ArrayFeatureExtractor",
            ONE_MORE,
            "f = ai.onnx.ml.ArrayFeatureExtractor (x, zero) y = Sub (u, f)",
            {"zero": [0], "last": [1]},
            "float[n,1] y",
        ),
        (
            "linear_of_a_vector",
            "LinearClassifier",
            ONE_MORE,
            """l, s = ai.onnx.ml.LinearClassifier <coefficients = [1.0, 1.0, 1.0],
            intercepts = [-3.0], classlabels_ints = [0, 1]> (x)
            f = Cast <to = 1> (l) y = Add (u, f)""",
            {"last": [1]},
            "float[n,1] y",
        ),
        (
            "features_of_a_vector",
            "FeatureVectorizer",
            ONE_MORE,
            """f = ai.onnx.ml.FeatureVectorizer <inputdimensions = [3]> (x)
            m = ReduceMax <keepdims = 0> (f) y = Add (u, m)""",
            {"last": [1]},
            "float[n,1] y",
        ),
    )
)

MICROSOFT: Final = (
    Case(
        "distances",
        "com.microsoft.CDist",
        """d = com.microsoft.CDist <metric = "euclidean"> (x, x)
        y = ReduceMax <keepdims = 0> (d, last)""",
        {"last": [1]},
        gives="float[n] y",
    ),
    Case(
        "fused_gram",
        "com.microsoft.FusedMatMul",
        "g = com.microsoft.FusedMatMul <transA = 1> (x, x) y = MatMul (x, g)",
        rows=ROWS,
    ),
    Case(
        "fused_with_batches_behind",
        "com.microsoft.FusedMatMul",
        """g = com.microsoft.FusedMatMul <transBatchA = 1, transBatchB = 1, transB = 1> (x, x)
        s = ReduceMin <keepdims = 0> (g, ends) y = ReduceMax <keepdims = 0> (x, last)
        z = Add (y, s)""",
        {"ends": [0, 2], "last": [1, 2]},
        given="float[n,3,4] x",
        gives="float[n] z",
    ),
    Case(
        "fused_gemm_turned",
        "com.microsoft.FusedGemm",
        'g = com.microsoft.FusedGemm <transA = 1, activation = "Relu"> (x, x) y = MatMul (x, g)',
        rows=ROWS,
    ),
    Case(
        "triangle_of_microsoft", "com.microsoft.Trilu", "y = com.microsoft.Trilu (x)", shown="alone"
    ),
    Case(
        "attention_over_rows",
        "com.microsoft.Attention",
        """i = Unsqueeze (x, first) w = ConstantOfShape <value = float[1] {0.1}> (ws)
        b = ConstantOfShape (bs) a = com.microsoft.Attention <num_heads = 2> (i, w, b)
        y = Squeeze (a, first)""",
        {"first": [0], "ws": [4, 12], "bs": [12]},
        rows=ROWS,
    ),
    Case(
        "heads_over_rows",
        "com.microsoft.MultiHeadAttention",
        """i = Unsqueeze (x, first) a = com.microsoft.MultiHeadAttention <num_heads = 2> (i, i, i)
        y = Squeeze (a, first)""",
        {"first": [0]},
        rows=ROWS,
    ),
    Case(
        "attention_23_over_rows",
        "Attention",
        """i = Unsqueeze (x, around) a = Attention (i, i, i) y = Squeeze (a, around)""",
        {"around": [0, 1]},
        opset=23,
        rows=ROWS,
    ),
    Case(
        "skip_normalised_over_rows",
        ("com.microsoft.SkipLayerNormalization", "Transpose"),
        """t = Transpose (x) i = Unsqueeze (t, first) j = Unsqueeze (x, first)
        s = com.microsoft.SkipLayerNormalization (i, i, g) y = Squeeze (s, first)""",
        {"first": [0], "g": [1.0] * 3},
        gives="float[4,n] y",
    ),
)

QUANTISED: Final = (
    Case(
        "quantised_by_the_batch",
        "DynamicQuantizeLinear",
        "q, s, z = DynamicQuantizeLinear (x) y = DequantizeLinear (q, s, z)",
        rows=ROWS,
    ),
    Case(
        "quantised_matmul_by_the_batch",
        "com.microsoft.DynamicQuantizeMatMul",
        """q = Cast <to = 3> (w) y = com.microsoft.DynamicQuantizeMatMul (x, q, s)""",
        {"w": [[1, 2, 3, 4]] * 4, "s": 0.5},
        rows=ROWS,
    ),
    Case(
        "quantised_by_the_largest",
        ("ReduceMax", "QuantizeLinear"),
        """a = Abs (x) m = ReduceMax <keepdims = 0> (a) s = Add (m, one)
        q = QuantizeLinear (x, s) y = DequantizeLinear (q, s)""",
        {"one": 1.0},
        rows=ROWS,
    ),
    Case(
        "clipped_at_the_smallest",
        ("ReduceMin", "Clip"),
        "m = ReduceMin <keepdims = 0> (x) s = Neg (m) y = Clip (x, , s)",
        rows=ROWS,
    ),
)

CASES: Final = (*STRINGS, *CLASSICAL, *MICROSOFT, *QUANTISED)
