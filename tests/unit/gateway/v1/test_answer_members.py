"""Places of members in objects of answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.v1.answer_members import (
    BRACKETS_MAX,
    end_of_value,
    find_members,
    is_object,
    members_of,
)

HARD = ('"', "\\", '\\"', "[{", "}]", ",", ' "model": "no"', "\\\\" * 40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(HARD) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(
    document=st.dictionaries(st.sampled_from(HARD) | st.text(max_size=3), JSON, min_size=1),
    indent=st.sampled_from([None, 1]),
)
def test_spans_are_those_that_a_parser_reads(
    document: dict[str, object], indent: int | None
) -> None:
    """Names stand as they are written, and values between the ends of their spans."""
    text = b": " + json.dumps(document, indent=indent).encode() + b"\n"
    members = list(members_of(text, 2))
    assert [one.is_last for one in members] == [False] * (len(members) - 1) + [True]
    assert is_object(text, 2)
    read = {json.loads(one.name): json.loads(text[one.begin : one.end]) for one in members}
    assert read == document
    names = tuple(one.name for one in members)
    assert find_members(text, 2, names) == {one.name: (one.begin, one.end) for one in members}


@pytest.mark.parametrize(
    "text", [b"", b"]", b":1", b" 1", b'"a', b"[", b'["', b'["a]', b'{"a":"\\"}']
)
def test_what_is_cut_has_no_end(text: bytes) -> None:
    """Nor what is no value."""
    assert end_of_value(text, 0, BRACKETS_MAX)[0] == -1


def test_objects_and_arrays_count() -> None:
    """What is left is told, for the next value."""
    assert end_of_value(b"[[],{}]x", 0, 3) == (7, 0)
    assert end_of_value(b"[[],{}]x", 0, 2) == (-1, -1)
    assert end_of_value(b"[]", 0, -1) == (-1, -1)


@pytest.mark.parametrize("rest", [b"1," * 500_000, b'"' + b"\\\\" * 500_000, b'"",' * 300_000])
def test_a_long_text_is_read_once(rest: bytes) -> None:
    """Where no bracket follows, the search ends; it does not begin anew at each byte, which would
    take hours."""
    assert end_of_value(b"[" + rest, 0, BRACKETS_MAX)[0] == -1
