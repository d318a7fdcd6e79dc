"""What a standby has ready."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.support import models

PROGRAM = """
import sys
from pathlib import Path
from runtime_image.codecs.media import decode_image
from runtime_image.contract.model import ImageForm, ModelSpec
import runtime_image.replica.main
from runtime_image.engines.loading import load_engine
from runtime_image.engines.loading import preload

preload("cpu")
before = set(sys.modules)
folder = Path(sys.argv[1])
spec = ModelSpec("digits@1", model="add_one.onnx", handler="handler.py")
engine = load_engine(spec, folder, device_kind="cpu", threads=1)
form = ImageForm((8, 8))
inputs = {"x": decode_image("x", memoryview((folder / "x.png").read_bytes()), form)}
decode_image("x", memoryview((folder / "x.webp").read_bytes()), form)
inputs = {"x": inputs["x"].reshape(-1, 4)}
print(engine.run(inputs, engine.ticket())["y"].shape)
print(sorted(set(sys.modules) - before))
"""

pytestmark = pytest.mark.slow


def test_a_load_imports_nothing_more(tmp_path: Path) -> None:
    """Model, handler and pictures of any kind find everything imported."""
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
