"""What an exception of a handler says: type, words, the user's own last line, the traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

from runtime_image.contract.errors import describe

TEXT_MAX: Final = 1000
"""Max characters of an exception's own text, so that type and line are never cut."""
NAME_MAX: Final = 200
TRACEBACK_MAX: Final = 16_384
"""Max characters of one traceback; the beginning is cut."""
_LINES_MAX: Final = 2**31
_SYNTAX: Final = (SyntaxError, IndentationError, TabError)
"""Not classes made of them: those of a handler may have properties for their fields."""
_TRACEBACK: Final = vars(BaseException)["__traceback__"]
"""Reads the traceback past a property of the exception's class, which is code of the handler."""


class Tracebacks:
    """Exceptions of the files in one folder.

    Paths of this machine are cut to those in the folder and in the folders that Python imports
    from. Lines of a traceback that stand below `ours` are left out.
    """

    def __init__(self, folder: Path, ours: Path | None = None) -> None:
        self._folders = tuple(dict.fromkeys((str(folder), str(folder.resolve()))))
        self._ours = None if ours is None else f"{ours}/"

    def told(self, error: BaseException) -> str:
        """Return type, text and the last line in the folder's own files."""
        place = self.place(error)
        return f"{self._text(error)}{f' ({place})' if place else ''}"

    def whole(self, error: BaseException) -> str:
        """Return the traceback from the folder's first line on. Raises whatever the exception's
        own methods raise: they are code of the handler."""
        import traceback  # not at module level: it would cost every cold start 2 ms

        # Above the folder's first line are only ours and Python's import machinery.
        begin = next(iter(self._own(error)), _TRACEBACK.__get__(error))
        report = traceback.TracebackException(type(error), error, begin, compact=True)
        if self._ours:
            self._drop_ours(report)
        lines = self._cut("".join(report.format()))
        return lines if len(lines) <= TRACEBACK_MAX else f"…{lines[-TRACEBACK_MAX:]}"

    def stack(self, frame: FrameType) -> str:
        """Return where a thread is, from the folder's first line on."""
        import traceback

        frames = traceback.extract_stack(frame)
        own = (at for at, one in enumerate(frames) if self._inner(one.filename))
        return self._cut("".join(traceback.format_list(frames[next(own, 0) :])))[-TRACEBACK_MAX:]

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

    def place(self, error: BaseException) -> str:
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

    def _drop_ours(self, report: Any) -> None:
        """Take our own lines out of a TracebackException, and of all that it leads to."""
        seen, pending = set[int](), [report]
        while pending:
            one = pending.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            one.stack[:] = [at for at in one.stack if not at.filename.startswith(self._ours)]
            pending += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]

    def _inner(self, file: object) -> str:
        """Return the path in the folder, "" for a file elsewhere."""
        for base in self._folders:
            if isinstance(file, str) and file.startswith(f"{base}/"):
                return file[len(base) + 1 :][:NAME_MAX]
        return ""


def _words(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and isinstance(error.msg, str):
        return error.msg  # str() adds the name of the file
    return str(error)
