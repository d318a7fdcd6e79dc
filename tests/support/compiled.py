"""Compiled models of tests: made by a build, in a model folder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from runtime_image.contract.compiled import (
    FOLDER,
    BuildOrder,
    CompiledModel,
    ShapeRange,
    compiled_from_json,
)
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.compiled import Place
from runtime_image.engines.loading import load_engine
from runtime_image.verification.build import Built, built_or_why_not
from tests.support.models import WIDTH

RANGES: Final = (ShapeRange("x", (1, WIDTH), (4, WIDTH), (8, WIDTH)),)
"""Up to 8 rows of the usual input."""
ORDER: Final = BuildOrder("onnxruntime", RANGES, tolerance=0.01)


def spec(model: Path, **changes: Any) -> ModelSpec:
    """Return the spec of a model with batches of up to 8 rows, to be compiled by `ORDER`."""
    return ModelSpec("digits@1", model=model.name, **{"batch_max": 8, "build": ORDER, **changes})


def build(wanted: ModelSpec, folder: Path, scratch: Path) -> Built:
    """Build the model of `wanted` in `folder`, as a build replica does."""
    ordinary = replace(wanted, handler="")
    engine = load_engine(ordinary, folder, device_kind="cpu", threads=1)
    return built_or_why_not([engine], Place(wanted, folder, "cpu", 1), scratch)


def compile_in(folder: Path, wanted: ModelSpec) -> CompiledModel:
    """Build the model of `wanted` and put its files into `folder`."""
    scratch = folder / ".scratch"
    scratch.mkdir()
    described = build(wanted, folder, scratch).described
    assert not described["why_not"], described
    (scratch / FOLDER).rename(folder / FOLDER)
    shutil.rmtree(scratch)
    return compiled_from_json(described["compiled"])


def serving(wanted: ModelSpec, compiled: CompiledModel | None) -> ModelSpec:
    """Return the spec of a replica that serves with `compiled`."""
    return replace(wanted, build=None, compiled=compiled)
