"""Recognises model files of other frameworks, and explains how to convert them to ONNX."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from runtime_image.contract.wire_format import BeyondLimit

HEAD_BYTES: Final = 512
"""Bytes at the beginning of a file that `by_content` examines."""

_PYTORCH: Final = (
    "PyTorch keeps weights there: load the model in Python, then"
    " torch.onnx.export(model.eval(), (example,), 'model.onnx', dynamo=True)"
)
_PICKLE: Final = (
    "a pickle holds Python objects: load it in Python; a model of scikit-learn becomes ONNX with"
    " skl2onnx.to_onnx(model, X[:1], options={'zipmap': False}).SerializeToString()"
)
_KERAS: Final = "load the model in Keras 3, then model.export('model.onnx', format='onnx')"
_WEIGHTS: Final = (
    "weights without a graph: export the model that they belong to, for one of Hugging Face with"
    " optimum-cli export onnx --model NAME FOLDER"
)
_ENGINE: Final = (
    "TensorRT built it for one GPU and one version: deploy the ONNX model that it was made of"
)
_ORT: Final = "it is in ONNX Runtime's own format: deploy the ONNX model that it was made of"
_TFLITE: Final = "convert it: python -m tf2onnx.convert --tflite model.tflite --output model.onnx"

_BY_SUFFIX: Final = {
    ".pt": _PYTORCH,
    ".pth": _PYTORCH,
    ".ckpt": _PYTORCH,
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
    ".joblib": _PICKLE,
    ".gguf": _WEIGHTS,
    ".ggml": _WEIGHTS,
    ".safetensors": _WEIGHTS,
    ".h5": _KERAS,
    ".hdf5": _KERAS,
    ".keras": _KERAS,
    ".tflite": _TFLITE,
    ".engine": _ENGINE,
    ".plan": _ENGINE,
    ".trt": _ENGINE,
    ".ort": _ORT,
}
_BY_CONTENT: Final = (
    (
        b"version https://git-lfs",
        "it is a pointer of Git LFS: fetch the file itself with git lfs pull",
    ),
    (b"<!doctype html", "it is a web page: download the file itself"),
    (b"<html", "it is a web page: download the file itself"),
    (b"gguf", f"it is a GGUF file, {_WEIGHTS}"),
    (b"\x89hdf\r\n", f"it is an HDF5 file: {_KERAS}"),
    (b"pk\x03\x04", f"it is a ZIP archive; if it comes from PyTorch: {_PYTORCH}"),
    (b"\x80\x02", _PICKLE),
    (b"\x80\x03", _PICKLE),
    (b"\x80\x04", _PICKLE),
    (b"\x80\x05", _PICKLE),
)
"""Lower-case beginnings of files; a pickle begins with its protocol number."""


def is_onnx(path: str) -> bool:
    """Return whether a file is an ONNX model by its suffix, in capitals as well."""
    return PurePosixPath(path).suffix.lower() == ".onnx"


def by_suffix(path: str) -> str:
    """Return how to convert a file named `path` to ONNX; "" for an unknown suffix."""
    return _BY_SUFFIX.get(PurePosixPath(path).suffix.lower(), "")


def by_content(model: Path) -> str:
    """Return what the non-ONNX file at `model` seems to be, and how to convert it to ONNX.

    "" if the content is not recognised.
    """
    try:
        with model.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return ""
    if head[4:8] == b"ORTM":
        return _ORT
    begins = head.lstrip().lower()
    return next((advice for magic, advice in _BY_CONTENT if begins.startswith(magic)), "")


def not_onnx(model: str, reason: object, file: Path) -> str:
    """Return the refusal of `file`, named `model`, which could not be read as an ONNX model for
    `reason`."""
    if isinstance(reason, BeyondLimit):
        return f"{model} is beyond a limit: {reason}"
    advice = by_content(file)
    return f"{model} is not an ONNX model: {advice or reason}"
