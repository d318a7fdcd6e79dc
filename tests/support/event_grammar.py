"""A reading of event streams, by the grammar and the steps of WHATWG HTML, "Server-sent events".

Apart from the gateway's code, and for whole streams: nothing is remembered between reads.
"""

from __future__ import annotations

import re
from typing import NamedTuple

END = re.compile(rb"\r\n|\r|\n")


class Dispatched(NamedTuple):
    """One event as its listener gets it."""

    type: bytes
    data: bytes
    last_id: bytes


class Stream(NamedTuple):
    """The events of a stream, and its comments."""

    events: list[Dispatched]
    comments: list[bytes]


def read(stream: bytes) -> Stream:
    """Return what a stream says. A line without end, and an event without end, say nothing."""
    found = Stream([], [])
    kind, data, last_id = b"", b"", b""
    for line in END.split(stream.removeprefix(b"\xef\xbb\xbf"))[:-1]:
        if line == b"":
            if data:
                found.events.append(Dispatched(kind or b"message", data[:-1], last_id))
            kind = data = b""
        elif line[0] == ord(":"):
            found.comments.append(line)
        else:
            field, _, value = line.partition(b":")
            value = value[1:] if value[:1] == b" " else value
            if field == b"event":
                kind = value
            elif field == b"data":
                data += value + b"\n"
            elif field == b"id" and b"\0" not in value:
                last_id = value
    return found
