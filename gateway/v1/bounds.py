"""Counts what a JSON body would build before anything is built. Pure.

Decoders recurse per level, and build an object per member. How deep Python lets them go differs
between its versions, so the levels are counted here.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final

from registry.errors import BadRequest

DEPTH: Final = 900
"""Levels of objects and arrays that are read."""
BRACKETS_MAX: Final = 250_000
"""Max objects and arrays of a body, whose syntax takes about 10 ms in one step."""
MEMBERS_MAX: Final = 1000
"""Max members of the top level."""
SLICE: Final = 1024 * 1024
"""Bytes that are searched or decoded between two turns of the loop."""
_SMALL_MAX: Final = 64 * 1024
"""Max bytes of a body in which members of the top level are not counted before they are built."""
_PART: Final = 128 * 1024
"""Bytes whose structure is read between two turns of the loop, 10 ms for the worst."""
_BLOCK: Final = 256
"""Signs that are counted together."""
_CUT: Final = re.compile(rb"\\*+.?", re.DOTALL)
"""The rest of a run of backslashes, and what the last one escapes."""
_OTHERS: Final = bytes(set(range(256)) - set(b'[]{},:"'))
_OPENING, _COMMA = b"[{", ord(",")
_PAIRS: Final = (b"[]", b"{}", b"[]", b"{}")
"""Brackets without one between, and those that are so once the others are gone."""


def check_structure(body: bytes) -> Generator[None, None, None]:
    """Raise BadRequest for a JSON body with more levels, objects and arrays, or members of the top
    level than any request has; yields where the loop should take a turn.

    What is no JSON is counted up to its first fault: a decoder builds no more. A small body has few
    members.
    """
    is_small = len(body) <= _SMALL_MAX
    if is_small and len(body) - len(body.translate(None, _OPENING)) <= DEPTH:
        return
    structure, at = _Structure(counts_members=not is_small), 0
    while at < len(body):
        if at:
            yield
        end = at + _PART
        if body[end - 1 : end] == b"\\" and (cut := _CUT.match(body, end)) is not None:
            end = cut.end()
        structure.add(body[at:end])
        at = end


class _Structure:
    """The structure of a JSON text that is added in parts; see `check_structure`."""

    def __init__(self, *, counts_members: bool) -> None:
        self._counts_members = counts_members
        self._is_in_text = False
        self._depth = self._brackets = self._commas = 0

    def add(self, part: bytes) -> None:
        """Add a part that does not end between a backslash and what it escapes."""
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        signs = part.translate(None, _OTHERS)
        # Between two texts stands a sign, so two quotes without one between begin and end a text.
        texts = signs.replace(b'""', b"").split(b'"')
        outside = b"".join(texts[self._is_in_text :: 2]).replace(b":", b"")
        self._is_in_text ^= len(texts) % 2 == 0
        self._brackets += outside.count(b"[") + outside.count(b"{")
        if self._brackets > BRACKETS_MAX:
            raise BadRequest(f"the body: expected at most {BRACKETS_MAX} objects and arrays")
        block = _BLOCK if self._counts_members else len(outside) or 1
        for at in range(0, len(outside), block):
            self._count(outside[at : at + block])

    def _count(self, block: bytes) -> None:
        """Count the levels, and the commas between members of the top level."""
        # Most brackets stand in pairs, and most blocks far from the top level and the last one.
        rest = block.replace(b",", b"")
        for pair in _PAIRS:
            rest = rest.replace(pair, b"")
        opened = rest.count(b"[") + rest.count(b"{")
        closed = len(rest) - opened
        is_inside = self._depth - closed > 1 or not self._counts_members or b"," not in block
        if is_inside and self._depth + opened + len(_PAIRS) <= DEPTH:
            self._depth += opened - closed
            return
        for sign in block:
            if sign == _COMMA:
                self._commas += self._depth == 1
            elif sign in _OPENING:
                self._depth += 1
            else:
                self._depth -= 1
            if self._depth > DEPTH:
                text = f"expected at most {DEPTH} levels of objects and arrays, got more"
                raise BadRequest(f"the body: {text}")
        if self._commas >= MEMBERS_MAX:
            raise BadRequest(f"the body: expected at most {MEMBERS_MAX} members")
