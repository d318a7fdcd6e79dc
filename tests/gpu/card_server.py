"""Server function of the checks of several GPUs: memory on each visible GPU, copies between them.

Talks to CUDA's driver library, and needs nothing but the standard library. Names and structures
are those of cuda.h (CUDA Driver API, device management, memory management).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

KEPT_MIB = 512
"""Memory that is kept on each GPU; as much again is written by a copy."""
SEEN = 4096
"""Bytes of a copy that are read back."""


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


class Card:
    """A visible GPU with its primary context and two buffers; the first has its number in every
    byte."""

    def __init__(self, cuda: Cuda, number: int) -> None:
        self._cuda = cuda
        self.number = number
        self.device = ctypes.c_int()
        self.context = ctypes.c_void_p()
        cuda("cuDeviceGet", ctypes.byref(self.device), number)
        bus = ctypes.create_string_buffer(32)
        cuda("cuDeviceGetPCIBusId", bus, len(bus), self.device)
        self.bus = bus.value.decode()
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.enter()
        self.own, self.copy = self._take(), self._take()
        cuda("cuMemsetD8_v2", self.own, ctypes.c_ubyte(number + 1), self._size)

    _size = ctypes.c_size_t(KEPT_MIB * 2**20)

    def enter(self) -> None:
        """Make this GPU's context the thread's."""
        self._cuda("cuCtxSetCurrent", self.context)

    def _take(self) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self._cuda("cuMemAlloc_v2", ctypes.byref(pointer), self._size)
        return pointer

    def receive(self, other: Card) -> dict[str, Any]:
        """Copy the other GPU's first buffer here; return what came, and the speed."""
        can_reach = ctypes.c_int()
        self._cuda("cuDeviceCanAccessPeer", ctypes.byref(can_reach), self.device, other.device)
        self.enter()
        began = time.monotonic()
        pair = (self.copy, self.context, other.own, other.context)
        self._cuda("cuMemcpyPeer", *pair, self._size)
        self._cuda("cuCtxSynchronize")
        seconds = time.monotonic() - began
        seen = ctypes.create_string_buffer(SEEN)
        self._cuda("cuMemcpyDtoH_v2", seen, self.copy, ctypes.c_size_t(SEEN))
        return {
            "from": other.number,
            "to": self.number,
            "is_right": seen.raw == bytes([other.number + 1]) * SEEN,
            "is_peer": bool(can_reach.value),
            "gb_s": KEPT_MIB * 2**20 / 1e9 / max(seconds, 1e-9),
        }


def opened(library: str) -> list[Card]:
    """Return all visible GPUs."""
    cuda = Cuda(library)
    count = ctypes.c_int()
    cuda("cuDeviceGetCount", ctypes.byref(count))
    return [Card(cuda, number) for number in range(count.value)]


def handler(cards: list[Card]) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            pairs = [(one, other) for one in cards for other in cards if one is not other]
            self._answer(
                {
                    "buses": [card.bus for card in cards],
                    "copies": [one.receive(other) for one, other in pairs],
                    "order": os.environ.get("CUDA_DEVICE_ORDER", ""),
                }
            )

        def _answer(self, told: dict[str, Any]) -> None:
            data = json.dumps({"outputs": told}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    return Handler


def main() -> None:
    """Take the memory, then serve one request at a time, in the thread of the contexts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--library", default="libcuda.so.1")
    given = parser.parse_args()
    cards = opened(given.library)
    HTTPServer(("127.0.0.1", given.port), handler(cards)).serve_forever()


if __name__ == "__main__":
    main()
