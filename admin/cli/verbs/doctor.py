"""fnctl doctor."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from admin.cli.failures import REFUSED
from admin.cli.session import DEFAULT_DATA, DEFAULT_URL, Data, Json, Key, Url, open_client
from admin.cli.text import plain


def doctor(
    url: Url = DEFAULT_URL, key: Key = None, data: Data = DEFAULT_DATA, as_json: Json = False
) -> None:
    """Check what fngate needs on this machine.

    Where something is missing it says what to do, and ends with exit code 1.

    \b
    Example:
      fnctl doctor
    """
    from admin.cli import checks
    from admin.settings import run_dir

    folder = Path(data).expanduser().absolute()
    client = open_client(url, key, data)
    found = [
        checks.python(),
        checks.folder(folder),
        checks.disk(folder),
        checks.token(folder),
        checks.sockets(run_dir(folder)),
        checks.engine(),
        checks.server(client),
        checks.access(client),
    ]
    typer.echo(
        json.dumps({"items": checks.to_json(found)}, indent=2)
        if as_json
        else plain(checks.render(found))
    )
    if any(check.level == "fail" for check in found):
        raise typer.Exit(REFUSED)
