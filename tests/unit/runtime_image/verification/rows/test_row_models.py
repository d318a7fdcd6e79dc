"""The proof of row independence on real models, and on models that mix rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import onnx
import pytest

from runtime_image.verification.rows.analysis import analyse
from tests.support.row_models import apart, evidence, honest
from tests.support.row_models.case import Case
from tests.support.row_models.honest import Honest
from tests.support.row_models.table import MIXING

MODELS = honest.manifest()
INDEPENDENT = tuple(model for model in MODELS if model.independent)
DEPENDENT = tuple(model for model in MODELS if not model.independent)
BYTES_MAX = 3_000_000
MODELS_MIN = 40


def named(one: Honest | Case) -> str:
    return one.name


@pytest.fixture(scope="module")
def proven(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """Counts of models by exporter, printed at the end."""
    counts: Counter[str] = Counter()
    yield counts
    plugins = request.config.pluginmanager
    each = ", ".join(f"{exporter} {count}" for exporter, count in sorted(counts.items()))
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        plugins.getplugin("terminalreporter").write_line(
            f"\n{counts.total()} of {len(INDEPENDENT)} models with independent rows proven: {each}"
        )


def test_the_folder_is_what_its_manifest_says() -> None:
    """Every file has a line in the manifest, and the folder stays within its size limit."""
    there = {path.stem: path.stat().st_size for path in honest.FOLDER.glob("*.onnx")}
    assert there == {model.name: model.bytes for model in MODELS}
    assert sum(there.values()) <= BYTES_MAX
    assert len({model.name.split("_torchscript")[0] for model in INDEPENDENT}) >= MODELS_MIN


@pytest.mark.parametrize("model", INDEPENDENT, ids=named)
def test_a_model_with_independent_rows_is_proven(model: Honest, proven: Counter[str]) -> None:
    """Every independent model is proven, or the manifest names the operator at which the analysis
    stops."""
    verdict = analyse(model.model())
    if model.unjudged:
        assert not verdict.proven
        return
    assert verdict.analysed, verdict
    assert verdict.proven, f"{verdict.operator}: {verdict.reason}"
    proven[model.exporter] += 1


@pytest.mark.parametrize("model", INDEPENDENT, ids=named)
def test_a_row_of_an_independent_model_ignores_its_neighbours(model: Honest) -> None:
    """A row's answer is the same bit for bit next to extreme values, at several positions."""
    assert honest.changes(model) == []


@pytest.mark.parametrize("model", DEPENDENT, ids=named)
def test_an_exported_model_that_mixes_rows_is_refused(model: Honest) -> None:
    """A mixing model is refused, naming the operator that a run shows to mix."""
    verdict = analyse(model.model())
    assert verdict.analysed, verdict
    assert not verdict.proven
    assert verdict.operator in {"DynamicQuantizeLinear", "Add", "Gather"}, verdict
    assert honest.changes(model) != []


@pytest.mark.parametrize("case", MIXING, ids=named)
def test_a_model_that_mixes_rows_is_refused_by_its_operator(case: Case) -> None:
    """The reason names an operator that mixes rows, or one that first uses its output."""
    verdict = analyse(case.model())
    assert verdict.analysed, verdict
    assert not verdict.proven
    assert verdict.operator in case.blamed, verdict.reason
    assert verdict.operator in verdict.reason


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MIXING, ids=named)
def test_a_model_that_mixes_rows_does_so_when_it_runs(case: Case) -> None:
    """ONNX Runtime shows the mixing of each case at run time."""
    assert evidence.mixing(case), "no run shows it"


@pytest.mark.parametrize("case", apart.CASES, ids=named)
def test_a_small_model_with_independent_rows_is_proven(case: Case) -> None:
    """Each model is proven, and no run refutes it."""
    verdict = analyse(case.model())
    assert verdict.proven, verdict
    assert not evidence.mixing(case)


def test_axes_of_one_name_are_equal_only_on_a_condition() -> None:
    """The size of `b` decides how `a` is cut: rows mix if the sizes differ, as callers may send
    them."""
    case = next(case for case in MIXING if case.name == "other_axis_of_the_same_size")
    verdict = analyse(replace(case, given="float[n,s] a, float[n,s] b").model())
    assert not verdict.proven or (("a", 1), ("b", 1)) in verdict.equal_axes


def test_an_initialiser_that_callers_replace_is_no_constant() -> None:
    """An initialiser that callers may override is not a constant: its axes may carry rows."""
    case = Case("replaced", "", "s = ReduceSum (x, axes) y = Sub (x, s)")
    model = case.model()
    axes = onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1])
    model.graph.initializer.append(axes)
    assert analyse(model).proven
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("axes", onnx.TensorProto.INT64, [1])
    )
    assert analyse(model, constant_initialisers=True).proven
    assert not analyse(model, constant_initialisers=False).proven
