"""Chooses and builds the engine a spec asks for."""

from __future__ import annotations

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
        from runtime_image.engines.prepared import load_model

        model = load_model(spec, folder, device_kind=device_kind, threads=threads)
    if spec.handler:
        from runtime_image.engines.handler import Context, HandlerEngine

        context = Context(folder, device_kind, threads, model)
        return HandlerEngine(folder / spec.handler, context, spec.inputs)
    if model is None:
        raise LoadError("the bundle has neither a model nor a handler.py")
    return model
