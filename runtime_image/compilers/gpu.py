"""Reads the first visible GPU from NVIDIA's driver, without CUDA's runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

DRIVER: Final = "libcuda.so.1"
NAME_MAX: Final = 256
_MULTIPROCESSORS: Final = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT in cuda.h."""
MIB: Final = 2**20


class NoGpu(Exception):
    """There is no GPU, or its driver does not answer; the text is the reason."""


def first_gpu(load: Callable[[str], Any] = ctypes.CDLL) -> str:
    """Return name, multiprocessors and memory, as in "NVIDIA H100 PCIe MIG 1g.10gb, 16 SM, 9856
    MiB". The driver adds the profile of a MIG slice to the name. Raises NoGpu. `load` opens a
    library."""
    cuda, device = _first(load)
    name = ctypes.create_string_buffer(NAME_MAX)
    size, processors = ctypes.c_size_t(), ctypes.c_int()
    _check("cuDeviceGetName", cuda.cuDeviceGetName(name, NAME_MAX, device))
    _check("cuDeviceTotalMem", cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device))
    _check(
        "cuDeviceGetAttribute",
        cuda.cuDeviceGetAttribute(ctypes.byref(processors), _MULTIPROCESSORS, device),
    )
    shown = name.value.decode(errors="replace")
    return f"{shown}, {processors.value} SM, {size.value // MIB} MiB"


def architecture(load: Callable[[str], Any] = ctypes.CDLL) -> str:
    """Return the compute capability, as in "sm90". Raises NoGpu."""
    cuda, device = _first(load)
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(
        "cuDeviceComputeCapability",
        cuda.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), device),
    )
    return f"sm{major.value}{minor.value}"


def _first(load: Callable[[str], Any]) -> tuple[Any, Any]:
    """Return the driver and its first device."""
    try:
        cuda = load(DRIVER)
    except OSError as error:
        raise NoGpu(f"there is no NVIDIA driver here ({error})") from error
    count, device = ctypes.c_int(), ctypes.c_int()
    _check("cuInit", cuda.cuInit(0))
    _check("cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count)))
    if count.value < 1:
        raise NoGpu("the NVIDIA driver shows no GPU")
    _check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0))
    return cuda, device


def _check(call: str, code: int) -> None:
    if code:
        raise NoGpu(f"the NVIDIA driver's {call} failed with CUDA error {code}")
