"""Server function of the checks of several GPUs: memory on each visible GPU, copies between them.

Talks to CUDA's driver library, and needs nothing but the standard library and `cuda_driver.py`
beside it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from cuda_driver import Context, Cuda

SEEN = 4096
"""Bytes of a copy that are read back."""


class Card:
    """A visible GPU with its primary context and two buffers of `size` bytes; the first has its
    number in every byte."""

    def __init__(self, cuda: Cuda, number: int, size: int) -> None:
        self._cuda = cuda
        self.number = number
        self.context = Context(cuda, number)
        bus = ctypes.create_string_buffer(32)
        cuda("cuDeviceGetPCIBusId", bus, len(bus), self.context.device)
        self.bus = bus.value.decode()
        self.own, self.copy = (self.context.take(size) for _ in range(2))
        self._size = ctypes.c_size_t(size)
        cuda("cuMemsetD8_v2", self.own, ctypes.c_ubyte(number + 1), self._size)

    def receive(self, other: Card) -> dict[str, Any]:
        """Copy the other GPU's first buffer here; return what came, and the speed."""
        can_reach = ctypes.c_int()
        devices = (self.context.device, other.context.device)
        self._cuda("cuDeviceCanAccessPeer", ctypes.byref(can_reach), *devices)
        self.context.enter()
        began = time.monotonic()
        self._cuda(
            "cuMemcpyPeer",
            self.copy,
            self.context.handle,
            other.own,
            other.context.handle,
            self._size,
        )
        self._cuda("cuCtxSynchronize")
        seconds = time.monotonic() - began
        seen = self.context.read(self.copy, SEEN)
        return {
            "from": other.number,
            "to": self.number,
            "is_right": seen == bytes([other.number + 1]) * SEEN,
            "is_peer": bool(can_reach.value),
            "gb_s": self._size.value / 1e9 / max(seconds, 1e-9),
        }


def opened(library: str, size: int) -> list[Card]:
    """Return all visible GPUs with buffers of `size` bytes."""
    cuda = Cuda(library)
    return [Card(cuda, number, size) for number in range(cuda.count())]


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
    parser.add_argument("--mib", type=int, required=True, help="size of each of two buffers")
    given = parser.parse_args()
    cards = opened(given.library, given.mib * 2**20)
    HTTPServer(("127.0.0.1", given.port), handler(cards)).serve_forever()


if __name__ == "__main__":
    main()
