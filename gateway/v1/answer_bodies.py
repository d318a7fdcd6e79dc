"""Bodies of answers, cut into the objects that an edit may concern. Pure: bytes in, bytes out.

WHATWG HTML, "Server-sent events": lines end with LF, CR or CRLF, an event with an empty line.
RFC 8259, JSON; "JSON Lines" and "NDJSON": each line is a JSON text.

What no edit can concern passes with the read in which it arrives. Only a part of an object or of an
event's line is held, and at most HELD_MAX bytes of it: a longer one passes in parts, as it is.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Final

from gateway.v1.answer_members import is_object

if TYPE_CHECKING:
    from gateway.v1.answer_edits import AnswerEdits

HELD_MAX: Final = 1024 * 1024
"""Max bytes of an event, a line or an answer that is changed."""
_ENDS: Final = b"\r\n"
_ONE_OBJECT: Final = re.compile(rb"(?:event:.*\n)?data: (\{).*")
"""An event that is an object on one line, maybe behind its type, without its end. Where each CR
stands before an LF, these are the ends of lines; a class of characters takes ten times as long."""
_PLAIN_DATA: Final = b"data: {"
_PLAIN_END: Final = b"\n\n"
_PLAIN_TEXT: Final = re.compile(rb"(?:data: [^ \t{\r\n]|:)[^\r\n]*")
"""An event of one line that is no object, such as the last one of OpenAI's API, or a comment."""
_EMPTY: Final = (b"\n", b"\r\n", b"\r")
_DATA: Final = re.compile(rb"data:[ \t]{0,64}+([^ \t\r\n])?")
"""Beginning of a line with data, and the first byte of them that is not blank."""
_FIELD: Final = re.compile(rb"(data|event)(?=[:\r\n]|\Z)")
"""Fields without which there is no event."""
_PARTIAL_FIELDS: Final = frozenset(
    name[:at] for name in (b"data", b"event") for at in range(1, len(name) + 1)
)
"""What may become one of these."""
_MARK: Final = b"\xef\xbb\xbf"
"""Byte order mark, which a stream may begin with."""
_LINE_SIZE: Final = 64
"""Bytes that a held line takes beside its own."""
_LINES_SIZE: Final = 4 * _LINE_SIZE
"""Bytes below HELD_MAX from which on the lines of an event decide, however it arrives."""
_LEADING: Final = b" \t\r\n\x1e" + _MARK
"""Bytes that may stand before an object. RFC 7464 has U+001E there."""


class _Place(Enum):
    """Where a line has gone."""

    PASSED = "passed"
    HELD = "held"
    DROPPED = "dropped"


class EventBody:
    """A stream of events.

    Each line of data that is a whole object is one for the edits, else all data of the event. From
    a line of data on that is neither an object nor the beginning of one, and from HELD_MAX bytes
    on, an event passes as it is.
    """

    __slots__ = (
        "_edits",
        "_has_content",
        "_has_dropped",
        "_is_as_is",
        "_is_clean",
        "_is_joining",
        "_is_object_line",
        "_lacks_lf",
        "_line",
        "_lines",
        "_may_have_mark",
        "_place",
        "_size",
        "held",
        "is_within_event",
        "is_within_line",
    )

    def __init__(self, edits: AnswerEdits) -> None:
        self._edits = edits
        self._line = bytearray()
        """A part of a line."""
        self._lines: list[bytes] = []
        """Whole lines of the event: its type, or the data of an object that goes on."""
        self._size = 0
        """Bytes that these take."""
        self._is_object_line = False
        """Whether `_line` is the beginning of an object."""
        self._is_joining = False
        """Whether an object goes on in the next line of data."""
        self._is_as_is = False
        """Whether the rest of the event passes as it is."""
        self._has_content = self._has_dropped = False
        """Whether data or the type of the event have passed, and whether they were left out."""
        self._place = _Place.PASSED
        """Of the last line."""
        self._lacks_lf = False
        """Whether the last line ended with CR: an LF that follows belongs to it."""
        self._may_have_mark = True
        self._is_clean = False
        """Whether `_line`, or else the next byte, begins an event."""
        self.held = 0
        """Bytes that are held."""
        self.is_within_event = self.is_within_line = False
        """Whether a part of an event, or of a line, has passed."""

    def feed(self, content: bytes) -> bytes:
        """Take bytes of the body; return those for the client."""
        size = len(content)
        if (
            # 1. One event of one object, as most servers write each: a third of the time of 2.
            self._is_clean
            and not self.held
            and content.startswith(_PLAIN_DATA)
            and content.find(b"\n") == size - len(_PLAIN_END)
            and content.endswith(_PLAIN_END)
            and b"\r" not in content
            and size <= HELD_MAX - _LINES_SIZE
        ):
            return self._edits.edit(content, len(_PLAIN_DATA) - 1)
        # 2. Everything else.
        passed: list[bytes] = []
        if self._may_have_mark:
            content = self._behind_mark(content, passed)
        if self._lacks_lf and content:
            content = self._behind_lf(content, passed)
        if self._is_clean:
            # Most servers write each event at once, which the network may cut.
            content = self._behind_events(content, passed)
            if not (content or self.held):
                return b"".join(passed)
        lines = content.splitlines(keepends=True)
        part = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
        for index, line in enumerate(lines):
            whole = line
            if self._line:
                whole, self._line = bytes(self._line) + line, bytearray()
            ends = index + 1 < len(lines) and lines[index + 1] in _EMPTY
            passed.append(self._whole_line(whole, ends=ends))
        if lines:
            self._lacks_lf = not part and lines[-1].endswith(b"\r")
        if part:
            passed.append(self._part(part))
        self.held = self._size + len(self._line)
        is_within = self._lines or self.is_within_event or self.is_within_line
        self._is_clean = not (is_within or self._lacks_lf or self._has_dropped or self._is_as_is)
        return b"".join(passed)

    def end(self) -> bytes:
        """Return the last bytes for the client. Many clients read an event without its end."""
        self._is_clean = False
        line, self._line = bytes(self._line), bytearray()
        passed = self._whole_line(line, ends=True) if line else b""
        passed += self._rest()
        self.held = 0
        return passed

    def release(self) -> bytes:
        """Return what is held, as it is. The rest of the object follows it as it is, too."""
        self._is_clean = self._is_joining = self._is_object_line = False
        self._is_as_is = self.is_within_event = self._has_content = True
        self.is_within_line = bool(self._line)
        passed = self._flushed() + bytes(self._line)
        self._line.clear()
        self.held = 0
        return passed

    def _behind_mark(self, content: bytes, passed: list[bytes]) -> bytes:
        """Return what follows the byte order mark, b"" while that is cut; the mark has passed."""
        content = bytes(self._line) + content
        if content != _MARK and _MARK.startswith(content):
            self._line[:] = content
            return b""
        self._line.clear()
        self._may_have_mark, self._is_clean = False, True
        if not content.startswith(_MARK):
            return content
        passed.append(_MARK)
        return content[len(_MARK) :]

    def _behind_lf(self, content: bytes, passed: list[bytes]) -> bytes:
        """Return what follows the second half of a line's end, which goes where the first is."""
        self._lacks_lf = False
        if not content.startswith(b"\n"):
            return content
        if self._place is _Place.PASSED:
            passed.append(b"\n")
        elif self._place is _Place.HELD:
            self._lines[-1] += b"\n"
        return content[1:]

    def _behind_events(self, content: bytes, passed: list[bytes]) -> bytes:
        """Return what follows the whole events at the beginning, which have passed, changed where
        needed; all bytes where these have another form than most."""
        end = b"\r\n\r\n" if b"\r" in content else _PLAIN_END
        at = content.rfind(end) + len(end)
        whole = bytes(self._line) + content[:at]
        if at < len(end) or len(whole) > HELD_MAX - _LINES_SIZE:
            return content
        *events, rest = whole.split(end)
        if rest or (b"\r" in whole and whole.count(b"\r") != whole.count(b"\r\n")):
            return content
        found = []
        for event in events:
            said = _ONE_OBJECT.fullmatch(event)
            if said is not None:
                found.append(self._edits.edit(event + end, said.start(1)))
            elif _PLAIN_TEXT.fullmatch(event):
                found.append(event + end)
            else:
                return content
        passed += found
        self._line.clear()
        self._is_object_line = False
        self.held = 0
        return content[at:]

    def _part(self, part: bytes) -> bytes:
        """Return what can pass of a part of a line."""
        if self.is_within_line:
            return part
        self._line += part
        if self._is_joining or self._is_object_line or self._holds_part():
            return b"" if self._size + len(self._line) <= HELD_MAX else self.release()
        line = bytes(self._line)
        self._line.clear()
        self.is_within_line = True
        return self._passed(line)

    def _holds_part(self) -> bool:
        """Return whether an edit may concern the line whose first part is known."""
        line = bytes(self._line)
        if self._is_as_is:
            return False
        if (data := _DATA.match(line)) is not None:
            self._is_object_line = data[1] == b"{"
            is_blank = data[1] is None and data.end() == len(line)
            self._is_as_is = not (self._is_object_line or is_blank)
            return not self._is_as_is
        if line.startswith(b"event:"):
            return self._edits.asks_usage and not self._has_content
        return line in _PARTIAL_FIELDS

    def _whole_line(self, line: bytes, *, ends: bool) -> bytes:
        """Return what can pass with a whole line. `ends`: the event ends behind it."""
        self._place = _Place.PASSED
        self._is_object_line = False
        if self.is_within_line:
            self.is_within_line = False
            return line
        text = line.rstrip(_ENDS)
        if not text:
            return self._event_end(line)
        field = None if self._is_as_is else _FIELD.match(line)
        is_type = field is not None and field[1] == b"event"
        if self._is_joining or (is_type and self._edits.asks_usage and not self._has_content):
            if self._size + len(text) > HELD_MAX:
                return self.release() + line
            return self._held(line, text)
        if field is None or is_type:
            return self._passed(line)
        return self._data_line(line, text, ends=ends)

    def _data_line(self, line: bytes, text: bytes, *, ends: bool) -> bytes:
        """Return what can pass with the next line of data."""
        data = _DATA.match(text)
        is_begun = data is not None and data[1] == b"{"
        is_blank = data is not None and data[1] is None and data.end() == len(text)
        if data is None or not (is_begun or is_blank):
            self._is_as_is = True
            return self._passed(line)
        if self._size + len(text) > HELD_MAX:
            return self.release() + line
        at = data.end() - 1
        if not (is_begun and (ends or is_object(text, at))):
            self._is_joining = True
            return self._held(line, text)
        edited = self._edits.edit(line, at)
        return self._passed(edited) if edited else self._dropped()

    def _event_end(self, line: bytes) -> bytes:
        """Return what can pass with the end of an event, which goes with all that was in it."""
        passed = self._rest()
        is_dropped = self._has_dropped and not self._has_content
        if line == b"\n" and (self._has_dropped or passed.endswith(b"\r")):
            line = b"\n\n"  # the line before may end with CR, as that did not which stood here
        self._has_content = self._has_dropped = self._is_as_is = False
        if is_dropped:
            self._place = _Place.DROPPED
            return passed
        self.is_within_event = False
        return passed + line

    def _passed(self, line: bytes) -> bytes:
        """Return a line behind those that were held before it."""
        if line.startswith(b":") and not self._lines:
            return line
        self.is_within_event = True
        self._has_content |= _FIELD.match(line) is not None
        return self._flushed() + line

    def _held(self, line: bytes, text: bytes) -> bytes:
        """Hold a line, whose bytes without its end are `text`."""
        self._place = _Place.HELD
        self._lines.append(line)
        self._size += len(text) + _LINE_SIZE
        return b""

    def _dropped(self) -> bytes:
        """Leave out a line, and those that were held before it."""
        self._place = _Place.DROPPED
        self._has_dropped = True
        self._lines.clear()
        self._size = 0
        return b""

    def _flushed(self) -> bytes:
        """Return the lines that were held."""
        if not self._lines:
            return b""
        self.is_within_event = self._has_content = True
        self._place = _Place.PASSED
        passed = b"".join(self._lines)
        self._lines.clear()
        self._size = 0
        return passed

    def _rest(self) -> bytes:
        """Return the lines that an event held to its end: a type alone goes with data left out."""
        if self._is_joining:
            return self._joined()
        if self._has_dropped and not self._has_content:
            return self._dropped()
        return self._flushed()

    def _joined(self) -> bytes:
        """Return the held lines, with the edits of the object that they hold."""
        self._is_joining = False
        lines = list(self._lines)
        fields = [_FIELD.match(line) for line in lines]
        at_data = [at for at, field in enumerate(fields) if field and field[1] == b"data"]
        first = lines[at_data[0]]
        begin = _DATA.match(first)
        if len(at_data) == 1 and begin is not None and begin[1] == b"{":
            edited = self._edits.edit(first, begin.end() - 1)
            self._lines[at_data[0]] = edited
        else:
            texts = [lines[at].rstrip(_ENDS)[5:].removeprefix(b" ") for at in at_data]
            text = b"\n".join(texts)
            at = len(text) - len(text.lstrip())
            if text[at : at + 1] != b"{":
                return self._flushed()
            edited = self._edits.edit(text, at)
            if edited != text:
                # An LF is an end of its own before each of the others, as a CR is not.
                written = [b"data: %b\n" % one for one in edited.split(b"\n")]
                self._lines[at_data[0]] = b"".join(written)
                for at in reversed(at_data[1:]):
                    del self._lines[at]
        if edited:
            return self._flushed()
        self._dropped()
        rest = b"".join([line for line, field in zip(lines, fields, strict=True) if not field])
        self.is_within_event |= bool(rest)
        return rest


class JsonBody:
    """An answer of one JSON object, or of several. `has_lines`: each stands on a line of its own.

    Otherwise each line that is a whole object is one for the edits, else all that follows.
    """

    __slots__ = (
        "_drops_lf",
        "_edits",
        "_has_lines",
        "_is_as_is",
        "_is_joining",
        "_text",
        "held",
        "is_within_event",
        "is_within_line",
    )

    def __init__(self, edits: AnswerEdits, *, has_lines: bool) -> None:
        self._edits = edits
        self._has_lines = has_lines
        self._text = bytearray()
        """The first part of an object."""
        self._is_joining = False
        """Whether the object goes on behind the end of a line."""
        self._is_as_is = False
        """Whether the rest passes as it is: of the line, or of an answer that has none."""
        self._drops_lf = False
        """Whether a line that ended with CR was left out: an LF that follows belongs to it."""
        self.held = 0
        """Bytes that are held."""
        self.is_within_event = self.is_within_line = False
        """Whether a part of an event, or of a line, has passed."""

    def feed(self, content: bytes) -> bytes:
        """Take bytes of the body; return those for the client."""
        if self._is_as_is and not self._has_lines:
            return content
        if self._drops_lf and content:
            self._drops_lf = False
            content = content.removeprefix(b"\n")
        passed, lines = [], [content]
        if not self._is_joining:
            lines = content.splitlines(keepends=True)
        for line in lines:
            is_whole = line.endswith((b"\n", b"\r")) and not self._is_joining
            passed.append(self._whole_line(line) if is_whole else self._part(line))
        if lines:
            is_left_out = not passed[-1] and not self._text
            self._drops_lf = is_left_out and lines[-1].endswith(b"\r")
        self.held = len(self._text)
        return b"".join(passed)

    def end(self) -> bytes:
        """Return the last bytes for the client."""
        text = bytes(self._text)
        self._text.clear()
        self.held = 0
        return self._edits.edit(text, 0) if text else b""

    def release(self) -> bytes:
        """Return what is held, as it is. The rest of the object follows it as it is, too."""
        text = bytes(self._text)
        self._text.clear()
        self._is_joining, self._is_as_is = False, True
        self.held = 0
        return text

    def _part(self, part: bytes) -> bytes:
        """Return what can pass of a part of a line, or of an object of several lines."""
        if self._is_as_is:
            return part
        passed = b""
        if not self._text:
            begun = part.lstrip(_LEADING)
            passed = part[: len(part) - len(begun)]
            part = begun
        if part and not self._text and not part.startswith(b"{"):
            self._is_as_is = True
            return passed + part
        self._text += part
        return passed if len(self._text) <= HELD_MAX else passed + self.release()

    def _whole_line(self, line: bytes) -> bytes:
        """Return what can pass with a whole line."""
        if self._is_as_is:
            self._is_as_is = not self._has_lines
            return line
        line = bytes(self._text) + line
        self._text.clear()
        begun = line.lstrip(_LEADING)
        if not begun:
            return line
        text = begun.rstrip(_ENDS)
        at = len(line) - len(begun)
        if not begun.startswith(b"{") or len(text) > HELD_MAX:
            self._is_as_is = not self._has_lines
            return line
        if self._has_lines or is_object(text, 0):
            return self._edits.edit(line, at)
        self._is_joining = True
        return line[:at] + self._part(begun)
