"""Answers of replicas as messages."""

from __future__ import annotations

import json

import pytest

from gateway.grpc.answer import (
    KNOWN_MAX,
    RESPONSE,
    STREAM_RESPONSE,
    Answers,
    in_stream,
    stream_error,
)
from registry.errors import FnError


def body(*tensors: bytes, name: str = "m") -> tuple[bytes, int]:
    """Return an answer with these outputs of bytes, and the length of its JSON part."""
    outputs = [
        {
            "name": f"y{at}",
            "shape": [len(one)],
            "datatype": "UINT8",
            "parameters": {"binary_data_size": len(one)},
        }
        for at, one in enumerate(tensors)
    ]
    head = json.dumps({"model_name": name, "model_version": "3", "outputs": outputs}).encode()
    return head + b"".join(tensors), len(head)


def test_an_answer_is_a_response_with_its_tensors() -> None:
    """Names, shapes and bytes are those of the replica, the id is the request's."""
    answers = Answers()
    for _ in range(2):
        data, length = body(b"abc", b"")
        response = RESPONSE.FromString(b"".join(answers.make(data, length, b"7")))
        assert (response.model_name, response.model_version, response.id) == ("m", "3", "7")
        assert [(one.name, list(one.shape)) for one in response.outputs] == [
            ("y0", [3]),
            ("y1", [0]),
        ]
        assert list(response.raw_output_contents) == [b"abc", b""]


def test_an_answer_in_a_stream_is_final() -> None:
    """Each message of a stream is the last one of its request."""
    pieces = in_stream(Answers().make(*body(b"x" * 300), b""))
    response = STREAM_RESPONSE.FromString(b"".join(pieces)).infer_response
    assert response.parameters["triton_final_response"].bool_param
    assert response.raw_output_contents[0] == b"x" * 300


def test_a_failure_in_a_stream_has_the_id_of_its_request() -> None:
    """A client finds the request by the id; the text stands beside the response."""
    found = STREAM_RESPONSE.FromString(stream_error("it failed", "né".encode()))
    assert (found.error_message, found.infer_response.id) == ("it failed", "né")


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"[",
        json.dumps({"model_name": "m", "model_version": "1", "outputs": [{"name": "y"}]}).encode(),
    ],
)
def test_an_answer_in_another_form_is_a_defect(data: bytes) -> None:
    """What a replica sends is checked."""
    with pytest.raises(FnError, match="no inference"):
        Answers().make(data, len(data), b"")


@pytest.mark.parametrize("size", [-1, 2, 4, 2**70])
def test_sizes_of_an_answer_are_checked(size: int) -> None:
    """A tensor ends where the replica says, or the answer is refused."""
    data, length = body(b"abc")
    head = data[:length].replace(b'"binary_data_size": 3', b'"binary_data_size": %d' % size)
    with pytest.raises(FnError):
        Answers().make(head + b"abc", len(head), b"")


def test_the_memory_of_heads_is_bounded() -> None:
    """Other heads replace those that are remembered."""
    answers = Answers()
    for at in range(KNOWN_MAX + 10):
        answers.make(*body(b"a", name=f"m{at}"), b"")
    assert len(answers._known) <= KNOWN_MAX
