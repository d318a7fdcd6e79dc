"""Loads the engine of a spec, and preloads all engines in a standby."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.base import Engine


def load_engine(
    spec: ModelSpec,
    folder: Path,
    *,
    device_kind: str,
    threads: int,
    not_compiled: Callable[[str], object] = lambda _reason: None,
) -> Engine:
    """Return the engine for `spec` with the files in `folder`. Raises LoadError with the reason.

    `not_compiled(reason)` is called if the spec's compiled model cannot be used; the ordinary
    session then serves. Imports engines on demand: a handler without a model must not spend time on
    ONNX Runtime.
    """
    model: Engine | None = None
    if spec.model:
        require_onnxruntime()
    if spec.model and spec.compiled is not None:
        from runtime_image.engines.compiled import compiled_or_ordinary

        model = compiled_or_ordinary(
            spec, folder, device_kind=device_kind, threads=threads, not_compiled=not_compiled
        )
    elif spec.model:
        from runtime_image.engines.onnx import load_model

        model = load_model(spec, folder, device_kind=device_kind, threads=threads)
    if spec.handler:
        from runtime_image.engines.python import Context, HandlerEngine

        context = Context(folder, device_kind, threads, model)
        return HandlerEngine(folder / spec.handler, context, spec.inputs)
    if model is None:
        raise LoadError("the bundle has neither a model nor a handler.py")
    return model


def preload(device_kind: str) -> None:
    """Import every engine and codec, run a first session on a device of this kind ("cpu", "cuda"),
    and collect garbage. Raises LoadError if there is no such device."""
    require_onnxruntime()
    from runtime_image.codecs import media
    from runtime_image.engines import onnx, python  # noqa: F401 - imported ahead

    if device_kind == "cuda":
        # On a CPU only trials of the machinery compile: every standby would pay for them.
        from runtime_image.compilers import tensorrt  # noqa: F401
        from runtime_image.engines import compiled  # noqa: F401
    onnx.warm_up(device_kind)
    media.preload()
    gc.collect()


def require_onnxruntime(package: str = "onnxruntime") -> None:
    """Raise LoadError if ONNX Runtime is not installed, or only in part.

    Two distributions share its folder; after one of them is removed, what is left has no
    `__init__.py`.
    """
    try:
        found = __import__(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        found = None
    if getattr(found, "InferenceSession", None) is None:
        raise LoadError(
            f"this Python has no {'usable ' if found else ''}{package}: install 'fngate[cpu]', or"
            " 'fngate[gpu]' for NVIDIA GPUs; fnctl doctor says more"
        )
