"""Spans of the members that /v1 reads, in any JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.v1.scanning import BRACKETS_MAX, MEMBERS_MAX, run, scan
from registry.errors import BadRequest

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
HARD = ('"', "\\", '\\"', "[{", "}]", ",", ' "model": "no"', "\\\\" * 40, 'x\\"' * 100, "A" * 3000)


@given(
    members=st.dictionaries(st.text(max_size=5), JSON | st.sampled_from(HARD), max_size=5),
    model=st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF), min_size=1, max_size=20),
    stream=st.booleans(),
    options=st.dictionaries(st.text(max_size=5), JSON, max_size=2),
    is_ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
    place=st.integers(0, 5),
)
def test_spans_are_exact(
    members: dict[str, Any],
    model: str,
    stream: bool,
    options: dict[str, Any],
    is_ascii: bool,
    indent: int | None,
    place: int,
) -> None:
    """Every span is the value that a JSON parser reads, wherever its member stands."""
    if not model.isprintable():
        return
    others = {f"x{name}": value for name, value in members.items()}
    own = {"model": model, "stream": stream, "stream_options": options}
    items = list(others.items())
    document = dict([*items[:place], *own.items(), *items[place:]])
    body = json.dumps(document, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "replace")
    found = run(scan(body))
    assert (found.model, found.is_stream) == (model, stream)
    assert set(found.values) == set(own)
    for name, (begin, end) in found.values.items():
        assert json.loads(body[begin:end]) == json.loads(body)[name]
    assert body[: found.first].strip() == b"{"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "expected a JSON object"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "model: expected a name"),
        (b'{"model": 1}', "model: expected a name of 1 to 256 printable characters, got '1'"),
        (b'{"model": null}', "printable characters, got none"),
        (b'{"model": "' + b"a" * 5000 + b'"}', "model: expected at most 4096 bytes, got 5002"),
        (b'{"model": "a", "Model": "b"}', "expected no member like `model` but itself"),
        (b'{"model": "a", "m\\u004fDEL": "b"}', "expected no member like `model` but itself"),
        (b'{"model": "a", "model\\u0000x": "b"}', "expected no member like `model` but itself"),
        (b'{"model": "a", "model[]": "b"}', "expected no member like `model` but itself"),
        (b'{"model": ""}', "model: expected a name"),
        (b'{"model": "a\\u0000"}', "model: expected a name"),
        (b'{"model": "a", "mod\\u0065l": "b"}', "model: expected once"),
        (b'{"model": "a", "stream": true, "stream": false}', "stream: expected once"),
        (b'{"model": "a", "stream": 1}', "stream: expected true or false, got '1'"),
        (b'{"model": "a", "stream": "true"}', "stream: expected true or false, got '\"true\"'"),
        (b'{"model": "a", "stream_options": []}', "stream_options: expected an object, got '[]'"),
        (b'{"model": "a", "stream_options": {%b}}' % (b" " * 5000), "expected at most 4096 bytes"),
        (b'{"model": "a", "%b": 1}' % (b"x" * 2000), "names of members of at most 1024 bytes"),
        (b'{"model": "a", "%b": 1}' % (b"x" * 100_000), "names of members of at most 1024 bytes"),
        (b'{"%b": 1, "model": "a"}' % (b"x" * 100_000), "names of members of at most 1024 bytes"),
        (b'{"x": %b, "model": "a"}' % (b"1" * 5000), "numbers of at most 4096 digits"),
        (b'{"x": [%b0], "model": "a"}' % (b"[]," * BRACKETS_MAX), "objects and arrays"),
        (
            b'{"x": [%b0], "y": [%b0], "model": "a"}' % ((b"[]," * (BRACKETS_MAX // 2),) * 2),
            "objects and arrays",
        ),
        (("é" * 600_000).encode() + b"\xff", "expected UTF-8, got byte 1200000"),
        (("é" * 600_000).encode() + b"\xc3", "expected UTF-8, got byte 1200000"),
        (b'{"model": "a"} {}', "trailing characters"),
        (b'{"model": "a", "b": "\xff"}', "expected UTF-8"),
        (b'{"model": "a", "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deeply"),
        (b'{"model": "a"' + b"".join(b', "%d": 1' % n for n in range(MEMBERS_MAX)) + b"}", "most"),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, text: str) -> None:
    """The refusal says what was expected."""
    with pytest.raises(BadRequest, match=None) as refusal:
        run(scan(body))
    assert text in refusal.value.message


def test_a_member_of_an_inner_object_is_not_the_requests() -> None:
    """Only the top level counts, also where an inner member has the same name."""
    body = b'{"a": {"model": "inner"}, "b": [{"model": "b"}], "model": "outer"}'
    assert run(scan(body)).model == "outer"


@pytest.mark.parametrize("hostile", [b"[[],[{}]]," * 3000, b'"' + b'\\"' * 300_000 + b'",'])
def test_a_hostile_body_leaves_turns_to_the_loop(hostile: bytes) -> None:
    """The scan of many brackets or quotes is interrupted now and then."""
    body = b'{"a": [' + hostile + b'0], "model": "x"}'
    assert len(list(scan(body))) >= 2
