"""Which session of a model serves first, and which one later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec, Preparation, SessionPlan
from runtime_image.engines.environment import environment_key
from runtime_image.engines.improvement import Improvement, say
from runtime_image.engines.onnx import OnnxEngine

OPTIMISING_TAKES: Final = 3
"""Memory of a session whose graph is rewritten at load, in sizes of its files, at most."""


def load_model(spec: ModelSpec, folder: Path, *, device_kind: str, threads: int) -> OnnxEngine:
    """The engine for a spec's model file over the files in `folder`.

    The quick session of the spec's preparation, if it was prepared for this engine version and
    device and can be made, with what improves it; else the original as it is. Raises LoadError
    with the original's reason.
    """
    if spec.preparation is not None:
        try:
            return _prepared(spec.preparation, folder, device_kind, threads)
        except (LoadError, OSError) as error:
            say(f"{spec.revision} is loaded from its original file: {error}"[:2000])
    return OnnxEngine(folder / spec.model, device_kind=device_kind, threads=threads)


def size_mib(path: Path) -> float:
    """Size of a model file and of what lies beside it, where its weights are. Raises OSError."""
    return sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file()) / 2**20


def _prepared(preparation: Preparation, folder: Path, device_kind: str, threads: int) -> OnnxEngine:
    key = environment_key(device_kind)
    if preparation.key != key:
        raise LoadError(f"it was prepared for {preparation.key}, this is {key}")

    def load(plan: SessionPlan, before_work: Callable[[], None] | None = None) -> OnnxEngine:
        return OnnxEngine(
            folder / plan.file,
            device_kind=device_kind,
            threads=threads,
            optimise=plan.optimise,
            prepack=plan.prepack,
            before_work=before_work,
        )

    engine = load(preparation.quick)
    engine.session = "quick"
    if (fast := preparation.fast) is not None:
        needs_mib = size_mib(folder / fast.file) * (OPTIMISING_TAKES if fast.optimise else 1)
        engine.improvement = Improvement(
            engine, lambda before_work: load(fast, before_work), needs_mib
        )
    return engine
