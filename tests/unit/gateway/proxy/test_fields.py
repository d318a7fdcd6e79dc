"""Header fields: what is accepted, what is refused, and what is said about it."""

from __future__ import annotations

import pytest

from gateway.proxy.fields import (
    Malformed,
    find_head_end,
    parse_fields,
    read_connection,
)


def refusal(raw: bytes, count_max: int = 100) -> str:
    """Return the text with which a section is refused."""
    with pytest.raises(Malformed) as caught:
        parse_fields(raw, 0, count_max)
    return str(caught.value)


def test_names_and_values_are_as_sent() -> None:
    """The case of names is kept, white space around values is not."""
    fields = parse_fields(b"HOST: a\r\nx-b:\t b  c\t \r\nX-Empty:\r\nX-Blank:  \r\n\r\n", 0, 9)

    assert fields.lines == (
        (b"HOST", b"a"),
        (b"x-b", b"b  c"),
        (b"X-Empty", b""),
        (b"X-Blank", b""),
    )
    assert fields.names == (b"host", b"x-b", b"x-empty", b"x-blank")
    assert fields.values == {b"host": b"a", b"x-b": b"b  c", b"x-empty": b"", b"x-blank": b""}
    assert fields.repeated == frozenset()


def test_parsing_begins_at_the_start_that_is_given() -> None:
    """The bytes before the fields are not looked at."""
    assert parse_fields(b"\0: \nA: b\r\n\r\n", 4, 9).lines == ((b"A", b"b"),)


def test_an_empty_section() -> None:
    """A section of an empty line has no fields."""
    fields = parse_fields(b"\r\n", 0, 0)

    assert (fields.lines, fields.names, fields.values) == ((), (), {})


def test_values_of_repeated_fields_are_joined() -> None:
    """Cookies are joined by a semicolon, everything else by a comma; all lines stay apart."""
    fields = parse_fields(b"A: 1\r\nCookie: a\r\na: 2\r\nCOOKIE: b\r\nB: 3\r\n\r\n", 0, 5)

    assert fields.values == {b"a": b"1, 2", b"cookie": b"a; b", b"b": b"3"}
    assert fields.repeated == {b"a", b"cookie"}
    assert len(fields.lines) == 5


def test_every_token_character_and_every_text_byte_is_accepted() -> None:
    """RFC 9110 section 5.6.2 names the characters of names, section 5.5 those of values."""
    name = b"!#$%&'*+-.^_`|~09azAZ"
    value = bytes([0x21, *range(0x20, 0x7F), 9, *range(0x80, 0x100), 0x21])

    assert parse_fields(b"%b:%b\r\n\r\n" % (name, value), 0, 1).lines == ((name, value),)


@pytest.mark.parametrize("byte", [*range(0x20), 0x7F])
def test_control_characters_in_values_are_refused(byte: int) -> None:
    """Only the tab is accepted."""
    raw = b"A: x%cy\r\n\r\n" % byte
    if byte == 9:
        assert parse_fields(raw, 0, 1).lines == ((b"A", b"x\ty"),)
    else:
        assert "CR or LF" in refusal(raw) if byte in b"\r\n" else "control" in refusal(raw)


@pytest.mark.parametrize("byte", [*range(0x21), *b'"(),/;<=>?@[\\]{}', 0x7F, 0x80, 0xFF])
def test_other_bytes_in_names_are_refused(byte: int) -> None:
    """A name is a token."""
    with pytest.raises(Malformed):
        parse_fields(b"A%cB: x\r\n\r\n" % byte, 0, 9)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"A: b\r\n c\r\n\r\n", "folded"),
        (b"\tA: b\r\n\r\n", "folded"),
        (b"A : b\r\n\r\n", "white space"),
        (b"A\t: b\r\n\r\n", "white space"),
        (b"A\r\n\r\n", "colon"),
        (b": b\r\n\r\n", "token"),
        (b"A(: b\r\n\r\n", "token"),
        (b"A: b\n\r\n", "bare"),
        (b"A: b\r\r\n\r\n", "bare"),
        (b"A: b\r\n\n", "bare"),
        (b"A: b\r\n", "empty line after"),
        (b"A: b", "empty line after"),
        (b"A: b\r\n\r\n\r\n", "nothing after"),
        (b"A: b\r\n\r\nB: c\r\n\r\n", "nothing after"),
        (b"A: b\r\nB: \0\r\n\r\n", "control"),
        (b"", "empty line after"),
    ],
)
def test_the_refusal_names_the_mistake(raw: bytes, word: str) -> None:
    """The text says what was expected and what the first malformed line has instead."""
    assert word in refusal(raw)


def test_the_number_of_fields_is_limited() -> None:
    """As many fields as the limit are accepted, one more is not."""
    assert len(parse_fields(b"A: b\r\n" * 3 + b"\r\n", 0, 3).lines) == 3
    assert "at most 3 fields" in refusal(b"A: b\r\n" * 4 + b"\r\n", 3)


def test_lists_have_lower_case_items() -> None:
    """Empty items and white space are dropped; a missing field is an empty list."""
    fields = parse_fields(b"A: Close ,, \tX-b\r\nA: c\r\n\r\n", 0, 2)

    assert fields.items(b"a") == [b"close", b"x-b", b"c"]
    assert fields.items(b"b") == []
    assert (fields.get(b"a"), fields.get(b"b")) == (b"Close ,, \tX-b, c", b"")


@pytest.mark.parametrize(
    ("raw", "end"),
    [
        (b"A: b\r\n\r\nrest\r\n\r\n", 8),
        (b"A: b\n\nrest\r\n\r\n", 14),
        (b"A: b\r\n", -1),
        (b"A: b\r\n\r", -1),
        (b"A: b\r", -1),
        (b"\r", -1),
        (b"", -1),
    ],
)
def test_the_end_of_a_head(raw: bytes, end: int) -> None:
    """Only CRLF ends a line; the parser refuses a complete head with another end within it."""
    assert find_head_end(raw) == end
    assert find_head_end(bytearray(raw)) == end


@pytest.mark.parametrize("raw", [b"A: b\n", b"A: b\r\n\n", b"\n", b"A: b\rB: c", b"A: b\r\r\n"])
def test_a_line_that_ends_in_another_way_is_not_waited_for(raw: bytes) -> None:
    """An incomplete head with a CR or LF alone is refused, in whatever pieces it arrives."""
    for data in (raw, bytearray(raw), b"HTTP/1.1 200 OK\r\n" + raw):
        with pytest.raises(Malformed, match="bare CR or LF"):
            find_head_end(data)
        with pytest.raises(Malformed, match="bare CR or LF"):
            _fed_by_one(bytes(data))


def _fed_by_one(raw: bytes) -> None:
    for count in range(len(raw)):
        assert find_head_end(raw[: count + 1], count) == -1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_end_of_a_head_that_arrives_in_pieces(size: int) -> None:
    """Bytes that were searched are not searched again, apart from the last ones."""
    raw, searched, found = b"A: b\r\nC: d\r\n\r\nrest", 0, -1
    while found < 0:
        found = find_head_end(raw[: searched + size], searched)
        searched += size

    assert found == 14
    assert find_head_end(b"\r\n\r\nA: b", 9) == -1


@pytest.mark.parametrize(
    ("value", "minor", "expected"),
    [
        (None, 1, True),
        (None, 0, False),
        (b"close", 1, False),
        (b"Close", 1, False),
        (b"keep-alive", 1, True),
        (b"keep-alive", 0, True),
        (b"keep-alive, close", 0, False),
        (b"keep-alive, close", 1, False),
        (b"x", 1, True),
        (b"x", 0, False),
    ],
)
def test_persistence(value: bytes | None, minor: int, expected: bool) -> None:
    """HTTP/1.1 persists unless closed, HTTP/1.0 closes unless kept (RFC 9112 section 9.3)."""
    raw = b"\r\n" if value is None else b"Connection: %b\r\n\r\n" % value

    assert read_connection(parse_fields(raw, 0, 9), minor)[0] is expected


def test_connection_options() -> None:
    """The options are the lower-case items of all fields Connection."""
    fields = parse_fields(b"Connection: A, b\r\nConnection: close\r\n\r\n", 0, 9)

    assert read_connection(fields, 1) == (False, {b"a", b"b", b"close"})


@pytest.mark.parametrize("name", [b"Host", b"content-length", b"Transfer-Encoding"])
def test_connection_cannot_remove_fields_of_the_message(name: bytes) -> None:
    """A hop that removed them would change what the next one reads."""
    with pytest.raises(Malformed, match="Connection"):
        read_connection(parse_fields(b"Connection: close, %b\r\n\r\n" % name, 0, 9), 1)
