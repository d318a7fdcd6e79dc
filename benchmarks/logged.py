"""fnctl for a server whose access log goes to the file FN_BENCHMARK_LOG, like `2> server.log`.

The benchmarks read their servers' standard error through a pipe. A process that reads that many
lines would compete with the measured processes.
"""

from __future__ import annotations

import os
from functools import partial

import admin.workers.node
from admin.cli.main import main
from admin.telemetry.logs import access_writer

if __name__ == "__main__":
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(os.environ["FN_BENCHMARK_LOG"], flags, 0o600)
    admin.workers.node.access_writer = partial(access_writer, descriptor=descriptor)
    main()
