"""Whole lines out of what a replica writes, whatever that is. Pure."""

from __future__ import annotations

from typing import Final

LINE_MAX: Final = 16 * 1024
"""Bytes shown of a line."""


class Lines:
    """Takes bytes, gives lines as text: as long as `LINE_MAX` at most, and what was left out is
    said in a line of its own, or at the end of its line."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._cut = 0
        self._lost = 0
        self.pending = 0
        """Bytes taken of a line that has not ended."""

    def feed(self, data: bytes) -> list[str]:
        """The lines that have ended with this."""
        found: list[str] = []
        if self._lost and data:
            # What comes first is the rest of a line whose beginning is gone.
            broken, end, data = data.partition(b"\n")
            self._lost += len(broken) + len(end)
            if not end:
                return found
            found.append(left_out(self._lost))
            self._lost = 0
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._keep(part)
            found.append(self._line())
        self._keep(rest)
        return found

    def skip(self, count: int) -> None:
        """So many bytes are gone, and what comes next is from somewhere within a line."""
        self._lost += count + self.pending
        self._clear()

    def flush(self) -> list[str]:
        """Nothing more comes: what there is of a last line."""
        found = [left_out(self._lost)] if self._lost else []
        self._lost = 0
        return [*found, self._line()] if self.pending else found

    def _keep(self, part: bytes) -> None:
        kept = part[: LINE_MAX - len(self._rest)]
        self._rest += kept
        self._cut += len(part) - len(kept)
        self.pending += len(part)

    def _line(self) -> str:
        text = self._rest.decode(errors="replace").rstrip("\r")
        if self._cut:
            text += f" ... {self._cut} bytes left out"
        self._clear()
        return text

    def _clear(self) -> None:
        self._rest.clear()
        self._cut = self.pending = 0


def left_out(count: int) -> str:
    """What stands in place of output that is gone."""
    return f"... {count} bytes of output were dropped ..."
