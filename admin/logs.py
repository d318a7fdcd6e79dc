"""Sets up the server's own log."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def set_up(form: Literal["human", "json"]) -> None:
    """One line per event on standard error, for people or for machines."""
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
