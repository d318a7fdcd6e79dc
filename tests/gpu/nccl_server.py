"""Server function of the checks of several GPUs: an all-reduce of PyTorch over NCCL, with one
process per visible GPU, as engines with tensor parallelism have them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

RANK_S = 90.0
RANK = """
import datetime, sys, time
import torch
import torch.distributed as group

rank, size, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(rank)
group.init_process_group(
    "nccl", init_method=meeting, rank=rank, world_size=size,
    timeout=datetime.timedelta(seconds=60),
)
values = torch.full((2**26,), float(rank + 1), device="cuda")
group.all_reduce(values)
torch.cuda.synchronize()
total = float(values[0])
began = time.monotonic()
for _ in range(10):
    group.all_reduce(values)
torch.cuda.synchronize()
print(total, 10 * values.nbytes / 1e9 / (time.monotonic() - began), flush=True)
group.destroy_process_group()
"""


def all_reduce(size: int) -> list[dict[str, float]]:
    """Add up rank + 1 of `size` processes; return each one's total, and the GB/s of its data."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        meeting = f"file://{folder}/meeting"
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(size), meeting],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            said = [rank.communicate(timeout=RANK_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    return [dict(zip(("total", "gb_s"), map(float, one.split()), strict=True)) for one in said]


class Handler(BaseHTTPRequestHandler):
    """Answers each POST with one all-reduce."""

    size = 0

    def do_GET(self) -> None:
        self._answer(b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(json.dumps({"outputs": {"ranks": all_reduce(self.size)}}).encode())

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve one request at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    given = parser.parse_args()
    Handler.size = given.gpus
    HTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
