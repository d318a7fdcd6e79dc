"""Answers of /v1 on their way to the client: the model's name, and the usage. Pure.

WHATWG HTML, "Server-sent events": an event ends with an empty line.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from gateway import problems
from gateway.proxy.ports import FilterMode
from gateway.v1 import shapes
from gateway.v1.endpoints import Protocol
from gateway.v1.scanning import find_members
from gateway.v1.usage import Ends, TokenUsage
from registry.errors import FnError, UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.proxy.response_head import ResponseHead
    from gateway.replies import Reply

HELD_MAX: Final = 1024 * 1024
"""Max bytes of one event, and of an answer that is no stream and gets another model's name."""
REFUSAL_MAX: Final = 16 * 1024
"""Max bytes of a server's error that become an event."""
SHOWN_MAX: Final = 500
"""Max bytes that are shown of a server's error in a shape of its own."""
OK: Final = 200
_EVENTS: Final = b"text/event-stream"
_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")
_PLAIN_END: Final = b"\n\n"
_LONGEST_END: Final = b"\r\n\r\n"
_ENDS: Final = (b"\n\n", _LONGEST_END, b"\r\r", b"\n\r\n")
_DATA: Final = re.compile(rb"(?:^|[\r\n])data:[ ]?(?=\{)")
"""Beginning of the JSON of an event. No server of these protocols splits it into several lines."""
_PLAIN_DATA: Final = b"data: {"
_NO_CHOICES: Final = re.compile(rb'"choices"[ \t]*+:[ \t]*+\[[ \t]*+\]')
_MODEL: Final = b'"model"'
_WITHIN: Final = (b'"response"', b'"message"')
"""Members of an event that have a model of their own."""


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


class ModelAnswer:
    """One answer, as `gateway.proxy.ports.AnswerFilter`.

    `model` is the client's name of the model, which replaces the server's; "" to leave that.
    `asks_usage`: the gateway has asked for an event with the usage, which the client does not get.
    `is_nested`: events have objects with a model of their own.
    `shape` returns an error as its reply.
    """

    __slots__ = (
        "_asks_usage",
        "_begun",
        "_ends",
        "_has_begun",
        "_held",
        "_is_refused",
        "_is_within",
        "_mode",
        "_model",
        "_protocol",
        "_ready",
        "_searched",
        "_shape",
        "_status",
        "_takes_comments",
        "_within",
        "has_head",
        "is_stream",
        "on_first",
    )

    def __init__(
        self,
        model: str,
        *,
        asks_usage: bool,
        is_nested: bool = True,
        protocol: Protocol = Protocol.OPENAI,
        shape: Callable[[FnError], Reply] = problems.reply,
    ) -> None:
        self._protocol = protocol
        self._shape = shape
        self.has_head = False
        self._has_begun = self._is_refused = self._takes_comments = False
        self._model = msgspec.json.encode(model) if model else b""
        self._asks_usage = asks_usage
        self._within = _WITHIN if is_nested else ()
        self._begun = (b"", b"")
        """An event's beginning up to its model, and what replaces it: most events begin alike."""
        self._searched = 0
        """Bytes of `_held` in which no event ends."""
        self._ends = Ends()
        self._held = bytearray()
        self._ready = b""
        """Events before one that is too long."""
        self._status = 0
        self._is_within = False
        self.is_stream = False
        """Whether the answer is a stream of events, once its head is known."""
        self.on_first: Callable[[], None] | None = None
        """Called once, before the first bytes of the body."""
        self._mode = FilterMode.OFF

    @property
    def usage(self) -> TokenUsage | None:
        """The usage that the answer says, None if it says none; once it is complete."""
        return None if self._mode is FilterMode.OFF else self._ends.usage()

    @property
    def has_said_end(self) -> bool:
        """Whether a stream has said its last event: clients may leave before its last byte."""
        return self.is_stream and self._ends.have_last_event

    @property
    def is_between_events(self) -> bool:
        """Whether a comment can be written now."""
        return not self._has_begun or (self._takes_comments and not self._is_within)

    def begin_early(self) -> bool:
        """Note that the client gets a comment; return whether it needs a head before that."""
        is_first = not (self._has_begun or self.has_head)
        self.has_head |= is_first
        return is_first

    def begin(self, head: ResponseHead) -> FilterMode:
        """Implement `AnswerFilter.begin`. Errors, and bodies with a coding, pass as they are.

        A stream passes in whole events: a comment, or an error in the middle of it, needs to be one
        of its own.
        """
        self._has_begun = True
        self._mode = self._mode_of(head)
        if self.has_head and not self.is_stream:
            self._is_refused = True
            self._mode = FilterMode.CHANGE
            self._status = head.status
        self._takes_comments = self.is_stream or self._is_refused
        return self._mode

    def _mode_of(self, head: ResponseHead) -> FilterMode:
        kind = head.fields.get(b"content-type").lower()
        if head.status != OK or head.fields.get(b"content-encoding"):
            return FilterMode.OFF
        self.is_stream = kind.startswith(_EVENTS)
        if not (self.is_stream or kind.partition(b";")[0].strip().endswith(b"json")):
            return FilterMode.OFF
        return FilterMode.CHANGE if self._model or self.is_stream else FilterMode.READ

    def feed(self, content: bytes) -> bytes:
        """Implement `AnswerFilter.feed`. Raises UpstreamFailed for an event that is too long."""
        if self.on_first is not None and content:
            first, self.on_first = self.on_first, None
            first()
        self._ends.add(content)
        if self._mode is FilterMode.READ:
            return content
        held = self._held
        if self._is_refused:
            held += content[: REFUSAL_MAX - len(held)]
            return b""
        if self.is_stream:
            return self._events(content)
        held += content
        if len(held) <= HELD_MAX:
            return b""
        # An answer that is longer passes with the server's name of the model.
        self._mode, self._held = FilterMode.READ, bytearray()
        return bytes(held)

    def end(self) -> bytes:
        """Implement `AnswerFilter.end`."""
        rest, self._held = bytes(self._held), bytearray()
        if self._is_refused:
            return shapes.event(self._protocol, self._refused(rest))
        if not rest:
            return rest
        return self._event(rest) if self.is_stream else self._renamed(rest, 0)

    def failed(self, error: FnError) -> bytes:
        """Implement `AnswerFilter.failed`: an event, where the answer is a stream of events.

        None within an event that is too long to be held: its end would be garbled.
        """
        if self._is_within or not (self.is_stream or self.has_head):
            return b""
        return self._ready + shapes.event(self._protocol, bytes(self._shape(error).body))

    def refused(self, document: bytes) -> bytes:
        """Return the body of an error's reply as the last event of a stream."""
        return shapes.event(self._protocol, document)

    def _refused(self, body: bytes) -> bytes:
        """Return the server's error in one line, or one in its place, if it has no such shape."""
        if self._status != OK:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                document = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
                # Without this member, clients take the event for a part of the answer.
                if bytes(document.get("error", b"")).startswith((b"{", b'"')):
                    return msgspec.json.encode(document)
        said = body[:SHOWN_MAX].decode("utf-8", "replace")
        what = f"the status {self._status}: {said}" if self._status != OK else "no stream of events"
        return bytes(self._shape(UpstreamFailed(f"the server answered with {what}")).body)

    def _events(self, content: bytes) -> bytes:
        """Return the events that are complete. Raises UpstreamFailed for one that is too long."""
        held = self._held
        if self._model or self._asks_usage:
            is_whole = content.endswith(_PLAIN_END) and b"\r" not in content
            is_whole = is_whole and not content.endswith(b"\n\n\n")  # an end within an end
            if is_whole and not held and len(content) <= HELD_MAX:
                return self._edited_whole_events(content)
            held += content
            return self._edited_events()
        if self._is_within:
            self._is_within = not self._ends.are_between_events
            return content
        if not held and content.endswith(_ENDS):
            return content
        held += content
        return self._plain_events()

    def _edited_whole_events(self, content: bytes) -> bytes:
        """Return events changed where needed, of bytes that are whole events with LF: most servers
        write each event at once."""
        if content.find(_PLAIN_END) == len(content) - len(_PLAIN_END):
            return self._event(content)
        events = content.split(_PLAIN_END)[:-1]
        return b"".join([self._event(event + _PLAIN_END) for event in events])

    def _plain_events(self) -> bytes:
        """Return the events that are complete, as they are; one that is too long in parts."""
        held = self._held
        at = 0
        for end in _ENDS:
            if (found := held.rfind(end, self._searched)) >= 0:
                at = max(at, found + len(end))
        self._is_within = len(held) - at > HELD_MAX
        whole = bytes(held) if self._is_within else bytes(held[:at])
        del held[: len(whole)]
        self._searched = max(0, len(held) - len(_LONGEST_END) + 1)
        return whole

    def _edited_events(self) -> bytes:
        """Return the events that are complete, changed where needed."""
        held, at, pieces = self._held, 0, []
        end = _END.search(held, self._searched)
        while end is not None and end.end() - at <= HELD_MAX:
            pieces.append(self._event(bytes(held[at : end.end()])))
            at = self._searched = end.end()
            end = _END.search(held, at)
        if at:
            del held[:at]
        if len(held) > HELD_MAX:
            self._ready = b"".join(pieces)
            raise UpstreamFailed(f"an event of the server is longer than {HELD_MAX} bytes")
        self._searched = max(0, len(held) - len(_LONGEST_END) + 1)
        return b"".join(pieces)

    def _event(self, event: bytes) -> bytes:
        """Return an event as the client gets it; b"" for the one that only the gateway wants."""
        if event.startswith(_PLAIN_DATA):
            at = len(_PLAIN_DATA) - 1
        elif (data := _DATA.search(event)) is not None:
            at = data.end()
        else:
            return event
        if self._asks_usage and _NO_CHOICES.search(event) and _is_usage(event[at:]):
            return b""
        return self._renamed(event, at)

    def _renamed(self, text: bytes, at: int) -> bytes:
        """Return a text with the client's name of the model in the JSON object that begins at `at`,
        and in the objects `response` and `message` in it."""
        if not self._model or _MODEL not in text:
            return text
        within = [name for name in self._within if name in text]
        before, after = self._begun
        if before and not within and text.startswith(before):
            return after + text[len(before) :]
        members = find_members(text, at, (_MODEL, *within))
        objects = [members[name] for name in within if name in members]
        inner = [find_members(text, one.begin, (_MODEL,)) for one in objects]
        places = [one[_MODEL] for one in (members, *inner) if _MODEL in one]
        for span in sorted(places, reverse=True):
            if text[span.begin : span.begin + 1] == b'"':
                after = text[: span.begin] + self._model
                self._begun = text[: span.end], after
                text = after + text[span.end :]
        return text


def _is_usage(data: bytes) -> bool:
    """Return whether an event's data are the usage alone."""
    try:
        chunk = _decode_chunk(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return chunk.choices == [] and bytes(chunk.usage) != b"null"
