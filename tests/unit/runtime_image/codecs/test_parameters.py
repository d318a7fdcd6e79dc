"""Parameters of requests in the Open Inference Protocol."""

import json
from typing import Any

import pytest

from runtime_image.codecs import parameters
from runtime_image.contract.errors import BAD_INPUT, RequestError


def read(given: Any) -> parameters.Parameters:
    return parameters.read(json.dumps(given).encode())


def test_unknown_parameters_are_ignored() -> None:
    """Names of the client's own have no effect, whatever their values are."""
    assert read({"mine": [1, {"a": None}], "also": "triton_"}) == parameters.NONE
    assert read(None) == read({}) == parameters.NONE


def test_known_parameters_are_read() -> None:
    """The parameters that have a meaning here are returned."""
    found = read({"binary_data_output": True, "timeout": 7, "priority": 2, "more": 1})
    assert (found.binary_data_output, found.timeout, found.priority) == (True, 7, 2)


@pytest.mark.parametrize(
    "given",
    [
        {"binary_data_output": 1},
        {"binary_data_output": "true"},
        {"timeout": -1},
        {"timeout": 1.5},
        {"timeout": "1"},
        {"timeout": 2**63},
        {"priority": -1},
        {"priority": False},
        {"sequence_id": 1.5},
        {"sequence_start": 1},
        [],
        "text",
        1,
    ],
)
def test_wrong_types_are_refused(given: Any) -> None:
    """A parameter of another type is refused with the types that are expected."""
    with pytest.raises(RequestError, match="expected parameters as an object") as caught:
        read(given)
    assert caught.value.code == BAD_INPUT


@pytest.mark.parametrize(
    "given",
    [{"sequence_id": 5}, {"sequence_id": "a"}, {"sequence_start": True}, {"sequence_end": True}],
)
def test_sequences_are_refused(given: dict[str, Any]) -> None:
    """No function keeps the state of a sequence, so a request of one is refused."""
    with pytest.raises(RequestError, match=f"got {next(iter(given))}"):
        read(given)


def test_no_sequence_is_accepted() -> None:
    """Clients that always name the parameters of sequences may say that there is none."""
    read({"sequence_id": 0, "sequence_start": False, "sequence_end": False})
    read({"sequence_id": ""})


def test_reserved_names_are_refused() -> None:
    """Names that begin with triton_ are reserved; elsewhere the text is harmless."""
    with pytest.raises(RequestError, match="do not begin with triton_, got triton_final"):
        read({"timeout": 1, "triton_final": 1})
    read({"my_triton_x": {"triton_": 1}, "text": '"triton_'})


def test_large_parameters_are_refused() -> None:
    """Parameters are bounded: decoded, they need many times their size."""
    size = parameters.SIZE_MAX
    read({"a": "x" * (size - 9)})
    with pytest.raises(RequestError, match=f"at most {size} bytes"):
        read({"a": "x" * size})
