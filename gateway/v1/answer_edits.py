"""What changes in one JSON object of an answer: the model's name, and the usage. Pure.

OpenAI API reference, "The chat completion chunk object": with `stream_options.include_usage` one
more chunk comes before the end, with the usage and without choices.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.v1.answer_members import find_members, members_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_USAGE: Final = b'"usage"'
_CHOICES: Final = b'"choices"'
_USAGE_OBJECT: Final = re.compile(rb'"usage"[ \t\r\n]*+:[ \t\r\n]*+\{')
_NO_CHOICES: Final = re.compile(rb"\[[ \t\r\n]*+\]")
_NULL: Final = b"null"
_MODEL: Final = b'"model"'
_WITHIN: Final = (b'"response"', b'"message"')
"""Members of an event that have a model of their own."""
_STANDARD: Final = frozenset(
    {
        *(b'"id"', b'"object"', b'"created"', _MODEL, b'"system_fingerprint"'),
        *(b'"service_tier"', _CHOICES, _USAGE),
    }
)
"""Members of the chunk that a client gets only if it asks for the usage."""


class AnswerEdits:
    """The edits of one answer.

    `model` is the client's name of the model, which replaces the server's; "" to leave that.
    `asks_usage`: the gateway has asked for the usage, which the client does not get. `is_nested`:
    objects have other objects with a model of their own.
    """

    __slots__ = ("_begun", "_model", "_within", "asks_usage")

    def __init__(self, model: str, *, asks_usage: bool, is_nested: bool) -> None:
        self._model = msgspec.json.encode(model) if model else b""
        self.asks_usage = asks_usage
        """Whether an object may be left out."""
        self._within = _WITHIN if is_nested else ()
        self._begun = (b"", b"")
        """An event's beginning up to its model, and what replaces it: most events begin alike."""

    @property
    def has_any(self) -> bool:
        """Whether anything is to be changed."""
        return bool(self._model) or self.asks_usage

    def edit(self, text: bytes, at: int) -> bytes:
        """Return a text whose JSON object begins at `at` as the client gets it; b"" for a chunk
        that has nothing but the usage.

        What cannot be read as an object stays as it is.
        """
        if self.asks_usage and _USAGE in text and _USAGE_OBJECT.search(text):
            text = _without_usage(text, at)
        if not self._model:
            return text
        within: Sequence[bytes] = ()
        if self._within:
            if _MODEL not in text:
                return text
            within = [name for name in self._within if name in text]
        before, after = self._begun
        if before and not within and text.startswith(before):
            return after + text[len(before) :]
        return self._renamed(text, at, within) if _MODEL in text else text

    def _renamed(self, text: bytes, at: int, within: Sequence[bytes]) -> bytes:
        """Return a text with the client's name of the model in the JSON object that begins at `at`,
        and in those of its members `within`."""
        members = find_members(text, at, (_MODEL, *within))
        objects = [members[name] for name in within if name in members]
        inner = [find_members(text, begin, (_MODEL,)) for begin, _ in objects]
        places = [one[_MODEL] for one in (members, *inner) if _MODEL in one]
        for begin, end in sorted(places, reverse=True):
            if text[begin : begin + 1] == b'"':
                after = text[:begin] + self._model
                self._begun = text[:end], after
                text = after + text[end:]
        return text


def _without_usage(text: bytes, at: int) -> bytes:
    """Return a text without the usage of its object; b"" if nothing else is in that.

    A usage of null, which a server may send in each chunk, is none.
    """
    members = list(members_of(text, at))
    kept = [one for one in members if one.name != _USAGE or text[one.begin] != ord("{")]
    if len(kept) == len(members) or not members[-1].is_last:
        return text
    if text[members[-1].end :].strip() != b"}":
        return text
    said = {one.name: text[one.begin : one.end] for one in kept}
    others = [name for name, value in said.items() if name not in _STANDARD and value != _NULL]
    if not others and _NO_CHOICES.fullmatch(said.get(_CHOICES, b"")):
        return b""
    parts = [text[one.first : one.after] for one in kept]
    return text[: at + 1] + b",".join(parts) + text[members[-1].after :]
