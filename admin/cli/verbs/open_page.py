"""fnctl open."""

from __future__ import annotations

import webbrowser
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer

from admin import documents as d
from admin.cli.errors import errors_reported
from admin.cli.options import (
    DEFAULT_DATA,
    DEFAULT_URL,
    Data,
    Json,
    Key,
    Session,
    Url,
    open_client,
)
from admin.cli.verbs.show import Name
from admin.cli.verbs.ui import write_page
from admin.client import routes

PAGE_FILE: Final = "open.html"
"""File in the data folder that redirects a browser to the page with its ticket."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The verb's answer: the address with its ticket, which is valid for `expires_s` seconds."""

    url: str
    expires_s: float


def open_page(  # noqa: PLR0913 - typer takes one parameter per option
    name: Name,
    path: Annotated[str, typer.Option(help="Path of the page, with its query.")] = "/",
    prints: Annotated[
        bool, typer.Option("--print", help="Print the address instead of opening it.")
    ] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Open the pages of a server function in a browser.

    They have a host of their own. The address holds a ticket, which lets one browser in once within
    60 s, for 12 hours and with the rights of your key on this function.

    \b
    Example:
      fnctl open jupyter
    """
    with errors_reported(as_json):
        session = Session(open_client(url, key, data), as_json)
        ticket = session.client.submit(
            routes.TICKET, name, body=d.requests.TicketRequest(path)
        ).value
        scheme = url.partition("://")[0] if "://" in url else "http"
        address = f"{scheme}://{ticket.address}"
        answer = asdict(Opened(address, ticket.expires_s))
        if prints or as_json:
            session.answer(answer, lambda: address)
            return
        page = write_page(data.expanduser(), address, PAGE_FILE, name)
        if webbrowser.open(page.as_uri()):
            session.remark(f"opened {address.partition('/.fngate/')[0]}{path}")
        else:
            session.answer(answer, lambda: address)
            session.remark("no browser could be opened: open the address yourself, within 60 s")
