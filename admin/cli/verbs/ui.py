"""fnctl ui."""

from __future__ import annotations

import os
import webbrowser
from html import escape
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer

from admin.cli.errors import errors_reported
from admin.cli.options import (
    DEFAULT_DATA,
    DEFAULT_URL,
    Data,
    Json,
    Key,
    Session,
    Url,
    local_token,
    open_client,
)
from admin.client import routes

PAGE_FILE: Final = "ui.html"
"""File in the data folder that redirects a browser to the dashboard with the key."""


def ui(
    url: Url = DEFAULT_URL,
    key: Key = None,
    data: Data = DEFAULT_DATA,
    opens: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Print the address of the dashboard, with the key in it.

    The key is after the #, which no browser sends. The address grants the rights of its key. For a
    server on another machine, forward its port first: ssh -L 8080:127.0.0.1:8080 HOST, then fnctl
    ui --key KEY.

    \b
    Example:
      fnctl ui --open
    """
    with errors_reported(as_json):
        session = Session(open_client(url, key, data), as_json)
        about = session.client.call(routes.SESSION).sent
        token = None if key else local_token(url, data)
        address = address_of(url, token.secret if token else key)
        session.answer({"url": address, "scopes": about.get("scopes")}, lambda: address)
        if not opens:
            session.next("fnctl ui --open")
        elif not webbrowser.open(write_page(data.expanduser(), address).as_uri()):
            session.remark("no browser could be opened: open the address yourself")


def address_of(url: str, key: str | None) -> str:
    """Return the dashboard's address; the fragment with the key stays in the browser."""
    fragment = f"#key={quote(key, safe='')}" if key else ""
    return f"{url.rstrip('/')}/ui/{fragment}"


def write_page(
    folder: Path, address: str, file: str = PAGE_FILE, title: str = "The dashboard"
) -> Path:
    """Write a page `file` that redirects to `address`, readable by this user only: any user of the
    machine can read a browser's command line. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / file
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as page:
        page.write(PAGE.format(address=escape(address), title=escape(title)))
    return path


PAGE: Final = """<!doctype html>
<meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>fngate</title><a href="{address}">{title}</a>
"""
