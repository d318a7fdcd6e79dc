"""Members that /v1 reads, in any JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.v1.bounds import BRACKETS_MAX
from gateway.v1.scanning import scan
from registry.errors import BadRequest
from tests.support.scans import run

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
def test_members_are_exact(
    members: dict[str, Any],
    model: str,
    stream: bool,
    options: dict[str, Any],
    is_ascii: bool,
    indent: int | None,
    place: int,
) -> None:
    """Every member has the value that a JSON parser reads, wherever it stands."""
    if not model.isprintable():
        return
    others = {f"x{name}": value for name, value in members.items()}
    own = {"model": model, "stream": stream, "stream_options": options}
    items = list(others.items())
    document = dict([*items[:place], *own.items(), *items[place:]])
    body = json.dumps(document, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "replace")
    found = run(scan(body))
    assert (found.model, found.is_stream) == (model, stream)
    read = json.loads(body)
    assert list(found.members) == list(read)
    for name, value in found.members.items():
        assert json.loads(bytes(value)) == read[name]
        assert bytes(value) in body


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{%b}" % b",".join(b'"x%d":1' % one for one in range(1001)), "at most 1000 members"),
        (b'{"model": "a", "%b": 1}' % (b"x" * 100_000), "names of members of at most 1024 bytes"),
        (b'{"%b": 1, "model": "a"}' % (b"x" * 100_000), "names of members of at most 1024 bytes"),
        (
            b'{"x": [%b0], "y": [%b0], "model": "a"}' % ((b"[]," * (BRACKETS_MAX // 2),) * 2),
            "objects and arrays",
        ),
        (("é" * 600_000).encode() + b"\xff", "expected UTF-8, got byte 1200000"),
        (("é" * 600_000).encode() + b"\xc3", "expected UTF-8, got byte 1200000"),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, text: str) -> None:
    """Limits hold wherever a long part stands; shorter bodies are in the table of cases."""
    with pytest.raises(BadRequest, match=None) as refusal:
        run(scan(body))
    assert text in refusal.value.message


def test_a_member_of_an_inner_object_is_not_the_requests() -> None:
    """Only the top level counts, also where an inner member has the same name."""
    body = b'{"a": {"model": "inner"}, "b": [{"model": "b"}], "model": "outer"}'
    assert run(scan(body)).model == "outer"


@pytest.mark.parametrize(
    "hostile",
    [b"[[],[{}]]," * 60_000, b'"' + b'\\"[' * 500_000 + b'",', b'"\\ud83d",' * 200_000],
)
def test_a_hostile_body_leaves_turns_to_the_loop(hostile: bytes) -> None:
    """The scan of many brackets, quotes or surrogates is interrupted now and then."""
    body = b'{"a": [' + hostile + b'0], "model": "x"}'
    assert len(list(scan(body))) >= 2
