"""Functions under measurement: a model in a cache folder, and a call of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from benchmarks.models import graphs

VERSION: Final = 1
"""Incremented when a graph changes, so that older files of a cache are not used."""
MANIFEST: Final = """schema = 1
name = "{name}"
model = "model.onnx"

[input.x]
kind = "bytes"

[sample]
x = "@sample.bin"
"""
SAMPLE_BYTES: Final = 600_000


@dataclass(frozen=True, slots=True)
class Subject:
    """A function with this name. `path` is deployed, `model` is its model file."""

    name: str
    path: Path
    model: Path
    dtype: str
    shape: tuple[int, ...]
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> str:
        """Size of the model's file, as text."""
        bytes_ = self.model.stat().st_size
        return f"{bytes_ / 1e6:.0f} MB" if bytes_ >= 1e6 else f"{bytes_ / 1e3:.1f} kB"


def tiny(cache: Path) -> Subject:
    """Return a model of a few hundred bytes, called with a JSON body."""
    model = _made(cache, "tiny", graphs.tiny)
    return Subject("tiny", model, model, "float32", (1, 4), _json((1, 4)))


def digits() -> Subject:
    """Return the ready-made function, called with one scan as JSON."""
    folder = Path("functions/digits").resolve()
    body = _json((1, 8, 8), name="image")
    return Subject("digits", folder, folder / "digits.onnx", "float32", (1, 8, 8), body)


def convnet(cache: Path) -> Subject:
    """Return a model of 102 MB, called with 600 kB as npy; the answer is npy, too."""
    model = _made(cache, "convnet", graphs.convnet)
    return _by_npy("convnet", model, (1, 3, graphs.PIXELS, graphs.PIXELS))


def encoder(cache: Path, layers: int = 10) -> Subject:
    """Return a model of 50 MB per layer, called with 64 kB as npy; the answer is npy, too."""
    name = f"encoder-{layers}"
    model = _made(cache, name, lambda: graphs.encoder(layers))
    return _by_npy(name, model, (1, graphs.TOKENS, graphs.WIDTH))


def first(cache: Path, size: int) -> Subject:
    """Return a model called with `size` raw bytes; the answer is short."""
    return _by_octets(cache, "first", graphs.first, size)


def same(cache: Path, size: int) -> Subject:
    """Return a model called with `size` raw bytes, which it returns as npy."""
    subject = _by_octets(cache, "same", graphs.same, size)
    return Subject(
        *(subject.name, subject.path, subject.model, subject.dtype, subject.shape, subject.body),
        headers={**subject.headers, "Accept": "application/x-npy"},
    )


def npy(array: np.ndarray[Any, Any]) -> bytes:
    """Encode the array as a .npy file of version 1.0 (numpy.lib.format)."""
    kind = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    head = f"{kind!r}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + array.tobytes()


def _by_npy(name: str, model: Path, shape: tuple[int, ...]) -> Subject:
    values = np.random.default_rng(0).random(shape, dtype=np.float32)
    # In both directions: JSON of 16,000 floats would cost more than the gateway does.
    headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
    return Subject(name, model, model, "float32", shape, npy(values), headers)


def _by_octets(cache: Path, name: str, make: Callable[[], onnx.ModelProto], size: int) -> Subject:
    model = _made(cache, name, make)
    folder = model.parent
    _written(folder / "function.toml", MANIFEST.format(name=name).encode())
    _written(folder / "sample.bin", bytes(SAMPLE_BYTES))
    body = np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()
    headers = {"Content-Type": "application/octet-stream"}
    return Subject(name, folder, model, "uint8", (1, size), body, headers)


def _made(cache: Path, name: str, make: Callable[[], onnx.ModelProto]) -> Path:
    path = cache / f"v{VERSION}" / name / "model.onnx"
    if not path.exists():
        _written(path, make().SerializeToString())
    return path


def _written(path: Path, content: bytes) -> None:
    """Write atomically: an interrupted run leaves no partial model in the cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(path)


def _json(shape: tuple[int, ...], name: str = "x") -> bytes:
    value: Any = 0.5
    for size in reversed(shape):
        value = [value] * size
    return json.dumps({"inputs": {name: value}}).encode()
