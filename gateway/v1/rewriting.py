"""Answers of /v1 on their way to the client: the model's name, and the usage. Pure.

`answer_bodies.py` cuts a body into objects, `answer_edits.py` changes them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from gateway import problems
from gateway.proxy.ports import FilterMode
from gateway.v1 import shapes
from gateway.v1.answer_bodies import EventBody, JsonBody
from gateway.v1.answer_edits import AnswerEdits
from gateway.v1.endpoints import Protocol
from gateway.v1.usage import Ends, TokenUsage
from registry.errors import FnError, UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.http.reservations import BodyBudget
    from gateway.proxy.response_head import ResponseHead
    from gateway.replies import Reply

REFUSAL_MAX: Final = 16 * 1024
"""Max bytes of a server's error that become an event."""
SHOWN_MAX: Final = 500
"""Max bytes that are shown of a server's error in a shape of its own."""
OK: Final = 200
_EVENTS: Final = b"text/event-stream"
_LINES: Final = frozenset(
    {
        *(b"application/x-ndjson", b"application/ndjson", b"application/stream+json"),
        *(b"application/jsonl", b"application/x-jsonl", b"application/json-lines"),
        *(b"application/jsonlines", b"application/x-jsonlines", b"application/json-seq"),
    }
)
"""Types of answers that have an object on each line."""


class ModelAnswer:
    """One answer, as `gateway.proxy.ports.AnswerFilter`.

    `model` is the client's name of the model, which replaces the server's; "" to leave that.
    `asks_usage`: the gateway has asked for an event with the usage, which the client does not get.
    `is_nested`: events have objects with a model of their own. `shape` returns an error as its
    reply. `memory` counts the bytes that are held; None to count none.
    """

    __slots__ = (
        "_body",
        "_charged",
        "_edits",
        "_ends",
        "_has_begun",
        "_is_refused",
        "_memory",
        "_mode",
        "_protocol",
        "_refusal",
        "_shape",
        "_status",
        "_takes_comments",
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
        memory: BodyBudget | None = None,
    ) -> None:
        self._protocol = protocol
        self._shape = shape
        self.has_head = False
        self._has_begun = self._is_refused = self._takes_comments = False
        self._edits = AnswerEdits(model, asks_usage=asks_usage, is_nested=is_nested)
        self._body: EventBody | JsonBody | None = None
        """None where all passes as it is."""
        self._ends = Ends()
        self._refusal = bytearray()
        """A server's error."""
        self._memory = memory
        self._charged = 0
        """Bytes counted in `_memory`."""
        self._status = 0
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
        return not self._has_begun or (self._takes_comments and not self._is_within_event)

    @property
    def _is_within_event(self) -> bool:
        body = self._body
        return body is not None and (body.is_within_event or body.is_within_line)

    def begin_early(self) -> bool:
        """Note that the client gets a comment; return whether it needs a head before that."""
        is_first = not (self._has_begun or self.has_head)
        self.has_head |= is_first
        return is_first

    def begin(self, head: ResponseHead) -> FilterMode:
        """Implement `AnswerFilter.begin`. Errors, and bodies with a coding, pass as they are."""
        self._has_begun = True
        self._mode = self._mode_of(head)
        if self.has_head and not self.is_stream:
            self._is_refused = True
            self._mode = FilterMode.CHANGE
            self._status = head.status
        self._takes_comments = self.is_stream or self._is_refused
        return self._mode

    def _mode_of(self, head: ResponseHead) -> FilterMode:
        coding = head.fields.get(b"content-encoding").strip().lower()
        if head.status != OK or coding not in (b"", b"identity"):
            return FilterMode.OFF
        kind = head.fields.get(b"content-type").lower().partition(b";")[0].strip()
        has_lines = kind in _LINES
        self.is_stream = kind == _EVENTS
        if not (self.is_stream or has_lines or kind.endswith(b"json")):
            return FilterMode.OFF
        edits = self._edits
        # An answer that is no stream has its usage unasked.
        edits.asks_usage &= self.is_stream or has_lines
        if self.is_stream:
            self._body = EventBody(edits)
        elif edits.has_any:
            self._body = JsonBody(edits, has_lines=has_lines)
        return FilterMode.READ if self._body is None else FilterMode.CHANGE

    def feed(self, content: bytes) -> bytes:
        """Implement `AnswerFilter.feed`."""
        if self.on_first is not None and content:
            first, self.on_first = self.on_first, None
            first()
        self._ends.add(content)
        if self._is_refused:
            self._refusal += content[: REFUSAL_MAX - len(self._refusal)]
            return b""
        body = self._body
        if body is None:
            return content
        passed = body.feed(content)
        if body.held != self._charged and not self._count(body.held):
            passed += body.release()
            self._count(0)
        return passed

    def _count(self, held: int) -> bool:
        """Count the held bytes; return whether there is memory for them."""
        added, self._charged = held - self._charged, held
        if self._memory is None or added == 0:
            return True
        if added < 0:
            self._memory.refund(-added)
        elif not self._memory.try_charge(added):
            self._charged -= added
            return False
        return True

    def end(self) -> bytes:
        """Implement `AnswerFilter.end`."""
        if self._is_refused:
            return shapes.event(self._protocol, self._refused(bytes(self._refusal)))
        return b"" if self._body is None else self._body.end()

    def failed(self, error: FnError) -> bytes:
        """Implement `AnswerFilter.failed`: an event, where the answer is a stream of events.

        None within a line that the client has a part of: it would be a part of that line.
        """
        body, is_open = self._body, self._is_within_event
        if not (self.is_stream or self.has_head) or (body is not None and body.is_within_line):
            return b""
        # The lines of an event that the client has are one of their own. A line that ended with CR
        # takes the first LF.
        return b"\n\n" * is_open + shapes.event(self._protocol, bytes(self._shape(error).body))

    def close(self) -> None:
        """Implement `AnswerFilter.close`."""
        self._body = None
        self._count(0)

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
