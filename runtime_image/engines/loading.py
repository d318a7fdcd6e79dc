"""Builds the engine of a spec, and prepares a standby for any engine."""

from __future__ import annotations

import gc
from pathlib import Path

from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.base import Engine


def load_engine(spec: ModelSpec, folder: Path, *, device_kind: str, threads: int) -> Engine:
    """The engine for `spec` over the files in `folder`. Raises LoadError with the reason.

    Engines are imported on demand: a handler without a model must not pay for ONNX Runtime.
    """
    model: Engine | None = None
    if spec.model:
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
    and collect the garbage. Raises LoadError where there is no such device."""
    from runtime_image.codecs import media
    from runtime_image.engines import onnx, python  # noqa: F401 - to have them

    onnx.warm_up(device_kind)
    media.preload()
    gc.collect()
