from __future__ import annotations

import json

import pytest
import typer

from admin.cli.errors import REFUSED, UNREACHABLE, errors_reported
from admin.client.client import ApiError, Unreachable
from registry.errors import BadBundle, BadRequest


def test_no_error_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A block that raises nothing prints nothing and does not exit."""
    with errors_reported(as_json=False):
        pass

    assert capsys.readouterr().err == ""


def test_an_unreachable_server_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """An unreachable server is exit code 3, with a hint what to start or set."""
    with pytest.raises(typer.Exit) as caught, errors_reported(as_json=False):
        raise Unreachable("http://x does not answer: refused")

    assert caught.value.exit_code == UNREACHABLE
    shown = capsys.readouterr().err
    assert shown.startswith("error: http://x does not answer: refused\nnext: start it with fnctl")


def test_an_unreachable_server_may_say_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """A note on the error of an unreachable server replaces the usual hint."""
    error = Unreachable("nobody listens")
    error.add_note("fnctl serve there")

    with pytest.raises(typer.Exit), errors_reported(as_json=False):
        raise error

    assert capsys.readouterr().err == "error: nobody listens\nnext: fnctl serve there\n"


def test_a_refusal_is_told_with_log_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal shows the last log lines, when to retry, and the next command."""
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


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 30] Read-only file system: '/home/someone'",
        "mkdir /x: read-only file system",
    ],
)
def test_a_log_of_a_read_only_folder_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str], line: str
) -> None:
    """The keys that make a folder writable follow the log lines."""
    problem = {"title": "T", "code": "refused", "log_tail": [line]}
    with pytest.raises(typer.Exit), errors_reported(as_json=False):
        raise ApiError(422, problem)

    said = capsys.readouterr().err
    assert f"    {line}\n  an image's folders are read-only, except /tmp: --env HOME=/tmp" in said
    assert "[server.writable]" in said


def test_a_note_is_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    """A note on a refusal replaces the hint for its code."""
    error = ApiError(409, {"title": "T", "code": "conflict"})
    error.add_note("fnctl deploy x --name y")

    with pytest.raises(typer.Exit), errors_reported(as_json=False):
        raise error

    assert capsys.readouterr().err == "error: T\nnext: fnctl deploy x --name y\n"


def test_our_own_errors_are_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    """An error found before anything is sent has the form and exit code of a server's refusal."""
    with pytest.raises(typer.Exit) as caught, errors_reported(as_json=False):
        raise BadBundle("'x' is a link\x1b")

    assert caught.value.exit_code == REFUSED
    assert capsys.readouterr().err == "error: The bundle was refused: 'x' is a link�\n"


def test_a_note_on_our_own_error_is_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    """A note on a local error is its hint."""
    error = BadBundle("too large")
    error.add_note("fnctl deploy smaller")

    with pytest.raises(typer.Exit), errors_reported(as_json=False):
        raise error

    assert capsys.readouterr().err.endswith("too large\nnext: fnctl deploy smaller\n")


def test_a_bad_word_is_wrong_usage() -> None:
    """A bad name is wrong usage, which typer reports with exit code 2."""
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
