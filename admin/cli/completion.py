"""Shell completion of the names of functions and hosts, and of the ids of environments and
operations."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from admin.cli.options import DEFAULT_DATA, DEFAULT_URL, open_client

COMPLETION_S: Final = 0.5
"""Max seconds for the server's answer, as the shell waits for it."""


def function_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a function's name from the server that the command line names so far.

    Returns no names if the server refuses or does not answer in time, and with --ssh.
    """
    return _matching(context, incomplete, "functions")


OnlyFunction = Annotated[
    str,
    typer.Argument(
        metavar="[FUNCTION]", help="Only of this function.", autocompletion=function_names
    ),
]
"""Argument of a list that may be limited to one function; "" for all."""


def host_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a host's name, as `function_names`."""
    return _matching(context, incomplete, "hosts")


def environment_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Complete an environment's id, as `function_names`."""
    return _matching(context, incomplete, "environments", "id")


def operation_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Complete an operation's id, as `function_names`."""
    return _matching(context, incomplete, "operations", "id")


def _matching(
    context: typer.Context, incomplete: str, things: str, member: str = "name"
) -> list[str]:
    """Return the values of `member` in a list of the server that begin with `incomplete`."""
    from admin.client.client import ApiError, Unreachable

    given: dict[str, Any] = {**context.find_root().params, **context.params}
    if given.get("ssh"):
        return []
    url, data = given.get("url") or DEFAULT_URL, given.get("data") or DEFAULT_DATA
    try:
        names = open_client(url, given.get("key"), data, COMPLETION_S).names(things, member)
    except (ApiError, Unreachable, typer.BadParameter):
        return []
    return [name for name in names if name.startswith(incomplete)]
