"""fnctl key, and fnctl access."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from admin.cli.openness import openness_line
from admin.cli.options import Session, connected
from admin.text import ago, get, table
from registry.key_form import KeyPriority

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
    key = session.client.add_key(scope, note=note, priority=priority.value)
    session.remark(f"key {get(key, 'id')} ({', '.join(scope)}); the secret is shown only now:")
    session.answer(key, lambda: get(key, "secret"))
    session.next("FN_KEY=SECRET fnctl invoke NAME ...")


@app.command("ls")
@connected
def ls(session: Session) -> None:
    """List the keys, without their secrets.

    \b
    Example:
      fnctl key ls
    """
    items = session.client.keys()
    session.answer({"items": items}, lambda: render(items, datetime.now(UTC).timestamp()))
    if not items:
        session.next("fnctl key add --scope invoke")


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
    session.client.remove_key(id)
    session.answer({"removed": id}, lambda: f"key {id} is revoked")


def render(items: list[dict[str, Any]], now_s: float) -> str:
    """Render the keys as a table; `now_s` in Unix seconds."""
    rows = [
        (
            get(item, "id"),
            ", ".join(item.get("scopes") or []),
            get(item, "priority"),
            ago(float(item.get("created_s") or 0), now_s),
            get(item, "note"),
        )
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
    found = session.client.access()
    session.answer(found, lambda: openness_line(found))


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
    found = session.client.decide_access("open")
    session.answer(found, lambda: openness_line(found))


@access_app.command("close")
@connected
def close_access(session: Session) -> None:
    """Require a key for every call, also while there are no keys.

    \b
    Example:
      fnctl access close
    """
    found = session.client.decide_access("closed")
    session.answer(found, lambda: openness_line(found))


@access_app.command("rotate-admin")
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
