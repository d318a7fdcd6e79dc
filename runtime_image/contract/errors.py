"""Errors of a load or of one request, as codes with data. Independent of HTTP.

A request error travels over the link in a FAILED frame; the gateway maps its code to a status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

BAD_INPUT: Final = "bad_input"
"""The body does not fit the signature."""
UNSUPPORTED_TYPE: Final = "unsupported_type"
"""The function does not accept this content type."""
NOT_ACCEPTABLE: Final = "not_acceptable"
"""No form in which this answer can be encoded is acceptable to the client."""
FUNCTION_FAILED: Final = "function_failed"
"""The model or the handler raised an error on this input."""
EXECUTION_TIMEOUT: Final = "execution_timeout"
"""The run took longer than the function's `timeout_s`."""
ANSWER_TOO_LARGE: Final = "answer_too_large"
"""The encoded answer is over the limit."""

REQUEST_CODES: Final = frozenset(
    {
        BAD_INPUT,
        UNSUPPORTED_TYPE,
        NOT_ACCEPTABLE,
        FUNCTION_FAILED,
        EXECUTION_TIMEOUT,
        ANSWER_TOO_LARGE,
    }
)

TEXT_LIMIT: Final = 2000
"""Max characters of a request error's message on the link."""


class RequestError(Exception):
    """One request cannot be answered; other requests of its batch are not affected.

    `input` is the name of the faulty input, `expected` and `got` the required and the actual value.
    """

    def __init__(
        self, code: str, message: str, *, input: str = "", expected: str = "", got: str = ""
    ) -> None:
        super().__init__(message[:TEXT_LIMIT])
        self.code = code
        self.message = message[:TEXT_LIMIT]
        self.input = input
        self.expected = expected
        self.got = got

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a FAILED frame, without empty fields."""
        data = {
            "code": self.code,
            "message": self.message,
            "input": self.input,
            "expected": self.expected,
            "got": self.got,
        }
        return {key: value for key, value in data.items() if value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RequestError:
        """Rebuild an error from `to_json`; an unknown code becomes FUNCTION_FAILED."""
        code = str(data.get("code", ""))
        return cls(
            code if code in REQUEST_CODES else FUNCTION_FAILED,
            str(data.get("message", "the replica gave no reason")),
            input=str(data.get("input", ""))[:TEXT_LIMIT],
            expected=str(data.get("expected", ""))[:TEXT_LIMIT],
            got=str(data.get("got", ""))[:TEXT_LIMIT],
        )


def bad_input(name: str, expected: str, got: str, hint: str = "") -> RequestError:
    """Return the BAD_INPUT error of one input, with its expected and actual value; `hint` ends the
    text."""
    return RequestError(
        BAD_INPUT,
        f"input {name!r}: expected {expected}, got {got}{hint}",
        input=name,
        expected=expected,
        got=got,
    )


class UnfitInput(RequestError):
    """An engine does not run a request with these inputs. Passes through a handler as it is."""


class LoadError(Exception):
    """A bundle cannot be fetched or loaded, or its sample cannot be run; the text is the reason, of
    a load that of the engine."""

    stage: Literal["fetch", "load", "sample"] = "load"


class HandlerFailed(Exception):
    """A handler raised an exception in a run; the text has its type, its words and its line."""


class NeverAnswers(HandlerFailed):
    """A handler returned what can never be an answer, whatever the inputs."""


def describe(error: BaseException, text: Callable[[BaseException], str] = repr) -> str:
    """Return `text(error)`, or the type's name if the exception's own methods fail."""
    try:
        return text(error)
    except BaseException:  # noqa: BLE001 - the exception's methods are code of a handler
        return f"an exception of type {type.__repr__(type(error))} that cannot be shown"
