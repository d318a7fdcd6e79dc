"""What holds for every test of the project, also those beside the functions."""

import os

import structlog

# Before anything imports ONNX Runtime: it would write a usage database and keep it open.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# Without the frames' values, which cost a tenth of a second for each exception that is logged.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
