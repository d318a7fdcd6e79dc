"""Model repositories in Triton's layout, of small real models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support import models


def put_version(
    repository: Path,
    model: str,
    version: int | str = 1,
    make: Callable[[Path], Path] = models.add_one,
    config: str | None = None,
) -> Path:
    """Write a version of a model, and its config.pbtxt if given; return the model's folder."""
    folder = repository / model / str(version)
    folder.mkdir(parents=True)
    make(folder).rename(folder / "model.onnx")
    if config is not None:
        (repository / model / "config.pbtxt").write_text(config, "utf-8")
    return folder.parent
