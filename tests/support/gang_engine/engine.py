"""Stand-in for an engine that spreads a model over several GPUs: one process per visible GPU.

Each of these processes holds an exclusive lock (flock(2)) on the GPU's file in a folder that all
engines share, for as long as it lives, and its function's name is in that file: two engines on one
GPU at the same time are seen by the second one, whatever the server believes. Such a conflict is
appended to the file "conflicts", a start with all of its GPUs to the file "starts". The processes
ignore SIGTERM and outlive the engine's first process, as workers that hang in a collective call do.

Needs only the standard library. The server answers `POST /run?ms=N` after N milliseconds.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TAKEN = 3
"""Exit code of an engine one of whose GPUs is taken by another one."""
DIED = 4
"""Exit code of an engine one of whose processes has died."""


def visible() -> list[str]:
    """Return the numbers of the visible GPUs in the engine's order. A GPU's number is its index,
    and the last part of its UUID on the stand-in board."""
    return re.findall(r"(\d+)(?:,|$)", os.environ.get("CUDA_VISIBLE_DEVICES", ""))


def hold(card: str, name: str, folder: Path, ready: int) -> None:
    """Lock a GPU, tell `ready`, and keep it until this process is killed; does not return."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    file = os.open(folder / card, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.read(file, 200).decode()
        record = f"GPU {card}: {name} while {other.strip()} has it\n"
        with (folder / "conflicts").open("a") as conflicts:
            conflicts.write(record)
        os._exit(TAKEN)
    os.ftruncate(file, 0)
    os.write(file, f"{name}\n".encode())
    os.write(ready, b".")
    os.close(ready)
    while True:
        signal.pause()


def spread(name: str, folder: Path) -> list[str]:
    """Start one process per visible GPU; return the GPUs once all are locked."""
    cards = visible()
    told, ready = os.pipe()
    for card in cards:
        if os.fork() == 0:
            os.close(told)
            hold(card, name, folder, ready)
    os.close(ready)
    got = 0
    while part := os.read(told, len(cards)):
        got += len(part)
    if got != len(cards):
        end(TAKEN)
    with (folder / "starts").open("a") as starts:
        starts.write(f"{name} {' '.join(cards)}\n")
    return cards


def end(code: int) -> None:
    """End this process and leave the others to the server's kill."""
    sys.stderr.flush()
    os._exit(code)


def watch() -> None:
    """End the engine when one of its processes dies: nothing can be computed without it."""
    os.wait()
    end(DIED)


def handler(name: str, cards: list[str]) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests of this engine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body leave in one write: an answer that has begun cannot be repeated.
        wbufsize = -1

        def do_GET(self) -> None:
            self._answer({"ready": True})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = re.search(r"ms=(\d+)", self.path)
            threading.Event().wait(int(found[1]) / 1e3 if found else 0.0)
            self._answer({"name": name, "cards": cards, "body": body.decode()})

        def _answer(self, told: dict[str, Any]) -> None:
            data = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    return Handler


class Server(ThreadingHTTPServer):
    """The engine's HTTP server."""

    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Take the GPUs, load for a while, serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--load-s", type=float, default=0.0)
    given = parser.parse_args()
    cards = spread(given.name, given.folder)
    if cards:
        threading.Thread(target=watch, daemon=True).start()
    threading.Event().wait(given.load_s)
    Server(("127.0.0.1", given.port), handler(given.name, cards)).serve_forever()


if __name__ == "__main__":
    main()
