"""fnctl of a server whose access log goes to a file, FN_BENCHMARK_LOG, as `2> server.log` has it.

The benchmarks read their servers' standard error through a pipe, and whoever reads so many lines
takes turns with what is measured.
"""

from __future__ import annotations

import os
from functools import partial

import admin.compose
from admin.cli.main import main
from admin.telemetry.logs import access_writer

if __name__ == "__main__":
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(os.environ["FN_BENCHMARK_LOG"], flags, 0o600)
    admin.compose.access_writer = partial(access_writer, descriptor=descriptor)
    main()
