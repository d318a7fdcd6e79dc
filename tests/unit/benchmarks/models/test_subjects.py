"""Cached models and their calls."""

from __future__ import annotations

import io
import json
import tomllib
from pathlib import Path

import numpy as np

from benchmarks.models import subjects


def test_an_npy_body_is_one() -> None:
    """NumPy reads the body, and its values are aligned."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    body = subjects.npy(array)

    assert np.array_equal(np.load(io.BytesIO(body)), array)
    assert (len(body) - array.nbytes) % 64 == 0


def test_a_model_is_made_once(tmp_path: Path) -> None:
    """A second run uses the cached file, and no partial file is left next to it."""
    first = subjects.tiny(tmp_path)
    made_ns = first.model.stat().st_mtime_ns
    again = subjects.tiny(tmp_path)

    assert again == first
    assert again.model.stat().st_mtime_ns == made_ns
    assert [path.name for path in first.model.parent.iterdir()] == ["model.onnx"]
    assert json.loads(first.body) == {"inputs": {"x": [[0.5] * 4]}}
    assert first.size.endswith(" kB")


def test_functions_of_raw_bytes_say_so(tmp_path: Path) -> None:
    """The manifest declares the raw input, and the body has the requested size."""
    subject = subjects.first(tmp_path, 1000)
    manifest = tomllib.loads((subject.path / "function.toml").read_text())

    assert manifest["name"] == subject.name
    assert manifest["input"]["x"]["kind"] == "bytes"
    assert len(subject.body) == 1000
    assert subjects.same(tmp_path, 10).headers["Accept"] == "application/x-npy"
