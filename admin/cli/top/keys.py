"""What a terminal sends, as names of keys. Pure.

A printable character is its own name; the others are called "up", "enter" and so on.
"""

from __future__ import annotations

import re
from typing import Final

KEYS_MAX: Final = 200
"""Keys taken from one read: somebody pastes a book."""
_NAMED: Final = {
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x15": "clear",
    b"\x03": "interrupt",
    b"\x0c": "redraw",
    b"\t": "down",
}
_SEQUENCES: Final = {
    b"A": "up",
    b"B": "down",
    b"H": "home",
    b"F": "end",
    b"1~": "home",
    b"7~": "home",
    b"4~": "end",
    b"8~": "end",
    b"5~": "page up",
    b"6~": "page down",
}
_SEQUENCE: Final = re.compile(rb"\x1b[\[O]([0-9;]*[ -/]*[@-~])")
_UNFINISHED: Final = re.compile(rb"\x1b([\[O][0-9;]*)?\Z")


class Keys:
    """Takes bytes, gives keys; a sequence may come in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The keys that are complete with these bytes. Sequences that nobody knows are none."""
        data = self._rest + data
        self._rest = b""
        found: list[str] = []
        while data and len(found) < KEYS_MAX:
            if _UNFINISHED.match(data):
                self._rest = data
                break
            key, length = _first(data)
            data = data[length:]
            found += [key] if key else []
        return found

    def flush(self) -> list[str]:
        """What was held back, once nothing has followed: the escape key itself."""
        rest, self._rest = self._rest, b""
        return ["escape"] if rest[:1] == b"\x1b" else []


def _first(data: bytes) -> tuple[str, int]:
    """The first key ("" for none that we know) and how many bytes it is."""
    if known := _SEQUENCE.match(data):
        return _SEQUENCES.get(known.group(1), ""), known.end()
    if data[:1] == b"\x1b":
        return "escape", 1
    if named := _NAMED.get(data[:1]):
        return named, 1
    if data[0] < 0x80:
        return (chr(data[0]) if chr(data[0]).isprintable() else ""), 1
    # No name of ours has a character beyond ASCII: one that is typed is passed over.
    return "", 1
