"""Tokens that a server says an answer took. Pure; nothing is estimated.

OpenAI API reference, "usage" of chat completions, embeddings and responses; Anthropic API
reference, "Usage" and "Streaming messages".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from gateway.v1.answer_members import end_of_value

KEPT: Final = 16 * 1024
"""Bytes at the beginning and at the end of an answer in which its usage is looked for."""
TRIED_MAX: Final = 8
"""Max objects `usage` at the end of an answer that are read."""
BRACKETS_MAX: Final = 512
"""Max objects and arrays of all that are read."""
TOKENS_MAX: Final = 10**9
"""Max tokens of one answer that are believed."""
_NAME: Final = b'"usage"'
_USAGE: Final = re.compile(rb'"usage"[ \t\r\n]*+:[ \t\r\n]*+(?=\{)')
"""The member `usage`. In a string its quotes would be escaped."""

_LAST_EVENT: Final = re.compile(
    rb"[\r\n](?:data:[ ]?\[DONE\]"
    rb"|event:[ ]?(?:message_stop|response\.(?:completed|incomplete)))[\r\n]"
)
"""The last event of a stream. Within JSON there is no line break."""


class TokenUsage(NamedTuple):
    """Tokens of one request: of the input, and of the output."""

    input: int
    output: int


class _Said(msgspec.Struct):
    """The object `usage` in its three forms. Only `total_tokens`: as of a reranker."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None


_decode: Final = msgspec.json.Decoder(_Said).decode


class Ends:
    """The first and the last KEPT bytes of an answer."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first = b""
        self._last = bytearray()

    def add(self, data: bytes) -> None:
        """Add bytes of the answer."""
        if len(self._first) < KEPT:
            self._first += data[: KEPT - len(self._first)]
        last = self._last
        last += data[-KEPT:]
        if len(last) > 4 * KEPT:
            del last[:-KEPT]

    @property
    def have_last_event(self) -> bool:
        """Whether the last event of a protocol is among the last bytes."""
        return _LAST_EVENT.search(self._last) is not None

    def usage(self) -> TokenUsage | None:
        """Return the usage that the answer says, None if it says none.

        The first and the last object `usage` count: a stream of messages has the input's tokens in
        its first event, and the output's in the last ones.
        """
        tokens_in: int | None = None
        tokens_out: int | None = None
        for said in self._said():
            tokens_in = _input(said) if tokens_in is None else tokens_in
            tokens_out = _output(said) if tokens_out is None else tokens_out
            if tokens_in is not None and tokens_out is not None:
                break
        if tokens_in is None and tokens_out is None:
            return None
        return TokenUsage(tokens_in or 0, tokens_out or 0)

    def _said(self) -> Iterator[_Said]:
        """Iterate over what counts, the last object first: it mostly says all."""
        last = bytes(self._last[-KEPT:])
        at, tried, left = len(last), 0, BRACKETS_MAX
        while tried < TRIED_MAX and (at := last.rfind(_NAME, 0, at)) >= 0:
            found = _USAGE.match(last, at)
            if found is None:
                continue
            tried += 1
            end, left = end_of_value(last, found.end(), left)
            said = _read(last, found.end(), end)
            if said is not None:
                yield said
        found = _USAGE.search(self._first)
        if found is not None:
            end, _ = end_of_value(self._first, found.end(), left)
            said = _read(self._first, found.end(), end)
            if said is not None:
                yield said


def _read(data: bytes, begin: int, end: int) -> _Said | None:
    """Return the object between two indices, None if it is cut or is no usage."""
    try:
        return _decode(data[begin:end]) if end > begin else None
    except (ValueError, RecursionError):
        return None


def _input(said: _Said) -> int | None:
    if said.prompt_tokens is not None or said.input_tokens is not None:
        return _believed(said.prompt_tokens, said.input_tokens)
    return _believed(said.total_tokens) if said.completion_tokens is None else None


def _output(said: _Said) -> int | None:
    return _believed(said.completion_tokens, said.output_tokens)


def _believed(*counts: int | None) -> int | None:
    return next((one for one in counts if one is not None and 0 <= one <= TOKENS_MAX), None)
