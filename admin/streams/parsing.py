"""Server-sent events out of bytes, as they come. Pure.

By the rules of the WHATWG's HTML standard, "Interpreting an event stream": lines end with LF, CR or
CRLF, and bytes may be split anywhere.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

EVENT_MAX: Final = 8 * 1024 * 1024
"""Bytes of one event; above any that a server of ours sends."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event. `id` is the last one that the stream has told, "" for none."""

    id: str
    type: str
    data: str


class EventTooLong(ValueError):
    """An event that would fill the memory: this is no stream of ours."""


class Parser:
    """Takes a stream's bytes, gives its events. `last_id` is what to go on from after a break."""

    def __init__(self, last_id: str = "", event_max: int = EVENT_MAX) -> None:
        """`last_id` of an earlier connection counts until the stream tells another."""
        self.last_id = last_id
        self._id = last_id
        self._type = ""
        self._data: list[bytes] = []
        self._rest = bytearray()
        self._size = 0
        self._event_max = event_max
        self._is_first = True
        self._after_cr = False

    def feed(self, piece: bytes) -> list[Event]:
        """The events that are complete with this piece. Raises EventTooLong."""
        if not piece:
            return []
        if self._after_cr:
            # The CR has ended its line already; this LF belongs to it.
            piece = piece.removeprefix(b"\n")
        self._after_cr = piece.endswith(b"\r")
        *ended, rest = _LINE_END.split(piece)
        events = []
        for line in ended:
            self._keep(line)
            event = self._take(bytes(self._rest))
            self._rest.clear()
            if event is not None:
                events.append(event)
        self._keep(rest)
        return events

    def _keep(self, part: bytes) -> None:
        self._rest += part
        if self._size + len(self._rest) > self._event_max:
            raise EventTooLong(f"expected events of at most {self._event_max} bytes, got more")

    def _take(self, line: bytes) -> Event | None:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == b"event":
            self._type = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        return None

    def _dispatch(self) -> Event | None:
        """An empty line: the event is whole. One without data is none, but its id counts."""
        self.last_id = self._id
        kind, data = self._type or "message", self._data
        self._type, self._data, self._size = "", [], 0
        if not data:
            return None
        return Event(self.last_id, kind, b"\n".join(data).decode(errors="replace"))
