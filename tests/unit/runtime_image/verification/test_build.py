"""A build: what is compiled, compared, refused and described."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runtime_image.compilers import onnxruntime as compiler
from runtime_image.compilers.base import Compilation, CompileOutput
from runtime_image.contract.compiled import (
    COMPILED_PART,
    FOLDER,
    TIMING_CACHE,
    BuildDescribed,
    ShapeRange,
    compiled_from_json,
)
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import DESCRIPTION_MAX, InputRule, ModelSpec
from runtime_image.contract.precision import Optimisation
from runtime_image.engines.compiled import Place
from runtime_image.engines.loading import load_engine
from runtime_image.verification import build as building
from runtime_image.verification import samples
from tests.support import compiled as compiling
from tests.support import mixing, models


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "scratch").mkdir()
    return tmp_path / "model"


def build(spec: ModelSpec, folder: Path) -> tuple[BuildDescribed, dict[int, Path]]:
    described, files = compiling.build(spec, folder, folder.parent / "scratch")
    assert len(json.dumps(described, allow_nan=False)) < DESCRIPTION_MAX
    if described["why_not"]:
        assert not (folder.parent / "scratch" / FOLDER).exists()
        assert files == {}
    return described, files


def test_a_build_describes_files_parity_and_times(folder: Path) -> None:
    """Files are numbered for FETCH, with size and digest; both sessions were compared at every end
    of the ranges and measured for one row and a full batch; the timing cache comes last."""
    spec = compiling.spec(models.affine(folder, offset=1))

    described, files = build(spec, folder)

    compiled = compiled_from_json(described["compiled"])
    place = Place(spec, folder, "cpu", 1)
    assert described["why_not"] == ""
    assert compiled.key == place.key("onnxruntime", compiling.RANGES)
    assert described["timing_key"] == place.timing_key("onnxruntime")
    assert (compiled.form, compiled.ranges) == ("context", compiling.RANGES)
    assert [file.name for file in compiled.files] == ["model.onnx", TIMING_CACHE]
    for number, file in enumerate(compiled.files):
        data = files[COMPILED_PART + number].read_bytes()
        assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    [parity] = described["parity"]
    assert (parity["output"], parity["relative_difference"]) == ("y", 0)
    assert described["samples"] == 12
    assert described["ordinary_ms"].keys() == described["compiled_ms"].keys() == {"1", "8"}
    assert described["load_ms"] > 0
    assert described["memory_mib"] > 0
    assert described["build_s"] >= 0


def test_outputs_beyond_the_tolerance_refuse_the_compiled_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled files of a slightly different model are described with figures, and not
    served."""
    spec = compiling.spec(models.affine(folder, offset=1))
    (folder.parent / "other").mkdir()
    other = models.affine(folder.parent / "other", offset=1.05)
    monkeypatch.setattr(compiler.OnnxRuntimeCompiler, "compile", compiling_instead(other))

    described, _ = build(spec, folder)
    wide = replace(compiling.ORDER, tolerance=0.1)
    tolerated, files = build(replace(spec, build=wide), folder)

    assert described["why_not"].startswith("output y of the compiled model differs by 0.05 of its")
    assert described["parity"][0]["largest_difference"] == pytest.approx(0.05, abs=1e-6)
    assert "compiled" not in described
    assert tolerated["why_not"] == ""
    assert len(files) == 2


def compiling_instead(model: Path) -> Callable[..., CompileOutput]:
    """Return a `compile` that compiles another model."""
    compile_it = compiler.OnnxRuntimeCompiler.compile

    def compile_other(self: compiler.OnnxRuntimeCompiler, order: Compilation) -> CompileOutput:
        return compile_it(self, replace(order, model=model))

    return compile_other


@pytest.mark.parametrize(
    ("free", "reason"),
    [
        (2**20 - 1, "No space left on device: RuntimeError: cannot be written"),
        (2**20, "RuntimeError: cannot be written"),
    ],
)
def test_a_full_disk_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free: int, reason: str
) -> None:
    """Compilers do not report it. The reason distinguishes it from a defect of the model, and the
    free space is read before the files that filled the disk are removed."""
    spec = compiling.spec(models.affine(folder, offset=1))
    scratch = folder.parent / "scratch"

    def compile_(_self: compiler.OnnxRuntimeCompiler, order: Compilation) -> CompileOutput:
        (order.target / "model.onnx").write_bytes(b"half")
        raise RuntimeError("cannot be written")

    def disk_usage(path: Path) -> SimpleNamespace:
        assert (scratch / FOLDER / "model.onnx").exists()
        assert path == scratch
        return SimpleNamespace(free=free)

    monkeypatch.setattr(compiler.OnnxRuntimeCompiler, "compile", compile_)
    monkeypatch.setattr(building.shutil, "disk_usage", disk_usage)

    described, _ = build(spec, folder)

    assert described["why_not"] == reason


def test_a_model_with_random_outputs_is_refused(folder: Path) -> None:
    """Two runs of it never agree."""
    spec = compiling.spec(
        models.written(
            folder,
            "noise",
            f"({models.ROW} x) => ({models.ROW} y)",
            "n = RandomNormalLike(x)\n y = Add(x, n)",
        )
    )

    described, _ = build(spec, folder)

    assert described["why_not"].startswith("output y of the compiled model differs by")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ranges": ()}, "shapes of 'x': an axis is dynamic and has no range"),
        ({"ranges": (ShapeRange("z", (1,), (1,), (1,)),)}, "shapes of 'z': the model's inputs"),
        ({"compiler": "tensorrt"}, "tensorrt compiles for cuda, not for cpu"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(
    folder: Path, changes: dict[str, Any], reason: str
) -> None:
    """The reason names what does not fit; nothing was written."""
    spec = compiling.spec(models.add_one(folder))

    described, _ = build(replace(spec, build=replace(compiling.ORDER, **changes)), folder)

    assert described["why_not"].startswith(reason)


def test_a_build_without_an_order_is_refused(folder: Path) -> None:
    """The manager requested a build without an order."""
    described, _ = build(replace(compiling.spec(models.add_one(folder)), build=None), folder)

    assert described == {"why_not": "there is nothing to compile"}


def test_a_model_that_no_sample_fits_is_refused(folder: Path) -> None:
    """Zeros and random values are not valid for every model; then the owner's sample is needed."""
    model = models.written(
        folder,
        "picky",
        f"({models.ROW} x) => ({models.ROW} y)",
        "i = Cast<to=7>(x)\n s = Add(i, h)\n y = Gather<axis=0>(t, s)",
        {"h": np.array(7, np.int64), "t": np.zeros(2, np.float32)},
    )

    described, _ = build(compiling.spec(model), folder)

    assert described["why_not"].startswith("no sample could be run, give a [sample]: ")


def test_files_are_bounded_by_the_bundle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled files that are too large for their bundle are not kept: folding constants may make a
    model any size."""
    monkeypatch.setattr("runtime_image.verification.build.files_max", lambda size: size)

    described, _ = build(compiling.spec(models.add_one(folder)), folder)

    size = (folder / "add_one.onnx").stat().st_size
    assert described["why_not"] == f"the compiled files are larger than {size} bytes"


@pytest.mark.parametrize(("key", "builds"), [("same", 2), ("other", 1), ("", 1), ("damaged", 1)])
def test_a_timing_cache_gets_to_the_next_build(
    folder: Path, key: str, builds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of an earlier build is used under the same key only, and if it is the described
    one: nothing else is opened. The order's delay is added in any case."""
    pauses: list[float] = []
    monkeypatch.setattr(compiler.OnnxRuntimeCompiler.__init__, "__defaults__", (pauses.append,))
    spec = compiling.spec(models.add_one(folder))
    first, files = build(spec, folder)
    (folder / FOLDER).mkdir()
    content = files[COMPILED_PART + 1].read_bytes()
    damaged = content.replace(b"one", b"two")
    (folder / FOLDER / TIMING_CACHE).write_bytes(damaged if key == "damaged" else content)
    order = replace(
        compiling.ORDER,
        timing_key=first["timing_key"] if key in ("same", "damaged") else key,
        timing_cache=compiled_from_json(first["compiled"]).files[1] if key else None,
        delay_s=6.0,
    )
    scratch = folder.parent / "again"
    scratch.mkdir()

    again = compiling.build(replace(spec, build=order), folder, scratch)

    assert pauses == [0.0, 6.0]
    cache = again.files[COMPILED_PART + 1].read_bytes()
    assert cache == compiler.MEASURED * builds


def test_a_handlers_sample_is_not_its_models(folder: Path) -> None:
    """The model alone is compiled, with synthetic inputs."""
    spec = compiling.spec(
        models.add_one(folder),
        handler="handler.py",
        inputs={"text": InputRule("json")},
        sample={"text": "hello"},
    )

    described, _ = build(spec, folder)

    assert described["why_not"] == ""


def test_the_optimised_file_is_compiled(folder: Path) -> None:
    """The ordinary session of a build is that of the file that replicas serve."""
    (folder / ".optimised").mkdir()
    model = models.affine(folder / ".optimised", offset=7)
    spec = compiling.spec(models.affine(folder, offset=1), optimised=f".optimised/{model.name}")

    described, files = build(spec, folder)
    (folder / FOLDER).mkdir()
    for path in files.values():
        path.rename(folder / FOLDER / path.name)
    served = compiling.serving(spec, compiled_from_json(described["compiled"]))
    engine = load_engine(served, folder, device_kind="cpu", threads=1)

    assert engine.session == "compiled"
    assert (engine.run({"x": np.ones((1, 4), np.float32)}, engine.ticket())["y"] == 8).all()


def test_samples_are_the_owners_and_the_ends_of_the_ranges(folder: Path) -> None:
    """The rows of the bundle's samples are compared too, and nothing outside the ranges is."""
    given = np.arange(80, dtype=np.float32).reshape(20, 4)
    np.savez(folder / "samples.npz", x=given)
    spec = compiling.spec(
        models.add_one(folder), optimise=Optimisation("fp32", 0.01, "samples.npz")
    )
    engine = load_engine(spec, folder, device_kind="cpu", threads=1)
    ranges = (ShapeRange("x", (2, 4), (4, 4), (8, 4)),)

    every = samples.feeds(spec, engine.signature, folder, compiling.RANGES)
    narrow = samples.feeds(spec, engine.signature, folder, ranges)

    rows = [one["x"].shape[0] for one in every]
    assert rows == [1] * 26 + [1, 1, 4, 4, 8, 8]
    assert any(np.array_equal(one["x"], given[19:]) for one in every)
    assert [one["x"].shape[0] for one in narrow] == [2, 2, 4, 4, 8, 8]
    np.savez(folder / "samples.npz", y=given)
    with pytest.raises(LoadError, match=r"samples.npz cannot be read"):
        samples.feeds(spec, engine.signature, folder, compiling.RANGES)


def test_rows_that_depend_on_each_other_are_compiled_too(folder: Path) -> None:
    """Parity is about equal inputs, not about rows."""
    described, _ = build(compiling.spec(mixing.compress(folder)), folder)

    assert described["why_not"] == ""
