"""What holds for every test of the project, also those beside the functions."""

import gc
import os
import signal
from collections.abc import Generator

import hypothesis
import pytest
import structlog

# Before anything imports ONNX Runtime: it would write a usage database and keep it open.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# The folders of hundreds of servers stay until the session ends.
os.environ["FN_BALLAST_MIB"] = "0"

# A shell starts background jobs with SIGINT ignored, and children inherit that: a test could end
# none of them by Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine any input may take long to generate and any example long to run.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

# Without the frames' values, which cost a tenth of a second for each exception that is logged.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collections, and keep all that is there then out of later ones:
    half a million objects, which the leak check would visit again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
