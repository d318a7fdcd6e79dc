"""ai.onnx.ml and operators on strings, as in scikit-learn's exports.

Many of them treat a tensor of rank 1 as a single row; only tensors [rows, features] are judged.
"""

from __future__ import annotations

from typing import Any

from runtime_image.verification.rows.node import Node
from runtime_image.verification.rows.rules.layout import reshaped
from runtime_image.verification.rows.rules.registry import MICROSOFT, ML, rule
from runtime_image.verification.rows.sizes import ONE, Size, product
from runtime_image.verification.rows.states import NONE, Culprit, Mixed, State, Tensor


def table(node: Node, position: int = 0) -> Tensor:
    """Return an input [rows, features]; raises Mixed for any other."""
    tensor = node.tensor(position)
    if tensor.rank != 2 or (tensor.state.has_axis and tensor.state.axis != 0):
        raise Mixed("needs a table with one row per line")
    return tensor


@rule(
    "LinearClassifier 1",
    "SVMClassifier 1",
    "TreeEnsembleClassifier 1 3",
    domain=ML,
)
def classifier(node: Node) -> list[Tensor]:
    """Return a label and scores for each row."""
    tensor = table(node)
    scores = _scores(node)
    count = tensor.size(0)
    return [Tensor(tensor.state, (count,)), Tensor(tensor.state, (count, scores))]


def _scores(node: Node) -> Size:
    """Return the number of scores: one for each class, if the attributes contain the classes."""
    if node.operator == "LinearClassifier":
        count = len(node.get("intercepts", []))
    else:
        count = len(node.get("classlabels_int64s") or node.get("classlabels_strings") or [])
    known = count > 2 and node.operator != "SVMClassifier"
    return Size.of(count) if known else node.symbols.fresh("scores", 1)


@rule(
    "LinearRegressor 1", "SVMRegressor 1", "TreeEnsembleRegressor 1 3", "TreeEnsemble 5", domain=ML
)
def regressor(node: Node) -> Tensor:
    """Return values for each row."""
    tensor = table(node)
    targets = node.get("n_targets", node.get("targets", 1))
    if node.operator == "SVMRegressor":
        targets = 1
    return Tensor(tensor.state, (tensor.size(0), Size.of(targets)))


@rule("Normalizer 1", "Scaler 1", "Imputer 1", domain=ML)
def by_feature(node: Node) -> Tensor:
    """Process each row separately, with one parameter for each feature."""
    tensor = table(node)
    return Tensor(tensor.state, tensor.dims)


@rule("Binarizer 1", "LabelEncoder 1 2 4", "CategoryMapper 1", domain=ML)
def each_element(node: Node) -> Tensor:
    """Process each element separately."""
    tensor = node.tensor(0)
    return Tensor(tensor.state, tensor.dims)


@rule("FeatureVectorizer 1", domain=ML)
def side_by_side(node: Node) -> Tensor:
    """Join tables side by side."""
    parts = [table(node, position) for position in range(len(node.inputs))]
    if len({part.state for part in parts}) > 1:
        raise Mixed("combines rows with a table that has no rows")
    total = node.symbols.fresh("features", 1)
    return Tensor(parts[0].state, (parts[0].size(0), total))


@rule("OneHotEncoder 1", domain=ML)
def one_hot(node: Node) -> Tensor:
    """Add a last axis with a place for each category."""
    tensor = node.tensor(0)
    categories = node.get("cats_int64s") or node.get("cats_strings") or []
    return Tensor(tensor.state, (*tensor.shape, Size.of(len(categories))))


@rule("ArrayFeatureExtractor 1", domain=ML)
def pick(node: Node) -> Tensor:
    """Pick places of the last axis. An index with rows may read a single line without rows."""
    data, index = node.tensor(0), node.tensor(1)
    places = product(index.sizes)
    if index.state.has_axis:
        if not data.state.is_none or any(size != ONE for size in data.sizes[:-1]):
            raise Mixed("looks up rows by other rows")
        flat = reshaped(Tensor(index.state, index.dims), (ONE, places))
        return Tensor(flat.state, flat.dims)
    if data.state.has_axis and data.state.axis == data.rank - 1:
        raise Mixed("indexes the rows' axis")
    head = data.sizes[:-1] if data.rank > 1 else (ONE,)
    return Tensor(data.state, (*head, places))


@rule("StringNormalizer 10")
def normalise_strings(node: Node) -> Tensor:
    """Process each string, unless some are dropped, which moves those behind them."""
    tensor = node.tensor(0)
    if tensor.state.is_none:
        return Tensor(NONE, (*tensor.sizes[:-1], node.symbols.fresh("strings")))
    if node.get("stopwords") or tensor.rank != 1:
        raise Mixed("drops strings, or has an input that is not a line of strings")
    return Tensor(tensor.state, tensor.dims)


@rule("Tokenizer 1", domain=MICROSOFT)
def tokens(node: Node) -> Tensor:
    """Split strings into words, padded to the longest row's; only TfIdfVectorizer may read them."""
    tensor = node.tensor(0)
    if node.flag("mark", 0) or not tensor.state.has_axis or tensor.state.axis != 0:
        raise Mixed("pads each row to the longest")
    if any(size != ONE for size in tensor.sizes[1:]) or tensor.state.factors != (ONE, ONE):
        raise Mixed("pads each row to the longest")
    culprit = Culprit(f"{MICROSOFT}.Tokenizer", node.name, "pads each row to the longest")
    state = State("padded", padding=node.get("pad_value", ""), culprit=culprit)
    return Tensor(state, (*tensor.shape, None))


@rule("TfIdfVectorizer 9", padded=True)
def count_words(node: Node) -> Tensor:
    """Count each n-gram of the pool in each row. No n-gram of the pool contains padding."""
    tensor = table(node)
    width = Size.of(1 + max(node.get("ngram_indexes", [0])))
    if tensor.state.kind == "padded" and tensor.state.padding in _pool(node):
        raise Mixed("counts the words that pad a row", tensor.state.culprit)
    state = State("rows") if tensor.state.kind == "padded" else tensor.state
    return Tensor(state, (tensor.size(0), width))


def _pool(node: Node) -> list[Any]:
    words = node.get("pool_strings", [])
    return [word.decode(errors="replace") if isinstance(word, bytes) else word for word in words]
