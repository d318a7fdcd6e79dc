"""Scikit-learn pipelines of the row models, fitted to made-up data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common import data_types
from sklearn import (
    cluster,
    compose,
    decomposition,
    ensemble,
    feature_extraction,
    gaussian_process,
    impute,
    linear_model,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)
from sklearn.calibration import CalibratedClassifierCV

SENTENCES = (
    "the red fox runs home",
    "a blue whale swims far",
    "red and blue are colours",
    "the whale is far from home",
    "a fox and a crow",
    "swims or runs",
)
COLOURS = ("red", "green", "blue")
OPSET = {"": 20, "ai.onnx.ml": 3}


def made_up() -> tuple[Any, Any]:
    """40 rows of 4 columns and their class of 3."""
    rows = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
    return rows, (rows[:, 0] > 0).astype(np.int64) + (rows[:, 1] > 0.3)


def scaled(last: Any) -> Any:
    return pipeline.make_pipeline(preprocessing.StandardScaler(), last)


def classifiers() -> dict[str, Any]:
    few: dict[str, Any] = {"n_estimators": 3, "random_state": 0}
    logistic = linear_model.LogisticRegression()
    return {
        "logistic": scaled(logistic),
        "forest": ensemble.RandomForestClassifier(max_depth=3, **few),
        "gradient_boosting": ensemble.GradientBoostingClassifier(max_depth=2, **few),
        "svc": svm.SVC(probability=True, random_state=0),
        "pca": pipeline.make_pipeline(decomposition.PCA(2), logistic),
        "knn": neighbors.KNeighborsClassifier(3),
        "naive_bayes": naive_bayes.GaussianNB(),
        "perceptron": neural_network.MLPClassifier((6,), max_iter=30, random_state=0),
        "ada_boost": ensemble.AdaBoostClassifier(**few),
        "bagging": ensemble.BaggingClassifier(tree.DecisionTreeClassifier(max_depth=2), **few),
        "calibrated": CalibratedClassifierCV(linear_model.RidgeClassifier(), cv=2),
        "stacking": ensemble.StackingClassifier(
            [("tree", tree.DecisionTreeClassifier(max_depth=2)), ("line", logistic)], cv=2
        ),
        "polynomial": pipeline.make_pipeline(preprocessing.PolynomialFeatures(2), logistic),
        "quantiles": pipeline.make_pipeline(
            preprocessing.QuantileTransformer(n_quantiles=5), logistic
        ),
    }


def regressors() -> dict[str, Any]:
    return {
        "linear": pipeline.make_pipeline(
            impute.SimpleImputer(), preprocessing.MinMaxScaler(), linear_model.Ridge()
        ),
        "tree": tree.DecisionTreeRegressor(max_depth=3),
        "svr": scaled(svm.SVR()),
        "knn_regressor": neighbors.KNeighborsRegressor(3),
        "gaussian_process": gaussian_process.GaussianProcessRegressor(),
        "kmeans": cluster.KMeans(3, n_init=1, random_state=0),
        "isolation": ensemble.IsolationForest(n_estimators=3, max_samples=12, random_state=0),
        "normalizer": pipeline.make_pipeline(
            preprocessing.Normalizer(), decomposition.TruncatedSVD(2)
        ),
    }


def columns() -> Any:
    """Three numbers and a colour: a pipeline as tables of mixed columns have it."""
    rows, labels = made_up()
    colours = np.random.default_rng(6).choice(COLOURS, size=(40, 1))
    mixed = compose.ColumnTransformer(
        [
            ("numbers", preprocessing.StandardScaler(), [0, 1, 2]),
            ("colour", preprocessing.OneHotEncoder(handle_unknown="ignore"), [3]),
        ]
    )
    model = pipeline.make_pipeline(mixed, linear_model.LogisticRegression())
    table = np.empty((40, 4), dtype=object)
    table[:, :3], table[:, 3:] = rows[:, :3], colours
    model.fit(table, labels)
    wanted = [(f"n{at}", data_types.FloatTensorType([None, 1])) for at in range(3)]
    wanted.append(("colour", data_types.StringTensorType([None, 1])))
    return convert(model, wanted)


def words(vectorizer: Any, last: Any) -> Any:
    model = pipeline.make_pipeline(vectorizer, last)
    model.fit(SENTENCES, [0, 1, 0, 1, 0, 1])
    everywhere = {id(vectorizer): {"locale": "C"}}
    return convert(model, [("text", data_types.StringTensorType([None]))], everywhere)


def convert(model: Any, wanted: list[Any], options: dict[int, Any] | None = None) -> Any:
    final = model.steps[-1][1] if isinstance(model, pipeline.Pipeline) else model
    arrays = {id(final): {"zipmap": False}} if hasattr(final, "predict_proba") else {}
    return to_onnx(
        model, initial_types=wanted, target_opset=OPSET, options={**(options or {}), **arrays}
    )


def models() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and conversion of every pipeline."""
    rows, labels = made_up()
    wanted = [("x", data_types.FloatTensorType([None, 4]))]
    for name, model in classifiers().items():
        yield name, lambda model=model: convert(model.fit(rows, labels), wanted)
    for name, model in regressors().items():
        yield name, lambda model=model: convert(model.fit(rows, labels + rows[:, 2]), wanted)
    text = feature_extraction.text
    yield "mixed_columns", columns
    yield "tf_idf", lambda: words(text.TfidfVectorizer(), linear_model.LogisticRegression())
    stop = text.TfidfVectorizer(stop_words=["a", "the"], ngram_range=(1, 2))
    yield "tf_idf_stop_words", lambda: words(stop, linear_model.LogisticRegression())
    yield "word_counts", lambda: words(text.CountVectorizer(), naive_bayes.MultinomialNB())
