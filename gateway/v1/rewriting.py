"""Answers of /v1 on their way to the client: the model's name, and the usage. Pure.

WHATWG HTML, "Server-sent events": an event ends with an empty line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.proxy.ports import FilterMode
from gateway.v1.scanning import find_member
from gateway.v1.usage import Ends, TokenUsage
from registry.errors import UpstreamFailed

if TYPE_CHECKING:
    from gateway.proxy.response_head import ResponseHead

HELD_MAX: Final = 1024 * 1024
"""Max bytes of one event, and of an answer that is no stream and gets another model's name."""
OK: Final = 200
_EVENTS: Final = b"text/event-stream"
_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")
_LONGEST_END: Final = b"\r\n\r\n"
_DATA: Final = re.compile(rb"(?:^|[\r\n])data:[ ]?(?=\{)")
"""Beginning of the JSON of an event. No server of these protocols splits it into several lines."""
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
    `protocol` and `request_id` are for the errors in a stream.
    """

    __slots__ = (
        "_asks_usage",
        "_begun",
        "_ends",
        "_held",
        "_is_stream",
        "_mode",
        "_model",
        "_searched",
    )

    def __init__(self, model: str, *, asks_usage: bool) -> None:
        self._model = msgspec.json.encode(model) if model else b""
        self._asks_usage = asks_usage
        self._begun = (b"", b"")
        """An event's beginning up to its model, and what replaces it: most events begin alike."""
        self._searched = 0
        """Bytes of `_held` in which no event ends."""
        self._ends = Ends()
        self._held = bytearray()
        self._is_stream = False
        self._mode = FilterMode.OFF

    @property
    def usage(self) -> TokenUsage | None:
        """The usage that the answer says, None if it says none; once it is complete."""
        return None if self._mode is FilterMode.OFF else self._ends.usage()

    def begin(self, head: ResponseHead) -> FilterMode:
        """Implement `AnswerFilter.begin`. Errors, and bodies with a coding, pass as they are."""
        kind = head.fields.get(b"content-type").lower()
        if head.status != OK or head.fields.get(b"content-encoding"):
            return self._mode
        self._is_stream = kind.startswith(_EVENTS)
        if not (self._is_stream or kind.partition(b";")[0].strip().endswith(b"json")):
            return self._mode
        changes = bool(self._model) or (self._asks_usage and self._is_stream)
        self._mode = FilterMode.CHANGE if changes else FilterMode.READ
        return self._mode

    def feed(self, content: bytes) -> bytes:
        """Implement `AnswerFilter.feed`. Raises UpstreamFailed for an event that is too long."""
        self._ends.add(content)
        if self._mode is FilterMode.READ:
            return content
        held = self._held
        held += content
        if self._is_stream:
            return self._whole_events()
        if len(held) <= HELD_MAX:
            return b""
        # An answer that is longer passes with the server's name of the model.
        self._mode, self._held = FilterMode.READ, bytearray()
        return bytes(held)

    def end(self) -> bytes:
        """Implement `AnswerFilter.end`."""
        rest, self._held = bytes(self._held), bytearray()
        if not rest:
            return rest
        return self._event(rest) if self._is_stream else self._renamed(rest, 0)

    def _whole_events(self) -> bytes:
        """Return the events that are complete."""
        held, at, pieces = self._held, 0, []
        while (end := _END.search(held, max(at, self._searched))) is not None:
            pieces.append(self._event(bytes(held[at : end.end()])))
            at = self._searched = end.end()
        if at:
            del held[:at]
        if len(held) > HELD_MAX:
            raise UpstreamFailed(f"an event of the server is longer than {HELD_MAX} bytes")
        self._searched = max(0, len(held) - len(_LONGEST_END) + 1)
        return b"".join(pieces)

    def _event(self, event: bytes) -> bytes:
        """Return an event as the client gets it; b"" for the one that only the gateway wants."""
        data = _DATA.search(event)
        if data is None:
            return event
        if self._asks_usage and _NO_CHOICES.search(event) and _is_usage(event[data.end() :]):
            return b""
        return self._renamed(event, data.end())

    def _renamed(self, text: bytes, at: int) -> bytes:
        """Return a text with the client's name of the model in the JSON object that begins at `at`,
        and in the objects `response` and `message` in it."""
        within = [name for name in _WITHIN if name in text]
        if not self._model or _MODEL not in text:
            return text
        before, after = self._begun
        if before and not within and text.startswith(before):
            return after + text[len(before) :]
        places = [find_member(text, at, _MODEL)]
        for name in within:
            inner = find_member(text, at, name)
            places.append(inner and find_member(text, inner.begin, _MODEL))
        for span in sorted((one for one in places if one is not None), reverse=True):
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
