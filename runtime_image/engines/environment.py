"""What a prepared model depends on beside the model itself: engine version, processor, driver."""

from __future__ import annotations

import ctypes
import functools
import os
import zlib
from pathlib import Path
from typing import Final

import onnxruntime as ort

from runtime_image.contract.errors import LoadError

CPU_INFO: Final = Path("/proc/cpuinfo")
NVIDIA_VERSION: Final = Path("/proc/driver/nvidia/version")
CUDA_DRIVER: Final = "libcuda.so.1"
CPU_LINES: Final = (
    b"vendor_id",
    b"cpu family",
    b"model",
    b"flags",
    b"CPU implementer",
    b"CPU part",
    b"Features",
)
"""What /proc/cpuinfo says of one processor that decides which kernels and layouts are chosen: of
x86, then of ARM. Clock rates and the like would make a new key every time."""
CPU_INFO_BYTES: Final = 16 * 1024
"""Holds the first processor; reading all would take milliseconds where there are many."""


@functools.cache
def environment_key(device_kind: str) -> str:
    """Names the engine's version and what a device of this kind ("cpu", "cuda") is, as in
    "onnx-1.31.1/cpu-x86_64-8d3c2f10": files prepared under one key are of no use under another.

    The first call takes about 0.1 ms. Raises LoadError where there is no such device.
    """
    engine = f"onnx-{ort.__version__}"
    # Some nodes of a model for a GPU stay on the processor, in the layout that it likes.
    cpu = f"cpu-{os.uname().machine}-{processor_digest(_first_bytes(CPU_INFO)):08x}"
    if device_kind == "cpu":
        return f"{engine}/{cpu}"
    return f"{engine}/{device_kind}-{_gpu()}/{cpu}"


def processor_digest(cpu_info: bytes) -> int:
    """A number that is the same for processors with the same instructions, of the text of
    /proc/cpuinfo. Its 32 bits tell the processors of one data folder apart; longer digests take
    an import of 3 ms."""
    first = cpu_info.split(b"\n\n", 1)[0]
    known = [line for line in first.splitlines() if line.split(b":")[0].strip() in CPU_LINES]
    return zlib.crc32(b"\n".join(known))


def driver_version(text: str) -> str:
    """The release in what /proc/driver/nvidia/version says, "unknown" where it has none."""
    words = text.splitlines()[0].split() if text else []
    releases = [word for word in words if word[0].isdigit() and "." in word]
    return releases[0] if releases else "unknown"


def _gpu() -> str:
    """Architecture and driver of the first GPU this process sees, as in "sm90-570.86.15"."""
    try:
        cuda = ctypes.CDLL(CUDA_DRIVER)
    except OSError as error:
        raise LoadError(f"device cuda: there is no NVIDIA driver here ({error})") from error
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), 0)
        or cuda.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), device)
    )
    if failed:
        raise LoadError(f"device cuda: the driver names no GPU (CUDA error {failed})")
    version = driver_version(_first_bytes(NVIDIA_VERSION).decode(errors="replace"))
    return f"sm{major.value}{minor.value}-{version}"


def _first_bytes(path: Path) -> bytes:
    """The beginning of a file of the kernel's, b"" where it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(CPU_INFO_BYTES) or b""
    except OSError:
        return b""
