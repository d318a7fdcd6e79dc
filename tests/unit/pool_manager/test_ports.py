"""The ports of the pool manager."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pool_manager.core.state import Device
from pool_manager.gpus.absent import NoGpus
from pool_manager.ports import Bundles, Gpus
from runtime_image.contract.server import ServerSpec
from tests.support.golden import golden
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


@pytest.mark.parametrize(
    ("device", "has_golden"),
    [
        (Device("cpu0", "cpu"), True),
        (Device("cpu0", "cpu", host="gpu2"), False),
        (Device("g0", "cuda", model="H200"), False),
        (None, False),
    ],
)
def test_a_golden_sample_is_for_devices_of_its_type(
    device: Device | None, *, has_golden: bool
) -> None:
    """Others' kernels round otherwise."""
    bound = replace(binding(), spec=ServerSpec("web@1", ("serve",)), golden=golden(None))
    spec = bound.on(device).spec

    assert isinstance(spec, ServerSpec)
    assert (spec.golden is not None) is has_golden


def test_a_host_may_have_no_gpus() -> None:
    """A host without GPUs has an implementation of `Gpus`."""
    gpus: Gpus = NoGpus()

    assert gpus.devices() == []
