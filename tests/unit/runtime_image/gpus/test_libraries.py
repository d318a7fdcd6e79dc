"""Versions and files of NVIDIA's libraries, over compiled stand-ins."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runtime_image.gpus import libraries
from tests.support.nvml import board

SOURCE = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 3; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13050; return 0; }
int cublasGetProperty(int kind, int *value) { *value = 13 - kind; return 0; }
unsigned long cudnnGetVersion(void) { return 92800; }
int getInferLibVersion(void) { return 101601; }
"""
FAILING = """
int cuInit(unsigned flags) { return 100; }
int cudaRuntimeGetVersion(int *version) { return 35; }
"""


def compiled(folder: Path, name: str, source: str) -> str:
    """Compile a library; return its path."""
    code = folder / f"{name}.c"
    code.write_text(source)
    command = [board.compiler(), "-shared", "-fPIC", "-o", folder / name, code]
    subprocess.run(command, check=True, capture_output=True)
    return str(folder / name)


@pytest.mark.slow
def test_libraries_report_their_versions(tmp_path: Path) -> None:
    """Each library is asked by its own function, in its own encoding."""
    path = compiled(tmp_path, "libcuda.so.580.65", SOURCE)

    assert libraries.device_count(path) == 3
    assert libraries.loaded()["libcuda"] == path
    found = {name: libraries.version(name, path) for name in libraries.VERSIONS}
    assert found == {
        "libcuda": "13.0",
        "libcudart": "13.5",
        "libcublas": "13.12.11",
        "libcudnn": "9.28.0",
        "libnvinfer": "10.16.1",
    }


@pytest.mark.slow
def test_a_library_that_fails_has_no_version(tmp_path: Path) -> None:
    """A driver that fails shows no GPU; a function that fails or is missing gives no version."""
    path = compiled(tmp_path, "libbroken.so", FAILING)

    assert libraries.device_count(path) == 0
    assert libraries.device_count("libnone.so.1") == 0
    for name in ("libcudart", "libcudnn", "libother"):
        assert libraries.version(name, path) == ""
    assert libraries.version("libcuda", "/nonexistent.so") == ""


def test_mapped_files_are_found_by_their_names(tmp_path: Path) -> None:
    """Only the libraries themselves count: cublasLt and cuDNN's parts belong to others."""
    maps = tmp_path / "maps"
    prefix = "7f00-7f01 r-xp 00000000 00:00 1"
    names = ("libcudnn.so.9", "libcudnn_ops.so.9", "libcublasLt.so.13", "libc.so.6")
    maps.write_text("".join(f"{prefix}   /v/{name}\n" for name in names) + f"{prefix} [heap]\n")

    assert libraries.loaded(maps) == {"libcudnn": "/v/libcudnn.so.9"}


class Runtime:
    """Stand-in for ONNX Runtime in a folder of packages, which notes what it is to preload."""

    def __init__(self, packages: Path) -> None:
        self.__file__ = str(packages / "onnxruntime" / "__init__.py")
        self.calls: list[tuple[str, bool, bool]] = []

    def preload_dlls(self, cuda: bool = True, cudnn: bool = True, directory: str = "") -> None:
        self.calls.append((directory, cuda, cudnn))


def test_libraries_of_another_folder_of_packages_are_loaded(tmp_path: Path) -> None:
    """NVIDIA's wheels beside ONNX Runtime are found by itself; those in another folder are loaded
    before."""
    system, own = tmp_path / "system" / "nvidia", tmp_path / "own" / "nvidia"
    for place in (system, own):
        (place / "cu13" / "lib").mkdir(parents=True)
        (place / "cudnn" / "lib").mkdir(parents=True)

    runtime = Runtime(tmp_path / "own")
    libraries.preload(runtime, [system, own])
    assert runtime.calls == [("", True, True)]

    runtime = Runtime(tmp_path / "own")
    libraries.preload(runtime, [tmp_path / "none", system])
    assert runtime.calls == [
        (str(system / "cu13" / "lib"), True, False),
        (str(system / "cudnn" / "lib"), False, True),
        ("", True, True),
    ]

    runtime = Runtime(tmp_path / "own")
    libraries.preload(runtime, [])
    assert runtime.calls == [("", True, True)]
