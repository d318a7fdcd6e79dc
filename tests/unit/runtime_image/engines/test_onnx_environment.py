"""What names the engine and the device that files were prepared for."""

from __future__ import annotations

import re

import onnxruntime
import pytest

from runtime_image.contract.errors import LoadError
from runtime_image.engines.onnx import driver_version, environment_key, processor_digest

FIRST = b"processor\t: 0\nvendor_id\t: One\ncpu MHz\t\t: 2596.124\nflags\t\t: fpu avx2\n"
SECOND = b"\nprocessor\t: 1\nvendor_id\t: Two\nflags\t\t: fpu\n"
NVIDIA = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build"
    "  (dvs-builder@U22)  Thu Jan 23 22:50:36 UTC 2025\nGCC version:  gcc 12.3.0\n"
)


def test_the_key_of_this_machine_names_engine_and_processor() -> None:
    """It carries the engine's version, and the same call gives the same answer."""
    key = environment_key("cpu")

    version = re.escape(onnxruntime.__version__)
    assert re.fullmatch(rf"onnx-{version}/cpu-\w+-[0-9a-f]{{8}}", key)
    assert environment_key("cpu") == key


def test_only_what_the_instructions_depend_on_counts() -> None:
    """Clock rates and further processors change nothing, other instructions do."""
    digest = processor_digest(FIRST + SECOND)

    assert processor_digest(FIRST.replace(b"2596.124", b"800.000")) == digest
    assert processor_digest(FIRST.replace(b"avx2", b"avx512f")) != digest
    assert processor_digest(SECOND.lstrip()) != digest
    assert processor_digest(b"") == processor_digest(b"processor\t: 0\n")


def test_the_drivers_release_is_read_off_its_words() -> None:
    """The release of the kernel module, not the architecture or the compiler; or that it is
    unknown."""
    assert driver_version(NVIDIA) == "570.86.15"
    assert driver_version("GCC version: none\n") == "unknown"
    assert driver_version("") == "unknown"


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="this machine may have a GPU",
)
def test_a_gpu_that_is_not_there_is_told() -> None:
    """Nothing is named where there is no driver."""
    with pytest.raises(LoadError, match="device cuda: "):
        environment_key("cuda")
