"""fnctl access."""

from __future__ import annotations

import typer

from admin.cli.openness import openness_line
from admin.cli.options import Session, connected
from admin.text import get

app = typer.Typer(
    help="Say who may call without a key, and replace the admin token.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("status")
@connected
def status(session: Session) -> None:
    """Show who may call functions without a key, and what changes that.

    \b
    Example:
      fnctl access status
    """
    found = session.client.access()
    session.answer(found, lambda: openness_line(found))


@app.command("open")
@connected
def open_access(session: Session) -> None:
    """Let everybody who reaches the server call functions without a key, through proxies too.

    Only on a loopback address. The first key closes it again, and so does a start with a public
    host or a trusted proxy that is not set now.

    \b
    Example:
      fnctl access open
    """
    found = session.client.decide_access("open")
    session.answer(found, lambda: openness_line(found))


@app.command("close")
@connected
def close_access(session: Session) -> None:
    """Require a key for every call, also while there are no keys.

    \b
    Example:
      fnctl access close
    """
    found = session.client.decide_access("closed")
    session.answer(found, lambda: openness_line(found))


@app.command("rotate-admin")
@connected
def rotate_admin(session: Session) -> None:
    """Replace the admin token in DATA/admin.token; the old one is refused at once.

    fnctl on the server's machine reads the new one from the file.

    \b
    Example:
      fnctl access rotate-admin
    """
    found = session.client.rotate_admin()
    session.answer(
        found,
        lambda: (
            f"the admin token {get(found, 'replaced')} is replaced by {get(found, 'id')},"
            " which is in admin.token of the server's data folder"
        ),
    )
