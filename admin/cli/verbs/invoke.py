"""fnctl invoke."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admin.cli.completion import function_names
from admin.cli.options import (
    RequestHeaders,
    RequestMethod,
    RequestPath,
    Session,
    connected,
)
from admin.client import routes

if TYPE_CHECKING:
    from admin.client.client import Answer, HttpRequest, Payload

TIMEOUT_S = 300.0
SHOWN_MAX = 100
"""Max bytes of a sample that are shown."""
MediaType = Annotated[
    str, typer.Option("--type", metavar="TYPE", help="Content type of the file, whatever its name.")
]


@connected
def invoke(  # noqa: PLR0913 - typer takes one parameter per option
    session: Session,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@REVISION]", help="Function to call.", autocompletion=function_names
        ),
    ],
    body: Annotated[
        str | None, typer.Option("-d", "--body", metavar="TEXT|@FILE", help="The whole body.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "-i", "--input", metavar="NAME=VALUE|@FILE", help="One input: a value, or a file."
        ),
    ] = None,
    media: MediaType = "",
    path: RequestPath = None,
    method: RequestMethod = None,
    headers: RequestHeaders = None,
    accept: Annotated[
        str,
        typer.Option(metavar="TYPE", help="Content type of the answer, like application/x-npy."),
    ] = "",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the answer's body to FILE.")
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="Max time that the call waits before it starts."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Max time until the answer.")
    ] = TIMEOUT_S,
) -> None:
    """Call a function and print its answer.

    A receipt with the timing follows. Without an input, the function's own sample is sent, or
    zeros. A file is sent as raw bytes if the function takes those. Otherwise its suffix decides: a
    picture (.png .jpg ...), a sound (.wav .flac .ogg), an .npy or a .bin; .json files and values
    are JSON. --type sends any file unchanged.

    A Python function takes its parameters: texts as they are, numbers, true, false and JSON by the
    function's schema, and files. Without its inputs it says what it takes.

    A server function gets one request, by default its sample, and its answer is printed as it
    arrives, as are streams. -d is then any text, and makes the request a POST.

    \b
    Examples:
      fnctl invoke digits
      fnctl invoke digits -i image=@seven.png
      fnctl invoke sum -i a=[[1,2]] -i b=[[3,4]]
      fnctl invoke filetype -i data=@page.html
      fnctl invoke words -i text='to be or not to be' -i most=2
      fnctl invoke digits@2 -d @request.json --wait 10
      fnctl invoke web --path /items?q=1 -H 'Accept: text/event-stream'
    """
    from admin.cli.requests import Patience, Wanted, exchange, send
    from registry.names import parse_ref

    parse_ref(name)
    is_request = path is not None or method is not None or bool(headers)
    if is_request and inputs:
        raise typer.BadParameter(
            "expected no input beside --path, -X or -H, which are for servers: -d is their body",
            param_hint="-i",
        )
    described = {} if is_request or (media and not inputs) else _described(session, name)
    is_call = "predict" in described and body is None and not media
    if is_call:
        request = _python_request(session, name, described, inputs or [], accept)
        exchange(session, name, request, output, Patience(wait, timeout), partial(_show, session))
    elif is_request or (not inputs and not media and described.get("kind") == "http"):
        wanted = Wanted(path, method, tuple(headers or ()), body, media, accept)
        send(session, name, wanted, output, wait_s=wait, timeout_s=timeout)
    else:
        sent = _payload(session, name, body, inputs or [], media, described)
        answer = session.client.invoke(name, sent, accept=accept, wait_s=wait, timeout_s=timeout)
        _show(session, answer, output)


def _show(session: Session, answer: Answer, output: Path | None = None) -> None:
    """Print an answer and its receipt, or write its body to a file."""
    if output is not None:
        _write(output, answer.body)
    session.answer(to_json(answer), lambda: render_receipt(answer, output))
    _print_receipt(session, answer)


def _described(session: Session, name: str) -> dict[str, Any]:
    """Return the function's description; {} without one, since the call itself is then refused with
    the reason."""
    from admin.client.client import ApiError

    try:
        return session.client.describe(name)
    except ApiError:
        return {}


def _python_request(
    session: Session, name: str, described: dict[str, Any], inputs: list[str], accept: str
) -> HttpRequest:
    """Return the call of a Python function: with inputs, with its sample, or with none. Raises
    typer.BadParameter."""
    from admin.cli.python_inputs import python_payload, without_inputs
    from admin.client.client import HttpRequest

    if inputs:
        made = python_payload(name, described, inputs)
    else:
        made = _own_sample(session, name) or without_inputs(name, described)
    headers = {"Content-Type": made.content_type, **({"Accept": accept} if accept else {})}
    return HttpRequest("/", "POST", headers, made.body)


def _own_sample(session: Session, name: str) -> Payload | None:
    """Return the sample of a function's manifest; None without one, and for a key that may not read
    it."""
    from admin.client.client import ApiError

    try:
        function = session.client.call(routes.FUNCTION, name.partition("@")[0]).value
        return _sample(session, name) if function.sample == "manifest" else None
    except ApiError:
        return None


def _sample(session: Session, name: str) -> Payload:
    from admin.text import one_line, size

    sample = session.client.sample(name)
    shown = f"{sample.content_type}, {size(len(sample.body))}"
    if sample.content_type == "application/json" and len(sample.body) <= SHOWN_MAX:
        shown = one_line(sample.body.decode(errors="replace"))
    session.remark(f"no input given, an example is sent: {shown}")
    return sample


def _payload(
    session: Session,
    name: str,
    body: str | None,
    inputs: list[str],
    media: str,
    described: dict[str, Any],
) -> Payload:
    """Return the body for the options; without any, the function's sample. How inputs are sent, and
    which there are, is said by the function's description."""
    from admin.cli.inputs import Taken, payload

    if body is None and not inputs and not media:
        return _sample(session, name)
    taken = Taken.read(described) if inputs else Taken()
    return payload(body, inputs, media, taken)


def to_json(answer: Answer) -> dict[str, Any]:
    """Return the answer as JSON data with its receipt: the object itself, or its type and size."""
    from admin.cli.answers import read_receipt

    shown = _object(answer)
    if shown is None:
        shown = {"content_type": answer.content_type, "bytes": len(answer.body)}
    return {**shown, "receipt": read_receipt(answer.timing).to_json()}


def render_receipt(answer: Answer, output: Path | None) -> str:
    """Render the answer, or the file that it was written to."""
    from admin.cli.answers import render_answer
    from admin.text import size

    what = f"{answer.content_type or 'answer'}, {size(len(answer.body))}"
    if output is not None:
        return f"{what}, written to {output}"
    shown = _object(answer)
    if shown is None:
        return f"{what}: save it with --output FILE"
    return render_answer(shown)


def _object(answer: Answer) -> dict[str, Any] | None:
    if not answer.content_type.startswith("application/json"):
        return None
    try:
        value = json.loads(answer.body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else {"answer": value}


def _print_receipt(session: Session, answer: Answer) -> None:
    from admin.cli.answers import read_receipt, render_receipt

    if receipt := render_receipt(read_receipt(answer.timing)):
        session.remark(receipt)


def _write(path: Path, body: bytes) -> None:
    try:
        path.write_bytes(body)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--output") from error
