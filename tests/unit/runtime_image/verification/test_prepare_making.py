"""What a trial makes of a model ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime_image.contract.model import (
    FOLDER,
    GRAPH_FILE,
    WEIGHTS_FILE,
    InputRule,
    ModelSpec,
    preparation_from_json,
)
from runtime_image.engines.onnx import OnnxEngine, environment_key
from runtime_image.verification import prepare as making
from runtime_image.verification.prepare import (
    PACKED,
    QUICK,
    Example,
    Place,
    Unprepared,
    prepare,
    prepared_or_why_not,
    same,
)
from tests.support import models
from tests.support.layered import layered

HANDLER = "def predict(inputs, ctx):\n    return ctx.run(inputs)\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty model folder and an empty scratch folder."""
    folder, scratch = tmp_path / "model", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    return Place(folder, scratch, "cpu", threads=1, cap_mib=0)


def tried(model: Path, batch_max: int = 1) -> Example:
    signature = OnnxEngine(model, device_kind="cpu", threads=1).signature
    return Example(signature, batch_max, memory_mib=100.0)


def files(place: Place) -> set[str]:
    return {str(p.relative_to(place.scratch)) for p in place.scratch.rglob("*") if p.is_file()}


def test_a_large_model_is_prepared(place: Place) -> None:
    """Graph and weights lie there, the key is this machine's, the quick session is of these files,
    and everything that was decided by is told."""
    model = layered(place.folder, 16)

    found = prepare(ModelSpec("a@1", model=model.name), tried(model, batch_max=8), place)

    preparation = preparation_from_json(found["preparation"])
    assert (found["why_not"], preparation.key) == ("", environment_key("cpu"))
    assert preparation.quick in (QUICK, PACKED)
    assert files(place) == {f"{FOLDER}/{GRAPH_FILE}", f"{FOLDER}/{WEIGHTS_FILE}"}
    sizes = [(place.scratch / FOLDER / name).stat().st_size for name in (GRAPH_FILE, WEIGHTS_FILE)]
    assert found["sizes"] == sizes
    assert set(found["original"]["cpu_ms"]) == {"1", "8"}
    assert (found["fast"] is None) == (preparation.fast is None)


def test_a_handlers_model_is_prepared(place: Place) -> None:
    """The manifest's sample is the handler's, so the model gets made-up input of its own."""
    model = layered(place.folder, 16)
    (place.folder / "handler.py").write_text(HANDLER)
    spec = ModelSpec(
        "a@1",
        model=model.name,
        handler="handler.py",
        inputs={"text": InputRule("bytes")},
        sample={"text": "@none"},
    )

    found = prepare(spec, Example(tried(model).signature, 8, 100.0), place)

    assert set(found["original"]["cpu_ms"]) == {"1"}


def test_a_small_model_is_left_as_it_is(place: Place) -> None:
    """There is nothing to gain, so nothing is measured."""
    model = models.add_one(place.folder)

    found = prepared_or_why_not(ModelSpec("a@1", model=model.name), tried(model), place)

    assert found == {"why_not": "with 0 KiB it is loaded in no time as it is"}
    assert files(place) == set()


def test_a_cap_keeps_a_second_session_away(place: Place) -> None:
    """Where both would not fit the function's memory, only the quick one is wanted."""
    model = layered(place.folder, 16)
    tight = replace(place, cap_mib=110)

    found = prepare(ModelSpec("a@1", model=model.name), tried(model), tight)

    assert found["fast"] is None


def test_a_model_that_answers_differently_each_time_is_not_prepared(place: Place) -> None:
    """What cannot be held against the model as it is cannot be trusted."""
    model = models.written(
        place.folder,
        "random",
        "(float[n,4] x) => (float[n,4] y)",
        "noise = RandomNormalLike(x)\n y = Add(x, noise)",
    )

    with pytest.raises(Unprepared, match="it gives another y for the same input"):
        prepare(ModelSpec("a@1", model=model.name), tried(model), place)


def test_a_model_that_needs_certain_values_gets_the_samples(place: Place) -> None:
    """Where it refuses what was made up it is tried with the sample alone."""
    model = models.fails_on_negative(place.folder)
    spec = ModelSpec("a@1", model=model.name, sample={"x": [[1, 2, 3, 4]]})

    with pytest.raises(Unprepared, match="as it is, prepared after"):
        prepare(spec, tried(model), place)


def test_whatever_goes_wrong_is_a_reason(place: Place) -> None:
    """A disk that cannot be written to, or a model that cannot be read, refuses nothing."""
    model = layered(place.folder, 1)
    example = tried(model)
    (place.scratch / FOLDER).write_text("in the way")

    assert (
        "FileExistsError"
        in prepared_or_why_not(ModelSpec("a@1", model=model.name), example, place)["why_not"]
    )
    model.write_bytes(bytes(2**20))
    (place.scratch / FOLDER).unlink()
    assert (
        "LoadError"
        in prepared_or_why_not(ModelSpec("a@1", model=model.name), example, place)["why_not"]
    )


def test_a_missing_device_is_a_reason(place: Place) -> None:
    """On a machine without a GPU nothing can be made for one."""
    model = layered(place.folder, 1)
    on_gpu = replace(place, device_kind="cuda")

    found = prepared_or_why_not(ModelSpec("a@1", model=model.name), tried(model), on_gpu)

    assert "device cuda" in found["why_not"]


def test_on_a_gpu_one_session_is_enough() -> None:
    """Two would take twice its memory, and weights are copied there in any case."""
    assert making.PREPARED["cuda"] == (PACKED,)


def test_outputs_agree_in_shape_type_and_value() -> None:
    """Rounding may differ, nothing else; what is no array must be equal."""
    one = np.ones((1, 4), np.float32)

    assert same(one, one * np.float32(1.00001))
    assert not same(one, one * 1.1)
    assert not same(one, one.astype(np.float64))
    assert not same(one, np.ones((2, 4), np.float32))
    assert not same(one, one * np.nan)
    assert same([1, 2], [1, 2])


def test_what_mixes_rows_is_not_prepared(place: Place) -> None:
    """A session that answers like the original alone is compared in batches, too."""
    nodes = "soft = Softmax <axis = 0> (x)\n zero = Constant <value = float {0}> ()\n"
    nodes += "nothing = Mul(soft, zero)\n y = Add(x, nothing)"
    model = models.written(place.folder, "mixes", "(float[n,4] x) => (float[n,4] y)", nodes)

    with pytest.raises(Unprepared, match="prepared, output y of a row changes beside"):
        prepare(ModelSpec("a@1", model=model.name), tried(model, batch_max=8), place)
