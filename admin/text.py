"""Formatting of values for people: durations, sizes, ages, bars, tables. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from registry.model.hosts import other_host

if TYPE_CHECKING:
    from registry.model.history import ColdStart

_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_FULL: Final = "█"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
_AGES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Colour sequences (ECMA-48, SGR), which inference engines write to their logs."""
SHORT_MS: Final = 0.001
"""Shorter times are shown in microseconds."""
NONE: Final = "-"
"""Cell of a table without a value."""


def plain(text: str) -> str:
    """Return `text` without colours and without control characters except tab and newline.

    Names, reasons and logs are untrusted, and terminals execute escape sequences.
    """
    text = _COLOURS.sub("", text)
    return "".join(c if c.isprintable() or c in "\t\n" else "�" for c in text)


def number(value: float) -> str:
    """Format with two significant digits, or as an integer from 10 on: 0.05, 1.2, 183."""
    if value >= 10:
        return f"{value:.0f}"
    return f"{value:.2g}"


def duration(ms: float) -> str:
    """Format milliseconds in a fitting unit: 0.21 us, 183 ms, 2.4 s, 3.5 min."""
    if 0 < ms < SHORT_MS:
        return f"{number(ms * 1000)} us"
    if ms < 1000:
        return f"{number(ms)} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 60_000:.1f} min"


def size(count: int) -> str:
    """Format bytes in a fitting unit: 38.2 KiB."""
    value = float(count)
    for unit in _UNITS:
        if value < _STEP or unit == _UNITS[-1]:
            break
        value /= _STEP
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def mib(count: float) -> str:
    """Format MiB in a fitting unit: 20.0 GiB."""
    return size(round(count * 2**20))


def ago(at_s: float, now_s: float) -> str:
    """Format the age of `at_s` at `now_s` (both Unix seconds): "3 min ago"."""
    age_s = now_s - at_s
    for length_s, unit in _AGES:
        if age_s >= length_s:
            return f"{age_s / length_s:.0f} {unit} ago"
    return "just now"


def bar(share: float, width: int) -> str:
    """Return a bar of `share` (0 to 1) of `width` columns, in steps of an eighth of a column."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    rest = _EIGHTHS[eighths % 8]
    return (_FULL * (eighths // 8) + rest).rstrip()


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with columns as wide as their widest cell, two spaces apart."""
    cells = [list(head), *([one_line(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def fields(pairs: Sequence[tuple[str, str]]) -> str:
    """Return one pair per line with aligned values; pairs without a value are left out."""
    shown = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in shown)


def one_line(text: str) -> str:
    """Return `text` with line breaks replaced by spaces."""
    return " ".join(text.split())


def command(*words: str) -> str:
    """Return a shell command line of these words."""
    return shlex.join(words)


def place_of(cold_start: ColdStart) -> str:
    """Return where a replica started: "cuda", "4 GPUs", or "4 GPUs of gpu2" on another host."""
    count = len(cold_start.devices)
    place = f"{count} GPUs" if count > 1 else cold_start.device_kind
    host = other_host(cold_start.host)
    return f"{place} of {host}" if host else place
