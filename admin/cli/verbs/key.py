"""fnctl key."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from admin.cli.options import Session, connected
from admin.text import ago, get, table

app = typer.Typer(
    help="Create, list and revoke access keys.", no_args_is_help=True, rich_markup_mode=None
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
) -> None:
    """Create a key. Its secret is printed once and never stored.

    \b
    Example:
      fnctl key add --scope invoke:digits --note "the web shop"
    """
    key = session.client.add_key(scope, note)
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
            ago(float(item.get("created_s") or 0), now_s),
            get(item, "note"),
        )
        for item in items
    ]
    return table(("ID", "SCOPES", "MADE", "NOTE"), rows) if rows else "no keys"
