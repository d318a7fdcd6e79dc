"""Splitting of messages without parsing them."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from gateway.grpc.request import REQUEST
from gateway.grpc.wire import FIELDS_MAX, NotPlain, field, split
from registry.errors import BadRequest


def request(ident: str, raw: list[bytes]) -> bytes:
    """Return a serialised request for the model m."""
    made = REQUEST(model_name="m", id=ident, raw_input_contents=raw)
    made.inputs.add(name="x", datatype="UINT8", shape=[1])
    return bytes(made.SerializeToString())


@given(ident=st.text(max_size=200), raw=st.lists(st.binary(max_size=400), max_size=5))
def test_the_parts_are_those_of_a_complete_parser(ident: str, raw: list[bytes]) -> None:
    """Head, id and tensors hold what a parser finds, and the head does not depend on the others."""
    parts = split(request(ident, raw))
    assert parts.id.decode() == ident
    assert [bytes(one) for one in parts.raw] == raw
    assert parts.head == request("", [])


@given(data=st.binary(max_size=60))
def test_any_bytes_are_split_as_a_parser_reads_them(data: bytes) -> None:
    """Bytes that are split hold the same fields as for a parser, or are no message for it."""
    try:
        parts = split(data)
    except NotPlain:
        return
    joined = parts.head + b"".join(field(0x3A, len(one)) + bytes(one) for one in parts.raw)
    if parts.id:
        joined += field(0x1A, len(parts.id)) + parts.id
    try:
        expected = REQUEST.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            REQUEST.FromString(joined)
        return
    assert REQUEST.FromString(joined) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x3a\xff\xff\xff\xff\xff\x01",
        b"\x0a\x80",
        b"\x42\x01x",
        b"\x08\x01",
        b"\x1a\x01a\x1a\x01b",
    ],
)
def test_other_forms_are_left_to_a_complete_parser(data: bytes) -> None:
    """Truncated, unknown and repeated fields are not split."""
    with pytest.raises(NotPlain):
        split(data)


def test_the_number_of_fields_is_bounded() -> None:
    """A message of empty tensors would take many times its size."""
    assert len(split(b"\x3a\x00" * FIELDS_MAX).raw) == FIELDS_MAX
    with pytest.raises(BadRequest, match=f"at most {FIELDS_MAX} fields"):
        split(b"\x3a\x00" * (FIELDS_MAX + 1))
