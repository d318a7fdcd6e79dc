"""fnctl alias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from admin import documents as d
from admin.cli.completion import OnlyFunction, function_names
from admin.cli.options import Session, connected
from admin.client import routes
from admin.text import command, table

app = typer.Typer(
    help="Give functions' models further names at /v1.", no_args_is_help=True, rich_markup_mode=None
)
Function = Annotated[
    str,
    typer.Argument(
        metavar="FUNCTION", help="Function with [openai].", autocompletion=function_names
    ),
]
Alias = Annotated[str, typer.Argument(metavar="ALIAS", help="Name of the model, such as gpt-4o.")]


@app.command("add")
@connected
def add(session: Session, function: Function, alias: Alias) -> None:
    """Give a function's model a further name.

    Clients of /v1 may then send it as model. Deploys and rollbacks keep it.

    \b
    Example:
      fnctl alias add qwen gpt-4o-mini
    """
    session.show(
        session.client.submit(routes.ADD_ALIAS, body=d.requests.AliasRequest(function, alias)),
        render_added,
    )
    session.next(f"fnctl alias ls {function}")


@app.command("rm")
@connected
def rm(session: Session, alias: Alias) -> None:
    """Remove an alias; another function may have it then.

    \b
    Example:
      fnctl alias rm gpt-4o-mini
    """
    session.show(
        session.client.call(routes.REMOVE_ALIAS, alias=alias),
        lambda gone: f"{gone.removed} is no alias of {gone.function} any more",
    )


@app.command("ls")
@connected
def ls(
    session: Session,
    function: OnlyFunction = "",
) -> None:
    """List the aliases of one function, or of all.

    \b
    Example:
      fnctl alias ls
    """
    add_one = command("fnctl", "alias", "add", function or "FUNCTION", "ALIAS")
    found = session.client.items(routes.ALIASES, function=function)
    session.show(found, render, lambda items: () if items else (add_one,))


def render_added(new: d.server.NewAlias) -> str:
    """Render the result of adding an alias."""
    how = "is now" if new.created else "was already"
    return f"{new.alias} {how} an alias of {new.function}"


def render(items: Sequence[d.server.AliasRow]) -> str:
    """Render the aliases as a table."""
    rows = [(item.alias, item.function) for item in items]
    return table(("ALIAS", "FUNCTION"), rows) if rows else "no aliases"
