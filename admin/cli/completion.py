"""Shell completion of function names."""

from __future__ import annotations

from typing import Any, Final

import typer

from admin.cli.options import DEFAULT_DATA, DEFAULT_URL, open_client

COMPLETION_S: Final = 0.5
"""Max seconds for the server's answer, as the shell waits for it."""


def function_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a function's name from the server that the command line names so far.

    Returns no names if the server refuses or does not answer in time, and with --ssh.
    """
    from admin.client.client import ApiError, Unreachable

    given: dict[str, Any] = {**context.find_root().params, **context.params}
    if given.get("ssh"):
        return []
    url, data = given.get("url") or DEFAULT_URL, given.get("data") or DEFAULT_DATA
    try:
        names = open_client(url, given.get("key"), data, COMPLETION_S).function_names()
    except (ApiError, Unreachable, typer.BadParameter):
        return []
    return [name for name in names if name.startswith(incomplete)]
