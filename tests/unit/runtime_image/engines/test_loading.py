"""The engine chosen for a spec, and the imports of a standby."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.base import Engine
from runtime_image.engines.loading import load_engine, require_onnxruntime
from runtime_image.engines.onnx import OnnxEngine
from runtime_image.engines.python import HandlerEngine
from tests.support import models


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.add_one(tmp_path)
    (tmp_path / "handler.py").write_text("def predict(inputs, ctx): return inputs\n")
    return tmp_path


def load(folder: Path, spec: ModelSpec) -> Engine:
    return load_engine(spec, folder, device_kind="cpu", threads=1)


def test_a_model_gets_onnx_runtime(folder: Path) -> None:
    """A model file without a handler runs on ONNX Runtime."""
    assert isinstance(load(folder, ModelSpec("f@1", model="add_one.onnx")), OnnxEngine)


def test_a_handler_gets_the_model(folder: Path) -> None:
    """With a handler, the handler is the engine and has the model's signature."""
    spec = ModelSpec("f@1", model="add_one.onnx", handler="handler.py")

    engine = load(folder, spec)

    assert isinstance(engine, HandlerEngine)
    assert engine.signature.kind == "tensors"


def test_nothing_to_run_is_refused(folder: Path) -> None:
    """A bundle with neither a model nor a handler is refused."""
    with pytest.raises(LoadError, match="neither a model nor a handler"):
        load(folder, ModelSpec("f@1"))


@pytest.mark.slow
def test_a_handler_alone_does_not_pay_for_onnx_runtime(folder: Path) -> None:
    """Without a model file ONNX Runtime is not imported."""
    code = f"""
import sys
from pathlib import Path
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.engines.loading import load_engine
spec = ModelSpec("f@1", handler="handler.py", inputs={{"x": InputRule("json")}})
load_engine(spec, Path({str(folder)!r}), device_kind="cpu", threads=1)
sys.exit("onnxruntime" in sys.modules)
"""

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PROGRAM = """
import sys
from pathlib import Path
from runtime_image.codecs import media
from runtime_image.contract.model import ImageForm, ModelSpec
import runtime_image.replica.main
from runtime_image.engines.loading import load_engine, require_onnxruntime
from runtime_image.engines.loading import preload

preload("cpu")
before = set(sys.modules)
folder = Path(sys.argv[1])
spec = ModelSpec("digits@1", model="add_one.onnx", handler="handler.py")
engine = load_engine(spec, folder, device_kind="cpu", threads=1)
png, webp = (memoryview((folder / name).read_bytes()) for name in ("x.png", "x.webp"))
picture = media.decode_image("x", png, ImageForm((8, 8)))
media.decode_image("x", webp, ImageForm((8, 8)))
inputs = {"x": picture.reshape(-1, 4)}
print(engine.run(inputs, engine.ticket())["y"].shape)
print(sorted(set(sys.modules) - before))
"""


FOR_GPUS = """
import sys

from runtime_image.engines import onnx
from runtime_image.engines.loading import preload

onnx.warm_up = lambda device_kind: None  # no GPU is there
preload("cuda")
before = set(sys.modules)

from runtime_image.compilers.named import compiler_named
from runtime_image.engines.compiled import compiled_or_ordinary

compiler_named("tensorrt")
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.slow
def test_a_standby_for_gpus_has_imported_the_compiler() -> None:
    """A cold start with a compiled model imports no module either; it took 15 ms or more."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", FOR_GPUS], capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.slow
def test_a_load_imports_nothing_more(tmp_path: Path) -> None:
    """After a standby's imports, loading any model, handler or image imports no further module."""
    models.add_one(tmp_path)
    (tmp_path / "handler.py").write_text("def predict(inputs, ctx): return ctx.run(inputs)\n")
    for ending in ("png", "webp"):
        Image.new("RGB", (16, 16)).save(tmp_path / f"x.{ending}")

    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["(48, 4)", "['handler']"]


def test_a_missing_onnx_runtime_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ONNX Runtime, or with what is left of it after an uninstall, the error names the
    extras to install."""
    with pytest.raises(LoadError, match=r"has no absent_runtime: install 'fngate\[cpu\]', or"):
        require_onnxruntime("absent_runtime")

    (tmp_path / "remains_runtime" / "capi").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError, match=r"has no usable remains_runtime: install 'fngate"):
        require_onnxruntime("remains_runtime")
