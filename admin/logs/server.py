"""Sets up the server's own log."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Literal, TextIO, cast

import structlog
from aiohttp.http_exceptions import HttpProcessingError


def set_up(form: Literal["human", "json"]) -> None:
    """One line per event on standard error, for people or for machines. Each is written at once:
    gateway processes and the access log write to the same place."""
    render: structlog.types.Processor = structlog.processors.JSONRenderer()
    if form == "human":
        render = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("aiohttp.server").addFilter(_without_quotations)


def _without_quotations(record: logging.LogRecord) -> bool:
    """aiohttp quotes what it cannot read, which may be a key, and shows where it noticed: all that
    anybody may know of such a request is that it came."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg, record.args = "a request is no HTTP: %s", (type(error).__name__,)
        record.exc_info, record.exc_text = None, None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


class _Unfailing:
    """A stream whose errors are nobody's: where the log cannot be written, for the disk is full or
    its reader gone, whatever was to be told of goes on. WriteLogger needs no more of a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write what can be written; half a line may be lost."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        """Hand over what was written, if that can be."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
