"""The load of `fnctl bench` in a process: `python -m benchmarks.loading.bench_load PLAN`.

The file PLAN is what `encode` returns. The output is the result as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict
from pathlib import Path

import msgspec

from admin.cli.bench.generator import run_load
from admin.cli.bench.load import LoadPlan
from admin.client.transport import Endpoint


def encode(port: int, plan: LoadPlan, request: bytes) -> bytes:
    """Return the content of the file for a load on a port of this machine."""
    return msgspec.json.encode((port, plan, request))


def main() -> None:
    """Make the load with all descriptors that this process may have, and print its result."""
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    data = Path(sys.argv[1]).read_bytes()
    port, plan, request = msgspec.json.decode(data, type=tuple[int, LoadPlan, bytes])
    endpoint = Endpoint("127.0.0.1", port, is_secure=False, prefix="", key=None, dial=None)
    print(json.dumps(asdict(run_load(endpoint, plan, request)), default=list))


if __name__ == "__main__":
    main()
