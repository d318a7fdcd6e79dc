"""Tests of the number of GPUs in [device]: what it implies, and what it contradicts."""

from __future__ import annotations

from typing import Any

import pytest

from registry.errors import BadManifest
from registry.manifest.document import default_manifest, overrides, parse_manifest
from registry.model.revisions import DeviceNeed

SERVER = '[server]\ncommand = "serve ${PORT} ${GPUS}"\n'
IMAGE = '[server]\nimage = "vllm/vllm-openai:v0.20.0"\n'
PACKAGES = "[python]\n"
HANDLER = '[runtime]\nengine = "python"\n[input.x]\nkind = "json"\n'
FILES = ["handler.py", "model.onnx"]


def parsed(tables: str, device: str = "") -> Any:
    """Return the manifest of these tables and the lines of [device]."""
    files = [] if "[server]" in tables else FILES
    return parse_manifest(f"schema = 1\n{tables}\n[device]\n{device}\n", files)


@pytest.mark.parametrize("tables", [SERVER, IMAGE, PACKAGES, HANDLER])
@pytest.mark.parametrize("kind", ["", 'kind = "any"', 'kind = "cuda"'])
def test_several_gpus_are_gpus(tables: str, kind: str) -> None:
    """Servers and Python functions may have several; the kind "any" means "cuda" then, also by an
    option of the deploy, and stays it."""
    assert parsed(tables, f"count = 4\n{kind}").device == DeviceNeed("cuda", count=4)

    given = overrides(parsed(tables, kind), gpus=4)
    assert given.device == DeviceNeed("cuda", count=4)
    assert overrides(given, gpus=1).device == DeviceNeed("cuda")


@pytest.mark.parametrize("count", [1, 64])
def test_one_gpu_or_the_most(count: int) -> None:
    """The bounds of the number are allowed; the kind of a single device stays as it is."""
    assert parsed(SERVER, f"count = {count}").device.count == count
    assert parsed(SERVER, "count = 1").device.kind == "any"


@pytest.mark.parametrize(
    ("tables", "device", "said"),
    [
        (SERVER, "count = 0", "device.count: expected at least 1, got 0"),
        (SERVER, "count = 65", "device.count: expected at most 64, got 65"),
        (SERVER, "count = 2.0", "device.count: expected an integer, got 2.0"),
        (SERVER, 'count = "4"', "device.count: expected an integer, got '4'"),
        (SERVER, 'count = 4\nkind = "cpu"', 'device.kind: expected "cuda" with device.count = 4'),
        (PACKAGES, "count = 2\nshare = 0.5", "device.share: expected 1 with device.count = 2, got"),
        ("", "count = 2", "device.count: expected 1 for a model, got 2, which is for servers and"),
        ('[runtime]\nengine = "auto"', "count = 2", "device.count: expected 1 for a model"),
        ('[optimise]\nprecision = "auto"', "count = 2", "device.count: expected 1 for a model"),
    ],
)
def test_what_several_gpus_contradict(tables: str, device: str, said: str) -> None:
    """The error names the key, what was expected, and what came."""
    with pytest.raises(BadManifest) as caught:
        parsed(tables, device)

    assert caught.value.message.startswith(f"function.toml: {said}")


def test_options_of_a_deploy_are_checked_alike() -> None:
    """A model file alone has one GPU; the parts of a device are checked together."""
    with pytest.raises(BadManifest, match=r"device\.count: expected 1 for a model, got 2"):
        overrides(default_manifest("model.onnx"), gpus=2)
    with pytest.raises(BadManifest, match=r'device\.kind: expected "cuda" with device.count = 2'):
        overrides(parsed(SERVER, 'kind = "cpu"'), gpus=2)
    with pytest.raises(BadManifest, match=r"device\.kind: .* got 'cpu'"):
        overrides(parsed(SERVER, "count = 2"), device="cpu")
    with pytest.raises(BadManifest, match=r"device\.count: expected at most 64, got 65"):
        overrides(parsed(SERVER), gpus=65)


@pytest.mark.parametrize(
    ("lines", "gpus", "expected"),
    [
        ("", 1, 64),
        ("", 2, 1024),
        ("", 4, 2048),
        ("", 8, 4096),
        ("shm_mib = 256", 1, 256),
        ("shm_mib = 256", 8, 256),
    ],
)
def test_shared_memory_follows_the_number(lines: str, gpus: int, expected: int) -> None:
    """Several GPUs exchange data in /dev/shm; what the function names stays. The manifest and the
    option say the same, and an option that takes the number back takes the size back."""
    by_file = parsed(f"{IMAGE}{lines}", f"count = {gpus}")
    by_option = overrides(parsed(f"{IMAGE}{lines}"), gpus=gpus)

    assert by_file.server.shm_mib == by_option.server.shm_mib == expected
    back = overrides(by_file, gpus=1)
    assert back.server.shm_mib == (256 if lines else 64)
