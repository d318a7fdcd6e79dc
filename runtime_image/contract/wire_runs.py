"""Runs of fields in protobuf's wire format: elements of a repeated field that is not packed.

Converters write tree ensembles so, one field for each of millions of nodes. A regular expression
passes over such a run a hundred times faster than Python reads its fields.
Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import functools
import mmap
import re
from typing import Final

ONE_BYTE_MAX: Final = 0x7F
"""Largest tag, and length of a value, that has one byte."""
_STEP_MAX: Final = 4096
"""Fields of one match: what it remembers of each is released after it."""
_VALUES: Final = {
    0: rb"[\x80-\xff]{0,9}[\x00-\x7f]",
    1: rb".{8}",
    2: b"(?:%s)" % b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(ONE_BYTE_MAX + 1)),
    5: rb".{4}",
}
"""Wire type -> its values; length-delimited ones up to `ONE_BYTE_MAX` bytes."""


def last_of_run(data: mmap.mmap, tag: int, at: int, end: int) -> int:
    """Return where the last of the fields begins that follow each other from `at` on and have the
    tag `tag`; `at` if there are fewer than two."""
    if tag > ONE_BYTE_MAX or tag & 7 not in _VALUES:
        return at
    pattern = _pattern(tag)
    while (match := pattern.match(data, at, end)) and match.start(1) > at:
        at = match.start(1)
    return at


@functools.cache
def _pattern(tag: int) -> re.Pattern[bytes]:
    """Return the pattern of a run; its group is the last field."""
    return re.compile(rb"(\x%02x%s){1,%d}" % (tag, _VALUES[tag & 7], _STEP_MAX), re.DOTALL)
