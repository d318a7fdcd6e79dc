"""fnctl key, and fnctl access."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from admin import documents as d
from admin.cli.openness import openness_line
from admin.cli.options import Session, connected
from admin.client import routes
from admin.text import ago, table
from registry.key_form import KeyPriority
from registry.openness import Openness

app = typer.Typer(
    help="Create, list and revoke access keys.", no_args_is_help=True, rich_markup_mode=None
)
access_app = typer.Typer(
    help="Say who may call without a key, and replace the admin token.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("add")
@connected
def add(
    session: Session,
    scope: Annotated[
        list[str],
        typer.Option(
            metavar="SCOPE", help="invoke, invoke:NAME, read, deploy or admin; repeatable."
        ),
    ],
    note: Annotated[str, typer.Option(help="Purpose of the key.")] = "",
    priority: Annotated[
        KeyPriority, typer.Option(help="Highest priority that its calls may have.")
    ] = KeyPriority.NORMAL,
) -> None:
    """Create a key. Its secret is printed once and never stored.

    \b
    Example:
      fnctl key add --scope invoke:digits --note "the web shop"
    """
    wanted = d.requests.KeyRequest(scope, note, priority)
    # Not decoded: whatever else a server of another release sends, the secret must not be lost.
    new = session.client.submit(routes.ADD_KEY, body=wanted).sent
    session.remark(f"key {new.get('id')} ({', '.join(scope)}); the secret is shown only now:")
    session.answer(new, lambda: str(new.get("secret", "")))
    session.next("FN_KEY=SECRET fnctl invoke NAME ...")


@app.command("ls")
@connected
def ls(session: Session) -> None:
    """List the keys, without their secrets.

    \b
    Example:
      fnctl key ls
    """
    session.show(
        session.client.items(routes.KEYS),
        lambda items: render(items, datetime.now(UTC).timestamp()),
        lambda items: () if items else ("fnctl key add --scope invoke",),
    )


@app.command("rm")
@connected
def rm(
    session: Session,
    id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, from fnctl key ls.")],
) -> None:
    """Revoke a key; requests with it are refused from now on.

    \b
    Example:
      fnctl key rm k1
    """
    session.show(session.client.call(routes.REMOVE_KEY, id), lambda _: f"key {id} is revoked")


def render(items: Sequence[d.server.KeyRow], now_s: float) -> str:
    """Render the keys as a table; `now_s` in Unix seconds."""
    rows = [
        (item.id, ", ".join(item.scopes), item.priority, ago(item.created_s, now_s), item.note)
        for item in items
    ]
    return table(("ID", "SCOPES", "PRIORITY", "MADE", "NOTE"), rows) if rows else "no keys"


@access_app.command("status")
@connected
def status(session: Session) -> None:
    """Show who may call functions without a key, and what changes that.

    \b
    Example:
      fnctl access status
    """
    session.show(session.client.call(routes.ACCESS), openness_line)


@access_app.command("open")
@connected
def open_access(session: Session) -> None:
    """Let everybody who reaches the server call functions without a key, through proxies too.

    Only on a loopback address. The first key closes it again, and so does a start with a public
    host or a trusted proxy that is not set now.

    \b
    Example:
      fnctl access open
    """
    _decide(session, Openness.OPEN)


@access_app.command("close")
@connected
def close_access(session: Session) -> None:
    """Require a key for every call, also while there are no keys.

    \b
    Example:
      fnctl access close
    """
    _decide(session, Openness.CLOSED)


def _decide(session: Session, openness: Openness) -> None:
    found = session.client.submit(routes.DECIDE_ACCESS, body=d.requests.AccessRequest(openness))
    session.show(found, openness_line)


@access_app.command("rotate-admin")
@connected
def rotate_admin(session: Session) -> None:
    """Replace the admin token in DATA/admin.token; the old one is refused at once.

    fnctl on the server's machine reads the new one from the file.

    \b
    Example:
      fnctl access rotate-admin
    """
    session.show(
        session.client.call(routes.ROTATE_ADMIN),
        lambda new: (
            f"the admin token {new.replaced} is replaced by {new.id},"
            " which is in admin.token of the server's data folder"
        ),
    )
