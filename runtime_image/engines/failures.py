"""What is said of an exception of a handler: to its caller in a line, in the log with traceback."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from runtime_image.contract.errors import HandlerFailed, UnfitInput, describe
from runtime_image.engines.base import Stopped

TEXT_MAX: Final = 1000
"""Max characters of an exception's own text, so that type and line are never cut."""
NAME_MAX: Final = 200
TRACEBACK_MAX: Final = 16_384
"""Max characters of one traceback in the log; the beginning is cut."""
AGAIN_S: Final = 10.0
"""Seconds in which the same line is logged once: callers decide how often it fails."""
PLACES_MAX: Final = 64
_LINES_MAX: Final = 2**31
_SYNTAX: Final = (SyntaxError, IndentationError, TabError)
"""Not classes made of them: those of a handler may have properties for their fields."""
_TRACEBACK: Final = vars(BaseException)["__traceback__"]
"""Reads the traceback past a property of the exception's class, which is code of the handler."""


class Failures:
    """Exceptions of the handler in one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self._folders = tuple(dict.fromkeys((str(folder), os.path.realpath(folder))))
        self._clock = clock
        self._write = write or _to_log
        self._logged: dict[str, float] = {}

    def failed(self, error: BaseException, before: str = "") -> HandlerFailed:
        """Log `error`, and return it as type, text and the last line in the folder's own files.

        `before` is put in front. Paths of this machine are cut to those in the folder and in the
        folders that Python imports from.
        """
        text, place = self._text(error), self._place(error)
        shown = f"{before}{text}{f' ({place})' if place else ''}"
        self._log(error, f"{type.__repr__(type(error))[:NAME_MAX]} {place}", shown)
        return HandlerFailed(shown)

    def _text(self, error: BaseException) -> str:
        text = describe(error, lambda error: f"{type(error).__name__}: {_words(error)}")
        text = self._cut(text[:TRACEBACK_MAX]).removesuffix(": ")
        return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]} …"

    def _cut(self, text: str) -> str:
        """Return `text` without the paths of the folder and of the folders of sys.path."""
        for base in (*self._folders, *(str(each).rstrip("/") for each in sys.path)):
            if base:
                text = text.replace(f"{base}/", "")
        return text

    def _place(self, error: BaseException) -> str:
        """Return "handler.py:12 in helper", "" if none of the folder's lines was involved."""
        if isinstance(error, SyntaxError) and type(error) in _SYNTAX:
            inner, line = self._inner(error.filename), error.lineno
            if inner:
                is_line = isinstance(line, int) and 0 < line < _LINES_MAX
                return f"{inner}:{line}" if is_line else inner
        own = self._own(error)
        if not own:
            return ""
        code = own[-1].tb_frame.f_code
        within = "" if code.co_name == "<module>" else f" in {code.co_name[:NAME_MAX]}"
        return f"{self._inner(code.co_filename)}:{own[-1].tb_lineno}{within}"

    def _own(self, error: BaseException) -> list[TracebackType]:
        """Return the parts of the traceback whose line is in a file of the folder."""
        found = []
        at: TracebackType | None = _TRACEBACK.__get__(error)
        while at is not None:
            if self._inner(at.tb_frame.f_code.co_filename):
                found.append(at)
            at = at.tb_next
        return found

    def _inner(self, file: object) -> str:
        """Return the path in the folder, "" for a file elsewhere."""
        for base in self._folders:
            if isinstance(file, str) and file.startswith(f"{base}/"):
                return file[len(base) + 1 :][:NAME_MAX]
        return ""

    def _log(self, error: BaseException, key: str, shown: str) -> None:
        now_s = self._clock()
        if now_s - self._logged.get(key, -AGAIN_S) < AGAIN_S:
            return
        if len(self._logged) >= PLACES_MAX:
            self._logged.clear()
        self._logged[key] = now_s
        with suppress(BaseException):  # the exception's methods are code of the handler
            import traceback  # not at module level: it would cost every cold start 2 ms

            # Above the folder's first line are only ours and Python's import machinery.
            begin = next(iter(self._own(error)), _TRACEBACK.__get__(error))
            lines = self._cut("".join(traceback.format_exception(type(error), error, begin)))
            self._write(lines if len(lines) <= TRACEBACK_MAX else f"…{lines[-TRACEBACK_MAX:]}")
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


def _words(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and isinstance(error.msg, str):
        return error.msg  # str() adds the name of the file
    return str(error)


def _to_log(text: str) -> None:
    with suppress(BaseException):
        sys.stderr.write(text)
        sys.stderr.flush()
