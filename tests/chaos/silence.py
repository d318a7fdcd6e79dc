"""Longest silence of `/healthz`: `python -m tests.chaos.silence PORT SECONDS`.

Asks on a new connection every 3 ms, one request after the other, and prints the longest time in
milliseconds from a connection's start to its answer, the number of answers and that of failures.
"""

from __future__ import annotations

import socket
import sys
import time

EVERY_S = 0.003
LIMIT_S = 30.0
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def longest(port: int, seconds: float) -> tuple[float, int, int]:
    """Return the longest silence in milliseconds, and how many requests were answered and
    failed."""
    most, answered, failed = 0.0, 0, 0
    end_s = time.monotonic() + seconds
    while (began_s := time.monotonic()) < end_s:
        try:
            with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
                client.sendall(REQUEST)
                is_well = client.recv(4096).startswith(b"HTTP/1.1 200")
        except OSError:
            is_well = False
        answered, failed = answered + is_well, failed + (not is_well)
        most = max(most, time.monotonic() - began_s)
        time.sleep(EVERY_S)
    return most * 1e3, answered, failed


if __name__ == "__main__":
    print(*longest(int(sys.argv[1]), float(sys.argv[2])), flush=True)  # noqa: T201 - read by a scenario
