"""Sets up the server's own log."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Literal, TextIO, cast

import structlog
from aiohttp.http_exceptions import HttpProcessingError
from structlog.typing import EventDict

log = structlog.get_logger()


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
            _bounded,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Not PrintLogger, which ends a line in a write of its own: another process may cut in.
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    handler = _ToStructlog()
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


REPEATS_MAX: Final = 10
"""Records of libraries with the same words in one minute; further ones are counted."""
WINDOW_S: Final = 60.0
TEXT_MAX: Final = 2000
TRACEBACK_MAX: Final = 16_000
"""Characters of one record: clients choose some of them."""


def _bounded(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Cut long tracebacks in the middle."""
    traceback = event.get("exception")
    if isinstance(traceback, str) and len(traceback) > TRACEBACK_MAX:
        half = TRACEBACK_MAX // 2
        event["exception"] = f"{traceback[:half]}\n...\n{traceback[-half:]}"
    return event


class _ToStructlog(logging.Handler):
    """Records of libraries (aiohttp, asyncio, uvloop) as events of our log, in its form."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._ends_s = 0.0
        self._counts: dict[tuple[str, str], int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """logging's: one record."""
        try:
            if self._is_repeated(record):
                return
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, HttpProcessingError):
                # It quotes what cannot be read, which may be a key.
                reason = type(error).__name__
                log.warning("a request is no HTTP", logger=record.name, reason=reason)
                return
            text = record.getMessage()[:TEXT_MAX]
            level = min(record.levelno, logging.ERROR)
            log.log(level, text, logger=record.name, exc_info=record.exc_info or None)
        except Exception:  # noqa: BLE001 - what cannot be logged must not stop what goes on
            self.handleError(record)

    def _is_repeated(self, record: logging.LogRecord) -> bool:
        """Whether there were enough of this kind; those left out are told of in the end."""
        now = self._clock()
        if now >= self._ends_s:
            left_out = sum(max(0, count - REPEATS_MAX) for count in self._counts.values())
            if left_out:
                log.warning("records of libraries left out", count=left_out)
            self._ends_s = now + WINDOW_S
            self._counts.clear()
        key = (record.name, str(record.msg)[:TEXT_MAX])
        count = self._counts.get(key, 0) + 1
        if len(self._counts) < REPEATS_MAX * 100 or key in self._counts:
            self._counts[key] = count
            return count > REPEATS_MAX
        return True


def _uncaught(kind: type[BaseException], error: BaseException, _trace: object) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    log.critical("the process ends by an error", exc_info=error)


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    name = "" if arguments.thread is None else arguments.thread.name
    log.error("a thread died", thread=name, exc_info=arguments.exc_value)


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
