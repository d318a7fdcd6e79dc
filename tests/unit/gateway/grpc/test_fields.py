"""Tests of the count of a message's fields."""

from __future__ import annotations

import pytest

from gateway.grpc.fields import PARSED_MAX, check_fields
from gateway.grpc.request import NESTED, REQUEST, read
from gateway.grpc.wire import field
from registry.errors import BadInput, BadRequest

MANY = PARSED_MAX + 1


def inside(path: tuple[int, ...], data: bytes) -> bytes:
    """Return `data` inside the messages that the tags of a path name."""
    for tag in reversed(path):
        data = field(tag, len(data)) + data
    return data


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        pytest.param((), b"\x42\x00", id="unknown fields"),
        pytest.param((), b"\x40\x01", id="unknown numbers"),
        pytest.param((), b"\x2a\x00", id="inputs"),
        pytest.param((), b"\x43\x44", id="groups"),
        pytest.param((0x2A,), b"\x22\x00", id="parameters of an input"),
        pytest.param((0x2A, 0x2A), b"\x42\x00", id="strings of an input"),
        pytest.param((0x2A, 0x2A), b"\x35\0\0\0\0", id="floats that are not packed"),
        pytest.param((0x2A, 0x2A), b"\x39" + bytes(8), id="doubles that are not packed"),
        pytest.param((0x22,), b"\x0a\x00", id="keys of one parameter"),
        pytest.param((0x22, 0x12), b"\x1a\x00", id="values of one parameter"),
    ],
)
def test_a_message_of_many_fields_is_not_parsed(path: tuple[int, ...], unit: bytes) -> None:
    """At every depth they take many times their size, and time in which nothing else runs."""
    found = read(inside(path, unit * MANY))
    assert isinstance(found.packed, BadRequest)
    assert f"at most {PARSED_MAX}" in found.packed.message or "4096" in found.packed.message


def test_fields_are_counted_together_over_all_depths() -> None:
    """What is no message inside counts once, whatever its bytes are."""
    data = inside((0x2A,), b"\x0a\x03abc" + inside((0x2A,), field(0x3A, 800_000) + bytes(800_000)))
    check_fields(data, NESTED)
    strings = inside((0x2A, 0x2A), b"\x42\x00" * (PARSED_MAX // 2))
    check_fields(strings, NESTED)
    with pytest.raises(BadRequest, match="raw_input_contents"):
        check_fields(strings * 2, NESTED)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0a", id="no length"),
        pytest.param(b"\x0a\x05abc", id="too short"),
        pytest.param(b"\x2a\x03\x0a\x05a", id="too short inside"),
        pytest.param(b"\x08" + b"\xff" * 11, id="a number without an end"),
        pytest.param(b"\x39\x00", id="a cut number"),
    ],
)
def test_a_message_that_is_cut_off_is_refused(data: bytes) -> None:
    """Otherwise what comes before the cut would be parsed uncounted."""
    with pytest.raises(BadRequest, match="cut off"):
        check_fields(data, NESTED)


def test_a_shape_of_many_axes_is_refused() -> None:
    """The product of its sizes would have millions of digits."""
    request = REQUEST(model_name="add")
    request.inputs.add(name="x", datatype="FP32", shape=[127] * 65)
    found = read(bytes(request.SerializeToString()))
    assert isinstance(found.packed, BadInput)
    assert "at most 64 axes in its shape, got 65" in found.packed.message
