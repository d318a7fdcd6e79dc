from __future__ import annotations

import json

import pytest
import typer

from admin.cli.errors import REFUSED, UNREACHABLE, errors_reported
from admin.client.client import ApiError, Unreachable
from registry.errors import BadBundle, BadRequest


def test_no_error_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A verb that does what it should is left alone."""
    with errors_reported(as_json=False):
        pass

    assert capsys.readouterr().err == ""


def test_an_unreachable_server_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Without an answer the exit code is 3, and the hint says what to start or set."""
    with pytest.raises(typer.Exit) as caught, errors_reported(as_json=False):
        raise Unreachable("http://x does not answer: refused")

    assert caught.value.exit_code == UNREACHABLE
    shown = capsys.readouterr().err
    assert shown.startswith("error: http://x does not answer: refused\nnext: start it with fnctl")


def test_an_unreachable_server_may_say_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """What knows why nobody answers says in a note what mends it."""
    error = Unreachable("nobody listens")
    error.add_note("fnctl serve there")

    with pytest.raises(typer.Exit), errors_reported(as_json=False):
        raise error

    assert capsys.readouterr().err == "error: nobody listens\nnext: fnctl serve there\n"


def test_a_refusal_is_told_with_log_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal shows the last log lines and when to try again, and what to look at."""
    problem = {
        "title": "It fails",
        "detail": "d",
        "code": "function_failing",
        "log_tail": ["Traceback", "ValueError"],
        "retry_after_s": 4,
    }
    with pytest.raises(typer.Exit) as caught, errors_reported(as_json=False):
        raise ApiError(503, problem)

    assert caught.value.exit_code == REFUSED
    assert capsys.readouterr().err.split("\n") == [
        "error: It fails: d",
        "  last lines of its log:",
        "    Traceback",
        "    ValueError",
        "  try again in 4 s",
        "next: see why: fnctl why NAME, fnctl logs NAME",
        "",
    ]


def test_a_note_is_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    """A verb that knows better than the code says what to do in a note."""
    error = ApiError(409, {"title": "T", "code": "conflict"})
    error.add_note("fnctl deploy x --name y")

    with pytest.raises(typer.Exit), errors_reported(as_json=False):
        raise error

    assert capsys.readouterr().err == "error: T\nnext: fnctl deploy x --name y\n"


def test_our_own_errors_are_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    """What is refused before anything is sent ends like a refusal of the server."""
    with pytest.raises(typer.Exit) as caught, errors_reported(as_json=False):
        raise BadBundle("'x' is a link\x1b")

    assert caught.value.exit_code == REFUSED
    assert capsys.readouterr().err == "error: The bundle was refused: 'x' is a link�\n"


def test_a_note_on_our_own_error_is_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever raises it may know what mends it."""
    error = BadBundle("too large")
    error.add_note("fnctl deploy smaller")

    with pytest.raises(typer.Exit), errors_reported(as_json=False):
        raise error

    assert capsys.readouterr().err.endswith("too large\nnext: fnctl deploy smaller\n")


def test_a_bad_word_is_wrong_usage() -> None:
    """A name that cannot be is wrong usage, which typer tells with exit code 2."""
    with pytest.raises(typer.BadParameter, match="expected a name"), errors_reported(as_json=False):
        raise BadRequest("expected a name")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unreachable("x"), "unreachable"),
        (ApiError(404, {"title": "T", "code": "unknown"}), "unknown"),
        (BadBundle("x"), "bad_bundle"),
    ],
)
def test_failures_can_be_json(
    capsys: pytest.CaptureFixture[str], error: Exception, code: str
) -> None:
    """With --json a failure is one JSON object with a code, on stderr."""
    with pytest.raises(typer.Exit), errors_reported(as_json=True):
        raise error

    captured = capsys.readouterr()
    assert json.loads(captured.err)["code"] == code
    assert captured.out == ""
