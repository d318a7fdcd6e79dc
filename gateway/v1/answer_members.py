"""Finds members of JSON objects in answers, as spans. Pure.

What a server writes passes but for what is changed in it, also where it is no JSON by RFC 8259. So
its syntax is not checked, and its members are found by walking from bracket to bracket.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

MEMBERS_MAX: Final = 1000
"""Max members of an object that are looked at."""
BRACKETS_MAX: Final = 4096
"""Max objects and arrays of an answer among which its members are looked for, at most 6 ms."""
NUMBER_MAX: Final = 4096
"""Max bytes of a number."""
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SPACE: Final = rb"[ \t\n\r]*+"
NAME: Final = re.compile(_SPACE + b"(" + _STRING + b")" + _SPACE + b":" + _SPACE, re.DOTALL)
"""The name of a member and what stands before its value."""
_PLAIN: Final = re.compile(_STRING + rb"|[-+.0-9A-Za-z]{1,%d}+" % NUMBER_MAX, re.DOTALL)
"""A value that is neither an object nor an array."""
_SIGN: Final = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+([\[\]{}]?)", re.DOTALL)
"""The next bracket and what stands before it: none at the end, or before a text that is cut."""
NEXT: Final = re.compile(_SPACE + rb"([,}])")
"""The sign behind a value."""


class Member(NamedTuple):
    """One member of an object, as indices of the text."""

    name: bytes
    """In quotes, as it stands there."""
    begin: int
    """Of the value."""
    end: int
    """Behind the value; -1 if it is cut or has too many objects and arrays; no member follows."""
    first: int
    """Of the name and the white space before it."""
    after: int
    """Behind the value and the white space up to a comma; behind the last member, that is the
    object's."""
    is_last: bool
    """Whether the object ends behind it."""


def members_of(text: bytes, at: int) -> Iterator[Member]:
    """Iterate over the members of the object that begins at `at`, none if there is no object.

    At most MEMBERS_MAX, and with BRACKETS_MAX objects and arrays.
    """
    left, first = BRACKETS_MAX, at + 1
    name = NAME.match(text, first) if text[at : at + 1] == b"{" else None
    for _ in range(MEMBERS_MAX):
        if name is None:
            return
        end, left = end_of_value(text, name.end(), left)
        after = NEXT.match(text, end) if end >= 0 else None
        goes_on = after is not None and after[1] == b","
        behind = after.start(1) if after is not None and goes_on else end
        is_last = after is not None and not goes_on
        yield Member(name[1], name.end(), end, first, behind, is_last)
        if after is None or is_last:
            return
        first = after.end()
        name = NAME.match(text, first)


def find_members(text: bytes, at: int, wanted: tuple[bytes, ...]) -> dict[bytes, tuple[int, int]]:
    """Return where the values of the first members begin and end with the names `wanted`, in quotes
    as they stand there, of the object that begins at `at`.

    Without what stands behind BRACKETS_MAX objects and arrays, or is cut. An object that goes on
    behind them ends with the text.
    """
    found: dict[bytes, tuple[int, int]] = {}
    for name, begin, end, *_ in members_of(text, at):
        if name in wanted and name not in found:
            if end >= 0:
                found[name] = begin, end
            elif text[begin : begin + 1] == b"{":
                found[name] = begin, len(text)
            if len(found) == len(wanted):
                break
    return found


def is_object(text: bytes, at: int) -> bool:
    """Return whether an object begins at `at`, ends, and nothing but white space follows.

    Not for one with more than BRACKETS_MAX objects and arrays.
    """
    if text[at : at + 1] != b"{" or not text.rstrip().endswith(b"}"):
        return False
    end, _ = end_of_value(text, at, BRACKETS_MAX)
    return end >= 0 and not text[end:].strip()


def end_of_value(text: bytes, at: int, left: int) -> tuple[int, int]:
    """Return the index behind the value that begins at `at`, and how many objects and arrays are
    left of `left`. The index is -1 if the value is cut or none, or has more of them."""
    plain = _PLAIN.match(text, at)
    if plain is not None:
        return plain.end(), left
    if text[at : at + 1] not in (b"[", b"{"):
        return -1, left
    depth = 0
    while left >= 0 and (sign := _SIGN.match(text, at)) is not None and sign[1]:
        at = sign.end()
        if sign[1] in b"[{":
            depth, left = depth + 1, left - 1
        else:
            depth -= 1
            if not depth:
                return at, left
    return -1, left
