"""CUDA's driver library, by the standard library alone. Names and structures are those of cuda.h
(CUDA Driver API: device management, primary context management, memory management)."""

from __future__ import annotations

import ctypes
from typing import Any


class Cuda:
    """Calls of the driver library. Each raises RuntimeError with the driver's code."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self("cuInit", 0)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function of the library."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: CUresult {code}")

    def count(self) -> int:
        """Return the number of visible GPUs."""
        found = ctypes.c_int()
        self("cuDeviceGetCount", ctypes.byref(found))
        return found.value


class Context:
    """The primary context of a visible GPU."""

    def __init__(self, cuda: Cuda, number: int) -> None:
        self._cuda = cuda
        self.device = ctypes.c_int()
        self.handle = ctypes.c_void_p()
        cuda("cuDeviceGet", ctypes.byref(self.device), number)
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(self.handle), self.device)

    def enter(self) -> None:
        """Make it the calling thread's."""
        self._cuda("cuCtxSetCurrent", self.handle)

    def take(self, size: int) -> ctypes.c_uint64:
        """Return the address of `size` bytes of the GPU's memory."""
        self.enter()
        address = ctypes.c_uint64()
        self._cuda("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def give_back(self, address: ctypes.c_uint64) -> None:
        """Free what `take` returned."""
        self.enter()
        self._cuda("cuMemFree_v2", address)

    def write(self, address: ctypes.c_uint64, data: bytes) -> None:
        """Copy bytes of the host to the GPU."""
        self.enter()
        self._cuda("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(len(data)))

    def read(self, address: ctypes.c_uint64, size: int) -> bytes:
        """Return bytes of the GPU."""
        self.enter()
        seen = ctypes.create_string_buffer(size)
        self._cuda("cuMemcpyDtoH_v2", seen, address, ctypes.c_size_t(size))
        return seen.raw
