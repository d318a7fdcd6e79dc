"""fnctl alias."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from admin.cli.completion import OnlyFunction, function_names
from admin.cli.options import Session, connected
from admin.text import command, get, table

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
    answer = session.client.add_alias(function, alias)
    session.answer(answer, lambda: render_added(answer))
    session.next(f"fnctl alias ls {function}")


@app.command("rm")
@connected
def rm(session: Session, alias: Alias) -> None:
    """Remove an alias; another function may have it then.

    \b
    Example:
      fnctl alias rm gpt-4o-mini
    """
    answer = session.client.remove_alias(alias)
    session.answer(
        answer,
        lambda: f"{get(answer, 'removed')} is no alias of {get(answer, 'function')} any more",
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
    items = session.client.aliases(function)
    session.answer({"items": items}, lambda: render(items))
    if not items:
        session.next(command("fnctl", "alias", "add", function or "FUNCTION", "ALIAS"))


def render_added(answer: dict[str, Any]) -> str:
    """Render the result of adding an alias."""
    how = "is now" if answer.get("created") else "was already"
    return f"{get(answer, 'alias')} {how} an alias of {get(answer, 'function')}"


def render(items: list[dict[str, Any]]) -> str:
    """Render the aliases as a table."""
    rows = [(get(item, "alias"), get(item, "function")) for item in items]
    return table(("ALIAS", "FUNCTION"), rows) if rows else "no aliases"
