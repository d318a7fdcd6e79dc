"""Reporting of failed verbs: text with a hint or JSON on stderr, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from admin.text import plain
from registry.errors import BadRequest, FnError

if TYPE_CHECKING:
    from admin.client.client import ApiError

REFUSED: Final = 1
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130

EXIT_CODES: Final = """\b
Exit codes:
  0    done
  1    refused or failed; the text says why
  2    wrong usage
  3    the server does not answer
  130  interrupted with Ctrl-C"""
"""Shown below `fnctl --help`; \\b keeps the line breaks."""

READ_ONLY: Final = "read-only file system"
"""The system's text for a write to a folder that cannot be written to (EROFS), in lower case."""
READ_ONLY_HINT: Final = (
    "  an image's folders are read-only, except /tmp: --env HOME=/tmp, or name the folder in"
    " [server.writable]"
)

HINTS: Final = {
    "no_key": "give --key or FN_KEY, or point --data or FN_DATA at the server's data folder",
    "wrong_scope": "use a key with that scope: fnctl key add --scope SCOPE",
    "unknown_function": "list the functions: fnctl ls",
    "function_failing": "see why: fnctl why NAME, fnctl logs NAME",
    "upstream_failed": "see why: fnctl logs NAME",
    "upstream_timeout": "see why: fnctl logs NAME; the limit is first_byte_s",
    "replica_died": "see why: fnctl why NAME, fnctl logs NAME",
    "asleep": "wake it with such a request, or: fnctl warm NAME",
    "revoked_not_stored": "free space on the disk of the server's data folder, then repeat it",
    "other_release": "use the fnctl of the server's release, or --json: it prints what was sent",
    "foreign_host": "start the server with --public-host, or use its own address in --url",
}
"""Hints by the error's code."""
_WORDS: Final = "fngate replica: "
"""Beginning of the log line in which a replica gives its reason."""
SHOWN_MAX: Final = 20
"""Max characters shown of an argument that cannot be sent."""
UNREACHABLE_HINT: Final = "start it with fnctl serve, or name it with --url or FN_URL"


@contextmanager
def errors_reported(as_json: bool) -> Iterator[None]:
    """Report errors of the block on stderr and exit with their code.

    With `as_json` the report is one JSON object, the server's problem document if there is one. A
    note on an error is its hint. A BadRequest raised in the block itself is wrong usage, as is an
    argument of bytes that are no text.
    """
    from admin.client.client import ApiError, Unreachable

    try:
        yield
    except Unreachable as error:
        problem = {"code": "unreachable", "title": "Unreachable", "detail": str(error)}
        hints = getattr(error, "__notes__", None) or [UNREACHABLE_HINT]
        report_error(str(error), hints[0], problem, as_json)
        raise typer.Exit(UNREACHABLE) from error
    except ApiError as error:
        hints = getattr(error, "__notes__", None) or [HINTS.get(error.code, "")]
        report_error(refusal_text(error), hints[0], error.sent, as_json)
        raise typer.Exit(REFUSED) from error
    except BadRequest as error:
        raise typer.BadParameter(error.message) from error
    except UnicodeEncodeError as error:
        got = ascii(error.object[error.start : error.end][:SHOWN_MAX])
        raise typer.BadParameter(f"expected text in {error.encoding}, got {got}") from error
    except FnError as error:
        problem = {
            "code": error.code,
            "title": error.title,
            "detail": error.message,
            **error.detail,
        }
        hint = next(iter(getattr(error, "__notes__", [])), "")
        report_error(f"{error.title}: {error.message}", hint, problem, as_json)
        raise typer.Exit(REFUSED) from error


def refusal_text(error: ApiError) -> str:
    """Render the server's error: detail, log lines, seconds until a retry."""
    lines = [str(error)]
    tail = error.problem.log_tail or []
    if tail and tail[-1].startswith(_WORDS) and tail[-1].removeprefix(_WORDS) in lines[0]:
        tail = tail[:-1]  # the replica's reason, which the error has
    if tail:
        lines += ["  last lines of its log:", *(f"    {line}" for line in tail)]
    if any(READ_ONLY in line.lower() for line in tail):
        lines.append(READ_ONLY_HINT)
    if names := error.problem.kept_by:
        from admin.cli.render import kept_text

        lines.append(f"  {kept_text(names)}")
    if isinstance(seconds := error.problem.retry_after_s, int):
        lines.append(f"  try again in {seconds} s")
    return "\n".join(lines)


def report_error(text: str, hint: str, problem: Mapping[str, object], as_json: bool) -> None:
    """Write an error and its hint to stderr."""
    if as_json:
        typer.echo(json.dumps(problem), err=True)
        return
    typer.echo(f"error: {plain(text)}", err=True)
    if hint:
        typer.echo(f"next: {plain(hint)}", err=True)
