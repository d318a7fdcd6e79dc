"""Request errors as data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime_image.contract.errors import (
    BAD_INPUT,
    FUNCTION_FAILED,
    REQUEST_CODES,
    TEXT_LIMIT,
    RequestError,
    bad_input,
)


def fields(error: RequestError) -> tuple[str, ...]:
    return error.code, error.message, error.input, error.expected, error.got


@pytest.mark.parametrize("code", sorted(REQUEST_CODES))
def test_an_error_survives_the_link(code: str) -> None:
    """Code, text and all data survive serialisation."""
    error = RequestError(code, "why", input="x", expected="this", got="that")

    again = RequestError.from_json(json.loads(json.dumps(error.to_json())))

    assert fields(again) == fields(error)


def test_empty_fields_are_not_sent() -> None:
    """Empty fields are omitted."""
    assert RequestError(FUNCTION_FAILED, "why").to_json() == {
        "code": "function_failed",
        "message": "why",
    }


def test_a_long_text_is_cut() -> None:
    """The message and all other fields are bounded on both sides of the link."""
    long = "x" * (TEXT_LIMIT + 1)

    sent = RequestError(BAD_INPUT, long)
    received = RequestError.from_json({"code": BAD_INPUT, "message": long, "got": long})

    assert len(sent.message) == len(str(sent)) == TEXT_LIMIT
    assert len(received.message) == len(received.got) == TEXT_LIMIT


@pytest.mark.parametrize("data", [{}, {"code": "surprise"}, {"code": 5, "message": None}])
def test_an_unknown_code_is_the_functions_failure(data: dict[str, Any]) -> None:
    """An unknown code from a replica becomes function_failed."""
    assert RequestError.from_json(data).code == FUNCTION_FAILED


def test_bad_input_names_what_was_wanted() -> None:
    """The error names the input, the expected and the actual value."""
    error = bad_input("x", "FP32", "a string")

    assert str(error) == "input 'x': expected FP32, got a string"
    assert fields(error)[2:] == ("x", "FP32", "a string")
