"""The ports of the pool manager."""

from __future__ import annotations

from pathlib import Path

from pool_manager.gpus.absent import NoGpus
from pool_manager.ports import Bundles, Gpus
from tests.support.replicas import NO_BUNDLE, ModelFolder, binding


async def test_bundles_are_materialised_where_asked(tmp_path: Path) -> None:
    """A binding's files are linked into the given folder."""
    kept, target = tmp_path / "kept", tmp_path / "target"
    kept.mkdir()
    (kept / "model.onnx").write_text("model")
    bundles: Bundles = ModelFolder(kept)

    await bundles.materialise(NO_BUNDLE, target)

    assert (target / "model.onnx").samefile(kept / "model.onnx")


def test_a_binding_asks_for_the_default_cap() -> None:
    """A binding without a memory cap stands for the default one."""
    assert binding().memory_mib == 0


def test_a_host_may_have_no_gpus() -> None:
    """A host without GPUs has an implementation of `Gpus`."""
    gpus: Gpus = NoGpus()

    assert gpus.devices() == []
