"""What is said of an exception of a handler: to its caller in a line, in the log with traceback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from runtime_image.contract.errors import HandlerFailed, UnfitInput, describe
from runtime_image.contract.tracebacks import NAME_MAX, Tracebacks
from runtime_image.engines.base import Stopped

AGAIN_S: Final = 10.0
"""Seconds in which the same line is logged once: callers decide how often it fails."""
PLACES_MAX: Final = 64


class Failures:
    """Exceptions of the handler in one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self._tracebacks = Tracebacks(folder)
        self._clock = clock
        self._write = write or _to_log
        self._logged: dict[str, float] = {}

    def failed(self, error: BaseException, before: str = "") -> HandlerFailed:
        """Log `error`, and return it as type, text and the last line in the folder's own files.

        `before` is put in front.
        """
        shown = f"{before}{self._tracebacks.told(error)}"
        place = self._tracebacks.place(error)
        self._log(error, f"{type.__repr__(type(error))[:NAME_MAX]} {place}", shown)
        return HandlerFailed(shown)

    def _log(self, error: BaseException, key: str, shown: str) -> None:
        now_s = self._clock()
        if now_s - self._logged.get(key, -AGAIN_S) < AGAIN_S:
            return
        if len(self._logged) >= PLACES_MAX:
            self._logged.clear()
        self._logged[key] = now_s
        with suppress(BaseException):  # the exception's methods are code of the handler
            self._write(self._tracebacks.whole(error))
            return
        self._write(f"{shown}\n")


def reason_of(error: BaseException) -> str:
    """Return what a caller is told of an error of a run."""
    if isinstance(error, HandlerFailed):
        return str(error)
    return describe(error, lambda error: f"{type(error).__name__}: {error}")


def is_own(error: BaseException) -> bool:
    """Return whether an error in a handler is one of ours, which passes through it."""
    return isinstance(error, Stopped | UnfitInput)


def _to_log(text: str) -> None:
    with suppress(BaseException):
        sys.stderr.write(text)
        sys.stderr.flush()
