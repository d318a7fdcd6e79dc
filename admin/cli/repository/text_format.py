"""Reader of protobuf's text format, in which config.pbtxt is written.

It needs no schema: fields keep their order, lines and the form of their values, so that each can be
reported. Source: protobuf.dev/reference/protobuf/textformat-spec. Extensions and `Any` are refused:
Triton's configuration has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

TEXT_MAX: Final = 1024 * 1024
"""Max characters of a file."""
DEPTH_MAX: Final = 32
FIELDS_MAX: Final = 20_000
NUMBER_MAX: Final = 64
"""Max characters of a number."""
SHOWN_MAX: Final = 40

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n\v\f\r]+|\#[^\n]*)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>0[xX][0-9A-Fa-f]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[{}<>\[\]:,;-])""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL
)
_PLAIN_ESCAPES: Final = dict(zip(b"abfnrtv?\\'\"", b"\a\b\f\n\r\t\v?\\'\"", strict=True))
_OCTAL: Final = re.compile(r"0[0-7]+")
_CLOSING: Final = {"{": "}", "<": ">"}

Kind = Literal["word", "number", "string"]


class MalformedText(Exception):
    """Text that is not in the format, with the line of the defect."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. A word is an enumerator or a boolean; a number is an int or a float."""

    kind: Kind
    value: str | int | float


@dataclass(frozen=True, slots=True)
class Field:
    """One field with its line, counted from 1. Each value of a list is a field of its own."""

    name: str
    value: Scalar | Message
    line: int


@dataclass(frozen=True, slots=True)
class Message:
    """The fields of a message in their order."""

    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def parse_text(text: str) -> Message:
    """Return the fields of the whole text. Raises MalformedText."""
    if len(text) > TEXT_MAX:
        raise MalformedText(1, f"expected at most {TEXT_MAX} characters, got {len(text)}")
    return _Parser(text).whole()


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise MalformedText(line, f"expected a field or a value, got {_cut(text[at:])!r}")
        if match.lastgroup != "space":
            yield _Token(match.lastgroup, match[0], line)
        if match.lastgroup == "number" and text[match.end() : match.end() + 1].isidentifier():
            raise MalformedText(line, f"expected a number, got {_cut(text[at:])!r}")
        line += match[0].count("\n")
        at = match.end()
    yield _Token("end", "the end of the file", line)


def _cut(text: str) -> str:
    return text[:SHOWN_MAX].partition("\n")[0]


class _Parser:
    """Recursive descent; the depth is bounded, and so is the number of fields."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._fields = 0

    def whole(self) -> Message:
        """Parse all tokens."""
        found = tuple(self._message("end", 0))
        return Message(found)

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _is_sign(self, *signs: str) -> bool:
        return self._next.kind == "sign" and self._next.text in signs

    def _message(self, closing: str, depth: int) -> Iterator[Field]:
        if depth > DEPTH_MAX:
            raise MalformedText(self._next.line, f"messages are nested deeper than {DEPTH_MAX}")
        while not (self._next.kind == "end" if closing == "end" else self._is_sign(closing)):
            name = self._take()
            if name.kind != "word":
                wanted = "a field's name" if closing == "end" else f"a field's name or {closing!r}"
                raise MalformedText(name.line, f"expected {wanted}, got {_cut(name.text)!r}")
            has_colon = self._is_sign(":")
            if has_colon:
                self._take()
            for value, line in self._values(name, has_colon, depth):
                self._fields += 1
                if self._fields > FIELDS_MAX:
                    raise MalformedText(line, f"there are more than {FIELDS_MAX} fields")
                yield Field(name.text, value, line)
            if self._is_sign(",", ";"):
                self._take()

    def _values(
        self, name: _Token, has_colon: bool, depth: int
    ) -> Iterator[tuple[Scalar | Message, int]]:
        if not has_colon and not self._is_sign("{", "<", "["):
            got = _cut(self._next.text)
            raise MalformedText(self._next.line, f"{name.text}: expected ':', got {got!r}")
        if not self._is_sign("["):
            # A field is where its name is, also if its value is on the next line.
            yield self._value(name, depth), name.line
            return
        self._take()
        while not self._is_sign("]"):
            line = self._next.line
            yield self._value(name, depth), line
            if not self._is_sign("]"):
                comma = self._take()
                if comma.text != "," or comma.kind != "sign":
                    got = _cut(comma.text)
                    raise MalformedText(
                        comma.line, f"{name.text}: expected ',' or ']', got {got!r}"
                    )
        self._take()

    def _value(self, name: _Token, depth: int) -> Scalar | Message:
        token = self._take()
        if token.kind == "sign" and token.text in _CLOSING:
            closing = _CLOSING[token.text]
            found = tuple(self._message(closing, depth + 1))
            self._take()
            return Message(found)
        if token.kind == "string":
            return Scalar("string", self._string(token))
        if token.kind == "sign" and token.text == "-":
            return self._negative(name)
        if token.kind == "number":
            return Scalar("number", _number(token))
        if token.kind == "word":
            return Scalar("word", token.text)
        raise MalformedText(token.line, f"{name.text}: expected a value, got {_cut(token.text)!r}")

    def _negative(self, name: _Token) -> Scalar:
        token = self._take()
        if token.kind == "number":
            return Scalar("number", -_number(token))
        if token.kind == "word" and token.text.lower() in ("inf", "infinity", "nan"):
            return Scalar("number", -float(token.text))
        raise MalformedText(token.line, f"{name.text}: expected a number, got {_cut(token.text)!r}")

    def _string(self, token: _Token) -> str:
        """Return a string with those that follow it directly, which continue it."""
        pieces = [_unescaped(token)]
        while self._next.kind == "string":
            pieces.append(_unescaped(self._take()))
        try:
            return b"".join(pieces).decode()
        except UnicodeDecodeError as error:
            raise MalformedText(token.line, f"expected UTF-8 in a string: {error.reason}") from None


def _number(token: _Token) -> int | float:
    text = token.text
    if len(text) > NUMBER_MAX:
        raise MalformedText(token.line, f"expected a number, got one of {len(text)} characters")
    if text[:2].lower() == "0x":
        return int(text, 16)
    if _OCTAL.fullmatch(text):
        return int(text, 8)
    if text.isdecimal() and (text == "0" or text[0] != "0"):
        return int(text)
    if text.isdecimal():
        raise MalformedText(token.line, f"expected an octal number, got {text!r}")
    return float(text.rstrip("fF"))


def _unescaped(token: _Token) -> bytes:
    def one(match: re.Match[bytes]) -> bytes:
        octal, two, four, eight, plain = match.groups()
        if octal or two:
            value = int(octal, 8) if octal else int(two, 16)
            if value < 256:
                return bytes([value])
        elif four or eight:
            code = int(four or eight, 16)
            if code <= 0x10FFFF and not 0xD800 <= code < 0xE000:
                return chr(code).encode()
        elif plain[0] in _PLAIN_ESCAPES:
            return bytes([_PLAIN_ESCAPES[plain[0]]])
        raise MalformedText(token.line, f"unknown escape {match[0].decode(errors='replace')!r}")

    return _ESCAPE.sub(one, token.text[1:-1].encode(errors="surrogatepass"))
