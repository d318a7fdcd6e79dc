"""The proof of row independence against models as people have them, and models that mix rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from runtime_image.verification.rows.analysis import analyse
from tests.support.row_models import evidence, honest
from tests.support.row_models.case import Case
from tests.support.row_models.honest import Honest
from tests.support.row_models.table import MIXING

MODELS = honest.manifest()
INDEPENDENT = tuple(model for model in MODELS if model.independent)
BYTES_MAX = 3_000_000
MODELS_MIN = 40
ROWS = 5
SAME_AXES = "float[n,s] a, float[n,s] b"


def named(one: Honest | Case) -> str:
    return one.name


@pytest.fixture(scope="module")
def proven(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """Counts models by exporter, and prints the counts at the end."""
    counts: Counter[str] = Counter()
    yield counts
    reporter = request.config.pluginmanager.getplugin("terminalreporter")
    each = ", ".join(f"{exporter} {count}" for exporter, count in sorted(counts.items()))
    reporter.write_line(f"\n{counts.total()} of {len(INDEPENDENT)} models proven: {each}")


def test_the_folder_is_what_its_manifest_says() -> None:
    there = {path.stem: path.stat().st_size for path in honest.FOLDER.glob("*.onnx")}
    assert there == {model.name: model.bytes for model in MODELS}
    assert sum(there.values()) <= BYTES_MAX
    assert len({model.name.split("_torchscript")[0] for model in INDEPENDENT}) >= MODELS_MIN


@pytest.mark.parametrize("model", INDEPENDENT, ids=named)
def test_a_model_with_independent_rows_is_proven(model: Honest, proven: Counter[str]) -> None:
    verdict = analyse(model.model())
    if model.unjudged:
        assert not verdict.proven
        assert verdict.operator.startswith(model.unjudged), verdict
        return
    assert verdict.analysed, verdict
    assert verdict.proven, f"{verdict.operator}: {verdict.reason}"
    proven[model.exporter] += 1


@pytest.mark.parametrize("model", INDEPENDENT, ids=named)
def test_a_row_of_an_independent_model_ignores_its_neighbours(model: Honest) -> None:
    """Bit for bit, in the first, a middle and the last place."""
    running = evidence.session(model.model())
    feed = honest.usual(model, running, ROWS)
    expected = evidence.answers(running, feed, ROWS)
    assert not isinstance(expected, str), expected
    for place in (0, 2, ROWS - 1):
        for other in honest.neighbours(model, feed, place):
            try:
                got = evidence.answers(running, other, ROWS)
            except evidence.FAILURES:  # an extreme that the model refuses
                continue
            assert got[place] == expected[place]


@pytest.mark.parametrize("model", [m for m in MODELS if not m.independent], ids=named)
def test_an_exported_model_that_mixes_rows_is_refused(model: Honest) -> None:
    verdict = analyse(model.model())
    assert verdict.analysed, verdict
    assert not verdict.proven
    assert verdict.operator in {"DynamicQuantizeLinear", "Gather", "GatherND", "ScatterND"}


@pytest.mark.parametrize("case", MIXING, ids=named)
def test_a_model_that_mixes_rows_is_refused_by_its_operator(case: Case) -> None:
    verdict = analyse(case.model())
    assert verdict.analysed, verdict
    assert not verdict.proven
    assert verdict.operator in case.blamed, verdict.reason
    assert verdict.operator in verdict.reason


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MIXING, ids=named)
def test_a_model_that_mixes_rows_does_so_when_it_runs(case: Case) -> None:
    """The cases are no straw men: ONNX Runtime shows each of them."""
    assert evidence.mixing(case), "no run shows it"
